"""LocalSignals: send signals on a store without an engine. One is opened only if no live process drives the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from runwright.config.settings import settings_table
from runwright.contract.payloads import Approval
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.factory import open_log
from runwright.log.run_log import RunLog
from runwright.plans.store import PlanStore
from runwright.runtimes.plan_resolver import PlanResolver
from runwright.tools.base import Tool

from .confirmation_policy import read_policy
from .run_scope import local_actor
from .signal_rules import SignalDecision
from .signal_service import SignalService, open_questions

if TYPE_CHECKING:
    from .operations import Operations


@asynccontextmanager
async def open_signals(url: str) -> AsyncGenerator[LocalSignals]:
    """Signals on a store. The engine and the tools are imported only if they are needed."""

    def find_tool(kind: str) -> Tool | None:
        from .bootstrap import installed_tools

        return installed_tools().get(kind)

    def open_engine() -> AbstractAsyncContextManager[Operations]:
        from .bootstrap import open_engine

        return open_engine(log, url)

    async with open_log(url) as log:
        yield LocalSignals(log, find_tool, open_engine)


class LocalSignals:
    def __init__(
        self,
        log: RunLog,
        find_tool: Callable[[str], Tool | None],
        open_engine: Callable[[], AbstractAsyncContextManager[Operations]],
    ) -> None:
        self.log = log
        self._open_engine = open_engine
        plans = PlanResolver(log, PlanStore(log), _accept_any_store)
        policy = read_policy(settings_table("policy"))
        self._service = SignalService(log, plans, find_tool, local_actor(), self, self._rerun, policy)

    async def signal(
        self,
        run_id: str,
        signal_type: str,
        payload: dict[str, Any] | None = None,
        *,
        reason: str | None = None,
        signal_id: str | None = None,
    ) -> SignalDecision:
        return await self._service.send(run_id, signal_type, payload, reason=reason, signal_id=signal_id)

    async def confirm(
        self, run_id: str, signal_id: str, *, agree: bool = True, reason: str | None = None
    ) -> SignalDecision:
        return await self._service.confirm(run_id, signal_id, agree=agree, reason=reason)

    async def questions(self, run_id: str) -> dict[str, Approval]:
        return await open_questions(self.log, run_id)

    async def apply(self, run_id: str) -> None:
        """A live process that owns the run polls for signals; otherwise an engine is opened to apply them."""
        row = await self.log.find_run(run_id)
        if row.owner is not None and (row.owner, row.epoch) in await self.log.owners():
            return
        async with self._open_engine() as operations:
            await operations.apply(run_id)

    async def _rerun(self, run_id: str, *, force: bool = False, new_id: str | None = None) -> str:
        async with self._open_engine() as operations:
            return await operations.rerun(run_id, force=force, new_id=new_id)


def _accept_any_store(_graph: PlanGraph) -> None:
    """Results are neither stored nor read."""
