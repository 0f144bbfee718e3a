"""Dispatch of steps to workers, on the side of the process that drives the run.

A step is offered once it is scheduled in the log, and started there when a worker claims it; only then does the worker
receive its assignment. The outcome that the worker reports is a fact like any other. A lost worker is replaced: the
step is offered again, and reports of the lost worker are rejected.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.plan import Step
from runwright.contract.refs import ErrorInfo
from runwright.core.decider import Decider
from runwright.core.graph.node import QueueOf, no_queue
from runwright.runtimes.executor.work import ABANDONED, CANCELLED, Outcome
from runwright.runtimes.facts import CheckpointRequested, Fact
from runwright.runtimes.services import RunServices
from runwright.tools.base import Tool

from . import task_queue
from .task_queue import KILL, STOP, StepAssignment, StepOutcome, TaskQueue, WorkerTask
from .worker_liveness import LostWorkerDetector

logger = logging.getLogger("runwright.runtimes")

DEFAULT_QUEUE = "default"
POLL = 0.5
"""Seconds between two polls of the task queue without a notification."""
SWEEP_EVERY = 60.0  # seconds
MAX_LOSSES = 3
"""Workers that may be lost during one attempt: the step itself may be the cause."""
KILL_TIME = 5.0  # seconds

Key = tuple[str, str, int]
Work = Callable[[], Awaitable[Any]]


def queues_of(workers: str, tools: dict[str, Tool]) -> QueueOf:
    """The steps that workers execute: `none`, those that name a queue (`named`), or `all` that can be."""
    if workers == "none":
        return no_queue

    def queue_of(step: Step) -> str | None:
        if getattr(tools.get(step.kind), "stays_here", False):
            return None
        return (step.dispatch or {}).get("queue") or (DEFAULT_QUEUE if workers == "all" else None)

    return queue_of


class DrivenRun(Protocol):
    """A run that this process drives, as the dispatcher needs it."""

    @property
    def log_extra(self) -> dict[str, Any]: ...
    @property
    def can_start_steps(self) -> bool: ...

    def report(self, fact: Fact) -> None: ...
    def is_running(self, path: str, attempt: int) -> bool: ...
    def is_offered(self, path: str, attempt: int) -> bool: ...
    def last_checkpoint(self, path: str) -> Any: ...
    def increment_engine_attempt(self) -> int: ...


class RemoteExecution:
    """A step that a worker executes, or will execute. Used on the event loop of the engine only."""

    def __init__(
        self, dispatcher: Dispatcher, key: Key, assignment: StepAssignment, done: Callable[[Outcome], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._done = done
        self.key = key
        self.assignment = assignment
        self.task: WorkerTask | None = None
        self.ended = False
        self._stop = 0

    def cancel(self, grace: float) -> None:
        if self._stop < STOP:
            self._request_stop(STOP)
            self._dispatcher.call_later(grace + KILL_TIME, self.kill)

    def kill(self) -> None:
        if self._stop < KILL:
            self._request_stop(KILL)
            self._dispatcher.call_later(KILL_TIME, self._abandon)

    @property
    def is_stopping(self) -> bool:
        return self._stop > 0

    def detach(self) -> None:
        """The worker continues; the process that drives the run next receives its outcome."""
        self.ended = True
        self._dispatcher.forget(self)

    def _request_stop(self, how: int) -> None:
        if self.ended:
            return
        self._stop = how
        if self.task is None or self.task.state == "OFFERED":
            self.finish(CANCELLED)  # no worker has it
        else:
            self._dispatcher.stop(self.task, how)

    def _abandon(self) -> None:
        if not self.ended:
            self.finish(ABANDONED)

    def finish(self, outcome: Outcome) -> None:
        if self.ended:
            return
        self.ended = True
        self._dispatcher.forget(self)
        self._done(outcome)


class TaskClaimed:
    """A worker has claimed a step: it starts, if it may start now."""

    def __init__(self, dispatcher: Dispatcher, task: WorkerTask) -> None:
        self._dispatcher = dispatcher
        self._task = task
        self._is_started = False

    def apply(self, decider: Decider) -> None:
        task = self._task
        is_current = self._dispatcher.is_claimed(task)  # not if another worker has claimed it, or it has started
        self._is_started = is_current and decider.claim(task.path, task.attempt, task.worker or "")

    def on_durable(self) -> None:
        if not self._is_started:
            self._dispatcher.refuse(self._task)

    def on_abandoned(self, error: RunwrightError) -> None:
        """Forget the claim: it is reported again, to this process or to the one that drives the run next."""
        del error
        self._dispatcher.unclaim(self._task)


class Dispatcher:
    def __init__(
        self, services: RunServices, queue: TaskQueue, owner: str, find_run: Callable[[str], DrivenRun | None]
    ) -> None:
        self._services = services
        self._queue = queue
        self._owner = owner
        self._find_run = find_run
        self._detector = LostWorkerDetector(services.clock, task_queue.LEASE_SECONDS)
        self._executions: dict[Key, RemoteExecution] = {}
        self._claims: dict[Key, WorkerTask] = {}  # until the start of the step is in the log
        self._checkpoints: set[int] = set()  # reports that are being appended
        self._work: dict[str, deque[Work]] = {}  # by run
        self._wake_event = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self._executions)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._services.call_later(seconds, call)

    # Offers

    def offer(self, run: RunIdentity, path: str, attempt: int, queue: str) -> None:
        self._enqueue_per_run(run.run_id, partial(self._offer, run, path, attempt, queue))

    async def _offer(self, run: RunIdentity, path: str, attempt: int, queue: str) -> None:
        task = await self._queue.offer(run, path, attempt, queue, self._owner)
        if task is not None:
            self._handle_task(task)

    def withdraw(self, run_id: str, path: str, attempt: int) -> None:
        self._enqueue_per_run(run_id, partial(self._queue.drop, run_id, path, attempt, self._owner))

    def hold(self, run_id: str) -> None:
        self._enqueue_per_run(run_id, partial(self._queue.hold, run_id, self._owner))

    def run_ended(self, run_id: str) -> None:
        self._enqueue_per_run(run_id, partial(self._queue.drop_all, run_id))

    # Running steps

    def start(
        self, run: RunIdentity, queue: str, assignment: StepAssignment, done: Callable[[Outcome], None]
    ) -> RemoteExecution:
        """The step has started, now or before a recovery: make sure that a worker has it, and wait for its outcome."""
        execution = RemoteExecution(self, (run.run_id, assignment.path, assignment.attempt), assignment, done)
        self._executions[execution.key] = execution
        task = self._claims.pop(execution.key, None)
        self._enqueue_per_run(run.run_id, partial(self._start, execution, run, queue, task))
        return execution

    async def _start(self, execution: RemoteExecution, run: RunIdentity, queue: str, task: WorkerTask | None) -> None:
        if task is None:
            assignment = execution.assignment
            task = await self._queue.offer(run, assignment.path, assignment.attempt, queue, self._owner)
            if task is None:
                return
        execution.task = task
        if task.state == "TAKEN":
            await self._assign(execution, task)
        elif task.state == "DONE":
            self._handle_task(task)

    async def _assign(self, execution: RemoteExecution, task: WorkerTask) -> None:
        execution.task = msgspec.structs.replace(task, state="STARTED")
        assignment, run = execution.assignment, self._find_run(task.run_id)
        if run is not None:  # an earlier worker may have saved a checkpoint
            assignment = msgspec.structs.replace(assignment, restored=run.last_checkpoint(assignment.path))
        if not await self._queue.start(task, assignment, self._owner):
            execution.task = msgspec.structs.replace(task, state="OFFERED")  # that worker is gone; another claims it

    def stop(self, task: WorkerTask, how: int) -> None:
        self._enqueue_per_run(task.run_id, partial(self._queue.stop, task.task_id, self._owner, how))

    def forget(self, execution: RemoteExecution) -> None:
        if self._executions.get(execution.key) is execution:
            del self._executions[execution.key]

    # The task queue

    def notify(self) -> None:
        self._wake_event.set()

    async def watch(self) -> None:
        """Handle what workers report, until cancelled."""
        self._services.log.store.subscribe(self.notify)
        clock = self._services.clock
        swept_at = looked_at = clock.monotonic()
        while True:
            self._wake_event.clear()
            try:
                await self._poll()
                if clock.monotonic() >= looked_at + POLL:
                    looked_at = clock.monotonic()
                    await self._find_lost_workers()
                if clock.monotonic() >= swept_at + SWEEP_EVERY:
                    swept_at = clock.monotonic()
                    await self._queue.delete_leftovers()
            except RunwrightError as error:
                logger.warning("Polling the task queue failed, retrying: %s", error)
            try:
                async with asyncio.timeout(POLL):
                    await self._wake_event.wait()
            except TimeoutError:
                pass

    async def _poll(self) -> None:
        for task in await self._queue.pending_changes(self._owner):
            self._handle_task(task)
        for report_no, run_id, path, attempt, body in await self._queue.pending_reports(self._owner):
            if report_no in self._checkpoints:
                continue
            run = self._find_run(run_id)
            if run is not None:
                self._checkpoints.add(report_no)
                run.report(CheckpointRequested(path, attempt, body, partial(self._on_checkpoint, report_no)))

    async def _find_lost_workers(self) -> None:
        for task in self._detector.find_lost(await self._queue.list_started(self._owner)):
            execution = self._executions.get(task.key)
            if execution is not None and self._is_current(task, execution):
                self._on_worker_lost(task, execution)

    def _on_checkpoint(self, report_no: int, error: Exception | None) -> None:
        problem = "" if error is None else getattr(error, "detail", str(error))
        self._services.spawn(self._acknowledge(report_no, problem))

    async def _acknowledge(self, report_no: int, problem: str) -> None:
        await self._retry_until_done(partial(self._queue.answer_report, report_no, problem))
        self._checkpoints.discard(report_no)

    def _handle_task(self, task: WorkerTask) -> None:
        execution = self._executions.get(task.key)
        if task.state == "DONE":
            self._on_done(task, execution)
        elif task.state == "TAKEN":
            self._on_claimed(task, execution)

    def _is_current(self, task: WorkerTask, execution: RemoteExecution) -> bool:
        return execution.task is None or (execution.task.lease_no, execution.task.state) == (task.lease_no, "STARTED")

    def _on_done(self, task: WorkerTask, execution: RemoteExecution | None) -> None:
        if execution is None:
            run = self._find_run(task.run_id)
            if run is not None and not run.is_running(task.path, task.attempt):
                self.withdraw(*task.key)  # its end is in the log
            return
        outcome = msgspec.json.decode(task.outcome or b"{}", type=StepOutcome)
        error, artifacts = outcome.error, tuple(outcome.artifacts)
        result = None if error is not None else msgspec.json.encode(outcome.result)
        execution.finish(Outcome(result, error, artifacts))

    def _on_claimed(self, task: WorkerTask, execution: RemoteExecution | None) -> None:
        if execution is not None:
            known = execution.task  # None while `_start` runs, which handles this worker too
            if known is not None and known.lease_no < task.lease_no:  # it was offered again
                execution.task = task
                self._enqueue_per_run(task.run_id, partial(self._assign, execution, task))
            return
        run = self._find_run(task.run_id)
        known = self._claims.get(task.key)
        if run is not None and (known is None or known.lease_no < task.lease_no):
            self._claims[task.key] = task
            run.report(TaskClaimed(self, task))

    def is_claimed(self, task: WorkerTask) -> bool:
        """Whether this claim waits for the start of its step to be in the log."""
        return self._claims.get(task.key) is task

    def unclaim(self, task: WorkerTask) -> None:
        if self.is_claimed(task):
            del self._claims[task.key]

    def cancel_claim(self, run_id: str, path: str, attempt: int) -> None:
        """The attempt ended before it was assigned: the worker that claimed it need not wait."""
        if self._claims.pop((run_id, path, attempt), None) is not None:
            self.withdraw(run_id, path, attempt)

    def refuse(self, task: WorkerTask) -> None:
        """The claimed step may not start, or not now."""
        if not self.is_claimed(task):
            return
        self.unclaim(task)
        run = self._find_run(task.run_id)
        if run is not None and run.is_offered(task.path, task.attempt):
            # A pause that kept the step from starting may be over; it must not stay held then.
            hold = not run.can_start_steps
            self._enqueue_per_run(task.run_id, partial(self._queue.requeue, task, self._owner, hold=hold))
        else:
            self.withdraw(*task.key)

    def _on_worker_lost(self, task: WorkerTask, execution: RemoteExecution) -> None:
        if execution.is_stopping:
            execution.finish(CANCELLED)
            return
        if task.losses + 1 >= MAX_LOSSES:
            message = f"{task.losses + 1} workers were lost during this attempt; the last was {task.worker}."
            self._enqueue_per_run(task.run_id, partial(self._queue.requeue, task, self._owner, hold=True, lost=True))
            execution.finish(Outcome(error=ErrorInfo("WORKER_LOST", message, retryable=True, category="system")))
            return
        run = self._find_run(task.run_id)
        extra = None if run is None else run.log_extra
        logger.warning("Run %s: worker %s was lost during %s", task.run_id, task.worker, task.path, extra=extra)
        execution.task = msgspec.structs.replace(task, state="OFFERED")
        if run is not None:
            engine_attempt = run.increment_engine_attempt()
            execution.assignment = msgspec.structs.replace(execution.assignment, engine_attempt=engine_attempt)
        self._enqueue_per_run(task.run_id, partial(self._queue.requeue, task, self._owner, lost=True))

    def _enqueue_per_run(self, run_id: str, work: Work) -> None:
        """Change the task queue after all earlier changes for the same run."""
        if (waiting := self._work.get(run_id)) is not None:
            waiting.append(work)
            return
        self._work[run_id] = waiting = deque([work])
        self._services.spawn(self._drain_queue(run_id, waiting))

    async def _drain_queue(self, run_id: str, waiting: deque[Work]) -> None:
        try:
            while waiting:
                await self._retry_until_done(waiting.popleft())
        finally:
            del self._work[run_id]

    async def _retry_until_done(self, work: Work) -> None:
        """Retry while the store is unavailable."""
        while True:
            try:
                await work()
                return
            except RunwrightError as error:
                if self._services.is_closing:
                    return
                logger.warning("Changing the task queue failed, retrying: %s", error)
                await self._services.clock.sleep(1.0)
