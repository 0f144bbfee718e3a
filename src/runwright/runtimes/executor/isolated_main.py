"""Child side of an isolated step: `python -m runwright.runtimes.executor.isolated_main FD`.

The request arrives over the socket FD and the outcome is sent back over it. Standard output and standard error
belong to the step.

This module must stay cheap to import: asyncio, a third of the start-up time, is imported only for coroutines.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from runwright.contract.refs import ArtifactRef
from runwright.storage.json_encoding import encode_result
from runwright.tools.base import StepContext, StepError, enter_step

from .isolated_messages import ChildMessage, ParentReply, RequestKind, StepRequest
from .work import CANCELLED, Outcome, is_awaitable, outcome_of_error, outcome_of_value

MAX_TEXT_LENGTH = 64 * 1024


class _Parent:
    """The connection to the parent process."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)  # Child processes of the step must not keep it open.
        self._file = self._socket.makefile("rb")
        self._request_lock = threading.Lock()  # A step may send requests from several threads.

    def read_step(self) -> StepRequest:
        return msgspec.json.decode(self._file.readline(), type=StepRequest)

    def save(self, state: Any) -> None:
        self._request("checkpoint", encode_result(state))

    def store(self, source: Path | bytes, kind: str) -> ArtifactRef:
        if isinstance(source, Path):
            return self._store_file(source.resolve(), kind)
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            file = Path(folder) / "artifact"
            file.write_bytes(source)
            return self._store_file(file, kind)

    def _store_file(self, file: Path, kind: str) -> ArtifactRef:
        return msgspec.convert(self._request("store", encode_result({"path": str(file), "kind": kind})), ArtifactRef)

    def fetch(self, ref: ArtifactRef | str, target: Path) -> int:
        return self._request("fetch", encode_result({"ref": ref, "target": str(target.absolute())}))

    def _request(self, kind: RequestKind, body: bytes) -> Any:
        with self._request_lock:
            self.send(ChildMessage(kind, msgspec.Raw(body)))
            reply = msgspec.json.decode(self._file.readline(), type=ParentReply)
        error = reply.error
        if error is not None:
            raise StepError(error.code or "", error.message or "", retryable=bool(error.retryable))
        return reply.result

    def send(self, message: ChildMessage) -> None:
        self._socket.sendall(msgspec.json.encode(message) + b"\n")


def main(descriptor: int) -> None:
    parent = _Parent(descriptor)
    request = parent.read_step()
    sys.path[:] = request.sys_path
    context = StepContext(
        run_id=request.run_id,
        step_id=request.step_id,
        attempt=request.attempt,
        engine_attempt=request.engine_attempt,
        restored=request.restored,
        secrets=request.secrets,
        write=_write,
        save=parent.save,
        artifacts=parent,
    )
    context.max_text = MAX_TEXT_LENGTH  # the parent, which knows the secrets, masks and shortens
    on_sigterm = _StopHandler(context)
    signal.signal(signal.SIGTERM, on_sigterm)
    enter_step(context)
    outcome = _run_step(request, context, on_sigterm)
    sys.stdout.flush()
    if outcome.result is not None:
        parent.send(ChildMessage("result", msgspec.Raw(outcome.result), list(outcome.artifacts)))
    else:
        parent.send(ChildMessage("error", msgspec.Raw(msgspec.json.encode(outcome.error)), list(outcome.artifacts)))


class _StopHandler:
    """Handle SIGTERM: set `cancelled`, and interrupt a step that does not check it, so that its cleanup still runs."""

    def __init__(self, context: StepContext) -> None:
        self.was_called = False
        self.cancel: Callable[[], object] | None = None  # set while a coroutine runs
        self._context = context

    def __call__(self, *_: object) -> None:
        listens = self._context.listens
        self.was_called = True
        self._context.cancelled.set()
        if listens:
            return
        if self.cancel is None:
            raise SystemExit("asked to stop")
        self.cancel()


def _run_step(request: StepRequest, context: StepContext, on_sigterm: _StopHandler) -> Outcome:
    from runwright.tools.registry import all_tools, builtin_tools

    try:
        tool = builtin_tools().get(request.kind) or all_tools()[request.kind]
        value = tool.run(msgspec.json.decode(request.inputs, type=tool.inputs), context)
        if is_awaitable(value):
            value = _await(value, on_sigterm)
        return outcome_of_value(value)
    except BaseException as error:
        if on_sigterm.was_called and isinstance(error, SystemExit):
            return CANCELLED
        return outcome_of_error(error, context)


def _await(value: Any, on_sigterm: _StopHandler) -> Any:
    import asyncio

    from runwright.tools.connection_cache import close_cached

    async def finish() -> Any:
        task = asyncio.ensure_future(value)
        on_sigterm.cancel = task.cancel
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
        try:
            return await task
        finally:
            await close_cached()

    return asyncio.run(finish())


def _write(stream: str, data: bytes) -> None:
    file = sys.stderr if stream == "err" else sys.stdout
    file.flush()
    file.buffer.write(data)
    file.buffer.flush()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    main(int(sys.argv[1]))
