"""Events by their id, their type, their entity and their time, in every store."""

from __future__ import annotations

import pytest

import runwright as rw
from runwright.contract.timestamps import from_micros, to_micros
from runwright.log.model import EventFilter
from runwright.testing.clock import SeededIds

START = to_micros("2026-01-01T00:00:00Z")
HOUR = 3600 * 1_000_000


async def fill(log: rw.RunLog) -> list[rw.RunIdentity]:
    runs = [rw.new_run(f"r{number}", plan_id="p", plan_version="1", tenant_id=f"t{number % 2}") for number in range(4)]
    for run in runs:
        steps = ["a", "a[0]", "a[0]/x", "a/x@2", "a@2", "ab", "b"]
        await log.append([rw.new_event("RunQueued", run), rw.new_event("RunStarted", run)])
        await log.append([rw.new_event("TaskStarted", run, step_id=step) for step in steps])
    return runs


async def test_events_are_selected_by_type_and_entity(store: str) -> None:
    async with rw.open_log(store) as log:
        run = (await fill(log))[2]

        async def select(types: list[str] | None, entity: str | None, **more: int) -> list[str]:
            records = await log.select(run.run_id, EventFilter(types, entity), **more)
            return [record.step_id or record.event_type for record in records]

        assert await select(["RunQueued", "RunStarted"], None) == ["RunQueued", "RunStarted"]
        assert await select(None, "a") == ["a", "a[0]", "a[0]/x", "a/x@2", "a@2"]
        assert await select(["TaskStarted"], "a[0]") == ["a[0]", "a[0]/x"]
        assert await select(["RunStarted"], "a") == []
        assert await select(["TaskStarted"], None, after=3, limit=2) == ["a[0]", "a[0]/x"]
        assert await select([], None) == []
        assert await select(None, "a_0%") == []
        with pytest.raises(rw.RunwrightError, match="RUN_NOT_FOUND"):
            await log.select("nobody", EventFilter())


async def test_an_event_is_found_by_its_own_or_its_foreign_id(store: str) -> None:
    async with rw.open_log(store) as log:
        (first, *_) = await fill(log)
        ours = await log.read(first.run_id)
        assert await log.find_by_id(first.run_id, ours[4].event_id) == ours[4]
        assert await log.find_by_id("r1", ours[4].event_id) is None
        theirs = rw.new_event("custom", first, step_id="z")
        foreign = type(theirs)(
            **{name: getattr(theirs, name) for name in theirs.__struct_fields__} | {"foreign_event_id": "ü'1"}
        )
        await log.append([foreign])
        found = await log.find_by_id(first.run_id, "ü'1")
        assert found is not None
        assert (found.event_id, found.foreign_event_id) == (theirs.event_id, "ü'1")
        assert await log.find_by_id(first.run_id, "ü") is None
        many = [rw.new_event("custom", first, step_id=f"s{number}") for number in range(3000)]
        await log.append(many)
        for place in (0, 2030, 2040, 2999):
            record = await log.find_by_id(first.run_id, many[place].event_id)
            assert record is not None
            assert record.step_id == f"s{place}"


async def test_search_finds_events_of_all_runs_since_a_time(store: str) -> None:
    async with rw.open_log(store) as log:
        await fill(log)
        middle = from_micros(log.clock.now())
        late = rw.new_run("late", plan_id="p", plan_version="1", tenant_id="t1")
        await log.append([rw.new_event("RunQueued", late), rw.new_event("RunStarted", late)])

        async def search_runs(types: list[str], since: str, **more: str) -> list[str]:
            names: list[str] = []
            cursor: str | None = None
            while True:
                page = await log.search(types, since, cursor=cursor, limit=2, **more)  # type: ignore[arg-type]
                names += [record.run_id for record in page.records]
                if page.cursor == cursor:
                    return sorted(names)
                cursor = page.cursor

        assert await search_runs(["RunStarted"], "2026-01-01T00:00:00Z") == ["late", "r0", "r1", "r2", "r3"]
        assert await search_runs(["RunStarted"], "2026-01-01T00:00:00Z", tenant_id="t1") == ["late", "r1", "r3"]
        assert await search_runs(["RunStarted"], middle) == ["late"]
        assert await search_runs(["RunStarted"], "2199-01-01T00:00:00Z") == []
        assert await search_runs(["RunPaused"], "2026-01-01T00:00:00Z") == []


class _Clock:
    def __init__(self) -> None:
        self.time = START

    def now(self) -> int:
        return self.time

    def monotonic(self) -> float:
        return self.time / 1e6


@pytest.mark.parametrize("hours", [0, 1, 50, 99, 100])
async def test_search_starts_reading_at_the_position_of_the_time(hours: int) -> None:
    """With one event per hour, a search from a time reads only the events written since then."""
    import random

    from runwright.log.memory import MemoryStore

    clock = _Clock()
    async with rw.RunLog(MemoryStore(clock=clock), ids=SeededIds(random.Random(1))) as log:  # type: ignore[arg-type]
        for number in range(100):
            clock.time = START + number * HOUR
            await log.append([rw.new_event("x", rw.new_run(f"r{number}", plan_id="p", plan_version="1"))])
        reads: list[int] = []
        read_tail = log.store.read_tail

        async def counting_read_tail(positions: list[int], limit: int, types: object = None) -> object:
            found = await read_tail(positions, limit, types)  # type: ignore[arg-type]
            reads.append(len(found))
            return found

        log.store.read_tail = counting_read_tail  # type: ignore[assignment]
        page = await log.search(["x"], from_micros(START + hours * HOUR))
        assert [record.run_id for record in page.records] == [f"r{number}" for number in range(hours, 100)]
        assert reads == [100 - hours]
