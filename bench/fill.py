"""Getting many events into a log quickly, still through the one way in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import runwright as rw

from .samples import events

EVENTS_AN_APPEND = 500
_AT_ONCE = 4


async def fill_run(log: rw.RunLog, run_id: str, count: int) -> None:
    """Bring a run from nothing to `count` events."""
    for first in range(1, count + 1, EVENTS_AN_APPEND):
        await log.append(list(events(run_id, min(EVENTS_AN_APPEND, count + 1 - first), first)))


async def fill_runs(log: rw.RunLog, run_ids: Iterable[str]) -> None:
    """Make these runs, of one large append each, a few at a time."""
    left = iter(run_ids)

    async def work() -> None:
        for run_id in left:
            await fill_run(log, run_id, EVENTS_AN_APPEND)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
