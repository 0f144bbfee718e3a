"""Runwright's side of the engine benchmark: runs of ten Python steps, started and awaited as a program would."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from runwright.control.bootstrap import open_operations
from runwright.control.operations import Operations

from .steps import STEPS_PER_RUN
from .stopwatch import Stopwatch, p50_ms

PLAN: dict[str, Any] = {
    "plan": "ten-steps",
    "steps": [
        {"id": f"step_{number}", "python": {"call": "bench.steps:work", "args": {"number": number}}}
        for number in range(STEPS_PER_RUN)
    ],
}


def race(url: str, concurrency: int, count: int) -> dict[str, float]:
    """Execute `count` runs with this concurrency; return runs per second and the median latency of a run."""
    return asyncio.run(_race(url, concurrency, count))


async def _race(url: str, concurrency: int, count: int) -> dict[str, float]:
    latencies: list[float] = []
    async with open_operations(url) as operations:
        await _run_callers(
            operations, concurrency, 2 * concurrency, []
        )  # Warm-up: creates connections, threads and statements.
        with Stopwatch() as watch:
            await _run_callers(operations, concurrency, count, latencies)
    return {"per_second": count / watch.seconds, "p50_ms": p50_ms(latencies)}


async def _run_callers(operations: Operations, concurrency: int, count: int, latencies: list[float]) -> None:
    """Start `concurrency` callers; each starts a run, latencies for its end, and starts the next."""
    plan = operations.load(PLAN)
    remaining = iter(range(count))

    async def caller() -> None:
        for _ in remaining:
            start = perf_counter()
            snapshot = await operations.wait(await operations.start(plan))
            latencies.append(perf_counter() - start)
            assert (snapshot.status, snapshot.completed_steps) == ("COMPLETED", STEPS_PER_RUN)

    await asyncio.gather(*(caller() for _ in range(concurrency)))
