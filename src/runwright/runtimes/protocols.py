"""The interface between a runtime and the code that executes steps: threads and processes, workers, or a simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runwright.contract.events import RunIdentity
from runwright.contract.plan import StepClass
from runwright.core.fold.execution_state import ChildRun
from runwright.runtimes.executor.executor import Outcome, Work


class Execution(Protocol):
    def cancel(self, grace: float) -> None:
        """Ask it to stop; by force after `grace` seconds, where that is possible."""
        ...

    def kill(self) -> None:
        """Stop it now."""
        ...

    def detach(self) -> None:
        """The run is not driven here any more: stop what belongs to this process, and report nothing."""
        ...


class NamedChildRuns(Protocol):
    """The runs of the attempts of a step, as the log of its run names them."""

    def find(self, attempt: int) -> ChildRun | None: ...

    async def add(self, child: ChildRun) -> None:
        """Write the name to the log; returns when it is durable."""
        ...


class SubRunStarter(Protocol):
    """Executes steps that are runs of other plans."""

    def start(
        self, work: Work, parent: RunIdentity, named: NamedChildRuns, done: Callable[[Outcome], None]
    ) -> Execution: ...

    async def stop(self, parent: RunIdentity, child: ChildRun) -> None:
        """Cancel the run of a step, although no process waits for it."""
        ...


class ExecutorProtocol(Protocol):
    def start(self, work: Work, done: Callable[[Outcome], None]) -> Execution: ...
    def free_slots(self, step_class: StepClass) -> int: ...
    def close(self) -> None: ...
