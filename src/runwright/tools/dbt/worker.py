"""Main module of the dbt child process: `python -m runwright.tools.dbt.worker FD`.

Reads commands from a socket, one JSON message per line: the arguments of one invocation. Writes messages about each
node as they happen, and a last one about the invocation. dbt is imported at the first command and stays loaded.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import sys
from typing import Any

import msgspec


class DbtCommand(msgspec.Struct):
    """Arguments of one invocation of dbt."""

    args: list[str]


class DbtMessage(msgspec.Struct, omit_defaults=True):
    """Message to the parent about a node, or with `over` about the end of the invocation."""

    node: str | None = None
    started: bool = False
    line: str | None = None
    """Line for the output of the step."""
    status: str | None = None
    """Set when the node has ended: success, error, pass, warn, fail, skipped."""
    message: str | None = None
    seconds: float | None = None
    failures: int | None = None
    response: dict[str, Any] = {}
    over: bool = False
    trouble: str | None = None
    """Error of the invocation as a whole, beyond its nodes."""


_LOGGED_LEVELS = frozenset({"info", "warn", "error"})
_DOTS = re.compile(r" \.{3,} ")
"""dbt pads its lines with dots before the number of rows."""


class _ParentChannel:
    """Channel to the parent process."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._file = self._socket.makefile("rb")

    def read_command(self) -> DbtCommand | None:
        line = self._file.readline()
        return msgspec.json.decode(line, type=DbtCommand) if line else None

    def send(self, message: DbtMessage) -> None:
        self._socket.sendall(msgspec.json.encode(message) + b"\n")


def main(descriptor: int) -> None:
    parent = _ParentChannel(descriptor)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # dbt cancels its queries when it is interrupted
    while (command := parent.read_command()) is not None:
        failure: str | None = None
        try:
            failure = _invoke(command, parent)
        except BaseException as error:
            failure = f"{type(error).__name__}: {error}"
        parent.send(DbtMessage(over=True, trouble=failure))


def _invoke(command: DbtCommand, parent: _ParentChannel) -> str | None:
    """Run dbt once and return the error of the invocation, None if it succeeded."""
    os.environ.setdefault("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")
    from dbt.cli.main import dbtRunner  # pyright: ignore

    def on_event(event: Any) -> None:
        message = _to_message(event)
        if message is not None:
            parent.send(message)

    result: Any = dbtRunner(callbacks=[on_event]).invoke(command.args)  # pyright: ignore
    _close_connections()
    return None if result.exception is None else str(result.exception).strip()


def _close_connections() -> None:
    """Close connections that dbt leaves open. A DuckDB file that is open here is locked for other processes."""
    from dbt.adapters.factory import FACTORY  # pyright: ignore

    adapters: Any = FACTORY.adapters  # pyright: ignore
    for adapter in list(adapters.values()):
        with contextlib.suppress(Exception):
            adapter.cleanup_connections()
            getattr(adapter.connections, "close_all_connections", gc.collect)()
    gc.collect()


def _to_message(event: Any) -> DbtMessage | None:
    """Convert a dbt event; None for most, which are not about a node."""
    node = getattr(getattr(event.data, "node_info", None), "unique_id", "")
    if not node:
        return None
    if event.info.name == "NodeStart":
        return DbtMessage(node, started=True)
    if event.info.name == "NodeFinished":
        result = event.data.run_result
        return DbtMessage(
            node,
            status=str(result.status),
            message=str(result.message) or None,
            seconds=float(result.execution_time),
            failures=int(result.num_failures) if result.num_failures else None,
            response=_plain_values(result.adapter_response),
        )
    if event.info.level in _LOGGED_LEVELS and event.info.msg:
        return DbtMessage(node, line=_DOTS.sub(" ", str(event.info.msg)))
    return None


def _plain_values(response: Any) -> dict[str, Any]:
    """Return the plain values of the adapter's response."""
    with contextlib.suppress(Exception):
        return {str(key): value for key, value in dict(response).items() if isinstance(value, str | int | float)}
    return {}


if __name__ == "__main__":
    main(int(sys.argv[1]))
