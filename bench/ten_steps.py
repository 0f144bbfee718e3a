"""Our side of a race: runs of ten steps, each a Python function, started and waited for as a program would."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from runwright.control.open import open_operations
from runwright.control.operations import Operations

from .steps import STEPS_A_RUN
from .stopwatch import Stopwatch, p50_ms

PLAN: dict[str, Any] = {
    "plan": "ten-steps",
    "steps": [
        {"id": f"step_{number}", "python": {"call": "bench.steps:work", "args": {"number": number}}}
        for number in range(STEPS_A_RUN)
    ],
}


def race(url: str, at_once: int, count: int) -> dict[str, float]:
    """`count` runs, `at_once` at any time: how many a second, and how long one of them took."""
    return asyncio.run(_race(url, at_once, count))


async def _race(url: str, at_once: int, count: int) -> dict[str, float]:
    waits: list[float] = []
    async with open_operations(url) as operations:
        await _callers(operations, at_once, 2 * at_once, [])  # connections, threads and statements are made
        with Stopwatch() as watch:
            await _callers(operations, at_once, count, waits)
    return {"per_second": count / watch.seconds, "p50_ms": p50_ms(waits)}


async def _callers(operations: Operations, at_once: int, count: int, waits: list[float]) -> None:
    """As many callers as there may be runs at once; each starts one, waits for its end, and starts the next."""
    plan = operations.load(PLAN)
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            start = perf_counter()
            snapshot = await operations.wait(await operations.start(plan))
            waits.append(perf_counter() - start)
            assert (snapshot.status, snapshot.completed_steps) == ("COMPLETED", STEPS_A_RUN)

    await asyncio.gather(*(caller() for _ in range(at_once)))
