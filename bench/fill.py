"""Fill a log with many events quickly, through the append authority."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import runwright as rw

from .samples import events

EVENTS_PER_APPEND = 500
_CONCURRENCY = 4


async def fill_run(log: rw.RunLog, run_id: str, count: int) -> None:
    """Create a run of `count` events."""
    for first in range(1, count + 1, EVENTS_PER_APPEND):
        await log.append(list(events(run_id, min(EVENTS_PER_APPEND, count + 1 - first), first)))


async def fill_runs(log: rw.RunLog, run_ids: Iterable[str]) -> None:
    """Create runs of one large append each, a few concurrently."""
    remaining = iter(run_ids)

    async def work() -> None:
        for run_id in remaining:
            await fill_run(log, run_id, EVENTS_PER_APPEND)

    await asyncio.gather(*(work() for _ in range(_CONCURRENCY)))
