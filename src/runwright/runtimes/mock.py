"""Mock runtime: end every step with a scripted outcome instead of executing it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runwright.contract.plan import StepClass
from runwright.contract.refs import ErrorInfo
from runwright.runtimes.executor.executor import Outcome, Work

_CANCELLED = Outcome(error=ErrorInfo("CANCELLED", "The step was cancelled.", retryable=False, category="cancelled"))
CAPACITY = 10_000

ScriptedStep = Callable[[Work], tuple[Outcome, float]]
"""Returns the outcome of a step and the seconds after which it ends."""


def succeed_immediately(_work: Work) -> tuple[Outcome, float]:
    return Outcome(b"null"), 0.0


class MockExecution:
    def __init__(
        self, executor: MockExecutor, done: Callable[[Outcome], None], outcome: Outcome, duration: float
    ) -> None:
        self._executor = executor
        self._done = done
        self._timer = asyncio.get_running_loop().call_later(duration, self._finish, outcome)
        self._ended = False

    def cancel(self, grace: float) -> None:  # noqa: ARG002 - nothing is executed, so it stops immediately
        self.kill()

    def kill(self) -> None:
        if not self._ended:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(0, self._finish, _CANCELLED)

    detach = kill

    def _finish(self, outcome: Outcome) -> None:
        if self._ended or self._executor.closed:
            return
        self._ended = True
        self._executor.on_end()
        self._done(outcome)


class MockExecutor:
    """Ends every step as `script` determines."""

    def __init__(self, script: ScriptedStep = succeed_immediately) -> None:
        self._script = script
        self._free_slots = CAPACITY
        self.closed = False

    def start(self, work: Work, done: Callable[[Outcome], None]) -> MockExecution:
        outcome, duration = self._script(work)
        self._free_slots -= 1
        return MockExecution(self, done, outcome, duration)

    def on_end(self) -> None:
        self._free_slots += 1

    def free_slots(self, step_class: StepClass) -> int:  # noqa: ARG002
        return self._free_slots

    def close(self) -> None:
        self.closed = True
