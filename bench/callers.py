"""Our side of an append: callers that hold events as JSON, each waiting until its event is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from time import perf_counter

import runwright as rw
from runwright.contract.envelope import decode_event

from .samples import events
from .stopwatch import Measured, Stopwatch, p50_ms

_LANES = 16  # enough runs to reach every connection that a store may open


async def append(url: str, lines: Sequence[Sequence[bytes]]) -> Measured:
    """Append each caller's events, one at a time, all callers at once, through the full authority."""
    waits: list[float] = []
    async with rw.open_log(url, write_budget=60) as log:
        await _warm_up(log)
        with Stopwatch() as watch:
            await asyncio.gather(*(append_lines(log, own, waits) for own in lines))
    return Measured(len(waits) / watch.seconds, p50_ms(waits))


async def append_lines(log: rw.RunLog, lines: Iterable[bytes], waits: list[float]) -> None:
    """One caller: decode, append, wait for the receipt, and note how long that took."""
    for line in lines:
        start = perf_counter()
        (receipt,) = await log.append([decode_event(line)])
        waits.append(perf_counter() - start)
        assert receipt.status == "appended"


async def _warm_up(log: rw.RunLog) -> None:
    """Connections and statements are made before the clock starts, as they are for raw."""
    await asyncio.gather(*(log.append(list(events(f"warm-up-{number}", 3))) for number in range(_LANES)))
