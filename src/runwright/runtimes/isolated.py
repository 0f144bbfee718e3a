"""The process of an isolated step, from the inside: `python -m runwright.runtimes.isolated FD`.

What to do comes in over a socket, and what became of it goes back the same way, one JSON message a line. Its
standard output and error are the step's own.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.results.encoding import encode_result
from runwright.tools.base import StepContext, StepError, enter_step

from .executor_work import CANCELLED, Outcome, failure, given, is_awaitable


class Order(msgspec.Struct):
    """What the parent asks for."""

    kind: str
    inputs: msgspec.Raw
    path: list[str]
    run_id: str
    step_id: str
    attempt: int
    engine_attempt: int
    restored: Any = None
    secrets: dict[str, str] = {}


class Report(msgspec.Struct, omit_defaults=True):
    """What the child says: a wish, such as a checkpoint, or how it ended."""

    what: Literal["checkpoint", "keep", "fetch", "result", "error"]
    body: msgspec.Raw
    artifacts: list[ArtifactRef] = []


class Answer(msgspec.Struct, omit_defaults=True):
    """What became of what the child asked for."""

    trouble: ErrorInfo | None = None
    result: Any = None


class _Parent:
    """The line to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)  # children of the step are not to hold it open
        self._file = self._socket.makefile("rb")
        self._turn = threading.Lock()  # the step may have threads

    def order(self) -> Order:
        return msgspec.json.decode(self._file.readline(), type=Order)

    def save(self, state: Any) -> None:
        self._ask("checkpoint", encode_result(state))

    def keep(self, source: Path | bytes, kind: str) -> ArtifactRef:
        if isinstance(source, Path):
            return self._keep(source.resolve(), kind)
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            file = Path(folder) / "artifact"
            file.write_bytes(source)
            return self._keep(file, kind)

    def _keep(self, file: Path, kind: str) -> ArtifactRef:
        return msgspec.convert(self._ask("keep", encode_result({"path": str(file), "kind": kind})), ArtifactRef)

    def fetch(self, ref: ArtifactRef | str, target: Path) -> int:
        return self._ask("fetch", encode_result({"ref": ref, "target": str(target.absolute())}))

    def _ask(self, what: Literal["checkpoint", "keep", "fetch"], body: bytes) -> Any:
        with self._turn:
            self.tell(Report(what, msgspec.Raw(body)))
            answer = msgspec.json.decode(self._file.readline(), type=Answer)
        if answer.trouble is not None:
            error = answer.trouble
            raise StepError(error.code or "", error.message or "", retryable=bool(error.retryable))
        return answer.result

    def tell(self, report: Report) -> None:
        self._socket.sendall(msgspec.json.encode(report) + b"\n")


def main(descriptor: int) -> None:
    parent = _Parent(descriptor)
    order = parent.order()
    sys.path[:] = order.path
    context = StepContext(
        run_id=order.run_id,
        step_id=order.step_id,
        attempt=order.attempt,
        engine_attempt=order.engine_attempt,
        restored=order.restored,
        secrets=order.secrets,
        write=_write,
        save=parent.save,
        artifacts=parent,
    )
    stop = _Stop(context)
    signal.signal(signal.SIGTERM, stop)
    enter_step(context)
    outcome = _carry_out(order, context, stop)
    sys.stdout.flush()
    if outcome.result is not None:
        parent.tell(Report("result", msgspec.Raw(outcome.result), list(outcome.artifacts)))
    else:
        parent.tell(Report("error", msgspec.Raw(msgspec.json.encode(outcome.error)), list(outcome.artifacts)))


class _Stop:
    """What SIGTERM does: set `cancelled`, and end a step that does not listen, so that its cleaning up still runs."""

    def __init__(self, context: StepContext) -> None:
        self.asked = False
        self.cancel: Callable[[], object] | None = None  # for a coroutine
        self._context = context

    def __call__(self, *_: object) -> None:
        listens = self._context.listens
        self.asked = True
        self._context.cancelled.set()
        if listens:
            return
        if self.cancel is None:
            raise SystemExit("asked to stop")
        self.cancel()


def _carry_out(order: Order, context: StepContext, stop: _Stop) -> Outcome:
    from runwright.tools.registry import all_tools, builtin_tools

    try:
        tool = builtin_tools().get(order.kind) or all_tools()[order.kind]
        value = tool.run(msgspec.json.decode(order.inputs, type=tool.inputs), context)
        if is_awaitable(value):
            value = _await(value, stop)
        return given(value)
    except BaseException as error:
        if stop.asked and isinstance(error, SystemExit):
            return CANCELLED
        return failure(error, context)


def _await(value: Any, stop: _Stop) -> Any:
    import asyncio  # only here: it is a third of what starting this process takes

    from runwright.tools.pooled import close_pooled

    async def finish() -> Any:
        task = asyncio.ensure_future(value)
        stop.cancel = task.cancel
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        try:
            return await task
        finally:
            await close_pooled()

    return asyncio.run(finish())


def _write(stream: str, data: bytes) -> None:
    file = sys.stderr if stream == "err" else sys.stdout
    file.flush()
    file.buffer.write(data)
    file.buffer.flush()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    main(int(sys.argv[1]))
