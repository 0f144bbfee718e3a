"""Whether an append stays as quick as it was: as the log grows, and as one run grows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence

import msgspec

import runwright as rw
from runwright.log.sqlite_writer import CHECKPOINT_PAGES

from .callers import append_lines
from .fill import EVENTS_AN_APPEND, fill_run, fill_runs
from .samples import events, lines
from .scale import Scale
from .stopwatch import p50_ms
from .table import Round, Row
from .targets import TARGETS

_PROBES = 20  # runs that are measured in each of the two logs
_PROBE_EVENTS = 50  # how many events such a run has before
_APPENDS = 10  # to each of them, in each round
_EARLY = 1000


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    if "growth-log" in wanted:
        yield asyncio.run(_along_the_log(scale))
    if "growth-run" in wanted:
        yield asyncio.run(_along_a_run(scale))


async def _along_the_log(scale: Scale) -> Row:
    """One caller, 200 appends to a log with 1,000 events, then 200 to one with a million, in turn.

    They go to runs that were made while the log was filled, evenly spread through it, so that the places
    they touch lie all over the file. In both logs these runs are equally long.
    """
    row = Row(TARGETS["growth-log"])
    with scale.place() as small_folder, scale.place() as large_folder:
        async with (
            rw.open_log(f"sqlite:///{small_folder}/runs.db") as small,
            rw.open_log(f"sqlite:///{large_folder}/runs.db", write_budget=60) as large,
        ):
            count = scale.size(1_000_000, 100_000)
            await _fill_around_probes(small, 0)
            await _fill_around_probes(large, count)
            assert (await small.health())["events"] == _PROBES * _PROBE_EVENTS
            assert (await large.health())["events"] == _PROBES * _PROBE_EVENTS + count
            await _wear_in(small)
            await _wear_in(large)
            for number in range(scale.rounds):
                first = _PROBE_EVENTS + 1 + number * _APPENDS
                reference = await _append_to_probes(small, first)
                row.rounds.append(Round(await _append_to_probes(large, first), reference))
    return row


async def _fill_around_probes(log: rw.RunLog, count: int) -> None:
    between = count // EVENTS_AN_APPEND // _PROBES
    for probe in range(_PROBES):
        await fill_runs(log, (f"filler-{probe}-{number}" for number in range(between)))
        await fill_run(log, f"probe-{probe}", _PROBE_EVENTS)


async def _wear_in(log: rw.RunLog) -> None:
    """Write until the write-ahead log is checkpointed and begun anew, with something that adds no events.

    Until then that file grows with every commit, which makes each of them dearer: a new log would look slow.
    """
    lease = await log.acquire_lease("bench", ttl=600)
    for _ in range(CHECKPOINT_PAGES + 100):
        lease = await log.renew_lease(lease)
    await log.release_lease(lease)


async def _append_to_probes(log: rw.RunLog, first: int) -> float:
    """p50 of appends to each probe in turn; the first to each only opens the run."""
    runs = [_encoded(f"probe-{probe}", first, _APPENDS) for probe in range(_PROBES)]
    waits: list[float] = []
    await append_lines(log, [run[0] for run in runs], [])
    for number in range(1, _APPENDS):
        await append_lines(log, [run[number] for run in runs], waits)
    return p50_ms(waits)


async def _along_a_run(scale: Scale) -> Row:
    """One caller: the first 1,000 events of a new run, then some of the last 1,000 of a very long one, in turn."""
    row = Row(TARGETS["growth-run"])
    length, some = scale.size(100_000, 20_000), _EARLY // scale.rounds
    with scale.place() as folder:
        async with rw.open_log(f"sqlite:///{folder}/runs.db") as log:
            await fill_run(log, "long", length - _EARLY)
            for number in range(scale.rounds):
                reference = await _append(log, lines(f"new-{number}", _EARLY))
                first = length - _EARLY + 1 + number * some
                row.rounds.append(Round(await _append(log, _encoded("long", first, some)), reference))
    return row


async def _append(log: rw.RunLog, own: Sequence[bytes]) -> float:
    waits: list[float] = []
    await append_lines(log, own, waits)
    return p50_ms(waits)


def _encoded(run_id: str, first: int, count: int) -> list[bytes]:
    return [msgspec.json.encode(event) for event in events(run_id, count, first)]
