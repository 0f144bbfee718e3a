"""Queue of a dbt project: one child process that has dbt loaded, and the steps that wait for it.

dbt allows one invocation at a time in a process, and each has a fixed cost. So all nodes that are ready when the
process becomes free run in one invocation. Each step still ends individually, when dbt reports the end of its node.
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
from runwright.tools.base import StepContext, StepError
from runwright.tools.child_process import ChildProcess, start_error

from .worker import DbtCommand, DbtMessage

GATHER = 0.03
"""Seconds to wait for other steps that become ready at the same time."""

IDLE = 60.0
"""Seconds after which an idle process is stopped. It uses some hundred megabytes."""

_BLOCK = 256 * 1024
_GRACE = 10.0
_SUCCESSFUL = frozenset({"success", "pass", "warn", "no-op"})


class InvocationOptions(msgspec.Struct, frozen=True):
    """Options that jobs must have in common to share an invocation."""

    command: str
    flags: tuple[str, ...]


StoreFiles = Callable[[tuple[str, ...]], Awaitable[None]]
"""Stores files that dbt has written, as artifacts of the job that ended the invocation."""


class DbtJob:
    """A step that waits for dbt. If `node` is None, it runs all nodes of `select`, in an invocation of its own."""

    def __init__(
        self,
        options: InvocationOptions,
        select: tuple[str, ...],
        node: str | None,
        context: StepContext,
        store_files: StoreFiles,
    ) -> None:
        self.store_files = store_files
        self.options = options
        self.select = select
        self.node = node
        self.context = context
        self.done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.outcome: dict[str, Any] | StepError | None = None  # of the last node, whose step ends with the invocation
        self.ended_nodes: list[DbtMessage] = []

    def can_share_invocation(self, other: DbtJob) -> bool:
        are_nodes = self.node is not None and other.node is not None
        return are_nodes and self.options == other.options and self.context.run_id == other.context.run_id


class DbtProject:
    """Runs the jobs of one project and environment. Bound to one event loop."""

    def __init__(self, folder: str, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._waiting: list[DbtJob] = []
        self._job_added = asyncio.Event()
        self._group: list[DbtJob] = []  # jobs of the current invocation
        self._child: ChildProcess | None = None
        self._exit: asyncio.Task[int] | None = None
        self._channel: socket.socket | None = None
        self._received = bytearray()
        self._processor: asyncio.Task[None] | None = None
        self._printed = bytearray()  # end of the output of the process
        self._with_manifest: dict[str, None] = {}  # runs whose manifest is stored, in order
        self._grace = _GRACE

    async def run(self, job: DbtJob) -> dict[str, Any]:
        """Run a job and return its result."""
        self._waiting.append(job)
        self._job_added.set()
        if self._processor is None or self._processor.done():
            self._processor = asyncio.create_task(self._process_jobs())
        try:
            return await job.done
        except asyncio.CancelledError:
            await self._cancel(job)
            raise

    def _files_to_store(self, run_id: str) -> tuple[str, ...]:
        """Return the files to store: results of each invocation, and once per run the manifest, which is large."""
        is_first = run_id not in self._with_manifest
        self._with_manifest[run_id] = None
        while len(self._with_manifest) > 1000:
            del self._with_manifest[next(iter(self._with_manifest))]
        return ("run_results.json", "manifest.json") if is_first else ("run_results.json",)

    async def close(self) -> None:
        if self._processor is not None:
            self._processor.cancel()
            await asyncio.gather(self._processor, return_exceptions=True)
        await self._stop(0.0)

    async def _cancel(self, job: DbtJob) -> None:
        """Remove a cancelled job. If dbt is running it, stop dbt; other jobs of the invocation are queued again."""
        if job in self._waiting:
            self._waiting.remove(job)
        elif job in self._group:
            self._group.remove(job)
            self._grace = job.context.grace
            end, child = self._exit, self._child
            if end is None or child is None:
                return
            if not end.cancelling():  # a second cancellation would kill the process at once
                end.cancel()
            try:
                await asyncio.wait([end])
            except asyncio.CancelledError:
                child.kill()
                await asyncio.wait([end])

    async def _process_jobs(self) -> None:
        """Run queued jobs. Stop the process after IDLE seconds without a job."""
        while self._waiting:
            await asyncio.sleep(GATHER)
            if self._waiting:
                await self._run_batch(self._waiting[0])
            if not self._waiting:
                self._job_added.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE):
                        await self._job_added.wait()
            if not self._waiting:
                await self._stop(_GRACE)

    async def _run_batch(self, first: DbtJob) -> None:
        self._group = [job for job in self._waiting if job is first or job.can_share_invocation(first)]
        self._waiting = [job for job in self._waiting if job not in self._group]
        try:
            await self._invoke(first.options)
        except StepError as error:
            self._fail_batch(error)
        except Exception as error:
            self._fail_batch(StepError("DBT_FAILED", f"{type(error).__name__}: {error}"))
            await self._stop(0.0)  # its remaining messages must not be read as those of the next invocation

    async def _invoke(self, options: InvocationOptions) -> None:
        if self._child is None:
            self._start()
        assert self._channel is not None
        selected = list(dict.fromkeys(name for job in self._group for name in job.select))
        args = [options.command, "--no-use-colors", *options.flags]
        if any(job.node is not None for job in self._group):
            args += ["--indirect-selection", "empty"]  # a model's tests are steps of their own
        args += ["--select", *selected] if selected else []
        self._printed.clear()
        command = msgspec.json.encode(DbtCommand(args)) + b"\n"
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._channel, command)
        while (message := await self._next_message()) is not None:
            stopping = self._exit is not None and self._exit.cancelling() > 0
            if message.over and not stopping:
                await self._finish(message)
                return
            if message.over:
                break
            if not stopping or message.status in _SUCCESSFUL:  # dbt reports interrupted nodes as failed
                self._on_message(message)
        await self._on_process_lost()

    def _on_message(self, message: DbtMessage) -> None:
        for job in self._group:
            if job.node is None or job.node == message.node:
                self._apply(message, job)

    def _apply(self, message: DbtMessage, job: DbtJob) -> None:
        if message.line is not None:
            job.context.write("out", message.line.encode(errors="replace") + b"\n")
        if message.status is None:
            return
        job.ended_nodes.append(message)
        if job.node is None:
            return  # the job ends with the invocation
        outcome = _node_result(message) if message.status in _SUCCESSFUL else _node_error(message)
        if any(other is not job for other in self._group):
            self._end_job(job, outcome)
        else:
            job.outcome = outcome  # the last job waits for the files that dbt writes at the end

    def _end_job(self, job: DbtJob, outcome: dict[str, Any] | StepError) -> None:
        if job in self._group:  # else it was cancelled meanwhile
            self._group.remove(job)
        if job.done.done():
            return
        if isinstance(outcome, StepError):
            job.done.set_exception(outcome)
        else:
            job.done.set_result(outcome)

    async def _finish(self, end: DbtMessage) -> None:
        """End all remaining jobs of an invocation that has ended."""
        for job in list(self._group):
            if job.outcome is not None:
                await self._end_last_job(job, job.outcome)
            elif end.trouble is not None:
                self._end_job(job, StepError("DBT_FAILED", _one_line(end.trouble)))
            elif job.node is not None:
                self._end_job(
                    job,
                    StepError(
                        "DBT_NODE_NOT_FOUND",
                        f"Node {job.node} not found in the dbt project, or disabled. Import the manifest again.",
                        retryable=False,
                    ),
                )
            else:
                await self._end_selection(job)

    async def _end_last_job(self, job: DbtJob, outcome: dict[str, Any] | StepError) -> None:
        """Store dbt's files, before the next invocation overwrites them, then end the job."""
        try:
            await job.store_files(self._files_to_store(job.context.run_id))
        except RunwrightError as error:
            self._end_job(job, StepError(error.code, error.detail))
        else:
            self._end_job(job, outcome)

    async def _end_selection(self, job: DbtJob) -> None:
        failed = [node for node in job.ended_nodes if node.status not in _SUCCESSFUL]
        if failed:
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            error = _node_error(failed[0])
            await self._end_last_job(job, StepError(error.code, f"{failed[0].node}{more}: {error.message}"))
            return
        await self._end_last_job(job, {"nodes": {node.node: _node_result(node) for node in job.ended_nodes}})

    def _fail_batch(self, error: StepError) -> None:
        for job in list(self._group):
            self._end_job(job, error)

    # The process

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        argv = [sys.executable, "-m", "runwright.tools.dbt.worker", str(theirs.fileno())]
        with theirs:
            try:
                self._child = ChildProcess(
                    argv, env={**os.environ, **self._env}, pass_fds=[theirs.fileno()], write=self._on_printed
                )
            except (OSError, ValueError) as error:
                ours.close()
                raise start_error(error, argv, None) from None
        self._channel, self._received = ours, bytearray()
        self._exit = asyncio.create_task(self._child.finish(lambda: self._grace))

    def _on_printed(self, _stream: str, data: bytes) -> None:
        """Retain the end of the printed output, for the error if the process dies. dbt also reports it as events."""
        self._printed += data
        del self._printed[:-2000]

    async def _next_message(self) -> DbtMessage | None:
        """Return the next message of the process; None if it has ended."""
        assert self._channel is not None
        loop = asyncio.get_running_loop()
        while b"\n" not in self._received:
            try:
                data = await loop.sock_recv(self._channel, _BLOCK)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return msgspec.json.decode(line, type=DbtMessage)

    async def _on_process_lost(self) -> None:
        """Handle the end of the process during an invocation: queue its jobs again if we stopped it, else fail them."""
        was_stopped = self._exit is not None and (self._exit.cancelling() > 0 or self._exit.cancelled())
        await self._stop(_GRACE)
        unfinished, self._group = self._group, []
        if was_stopped:
            self._waiting = [*unfinished, *self._waiting]
            return
        lines = self._printed.decode(errors="replace").strip().splitlines()
        error = StepError("DBT_DIED", f"The dbt process died: {lines[-1] if lines else 'no output'}")
        for job in unfinished:
            if not job.done.done():
                job.done.set_exception(error)

    async def _stop(self, grace: float) -> None:
        """Stop the process: close its channel, which ends it, and terminate it if that takes over `grace` seconds."""
        end, self._exit, self._child = self._exit, None, None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if end is not None:
            done, _ = await asyncio.wait([end], timeout=grace or 1.0)
            if not done:
                end.cancel()
                await asyncio.wait([end], timeout=_GRACE)


def _node_result(message: DbtMessage) -> dict[str, Any]:
    result: dict[str, Any] = {"status": message.status, "seconds": message.seconds, "message": message.message}
    if message.failures is not None:
        result["failures"] = message.failures
    rows = message.response.get("rows_affected")
    if rows is not None and int(rows) >= 0:
        result["rowsAffected"] = int(rows)
    return result


def _node_error(message: DbtMessage) -> StepError:
    code = "DBT_TEST_FAILED" if message.status == "fail" else "DBT_NODE_FAILED"
    facts: dict[str, Any] = {} if message.failures is None else {"failures": message.failures}
    return StepError(code, _one_line(message.message or f"dbt status: {message.status}"), **facts)


def _one_line(text: str) -> str:
    """Return a message on one line, of at most 1,000 characters."""
    return " ".join(text.split())[:1000]
