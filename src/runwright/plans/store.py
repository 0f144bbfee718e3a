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

    async def keep_plan(self, sha256: str, body: bytes) -> None: ...
    async def plan(self, sha256: str) -> bytes: ...


class PlanStore:
    def __init__(self, keeper: PlanKeeper, queue_of: QueueOf = nowhere, store: str = "local") -> None:
        self._keeper = keeper
        self._store = store
        self.queue_of = queue_of
        self._nets: OrderedDict[str, Net] = OrderedDict()

    async def keep(self, plan: ExecutionPlan) -> tuple[str, Net]:
        """Store a plan; gives back its hash and its net."""
        body = plan_body(plan)
        sha256 = content_hash(body)
        net = self._nets.get(sha256)
        if net is None:
            await self._keeper.keep_plan(sha256, body)
            net = self._remember(sha256, await self._net(read_plan(body)))  # as whoever takes the run up will find it
        return sha256, net

    async def net(self, sha256: str) -> Net:
        known = self._nets.get(sha256)
        if known is not None:
            return known
        return self._remember(sha256, await self._net(read_plan(await self._keeper.plan(sha256))))

    def _remember(self, sha256: str, net: Net) -> Net:
        self._nets[sha256] = net
        while len(self._nets) > CACHED:
            self._nets.popitem(last=False)
        return net

    async def _net(self, plan: ExecutionPlan) -> Net:
        """A plan's net; that of a large one is made in a thread, for others must not wait seconds for it."""
        if len(plan.steps) < LARGE:
            return Net(plan, self.queue_of, self._store)
        return await asyncio.to_thread(Net, plan, self.queue_of, self._store)
