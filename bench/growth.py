"""The latency of an append as the log grows, and as one run grows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence

import msgspec

import runwright as rw
from runwright.log.sqlite.writer import CHECKPOINT_PAGES

from .callers import append_lines
from .fill import EVENTS_PER_APPEND, fill_run, fill_runs
from .samples import events, lines
from .scale import Scale
from .stopwatch import p50_ms
from .table import Measurement, Row
from .targets import TARGETS

_PROBES = 20  # Measured runs in each of the two logs.
_PROBE_EVENTS = 50  # Events of such a run before the measurement.
_APPENDS = 10  # Per probe and round.
_EARLY = 1000


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    if "growth-log" in wanted:
        yield asyncio.run(_measure_log_growth(scale))
    if "growth-run" in wanted:
        yield asyncio.run(_measure_run_growth(scale))


async def _measure_log_growth(scale: Scale) -> Row:
    """Measure one caller: 200 appends to a log of 1,000 events and 200 to one of a million, alternately.

    The runs were created at even intervals while the log was filled, so that the appends touch pages all over the
    file. They have the same length in both logs.
    """
    row = Row(TARGETS["growth-log"])
    with scale.new_folder() as small_folder, scale.new_folder() as large_folder:
        async with (
            rw.open_log(f"sqlite:///{small_folder}/runs.db") as small,
            rw.open_log(f"sqlite:///{large_folder}/runs.db", write_budget=60) as large,
        ):
            count = scale.size(1_000_000, 100_000)
            await _fill_around_probes(small, 0)
            await _fill_around_probes(large, count)
            assert (await small.health())["events"] == _PROBES * _PROBE_EVENTS
            assert (await large.health())["events"] == _PROBES * _PROBE_EVENTS + count
            await _checkpoint_wal(small)
            await _checkpoint_wal(large)
            for number in range(scale.rounds):
                first = _PROBE_EVENTS + 1 + number * _APPENDS
                reference = await _append_to_probes(small, first)
                row.rounds.append(Measurement(await _append_to_probes(large, first), reference))
    return row


async def _fill_around_probes(log: rw.RunLog, count: int) -> None:
    fillers = count // EVENTS_PER_APPEND // _PROBES
    for probe in range(_PROBES):
        await fill_runs(log, (f"filler-{probe}-{number}" for number in range(fillers)))
        await fill_run(log, f"probe-{probe}", _PROBE_EVENTS)


async def _checkpoint_wal(log: rw.RunLog) -> None:
    """Write, without adding events, until the write-ahead log has been checkpointed and restarted.

    Until then the WAL file grows with every commit, which makes commits slower: a new log would look slow.
    """
    lease = await log.leases.acquire("bench", ttl=600)
    for _ in range(CHECKPOINT_PAGES + 100):
        lease = await log.leases.renew(lease)
    await log.leases.release(lease)


async def _append_to_probes(log: rw.RunLog, first: int) -> float:
    """Return the p50 of appends to the probes in turn. The first append to each only loads the run and is not timed."""
    runs = [_encoded(f"probe-{probe}", first, _APPENDS) for probe in range(_PROBES)]
    latencies: list[float] = []
    await append_lines(log, [run[0] for run in runs], [])
    for number in range(1, _APPENDS):
        await append_lines(log, [run[number] for run in runs], latencies)
    return p50_ms(latencies)


async def _measure_run_growth(scale: Scale) -> Row:
    """Measure one caller: the first 1,000 events of a new run and some of the last 1,000 of a long one, alternately."""
    row = Row(TARGETS["growth-run"])
    length, batch = scale.size(100_000, 20_000), _EARLY // scale.rounds
    with scale.new_folder() as folder:
        async with rw.open_log(f"sqlite:///{folder}/runs.db") as log:
            await fill_run(log, "long", length - _EARLY)
            for number in range(scale.rounds):
                reference = await _append(log, lines(f"new-{number}", _EARLY))
                first = length - _EARLY + 1 + number * batch
                row.rounds.append(Measurement(await _append(log, _encoded("long", first, batch)), reference))
    return row


async def _append(log: rw.RunLog, run: Sequence[bytes]) -> float:
    latencies: list[float] = []
    await append_lines(log, run, latencies)
    return p50_ms(latencies)


def _encoded(run_id: str, first: int, count: int) -> list[bytes]:
    return [msgspec.json.encode(event) for event in events(run_id, count, first)]
