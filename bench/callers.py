"""Runwright's side of the append benchmark: callers with events as JSON that wait until each event is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from time import perf_counter

import runwright as rw
from runwright.contract.envelope import decode_event

from .samples import events
from .stopwatch import Stopwatch, Throughput, p50_ms

_WARM_UP_RUNS = 16  # Enough to use every connection that a store may open.


async def append(url: str, lines: Sequence[Sequence[bytes]]) -> Throughput:
    """Append the events of each caller one at a time, with all callers concurrently, through the append authority."""
    latencies: list[float] = []
    async with rw.open_log(url, write_budget=60) as log:
        await _warm_up(log)
        with Stopwatch() as watch:
            await asyncio.gather(*(append_lines(log, own, latencies) for own in lines))
    return Throughput(len(latencies) / watch.seconds, p50_ms(latencies))


async def append_lines(log: rw.RunLog, lines: Iterable[bytes], latencies: list[float]) -> None:
    """One caller: decode, append, wait for the receipt, and record the latency."""
    for line in lines:
        start = perf_counter()
        (receipt,) = await log.append([decode_event(line)])
        latencies.append(perf_counter() - start)
        assert receipt.status == "appended"


async def _warm_up(log: rw.RunLog) -> None:
    """Create connections and statements before timing starts, as the raw benchmark does."""
    await asyncio.gather(*(log.append(list(events(f"warm-up-{number}", 3))) for number in range(_WARM_UP_RUNS)))
