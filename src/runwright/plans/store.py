"""Plan store: plans of a tenant by content hash, with a cache of their compiled graphs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from runwright.contract.plan import ExecutionPlan, content_hash, plan_body, read_plan
from runwright.core.graph.node import QueueOf, no_queue
from runwright.core.graph.plan_graph import PlanGraph

CACHE_SIZE = 64
LARGE_PLAN_STEPS = 2000


class PlanBackend(Protocol):
    """Storage of encoded plans. RunLog implements it with a table of its own, separate from the events."""

    async def store_plan(self, sha256: str, body: bytes, tenant_id: str = ...) -> None: ...
    async def plan(self, sha256: str, tenant_id: str = ...) -> bytes: ...


class PlanStore:
    def __init__(self, backend: PlanBackend, queue_of: QueueOf = no_queue, store: str = "local") -> None:
        self._backend = backend
        self._store = store
        self.queue_of = queue_of
        self._graphs: OrderedDict[tuple[str, str], PlanGraph] = OrderedDict()

    async def store(self, plan: ExecutionPlan, tenant_id: str) -> tuple[str, PlanGraph]:
        """Store a plan of a tenant; return its content hash and its compiled graph."""
        body = plan_body(plan)
        sha256 = content_hash(body)
        graph = self._graphs.get((tenant_id, sha256))
        if graph is None:
            await self._backend.store_plan(sha256, body, tenant_id)
            # Compiled from the stored bytes, so that the graph is the one that a recovering process will have.
            graph = await self._cache(tenant_id, sha256, body)
        return sha256, graph

    async def graph(self, sha256: str, tenant_id: str) -> PlanGraph:
        """Return the compiled graph of a stored plan."""
        cached = self._graphs.get((tenant_id, sha256))
        if cached is not None:
            return cached
        return await self._cache(tenant_id, sha256, await self._backend.plan(sha256, tenant_id))

    async def _cache(self, tenant_id: str, sha256: str, body: bytes) -> PlanGraph:
        graph = self._graphs[tenant_id, sha256] = await self._compile(read_plan(body))
        while len(self._graphs) > CACHE_SIZE:
            self._graphs.popitem(last=False)
        return graph

    async def _compile(self, plan: ExecutionPlan) -> PlanGraph:
        """Compile the graph of a plan, in a thread if the plan is large: it would block the event loop for seconds."""
        if len(plan.steps) < LARGE_PLAN_STEPS:
            return PlanGraph(plan, self.queue_of, self._store)
        return await asyncio.to_thread(PlanGraph, plan, self.queue_of, self._store)
