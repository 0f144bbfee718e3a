"""The plan store: plans by their content, and the nets made of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from runwright.contract.plan import ExecutionPlan, content_hash, plan_body, read_plan
from runwright.core.net import Net
from runwright.core.node import QueueOf, nowhere

CACHED = 64
LARGE = 2000  # steps


class PlanKeeper(Protocol):
    """Where the bytes are: the log's store has a table for them, apart from the log itself."""

    async def keep_plan(self, sha256: str, body: bytes, tenant_id: str = ...) -> None: ...
    async def plan(self, sha256: str, tenant_id: str = ...) -> bytes: ...


class PlanStore:
    def __init__(self, keeper: PlanKeeper, queue_of: QueueOf = nowhere, store: str = "local") -> None:
        self._keeper = keeper
        self._store = store
        self.queue_of = queue_of
        self._nets: OrderedDict[tuple[str, str], Net] = OrderedDict()

    async def keep(self, plan: ExecutionPlan, tenant_id: str) -> tuple[str, Net]:
        """Store a plan of a tenant; gives back its hash and its net."""
        body = plan_body(plan)
        sha256 = content_hash(body)
        net = self._nets.get((tenant_id, sha256))
        if net is None:
            await self._keeper.keep_plan(sha256, body, tenant_id)
            net = await self._remember(tenant_id, sha256, body)  # as whoever takes the run up will find it
        return sha256, net

    async def net(self, sha256: str, tenant_id: str) -> Net:
        known = self._nets.get((tenant_id, sha256))
        if known is not None:
            return known
        return await self._remember(tenant_id, sha256, await self._keeper.plan(sha256, tenant_id))

    async def _remember(self, tenant_id: str, sha256: str, body: bytes) -> Net:
        net = self._nets[tenant_id, sha256] = await self._net(read_plan(body))
        while len(self._nets) > CACHED:
            self._nets.popitem(last=False)
        return net

    async def _net(self, plan: ExecutionPlan) -> Net:
        """A plan's net; that of a large one is made in a thread, for others must not wait seconds for it."""
        if len(plan.steps) < LARGE:
            return Net(plan, self.queue_of, self._store)
        return await asyncio.to_thread(Net, plan, self.queue_of, self._store)
