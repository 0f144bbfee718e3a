"""The seam between a driver and whatever carries steps out: real threads and processes, or a simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runwright.contract.events import RunIdentity
from runwright.contract.plan import StepClass
from runwright.runtimes.executor import Outcome, Work


class Execution(Protocol):
    def cancel(self, grace: float) -> None:
        """Ask it to stop; by force once the grace is over, where that is possible."""
        ...

    def kill(self) -> None:
        """Stop it now."""
        ...

    def let_go(self) -> None:
        """The run is not driven here any more: what belongs to this process is stopped, and nobody is told."""
        ...


class SubRunning(Protocol):
    """Carries out steps that are runs of other plans."""

    def start(self, work: Work, parent: RunIdentity, done: Callable[[Outcome], None]) -> Execution: ...

    async def stop(self, parent: RunIdentity, path: str, attempt: int) -> None:
        """See that the run of a step ends, although nobody waits for it."""
        ...


class Executing(Protocol):
    def start(self, work: Work, done: Callable[[Outcome], None]) -> Execution: ...
    def room(self, step_class: StepClass) -> int: ...
    def close(self) -> None: ...
