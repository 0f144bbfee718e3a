"""A dbt project at work: one process that has dbt loaded, and the steps that wait for it.

dbt allows one invocation at a time in a process, and each costs time whatever it does. So nodes that are ready together
go into one: those that wait when the process is free. Each node still begins and ends by itself, as dbt tells it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from runwright.contract.errors import RunwrightError

from .base import StepContext, StepError
from .dbt_worker import Order, Word
from .process import ChildProcess, start_trouble

GATHER = 0.03
"""Seconds to wait for others that become ready at the same time."""

IDLE = 60.0
"""Seconds for which a process is kept that nobody needs. It holds some hundred megabytes."""

_BLOCK = 256 * 1024
_GRACE = 10.0
_GOOD = frozenset({"success", "pass", "warn", "no-op"})


class Options(msgspec.Struct, frozen=True):
    """What invocations must have in common to be one."""

    command: str
    flags: tuple[str, ...]


Keep = Callable[[tuple[str, ...]], Awaitable[None]]
"""Keeps files that dbt has written, as artifacts of the job that ended the invocation."""


class Job:
    """A step that waits for dbt. `node` is None where it is whatever `select` says, and then it runs alone."""

    def __init__(
        self, options: Options, select: tuple[str, ...], node: str | None, context: StepContext, keep: Keep
    ) -> None:
        self.keep = keep
        self.options = options
        self.select = select
        self.node = node
        self.context = context
        self.done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.outcome: dict[str, Any] | StepError | None = None  # of the last node, which ends with its invocation
        self.words: list[Word] = []

    def fits(self, other: Job) -> bool:
        together = self.node is not None and other.node is not None
        return together and self.options == other.options and self.context.run_id == other.context.run_id


class DbtProject:
    """Belongs to one event loop."""

    def __init__(self, folder: str, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._waiting: list[Job] = []
        self._news = asyncio.Event()  # there may be more to do
        self._group: list[Job] = []
        self._child: ChildProcess | None = None
        self._end: asyncio.Task[int] | None = None
        self._channel: socket.socket | None = None
        self._rest = bytearray()
        self._work: asyncio.Task[None] | None = None
        self._last_words = bytearray()
        self._seen: dict[str, None] = {}  # runs whose manifest is kept
        self._grace = _GRACE

    async def run(self, job: Job) -> dict[str, Any]:
        """Have dbt do it."""
        self._waiting.append(job)
        self._news.set()
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._carry_on())
        try:
            return await job.done
        except asyncio.CancelledError:
            await self._forget(job)
            raise

    def _files(self, run_id: str) -> tuple[str, ...]:
        """Each invocation has results of its own; the manifest is large and much the same, so a run keeps it once."""
        first = run_id not in self._seen
        self._seen[run_id] = None
        while len(self._seen) > 1000:
            del self._seen[next(iter(self._seen))]
        return ("run_results.json", "manifest.json") if first else ("run_results.json",)

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        await self._stop(0.0)

    async def _forget(self, job: Job) -> None:
        """Nobody wants it any more. If dbt is at it, dbt is stopped; others in the same invocation are begun anew."""
        if job in self._waiting:
            self._waiting.remove(job)
        elif job in self._group:
            self._group.remove(job)
            self._grace = job.context.grace
            end, child = self._end, self._child
            if end is None or child is None:
                return
            if not end.cancelling():  # a second time would mean that there is no more patience
                end.cancel()
            try:
                await asyncio.wait([end])
            except asyncio.CancelledError:
                child.kill()
                await asyncio.wait([end])

    async def _carry_on(self) -> None:
        """Do what there is to do. A process that nobody has needed for a while is let go."""
        while self._waiting:
            await asyncio.sleep(GATHER)
            if self._waiting:
                await self._do(self._waiting[0])
            if not self._waiting:
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE):
                        await self._news.wait()
            if not self._waiting:
                await self._stop(_GRACE)

    async def _do(self, first: Job) -> None:
        self._group = [job for job in self._waiting if job is first or job.fits(first)]
        self._waiting = [job for job in self._waiting if job not in self._group]
        try:
            await self._invoke(first.options)
        except StepError as error:
            self._fail(error)
        except Exception as error:
            self._fail(StepError("DBT_FAILED", f"{type(error).__name__}: {error}"))
            await self._stop(0.0)  # whatever it still says must not be taken for words of the next invocation

    async def _invoke(self, options: Options) -> None:
        if self._child is None:
            self._start()
        assert self._channel is not None
        selected = list(dict.fromkeys(name for job in self._group for name in job.select))
        args = [options.command, "--no-use-colors", *options.flags]
        if any(job.node is not None for job in self._group):
            args += ["--indirect-selection", "empty"]  # a model's tests are steps of their own
        args += ["--select", *selected] if selected else []
        self._last_words.clear()
        order = msgspec.json.encode(Order(args)) + b"\n"
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._channel, order)
        while (word := await self._next_word()) is not None:
            stopping = self._end is not None and self._end.cancelling() > 0
            if word.over and not stopping:
                await self._finish(word)
                return
            if word.over:
                break
            if not stopping or word.status in _GOOD:  # dbt calls what we stop a failure
                self._heed(word)
        await self._lost()

    def _heed(self, word: Word) -> None:
        for job in self._group:
            if job.node is None or job.node == word.node:
                self._tell(job, word)

    def _tell(self, job: Job, word: Word) -> None:
        if word.line is not None:
            job.context.write("out", word.line.encode(errors="replace") + b"\n")
        if word.status is None:
            return
        job.words.append(word)
        if job.node is None:
            return  # it ends with the invocation
        outcome = _node_result(word) if word.status in _GOOD else _failure(word)
        if any(other is not job for other in self._group):
            self._end_job(job, outcome)
        else:
            job.outcome = outcome  # the last: it waits for the files that dbt writes at the end

    def _end_job(self, job: Job, outcome: dict[str, Any] | StepError) -> None:
        if job in self._group:  # it may have been given up meanwhile
            self._group.remove(job)
        if job.done.done():
            return
        if isinstance(outcome, StepError):
            job.done.set_exception(outcome)
        else:
            job.done.set_result(outcome)

    async def _finish(self, over: Word) -> None:
        """The invocation has ended: so has everything in it."""
        for job in list(self._group):
            if job.outcome is not None:
                await self._end_last(job, job.outcome)
            elif over.trouble is not None:
                self._end_job(job, StepError("DBT_FAILED", _short(over.trouble)))
            elif job.node is not None:
                self._end_job(
                    job,
                    StepError(
                        "DBT_NODE_NOT_FOUND",
                        f"dbt did not run {job.node}: the project has no such node, or it is disabled. "
                        "Import the manifest again.",
                        retryable=False,
                    ),
                )
            else:
                await self._end_selection(job)

    async def _end_last(self, job: Job, outcome: dict[str, Any] | StepError) -> None:
        """Before the next invocation, which would write over dbt's files."""
        try:
            await job.keep(self._files(job.context.run_id))
        except RunwrightError as error:
            self._end_job(job, StepError(error.code, error.detail))
        else:
            self._end_job(job, outcome)

    async def _end_selection(self, job: Job) -> None:
        bad = [word for word in job.words if word.status not in _GOOD]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            error = _failure(bad[0])
            await self._end_last(job, StepError(error.code, f"{bad[0].node}{more}: {error.message}"))
            return
        await self._end_last(job, {"nodes": {word.node: _node_result(word) for word in job.words}})

    def _fail(self, error: StepError) -> None:
        for job in list(self._group):
            self._end_job(job, error)

    # The process

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        argv = [sys.executable, "-m", "runwright.tools.dbt_worker", str(theirs.fileno())]
        with theirs:
            try:
                self._child = ChildProcess(
                    argv, env={**os.environ, **self._env}, pass_fds=[theirs.fileno()], write=self._overheard
                )
            except (OSError, ValueError) as error:
                ours.close()
                raise start_trouble(error, argv, None) from None
        self._channel, self._rest = ours, bytearray()
        self._end = asyncio.create_task(self._child.finish(lambda: self._grace))

    def _overheard(self, _stream: str, data: bytes) -> None:
        """What dbt prints is also told as events; the end of it is kept, should the process die."""
        self._last_words += data
        del self._last_words[:-2000]

    async def _next_word(self) -> Word | None:
        """The next message; None once the process is gone."""
        assert self._channel is not None
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest:
            try:
                data = await loop.sock_recv(self._channel, _BLOCK)
            except ConnectionError:
                return None
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return msgspec.json.decode(line, type=Word)

    async def _lost(self) -> None:
        """The process ended in the middle. What was not asked to stop is begun anew, or fails if dbt died by itself."""
        asked = self._end is not None and (self._end.cancelling() > 0 or self._end.cancelled())
        await self._stop(_GRACE)
        unfinished, self._group = self._group, []
        if asked:
            self._waiting = [*unfinished, *self._waiting]
            return
        said = self._last_words.decode(errors="replace").strip().splitlines()
        error = StepError("DBT_DIED", f"dbt's process ended before it was done: {said[-1] if said else 'no word'}")
        for job in unfinished:
            if not job.done.done():
                job.done.set_exception(error)

    async def _stop(self, grace: float) -> None:
        """Be rid of the process."""
        end, self._end, self._child = self._end, None, None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()  # it ends by itself when nobody can give it orders
        if end is not None:
            done, _ = await asyncio.wait([end], timeout=grace or 1.0)
            if not done:
                end.cancel()
                await asyncio.wait([end], timeout=_GRACE)


def _node_result(word: Word) -> dict[str, Any]:
    result: dict[str, Any] = {"status": word.status, "seconds": word.seconds, "message": word.message}
    if word.failures is not None:
        result["failures"] = word.failures
    rows = word.response.get("rows_affected")
    if rows is not None and int(rows) >= 0:
        result["rowsAffected"] = int(rows)
    return result


def _failure(word: Word) -> StepError:
    code = "DBT_TEST_FAILED" if word.status == "fail" else "DBT_NODE_FAILED"
    facts: dict[str, Any] = {} if word.failures is None else {"failures": word.failures}
    return StepError(code, _short(word.message or f"dbt says: {word.status}"), **facts)


def _short(text: str) -> str:
    """A message on one line, as people can read it."""
    return " ".join(text.split())[:1000]
