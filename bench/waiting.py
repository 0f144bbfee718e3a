"""Many runs that wait for a time, in one process: how much memory they take, and how late they wake.

Both figures are of the same processes: all runs are made, then memory is looked at, then their times come,
evenly spread, and the log tells when each went on.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
from collections.abc import Collection, Iterator
from time import monotonic
from typing import Any

from runwright.contract.timestamps import from_micros, to_micros
from runwright.contract.transitions import RunStatus
from runwright.control.open import open_operations
from runwright.control.operations import Operations
from runwright.log.model import RunFilter

from . import apart
from .scale import Scale
from .table import Round, Row
from .targets import TARGETS

_ROUNDS = 5
_AT_ONCE = 64  # made
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
        yield Row(memory, [Round(one["after"], one["before"]) for one in rounds])
    if wake.name in wanted:
        yield Row(wake, [Round(one["p95"], 0.0, one["p50"]) for one in rounds])


def _round(scale: Scale) -> dict[str, float]:
    count, seconds = scale.size(10_000, 2_000), scale.size(25, 8)
    with scale.place() as folder:
        url = f"sqlite:///{folder}/runs.db"
        return apart.call("bench.waiting:watch", folder, url=url, count=count, seconds=seconds)


def watch(url: str, count: int, seconds: float) -> dict[str, float]:
    """Megabytes before and after that many runs were made, and by how many milliseconds they woke too late."""
    return asyncio.run(_watch(url, count, seconds))


async def _watch(url: str, count: int, seconds: float) -> dict[str, float]:
    async with open_operations(url) as operations:
        now = operations.log.clock.now
        began = monotonic()
        await _make(operations, "warm-up", [0] * _WARM_UP)
        pace = (monotonic() - began) / _WARM_UP
        await _ended(operations)
        before = _memory()
        first = now() + int((2 * pace * count + 5) * 1e6)
        await _make(operations, "waiting", range(first, first + int(seconds * 1e6), int(seconds * 1e6) // count))
        assert now() < first - 1e6, "the machine has become too slow: the first runs would be due already"
        await asyncio.sleep(1)
        after = _memory()
        await asyncio.sleep((first - now()) / 1e6 + seconds)
        await _ended(operations)
        late = sorted([moment async for moment in _lateness(operations)])
    assert len(late) == count
    return {"before": before, "after": after, "p50": late[count // 2], "p95": late[count * 95 // 100]}


async def _make(operations: Operations, name: str, dues: Collection[int]) -> None:
    plan = operations.load(_PLAN)
    left = iter(enumerate(dues))

    async def maker() -> None:
        for number, due in left:
            await operations.start(plan, params={"until": from_micros(due)}, run_id=f"{name}-{number}")

    await asyncio.gather(*(maker() for _ in range(_AT_ONCE)))


async def _ended(operations: Operations) -> None:
    while await _is_busy(operations):  # noqa: ASYNC110 - seldom: who waits for 10,000 must not be what keeps them
        await asyncio.sleep(0.25)


async def _is_busy(operations: Operations) -> bool:
    running = RunFilter(status=RunStatus.RUNNING)
    return bool(operations.engine.driven or (await operations.log.list_runs(running, limit=1)).runs)


async def _lateness(operations: Operations) -> Any:
    """For each run that waited, the milliseconds from its due time to the end of its step."""
    dues: dict[str, int] = {}
    async for page in _pages(operations):
        for record in page.records:
            if record.run_id.startswith("warm-up"):
                continue
            if record.event_type == "StepDelayed":
                dues[record.run_id] = to_micros((record.payload or {})["scheduledAt"])
            elif record.event_type == "StepCompleted":
                yield (to_micros(record.emitted_at) - dues[record.run_id]) / 1000


async def _pages(operations: Operations) -> Any:
    cursor = None
    while (page := await operations.log.read_all(cursor)).records:
        yield page
        cursor = page.cursor


def _memory() -> float:
    """What the process holds now, in megabytes."""
    gc.collect()
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], check=True, capture_output=True)
    return int(told.stdout) / 1024
