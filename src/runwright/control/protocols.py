"""Operations on runs, implemented by an engine in this process and by a client of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from runwright.contract.events import RunEventRecord
from runwright.contract.payloads import Approval
from runwright.contract.plan import ExecutionPlan
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.transitions import RunStatus

if TYPE_CHECKING:
    from runwright.log.protocols import LogReader
    from runwright.storage.output.files import LogLine

    from .plan_loader import AnyPlan
    from .run_scope import RunScope
    from .signal_rules import SignalDecision


class OutputReader(Protocol):
    """Reads step output."""

    def read(self, run_id: str, entity: str | None = None, *, attempt: int | None = None) -> Iterator[LogLine]: ...

    def follow(
        self,
        run_id: str,
        entity: str | None = None,
        *,
        stopped: Callable[[], bool],
        attempt: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = ...,
    ) -> AsyncIterator[LogLine]: ...

    def last_line(self, run_id: str, entity: str) -> str | None: ...


class EngineView(Protocol):
    """The part of an engine that an attached terminal uses."""

    @property
    def step_logs(self) -> OutputReader: ...

    def is_driven(self, run_id: str) -> bool: ...

    async def wait_until_ended(self, run_id: str, timeout: float | None = None) -> RunSnapshot: ...


class SignalSender(Protocol):
    """Sends signals to runs, and reads what they wait for."""

    @property
    def log(self) -> LogReader: ...

    async def signal(
        self,
        run_id: str,
        signal_type: str,
        payload: dict[str, Any] | None = None,
        *,
        reason: str | None = None,
        signal_id: str | None = None,
    ) -> SignalDecision: ...
    async def confirm(
        self, run_id: str, signal_id: str, *, agree: bool = True, reason: str | None = None
    ) -> SignalDecision: ...
    async def questions(self, run_id: str) -> dict[str, Approval]: ...


class RunOperations(SignalSender, Protocol):
    @property
    def engine(self) -> EngineView: ...

    def load(self, plan: AnyPlan) -> ExecutionPlan: ...
    async def start(
        self,
        plan: ExecutionPlan,
        *,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        place: RunScope | None = None,
    ) -> str: ...
    async def resume(self, run_id: str) -> None: ...
    async def wait(self, run_id: str, timeout: float | None = None) -> RunSnapshot: ...
    def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> AsyncIterator[RunEventRecord]: ...
    async def result(self, run_id: str, step_id: str) -> Any: ...
    async def run_result(self, run_id: str) -> Any: ...
    async def rerun(
        self,
        run_id: str,
        *,
        from_step: str | None = None,
        force: bool = False,
        new_id: str | None = None,
        plan: ExecutionPlan | None = None,
        params: dict[str, Any] | None = None,
    ) -> str: ...
    async def status(self, run_id: str) -> RunStatus: ...
