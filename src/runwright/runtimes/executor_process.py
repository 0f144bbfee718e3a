"""The process of an isolated step, from the outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from runwright.contract.refs import ErrorInfo
from runwright.results.encoding import encode_result
from runwright.tools.base import RAISED, StepError
from runwright.tools.process import ChildProcess, signal_name, start_trouble

from .executor_work import Outcome, Work, failure
from .isolated import Answer, Order, Report

_BLOCK = 256 * 1024
_LAST_WORDS = 1.0


async def converse(work: Work) -> Outcome:
    """Run a step in a process of its own. Cancelled, it stops that process."""
    return await _Isolated(work).run()


class _Isolated:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._report: Report | None = None
        self._impatience: asyncio.TimerHandle | None = None

    async def run(self) -> Outcome:
        order = msgspec.json.encode(self._order()) + b"\n"
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                child = self._start(theirs)
            talk = asyncio.create_task(self._talk(ours, order, child))
            try:
                status = await child.finish(lambda: self._work.context.grace)
            except asyncio.CancelledError:
                # One that stopped in time and still gave a result has given it.
                await _settle(talk)
                if self._report is None:
                    raise
                status = 0
            await _settle(talk)
        finally:
            ours.close()
            if self._impatience is not None:
                self._impatience.cancel()  # its number may be another's by then
        return self._outcome(status)

    def _order(self) -> Order:
        work, context = self._work, self._work.context
        try:
            inputs = msgspec.Raw(encode_result(work.inputs))
        except Exception as error:
            raise StepError("INVALID_INPUT", f"The inputs cannot be sent: {error}", retryable=False) from None
        return Order(
            kind=work.tool.kind,
            inputs=inputs,
            path=[entry or os.getcwd() for entry in sys.path],
            run_id=context.run_id,
            step_id=context.step_id,
            attempt=context.attempt,
            engine_attempt=context.engine_attempt,
            restored=context.restored,
            secrets=dict(context.secrets),
        )

    def _start(self, theirs: socket.socket) -> ChildProcess:
        argv = [sys.executable, "-m", "runwright.runtimes.isolated", str(theirs.fileno())]
        env = {**os.environ, **self._work.context.environment()}
        try:
            return ChildProcess(argv, env=env, pass_fds=[theirs.fileno()], write=self._work.context.write)
        except (OSError, ValueError) as error:
            raise start_trouble(error, argv, None) from None

    async def _talk(self, channel: socket.socket, order: bytes, child: ChildProcess) -> None:
        """Hand over the order, answer checkpoints, keep the report. Ends when the child does."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(channel, order)
            rest = bytearray()
            while data := await loop.sock_recv(channel, _BLOCK):
                rest += data
                if b"\n" not in data:
                    continue
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    report = msgspec.json.decode(line, type=Report)
                    if report.what in ("result", "error"):
                        self._report = report
                        self._impatience = loop.call_later(_LAST_WORDS, child.kill)  # threads may keep it
                        continue
                    answer = await self._do(partial(self._asked, report))
                    await loop.sock_sendall(channel, msgspec.json.encode(answer) + b"\n")

    def _asked(self, report: Report) -> Answer:
        """What the step asks of us while it runs."""
        context, body = self._work.context, msgspec.json.decode(report.body)
        if report.what == "checkpoint":
            context.checkpoint(body)
            return Answer()
        if report.what == "keep":
            return Answer(result=context.keep(body["path"], body["kind"]))
        return Answer(result=context.fetch(body["ref"], body["target"]))

    async def _do(self, work: Callable[[], Answer]) -> Answer:
        """In a thread: it waits for a store."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Answer] = loop.create_future()

        def do() -> None:
            try:
                answer = work()
            except BaseException as error:
                answer = Answer(failure(error, self._work.context).error or ErrorInfo(RAISED))
            with contextlib.suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(lambda: done.done() or done.set_result(answer))

        threading.Thread(target=do, name="for an isolated step", daemon=True).start()
        return await done

    def _outcome(self, status: int) -> Outcome:
        report = self._report
        if report is not None and report.what == "result":
            return Outcome(bytes(report.body), artifacts=tuple(report.artifacts))
        if report is not None:
            error = msgspec.json.decode(report.body, type=ErrorInfo)
            return Outcome(error=error, artifacts=tuple(report.artifacts))
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with exit code {status}"
        raise StepError("PROCESS_DIED", f"The process of the step {how} before it gave a result.")


async def _settle(talk: asyncio.Task[None]) -> None:
    """What the child said last is still on its way."""
    done, _ = await asyncio.wait([talk], timeout=_LAST_WORDS)
    if not done:
        talk.cancel()
    elif not talk.cancelled():
        talk.exception()  # the step wrote to our channel: it gave no result that can be read
