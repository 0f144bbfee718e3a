"""The mock runtime: it plays a plan without carrying anything out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runwright.contract.plan import StepClass
from runwright.contract.refs import ErrorInfo

from .executor import Outcome, Work

_STOPPED = Outcome(error=ErrorInfo("CANCELLED", "The step was stopped.", retryable=False, category="cancelled"))
ROOM = 10_000

Play = Callable[[Work], tuple[Outcome, float]]
"""How a piece of work would have ended, and after how many seconds."""


def all_is_well(_work: Work) -> tuple[Outcome, float]:
    return Outcome(b"null"), 0.0


class _Played:
    def __init__(self, executor: MockExecutor, done: Callable[[Outcome], None], outcome: Outcome, took: float) -> None:
        self._executor = executor
        self._done = done
        self._timer = asyncio.get_running_loop().call_later(took, self._finish, outcome)
        self._ended = False

    def cancel(self, grace: float) -> None:  # noqa: ARG002 - what is not carried out stops at once
        self.kill()

    def kill(self) -> None:
        if not self._ended:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(0, self._finish, _STOPPED)

    let_go = kill

    def _finish(self, outcome: Outcome) -> None:
        if self._ended or self._executor.closed:
            return
        self._ended = True
        self._executor.free += 1
        self._done(outcome)


class MockExecutor:
    """Ends every step as `play` says."""

    def __init__(self, play: Play = all_is_well) -> None:
        self._play = play
        self.free = ROOM
        self.closed = False

    def start(self, work: Work, done: Callable[[Outcome], None]) -> _Played:
        outcome, took = self._play(work)
        self.free -= 1
        return _Played(self, done, outcome, took)

    def room(self, step_class: StepClass) -> int:  # noqa: ARG002
        return self.free

    def close(self) -> None:
        self.closed = True
