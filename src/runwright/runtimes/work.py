"""The seam between a driver and whatever carries steps out: real threads and processes, or a simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runwright.contract.plan import StepClass
from runwright.runtimes.executor import Outcome, Work


class Execution(Protocol):
    def cancel(self, grace: float) -> None:
        """Ask it to stop; by force once the grace is over, where that is possible."""
        ...

    def kill(self) -> None:
        """Stop it now."""
        ...


class Executing(Protocol):
    def start(self, work: Work, done: Callable[[Outcome], None]) -> Execution: ...
    def room(self, step_class: StepClass) -> int: ...
    def close(self) -> None: ...
