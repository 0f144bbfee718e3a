"""The process that dbt runs in, from the inside: `python -m runwright.tools.dbt_worker FD`.

Orders come in over a socket, one JSON message a line: the arguments of one invocation. What dbt says of each node goes
back as it happens, and at the end how the invocation went. dbt is loaded with the first order, and stays loaded.
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


class Order(msgspec.Struct):
    """One invocation of dbt."""

    args: list[str]


class Word(msgspec.Struct, omit_defaults=True):
    """What the worker says: of a node, or with `over` of the invocation."""

    node: str | None = None
    started: bool = False
    line: str | None = None
    """For the step's log."""
    status: str | None = None
    """The node has ended: success, error, pass, warn, fail, skipped."""
    message: str | None = None
    seconds: float | None = None
    failures: int | None = None
    response: dict[str, Any] = {}
    over: bool = False
    trouble: str | None = None
    """Why the invocation as a whole failed, beyond its nodes."""


_TOLD = frozenset({"info", "warn", "error"})
_DOTS = re.compile(r" \.{3,} ")
"""dbt fills its lines with dots, up to the number of rows, which is what people want to see."""


class _Line:
    """The line to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._file = self._socket.makefile("rb")

    def order(self) -> Order | None:
        line = self._file.readline()
        return msgspec.json.decode(line, type=Order) if line else None

    def say(self, word: Word) -> None:
        self._socket.sendall(msgspec.json.encode(word) + b"\n")


def main(descriptor: int) -> None:
    parent = _Line(descriptor)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # dbt cancels its queries when it is interrupted
    while (order := parent.order()) is not None:
        trouble: str | None = None
        try:
            trouble = _invoke(order, parent)
        except BaseException as error:
            trouble = f"{type(error).__name__}: {error}"
        parent.say(Word(over=True, trouble=trouble))


def _invoke(order: Order, parent: _Line) -> str | None:
    """Run dbt once; why it failed as a whole, if it did."""
    os.environ.setdefault("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")
    from dbt.cli.main import dbtRunner  # pyright: ignore

    def hear(message: Any) -> None:
        word = _word(message)
        if word is not None:
            parent.say(word)

    result: Any = dbtRunner(callbacks=[hear]).invoke(order.args)  # pyright: ignore
    _let_go()
    return None if result.exception is None else str(result.exception).strip()


def _let_go() -> None:
    """dbt keeps databases open after it is done. A DuckDB file that is open here is closed to everybody else."""
    from dbt.adapters.factory import FACTORY  # pyright: ignore

    adapters: Any = FACTORY.adapters  # pyright: ignore
    for adapter in list(adapters.values()):
        with contextlib.suppress(Exception):
            adapter.cleanup_connections()
            getattr(adapter.connections, "close_all_connections", gc.collect)()
    gc.collect()


def _word(message: Any) -> Word | None:
    """What one of dbt's events means to us; most mean nothing."""
    node = getattr(getattr(message.data, "node_info", None), "unique_id", "")
    if not node:
        return None
    if message.info.name == "NodeStart":
        return Word(node, started=True)
    if message.info.name == "NodeFinished":
        result = message.data.run_result
        return Word(
            node,
            status=str(result.status),
            message=str(result.message) or None,
            seconds=float(result.execution_time),
            failures=int(result.num_failures) if result.num_failures else None,
            response=_plain(result.adapter_response),
        )
    if message.info.level in _TOLD and message.info.msg:
        return Word(node, line=_DOTS.sub(" ", str(message.info.msg)))
    return None


def _plain(response: Any) -> dict[str, Any]:
    """What the database said, as far as it is plain."""
    with contextlib.suppress(Exception):
        return {str(key): value for key, value in dict(response).items() if isinstance(value, str | int | float)}
    return {}


if __name__ == "__main__":
    main(int(sys.argv[1]))
