"""Carries out the work that a driver hands it, each piece where it can do no harm to the others.

Whatever a step does, its driver hears of it exactly once: it completes, it fails, or it is given up. Nothing that
a step does can block the driver's loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from runwright.contract.plan import StepClass
from runwright.contract.refs import ErrorInfo
from runwright.log.bell import Bell
from runwright.tools.base import Lane

from .executor_loops import LoopTask, LoopThread, StepLoops
from .executor_output import CAPTURE
from .executor_threads import ThreadPool
from .executor_work import ABANDONED, CANCELLED, Outcome, Work, carry_on, carry_out, run_isolated

__all__ = ["Execution", "Executor", "Outcome", "Work"]

_PROCESSES = os.cpu_count() or 1
DEFAULT_ROOM = {StepClass.LIGHT: 256, StepClass.HEAVY: _PROCESSES, StepClass.ISOLATION: 2 * _PROCESSES}

_KILL_TIME = 2.0
"""How long a process that was killed may take to be gone."""


class Execution:
    """One piece of work under way. Belongs to the driver's loop."""

    __slots__ = ("_asked", "_claim", "_executor", "_timer", "done", "ended", "holds_thread", "task", "work")

    def __init__(self, executor: Executor, work: Work, done: Callable[[Outcome], None]) -> None:
        self.work = work
        self.done = done
        self.ended = False
        self.holds_thread = False  # although it was given up
        self.task: LoopTask | None = None  # where it is a coroutine
        self._executor = executor
        self._claim = threading.Lock()
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None

    def claim(self) -> bool:
        """Whether the caller is the first to ask. It is begun by one thread only, or not at all."""
        return self._claim.acquire(blocking=False)

    def cancel(self, grace: float) -> None:
        """Ask it to stop. What has not stopped after `grace` seconds is stopped by force, or given up."""
        if self.ended or self._asked:
            return
        if self._ask_to_stop(grace):
            self._later(grace, self.kill)

    def kill(self) -> None:
        """Stop it by force. A thread or a coroutine that cannot be stopped is given up at once."""
        if self.ended or not self._ask_to_stop(0.0):
            return
        if self.work.lane in (Lane.TOOL_LOOP, Lane.PROCESS):
            self._later(_KILL_TIME, self._give_up)
        else:
            self._give_up()

    let_go = kill

    def finish(self) -> None:
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _ask_to_stop(self, grace: float) -> bool:
        """Whether there is anything to stop: what has not begun never will."""
        self._asked = True
        self.work.context.grace = grace
        self.work.context.cancelled.set()
        if self.claim():
            self._executor.deliver(self, CANCELLED)
            return False
        if self.task is not None:
            self.task.stop()
        return True

    def _give_up(self) -> None:
        if not self.ended:
            self.holds_thread = self.work.lane is Lane.THREAD and self.task is None
            self._executor.abandon(self)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._executor.loop.call_later(seconds, call)


class Executor:
    """Runs steps for one driver. Everything here is called on the driver's loop, unless it says otherwise."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        room: dict[StepClass, int] | None = None,
        max_threads: int | None = None,
    ) -> None:
        self.loop = loop
        self.dropped = 0
        """How many results came after their step had been given up."""
        self._room = {**DEFAULT_ROOM, **(room or {})}
        most = self._room[StepClass.LIGHT] + self._room[StepClass.HEAVY] if max_threads is None else max_threads
        self._threads = ThreadPool(loop, most)
        self._step_loops = StepLoops()
        self._tool_loop: LoopThread | None = None
        self._live: set[Execution] = set()
        self._bell = Bell(loop)
        self._closed = False
        CAPTURE.open()

    def room(self, step_class: StepClass) -> int:
        """How many more steps of this class may be started now."""
        return self._room[step_class]

    def start(self, work: Work, done: Callable[[Outcome], None]) -> Execution:
        """Begin. `done` is called on this loop, later, exactly once; never after `close`."""
        assert not self._closed
        lane = work.lane
        if lane is Lane.INLINE:
            return self._end_at_once(work, done, _at_once(work))
        assert lane is not Lane.TIMER, "the driver keeps the time itself"
        execution = Execution(self, work, done)
        self._enter(execution)
        if lane is Lane.THREAD:
            self._threads.submit(lambda: self._in_thread(execution))
        elif lane is Lane.STEP_LOOP:
            execution.task = self._on_step_loop(execution, execution.claim, None)
        else:
            execution.task = self._on_tool_loop(execution, lane)
        return execution

    def deliver(self, execution: Execution, outcome: Outcome) -> None:
        """Tell the driver how it ended. Any thread may call this; many outcomes cost one wake-up."""
        self._bell.call(self._finish, execution, outcome)

    def abandon(self, execution: Execution) -> None:
        """Wait for it no longer. Its place is free, and what it gives back one day is dropped."""
        if execution.holds_thread:
            self._threads.most += 1
        self._finish(execution, ABANDONED)

    def close(self) -> None:
        """Stop everything by force. Nobody is told; what was under way is not recorded as ended."""
        if self._closed:
            return
        self._closed = True
        for execution in list(self._live):
            execution.done = _nobody
            execution.kill()
        if self._tool_loop is not None:
            self._tool_loop.stop()
            self._tool_loop.thread.join(timeout=_KILL_TIME + 1)
        self._step_loops.close()
        self._threads.close()
        self._bell.close()
        CAPTURE.close()

    def _enter(self, execution: Execution) -> None:
        self._live.add(execution)
        self._room[execution.work.step.step_class] -= 1

    def _end_at_once(self, work: Work, done: Callable[[Outcome], None], outcome: Outcome) -> Execution:
        execution = Execution(self, work, done)
        execution.claim()
        self._enter(execution)
        self._bell.call_here(self._finish, execution, outcome)
        return execution

    def _in_thread(self, execution: Execution) -> None:
        if not execution.claim():
            return
        outcome = contextvars.Context().run(carry_out, execution.work)
        if isinstance(outcome, Outcome):
            self.deliver(execution, outcome)
            return
        execution.task = self._on_step_loop(execution, _yes, outcome)
        if execution.work.context.is_cancelled:
            execution.task.stop()

    def _on_step_loop(
        self, execution: Execution, claim: Callable[[], bool], awaitable: Awaitable[Any] | None
    ) -> LoopTask:
        work = execution.work
        return self._step_loops.start(
            work.context, claim, lambda: carry_on(work, awaitable), lambda outcome: self.deliver(execution, outcome)
        )

    def _on_tool_loop(self, execution: Execution, lane: Lane) -> LoopTask:
        if self._tool_loop is None:
            self._tool_loop = LoopThread("tool loop")
        work = execution.work
        run = run_isolated if lane is Lane.PROCESS else carry_on
        return LoopTask(
            self._tool_loop,
            work.context,
            execution.claim,
            lambda: run(work),
            lambda outcome: self.deliver(execution, outcome),
        )

    def _finish(self, execution: Execution, outcome: Outcome) -> None:
        if execution.ended:
            if not self._closed:
                self.dropped += 1
                if execution.work.late is not None:
                    execution.work.late(outcome)
                if execution.holds_thread:
                    self._threads.most -= 1
            return
        execution.finish()
        self._live.discard(execution)
        self._room[execution.work.step.step_class] += 1
        try:
            execution.done(outcome)
        except Exception as error:
            self.loop.call_exception_handler({"message": "A driver failed to take an outcome", "exception": error})


def _at_once(work: Work) -> Outcome:
    outcome = contextvars.Context().run(carry_out, work)
    if isinstance(outcome, Outcome):
        return outcome
    return Outcome(error=ErrorInfo("INVALID_TOOL", f"{work.tool.kind} is not to be awaited.", retryable=False))


def _yes() -> bool:
    return True


def _nobody(_: Outcome) -> None:
    """Hears an outcome that nobody waits for."""
