"""The interface between a runtime and the code that executes steps: threads and processes, workers, or a simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runwright.contract.events import RunIdentity
from runwright.contract.plan import StepClass
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


class SubRunStarter(Protocol):
    """Executes steps that are runs of other plans."""

    def start(self, work: Work, parent: RunIdentity, done: Callable[[Outcome], None]) -> Execution: ...

    async def stop(self, parent: RunIdentity, path: str, attempt: int) -> None:
        """Cancel the run of a step, although no process waits for it."""
        ...


class ExecutorProtocol(Protocol):
    def start(self, work: Work, done: Callable[[Outcome], None]) -> Execution: ...
    def free_slots(self, step_class: StepClass) -> int: ...
    def close(self) -> None: ...
