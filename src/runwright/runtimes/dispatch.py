"""Steps that are left to workers, from the side of whoever drives their run.

A step is offered once it is scheduled in the log, and started there when a worker takes it; only then does the worker
get its order. What the worker says became of it is a fact like any other. A worker that is lost is replaced: the step
is offered again, and what the lost one may still say is not heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract.errors import RunwrightError
from runwright.contract.plan import Step
from runwright.contract.refs import ErrorInfo
from runwright.contract.transitions import RunStatus
from runwright.core.decide import Decider
from runwright.core.handing import hand_over
from runwright.core.node import QueueOf, nowhere
from runwright.tools.base import Tool

from .executor_work import ABANDONED, CANCELLED, Outcome
from .facts import CheckpointAsked
from .tasks import KILL, STOP, StepOrder, StepOutcome, Task, TaskTable

if TYPE_CHECKING:
    from .driver import RunDriver
    from .engine import Engine

logger = logging.getLogger("runwright.engine")

DEFAULT_QUEUE = "default"
LOOK_EVERY = 0.5
"""Seconds between two looks at the table, should no bell ring."""
SWEEP_EVERY = 60.0
MOST_LOSSES = 3
"""Workers that may be lost over one attempt: perhaps it is the step that kills them."""
KILL_TIME = 5.0

Key = tuple[str, str, int]
Work = Callable[[], Awaitable[Any]]


def queues_of(workers: str, tools: dict[str, Tool]) -> QueueOf:
    """Which steps are left to workers: `none`, those that name a queue (`named`), or `all` that can be."""
    if workers == "none":
        return nowhere

    def queue_of(step: Step) -> str | None:
        if getattr(tools.get(step.kind), "stays_here", False):
            return None
        return (step.dispatch or {}).get("queue") or (DEFAULT_QUEUE if workers == "all" else None)

    return queue_of


class RemoteExecution:
    """A step that a worker carries out, or will. Belongs to the driver's loop."""

    def __init__(self, dispatch: Dispatch, key: Key, order: StepOrder, done: Callable[[Outcome], None]) -> None:
        self._dispatch = dispatch
        self._done = done
        self.key = key
        self.order = order
        self.task: Task | None = None
        self.ended = False
        self._stop = 0

    def cancel(self, grace: float) -> None:
        if self._stop < STOP:
            self._ask_to_stop(STOP)
            self._dispatch.later(grace + KILL_TIME, self.kill)

    def kill(self) -> None:
        if self._stop < KILL:
            self._ask_to_stop(KILL)
            self._dispatch.later(KILL_TIME, self._give_up)

    @property
    def is_stopping(self) -> bool:
        return self._stop > 0

    def let_go(self) -> None:
        """The worker goes on; whoever drives the run next hears of its end."""
        self.ended = True
        self._dispatch.forget(self)

    def _ask_to_stop(self, how: int) -> None:
        if self.ended:
            return
        self._stop = how
        if self.task is None or self.task.state == "OFFERED":
            self.finish(CANCELLED)  # nobody has it
        else:
            self._dispatch.tell_to_stop(self.task, how)

    def _give_up(self) -> None:
        if not self.ended:
            self.finish(ABANDONED)

    def finish(self, outcome: Outcome) -> None:
        if self.ended:
            return
        self.ended = True
        self._dispatch.forget(self)
        self._done(outcome)


class Taken:
    """A worker has taken a step: a fact, and the step's start if it may start now."""

    def __init__(self, dispatch: Dispatch, task: Task) -> None:
        self._dispatch = dispatch
        self._task = task
        self._handed = False

    def apply(self, decider: Decider) -> None:
        task = self._task
        is_so = self._dispatch.is_taken(task)  # perhaps another has it meanwhile, or it has begun
        self._handed = is_so and hand_over(decider, task.path, task.attempt, task.worker or "")

    def durable(self) -> None:
        if not self._handed:
            self._dispatch.refuse(self._task)

    def give_up(self, error: RunwrightError) -> None:
        """The store, or another driver, has the say; whoever drives the run next is told again."""
        del error
        self._dispatch.untake(self._task)


class Dispatch:
    def __init__(self, engine: Engine, table: TaskTable) -> None:
        self.engine = engine
        self._table = table
        self._live: dict[Key, RemoteExecution] = {}
        self._taken: dict[Key, Task] = {}  # until their start is in the log
        self._asked: set[int] = set()  # checkpoints under way
        self._turns: dict[str, deque[Work]] = {}
        self._bell = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self._live)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.engine.alarms.set(self.engine.clock.monotonic() + seconds, call)

    # Offers

    def offer(self, driver: RunDriver, path: str, attempt: int, queue: str) -> None:
        self._in_turn(driver.run.run_id, partial(self._offer, driver, path, attempt, queue))

    async def _offer(self, driver: RunDriver, path: str, attempt: int, queue: str) -> None:
        task = await self._table.offer(driver.run, path, attempt, queue, self.engine.owner)
        self._see_to_task(task)

    def withdraw(self, run_id: str, path: str, attempt: int) -> None:
        self._in_turn(run_id, partial(self._table.drop, run_id, path, attempt))

    def hold(self, run_id: str) -> None:
        self._in_turn(run_id, partial(self._table.hold, run_id))

    def run_ended(self, run_id: str) -> None:
        self._in_turn(run_id, partial(self._table.drop_all, run_id))

    # Steps under way

    def start(
        self, driver: RunDriver, queue: str, order: StepOrder, done: Callable[[Outcome], None]
    ) -> RemoteExecution:
        """The step has started, now or in an earlier life of its run: see that a worker has it, and wait for it."""
        execution = RemoteExecution(self, (order.run_id, order.path, order.attempt), order, done)
        self._live[execution.key] = execution
        task = self._taken.pop(execution.key, None)
        self._in_turn(order.run_id, partial(self._begin, execution, driver, queue, task))
        return execution

    async def _begin(self, execution: RemoteExecution, driver: RunDriver, queue: str, task: Task | None) -> None:
        if task is None:
            task = await self._table.offer(
                driver.run, execution.order.path, execution.order.attempt, queue, self.engine.owner
            )
        execution.task = task
        if task.state == "TAKEN":
            await self._give_order(execution, task)
        elif task.state == "DONE":
            self._see_to_task(task)

    async def _give_order(self, execution: RemoteExecution, task: Task) -> None:
        execution.task = msgspec.structs.replace(task, state="STARTED")
        order, driver = execution.order, self.engine.driver(task.run_id)
        if driver is not None:  # whoever had it before may have kept a mark of progress
            order = msgspec.structs.replace(order, restored=driver.launcher.restored(order.path))
        if not await self._table.start(task, order):
            execution.task = msgspec.structs.replace(task, state="OFFERED")  # that worker is gone; another comes

    def tell_to_stop(self, task: Task, how: int) -> None:
        self._in_turn(task.run_id, partial(self._table.stop, task.task_id, how))

    def forget(self, execution: RemoteExecution) -> None:
        if self._live.get(execution.key) is execution:
            del self._live[execution.key]

    # The table

    def ring(self) -> None:
        self._bell.set()

    async def watch(self) -> None:
        """See to what workers did, for ever."""
        self.engine.log.on_ring(self.ring)
        clock = self.engine.clock
        swept_at = clock.monotonic()
        while True:
            self._bell.clear()
            try:
                await self._look()
                if clock.monotonic() >= swept_at + SWEEP_EVERY:
                    swept_at = clock.monotonic()
                    await self._table.sweep()
            except RunwrightError as error:
                logger.warning("Workers wait: their table cannot be read for now: %s", error)
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._bell.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        owner = self.engine.owner
        for task in await self._table.to_see_to(owner):
            self._see_to_task(task)
        for report_no, run_id, path, attempt, body in await self._table.reports(owner):
            if report_no in self._asked:
                continue
            driver = self.engine.driver(run_id)
            if driver is not None:
                self._asked.add(report_no)
                driver.tell(CheckpointAsked(path, attempt, body, partial(self._checkpointed, report_no)))

    def _checkpointed(self, report_no: int, error: Exception | None) -> None:
        trouble = "" if error is None else getattr(error, "detail", str(error))
        self.engine.do(self._answer(report_no, trouble))

    async def _answer(self, report_no: int, trouble: str) -> None:
        await self._keep_trying(partial(self._table.answer, report_no, trouble))
        self._asked.discard(report_no)

    def _see_to_task(self, task: Task) -> None:
        execution = self._live.get(task.key)
        if task.state == "DONE":
            self._done(task, execution)
        elif task.state == "TAKEN":
            self._was_taken(task, execution)
        elif task.state == "STARTED" and execution is not None and self._is_news(task, execution):
            self._was_lost(task, execution)

    def _is_news(self, task: Task, execution: RemoteExecution) -> bool:
        return execution.task is None or (execution.task.lease_no, execution.task.state) == (task.lease_no, "STARTED")

    def _done(self, task: Task, execution: RemoteExecution | None) -> None:
        if execution is None:
            driver = self.engine.driver(task.run_id)
            if driver is not None and not driver.launcher.is_at_work(task.path, task.attempt):
                self.withdraw(*task.key)  # its end is in the log
            return
        outcome = msgspec.json.decode(task.outcome or b"{}", type=StepOutcome)
        error, artifacts = outcome.error, tuple(outcome.artifacts)
        result = None if error is not None else msgspec.json.encode(outcome.result)
        execution.finish(Outcome(result, error, artifacts))

    def _was_taken(self, task: Task, execution: RemoteExecution | None) -> None:
        if execution is not None:
            known = execution.task  # None while it begins, which sees to this worker too
            if known is not None and known.lease_no < task.lease_no:  # it was on offer again
                execution.task = task
                self._in_turn(task.run_id, partial(self._give_order, execution, task))
            return
        driver = self.engine.driver(task.run_id)
        known = self._taken.get(task.key)
        if driver is not None and (known is None or known.lease_no < task.lease_no):
            self._taken[task.key] = task
            driver.tell(Taken(self, task))

    def is_taken(self, task: Task) -> bool:
        """Whether it waits for its start to be in the log, with this worker."""
        return self._taken.get(task.key) is task

    def untake(self, task: Task) -> None:
        if self.is_taken(task):
            del self._taken[task.key]

    def never_mind(self, run_id: str, path: str, attempt: int) -> None:
        """It ended before it could be ordered: whoever took it need not wait."""
        if self._taken.pop((run_id, path, attempt), None) is not None:
            self.withdraw(run_id, path, attempt)

    def refuse(self, task: Task) -> None:
        """It may not start, or not now."""
        if not self.is_taken(task):
            return
        self.untake(task)
        driver = self.engine.driver(task.run_id)
        if driver is not None and driver.launcher.is_on_offer(task.path, task.attempt):
            # A pause that kept it from starting may be over by now, and nobody would let go of it again.
            hold = driver.status is not RunStatus.RUNNING or driver.decider.stop is not None
            self._in_turn(task.run_id, partial(self._table.put_back, task, hold=hold))
        else:
            self.withdraw(*task.key)

    def _was_lost(self, task: Task, execution: RemoteExecution) -> None:
        if execution.is_stopping:
            execution.finish(CANCELLED)
            return
        if task.losses + 1 >= MOST_LOSSES:
            message = f"{task.losses + 1} workers were lost over this attempt; the last was {task.worker}."
            self._in_turn(task.run_id, partial(self._table.put_back, task, hold=True, lost=True))
            execution.finish(Outcome(error=ErrorInfo("WORKER_LOST", message, retryable=True, category="system")))
            return
        driver = self.engine.driver(task.run_id)
        about = None if driver is None else driver.about
        logger.warning("Run %s: worker %s was lost over %s", task.run_id, task.worker, task.path, extra=about)
        execution.task = msgspec.structs.replace(task, state="OFFERED")
        if driver is not None:
            driver.decider.engine_attempt += 1
            execution.order = msgspec.structs.replace(execution.order, engine_attempt=driver.decider.engine_attempt)
        self._in_turn(task.run_id, partial(self._table.put_back, task, lost=True))

    def _in_turn(self, run_id: str, work: Work) -> None:
        """Do something to the table once what was asked before about the same run is done."""
        if (waiting := self._turns.get(run_id)) is not None:
            waiting.append(work)
            return
        self._turns[run_id] = waiting = deque([work])
        self.engine.do(self._work_off(run_id, waiting))

    async def _work_off(self, run_id: str, waiting: deque[Work]) -> None:
        try:
            while waiting:
                await self._keep_trying(waiting.popleft())
        finally:
            del self._turns[run_id]

    async def _keep_trying(self, work: Work) -> None:
        """The store may have to come back first."""
        while True:
            try:
                await work()
                return
            except RunwrightError as error:
                if self.engine.is_closing:
                    return
                logger.warning("Workers wait for the store: %s", error)
                await self.engine.clock.sleep(1.0)
