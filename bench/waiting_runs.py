"""Many runs that wait for a time, in one process: their memory use and their wake-up latency.

Both figures are of the same processes: all runs are created, then memory is measured, then the runs become due at even
intervals, and the log shows when each continued.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
from collections.abc import AsyncIterator, Collection, Iterator
from time import monotonic
from typing import Any

from runwright.contract.timestamps import from_micros, to_micros
from runwright.contract.transitions import RunStatus
from runwright.control.bootstrap import open_operations
from runwright.control.operations import Operations
from runwright.log.model import RunFilter, TailPage

from . import child_process
from .scale import Scale
from .table import Measurement, Row
from .targets import TARGETS

_ROUNDS = 5
_CONCURRENCY = 64  # When creating runs.
_WARM_UP = 500
_PLAN: dict[str, Any] = {
    "plan": "waiting",
    "params": {"until": "1970-01-01T00:00:00Z"},
    "steps": [{"id": "wait", "wait": {"until": "{{ params.until }}"}}],
}


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    memory, wake = TARGETS["engine-waiting-memory"], TARGETS["engine-waiting-wake"]
    if memory.name not in wanted and wake.name not in wanted:
        return
    rounds = [_round(scale) for _ in range(_ROUNDS)]
    if memory.name in wanted:
        yield Row(memory, [Measurement(each["after"], each["before"]) for each in rounds])
    if wake.name in wanted:
        yield Row(wake, [Measurement(each["p95"], 0.0, each["p50"]) for each in rounds])


def _round(scale: Scale) -> dict[str, float]:
    count, seconds = scale.size(10_000, 2_000), scale.size(25, 8)
    with scale.new_folder() as folder:
        url = f"sqlite:///{folder}/runs.db"
        return child_process.call("bench.waiting_runs:watch", folder, url=url, count=count, seconds=seconds)


def watch(url: str, count: int, seconds: float) -> dict[str, float]:
    """Return memory in megabytes before and after creating `count` runs, and their wake-up latency in milliseconds."""
    return asyncio.run(_watch(url, count, seconds))


async def _watch(url: str, count: int, seconds: float) -> dict[str, float]:
    async with open_operations(url) as operations:
        now = operations.log.clock.now
        started = monotonic()
        await _create_runs(operations, "warm-up", [0] * _WARM_UP)
        pace = (monotonic() - started) / _WARM_UP
        await _wait_until_ended(operations)
        before = _memory()
        first = now() + int((2 * pace * count + 5) * 1e6)
        await _create_runs(operations, "waiting", range(first, first + int(seconds * 1e6), int(seconds * 1e6) // count))
        assert now() < first - 1e6, "the machine is too slow: the first runs would already be due"
        await asyncio.sleep(1)
        after = _memory()
        await asyncio.sleep((first - now()) / 1e6 + seconds)
        await _wait_until_ended(operations)
        latencies = sorted([latency async for latency in _wake_up_latencies(operations)])
    assert len(latencies) == count
    return {"before": before, "after": after, "p50": latencies[count // 2], "p95": latencies[count * 95 // 100]}


async def _create_runs(operations: Operations, name: str, due_times: Collection[int]) -> None:
    plan = operations.load(_PLAN)
    remaining = iter(enumerate(due_times))

    async def create() -> None:
        for number, due in remaining:
            await operations.start(plan, params={"until": from_micros(due)}, run_id=f"{name}-{number}")

    await asyncio.gather(*(create() for _ in range(_CONCURRENCY)))


async def _wait_until_ended(operations: Operations) -> None:
    while await _is_busy(operations):  # noqa: ASYNC110 - polling seldom does not slow down the runs
        await asyncio.sleep(0.25)


async def _is_busy(operations: Operations) -> bool:
    running = RunFilter(status=RunStatus.RUNNING)
    return bool(operations.engine.driven or (await operations.log.list_runs(running, limit=1)).runs)


async def _wake_up_latencies(operations: Operations) -> AsyncIterator[float]:
    """Yield for each waiting run the milliseconds from its due time to the end of its step."""
    due_times: dict[str, int] = {}
    async for page in _pages(operations):
        for record in page.records:
            if record.run_id.startswith("warm-up"):
                continue
            if record.event_type == "StepDelayed":
                due_times[record.run_id] = to_micros((record.payload or {})["scheduledAt"])
            elif record.event_type == "StepCompleted":
                yield (to_micros(record.emitted_at) - due_times[record.run_id]) / 1000


async def _pages(operations: Operations) -> AsyncIterator[TailPage]:
    cursor = None
    while (page := await operations.log.read_all(cursor)).records:
        yield page
        cursor = page.cursor


def _memory() -> float:
    """Return the resident memory of this process in megabytes."""
    gc.collect()
    output = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], check=True, capture_output=True)
    return int(output.stdout) / 1024
