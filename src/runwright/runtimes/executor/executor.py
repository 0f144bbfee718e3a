"""Execute steps for a driver, each where it cannot disturb the others: inline, in a thread, on a loop, in a process.

The driver is notified of each execution exactly once: it completed, failed, was cancelled or was abandoned. A step
cannot block the driver's loop.
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
from runwright.log.notifier import LoopWaker
from runwright.tools.base import Lane

from .event_loops import LoopTask, LoopThread, StepLoops
from .isolated_process import run_isolated
from .output_capture import CAPTURE
from .thread_pool import ThreadPool
from .work import ABANDONED, CANCELLED, NOT_STARTED, Outcome, Work, run_tool, run_tool_on_loop

__all__ = ["Executor", "LocalExecution", "Outcome", "Work"]

_PROCESSORS = os.cpu_count() or 1
DEFAULT_CAPACITY = {StepClass.LIGHT: 256, StepClass.HEAVY: _PROCESSORS, StepClass.ISOLATION: 2 * _PROCESSORS}

_KILL_TIME = 2.0
"""Seconds within which a killed process must have ended."""


class LocalExecution:
    """A running step. Its methods are called on the driver's loop, except `claim`."""

    __slots__ = ("_claim", "_executor", "_is_stopping", "_timer", "ended", "holds_thread", "on_done", "task", "work")

    def __init__(self, executor: Executor, work: Work, on_done: Callable[[Outcome], None]) -> None:
        self.work = work
        self.on_done = on_done
        self.ended = False
        self.holds_thread = False  # True if it was abandoned while a thread still runs it
        self.task: LoopTask | None = None  # set if it runs as a coroutine
        self._executor = executor
        self._claim = threading.Lock()
        self._is_stopping = False
        self._timer: asyncio.TimerHandle | None = None

    def claim(self) -> bool:
        """Return True for exactly one caller, which then starts the execution or cancels it. Thread-safe."""
        return self._claim.acquire(blocking=False)

    def begin(self) -> bool:
        """Return whether the tool is to be called now: the execution was not cancelled, and the step may start."""
        if not self.claim():
            return False
        if self.work.may_start():
            return True
        self._executor.deliver(self, NOT_STARTED)
        return False

    def cancel(self, grace: float) -> None:
        """Request a stop. After `grace` seconds it is stopped by force, or abandoned if that is impossible."""
        if self.ended or self._is_stopping:
            return
        self._mark_stopping(grace)
        if not self._cancelled_before_start():
            self._interrupt()
            self._call_later(grace, self.kill)

    def kill(self) -> None:
        """Stop it by force. A thread or a user's coroutine cannot be stopped, and is abandoned immediately."""
        if self.ended:
            return
        self._mark_stopping(0.0)
        if self._cancelled_before_start():
            return
        self._interrupt()
        if self.work.lane in (Lane.TOOL_LOOP, Lane.PROCESS):
            self._call_later(_KILL_TIME, self._abandon)
        else:
            self._abandon()

    detach = kill

    def finish(self) -> None:
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _mark_stopping(self, grace: float) -> None:
        self._is_stopping = True
        self.work.context.grace = grace
        self.work.context.cancelled.set()

    def _cancelled_before_start(self) -> bool:
        """Claim an execution that has not started, so that it never will, and deliver CANCELLED."""
        if not self.claim():
            return False
        self._executor.deliver(self, CANCELLED)
        return True

    def _interrupt(self) -> None:
        if self.task is not None:
            self.task.stop()

    def _abandon(self) -> None:
        if not self.ended:
            self.holds_thread = self.work.lane is Lane.THREAD and self.task is None
            self._executor.abandon(self)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._executor.loop.call_later(seconds, call)


class Executor:
    """Runs steps for one driver. All methods are called on the driver's loop, unless their docstring allows others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        capacity: dict[StepClass, int] | None = None,
        max_threads: int | None = None,
    ) -> None:
        self.loop = loop
        self.dropped = 0
        """Number of outcomes that arrived after their step had been abandoned."""
        self._free_slots = {**DEFAULT_CAPACITY, **(capacity or {})}
        if max_threads is None:
            max_threads = self._free_slots[StepClass.LIGHT] + self._free_slots[StepClass.HEAVY]
        self._threads = ThreadPool(loop, max_threads)
        self._step_loops = StepLoops()
        self._tool_loop: LoopThread | None = None
        self._running: set[LocalExecution] = set()
        self._waker = LoopWaker(loop)
        self._closed = False
        CAPTURE.open()

    def free_slots(self, step_class: StepClass) -> int:
        """Return how many more steps of this class may be started now."""
        return self._free_slots[step_class]

    def start(self, work: Work, done: Callable[[Outcome], None]) -> LocalExecution:
        """Start a step. `done` is called on the driver's loop, later, exactly once; never after `close`."""
        assert not self._closed
        lane = work.lane
        if lane is Lane.INLINE:
            return self._start_inline(work, done)
        assert lane is not Lane.TIMER, "waiting steps are timed by the driver"
        execution = LocalExecution(self, work, done)
        self._add(execution)
        if lane is Lane.THREAD:
            self._threads.submit(lambda: self._run_in_thread(execution))
        elif lane is Lane.STEP_LOOP:
            execution.task = self._start_on_step_loop(execution, execution.begin, None)
        else:
            execution.task = self._start_on_tool_loop(execution, lane)
        return execution

    def deliver(self, execution: LocalExecution, outcome: Outcome) -> None:
        """Report an outcome to the driver. Any thread may call this; many outcomes cost one wake-up."""
        self._waker.call_soon(self._finish, execution, outcome)

    def abandon(self, execution: LocalExecution) -> None:
        """Stop waiting for an execution. Its slot becomes free, and a later outcome is dropped."""
        if execution.holds_thread:
            self._threads.max_threads += 1
        self._finish(execution, ABANDONED)

    def close(self) -> None:
        """Stop everything by force. No outcome is reported: running steps are not recorded as ended."""
        if self._closed:
            return
        self._closed = True
        for execution in list(self._running):
            execution.on_done = _ignore_outcome
            execution.kill()
        if self._tool_loop is not None:
            self._tool_loop.stop()
            self._tool_loop.thread.join(timeout=_KILL_TIME + 1)
        self._step_loops.close()
        self._threads.close()
        self._waker.close()
        CAPTURE.close()

    def _add(self, execution: LocalExecution) -> None:
        self._running.add(execution)
        self._free_slots[execution.work.step.step_class] -= 1

    def _start_inline(self, work: Work, on_done: Callable[[Outcome], None]) -> LocalExecution:
        outcome = _run_inline(work)
        execution = LocalExecution(self, work, on_done)
        execution.claim()
        self._add(execution)
        self._waker.call_soon_here(self._finish, execution, outcome)
        return execution

    def _run_in_thread(self, execution: LocalExecution) -> None:
        if not execution.begin():
            return
        outcome = contextvars.Context().run(run_tool, execution.work)
        if isinstance(outcome, Outcome):
            self.deliver(execution, outcome)
            return
        execution.task = self._start_on_step_loop(execution, _already_claimed, outcome)
        if execution.work.context.is_cancelled:
            execution.task.stop()

    def _start_on_step_loop(
        self, execution: LocalExecution, claim: Callable[[], bool], awaitable: Awaitable[Any] | None
    ) -> LoopTask:
        work = execution.work
        return self._step_loops.start(
            work.context,
            claim,
            lambda: run_tool_on_loop(work, awaitable),
            lambda outcome: self.deliver(execution, outcome),
        )

    def _start_on_tool_loop(self, execution: LocalExecution, lane: Lane) -> LoopTask:
        if self._tool_loop is None:
            self._tool_loop = LoopThread("tool loop")
        work = execution.work
        run = run_isolated if lane is Lane.PROCESS else run_tool_on_loop
        return LoopTask(
            self._tool_loop,
            work.context,
            execution.begin,
            lambda: run(work),
            lambda outcome: self.deliver(execution, outcome),
        )

    def _finish(self, execution: LocalExecution, outcome: Outcome) -> None:
        if execution.ended:
            self._drop_late_outcome(execution, outcome)
            return
        execution.finish()
        self._running.discard(execution)
        self._free_slots[execution.work.step.step_class] += 1
        try:
            execution.on_done(outcome)
        except Exception as error:
            message = "The driver's callback for the end of a step failed"
            self.loop.call_exception_handler({"message": message, "exception": error})

    def _drop_late_outcome(self, execution: LocalExecution, outcome: Outcome) -> None:
        if self._closed:
            return
        self.dropped += 1
        if execution.work.on_late_outcome is not None:
            execution.work.on_late_outcome(outcome)
        if execution.holds_thread:
            self._threads.max_threads -= 1


def _run_inline(work: Work) -> Outcome:
    if not work.may_start():
        return NOT_STARTED
    outcome = contextvars.Context().run(run_tool, work)
    if isinstance(outcome, Outcome):
        return outcome
    message = f"Invalid tool {work.tool.kind}: an inline tool must not return an awaitable."
    return Outcome(error=ErrorInfo("INVALID_TOOL", message, retryable=False))


def _already_claimed() -> bool:
    """Stand in for `claim` where the execution was claimed by the thread that started it."""
    return True


def _ignore_outcome(_: Outcome) -> None:
    """Receive outcomes after `close`."""
