"""Reading on every store: pages, tails, waiting for events, earlier states, lists, names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

import runwright as rw
from runwright.log.model import EventFilter
from support.events import History

MakeLog = Callable[..., rw.RunLog]


async def test_a_run_is_read_in_pages_without_gaps(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), *(event("StepStarted", f"s{number}") for number in range(30))])
        after, seen = 0, []
        while page := await log.read("run-1", after=after, limit=7):
            assert len(page) <= 7
            seen += [record.run_seq for record in page]
            after = seen[-1]
        assert seen == list(range(1, 33))
        assert [record.run_seq async for record in log.events("run-1", after=30)] == [31, 32]


async def test_pages_are_limited_in_bytes(make_log: MakeLog, event: History) -> None:
    """A page ends with the event that reaches 4 MiB; none is lost between pages."""
    async with make_log() as log:
        large = [event("StepStarted", f"s{number}", payload={"text": "x" * 900_000}) for number in range(12)]
        await log.append(event.started())
        for each in large:
            await log.append([each])
        everything = await log.read("run-1")
        assert len(everything) == 14

        async def select(after: int) -> list[rw.RunEventRecord]:
            return await log.select("run-1", EventFilter(("StepStarted",), None), after)

        for read, expected in ((lambda after: log.read("run-1", after, 1000), 14), (select, 12)):
            after, sizes, seen = 0, list[int](), list[int]()
            while page := await read(after):
                sizes.append(len(page))
                seen += [record.run_seq for record in page]
                after = seen[-1]
            assert seen == [record.run_seq for record in everything][-expected:]
            assert max(sizes) <= 7
        cursor, seen = None, list[int]()
        while (page := await log.read_all(cursor, limit=1000)).records:
            assert len(page.records) <= 7
            seen += [record.run_seq for record in page.records]
            cursor = page.cursor
        assert seen == list(range(1, 15))


async def test_tail_returns_each_event_once_and_runs_in_order(make_log: MakeLog) -> None:
    async with make_log() as log:
        for number in range(12):
            await log.append(History(f"run-{number}").started())
        cursor, seen = None, list[tuple[str, int]]()
        while (page := await log.read_all(cursor, limit=5)).records:
            seen += [(record.run_id, record.run_seq) for record in page.records]
            cursor = page.cursor
        assert sorted(seen) == sorted((f"run-{number}", seq) for number in range(12) for seq in (1, 2))
        for number in range(12):
            assert seen.index((f"run-{number}", 1)) < seen.index((f"run-{number}", 2))
        await log.append([History("run-3")("StepStarted", "late")])
        (late,) = (await log.read_all(cursor)).records
        assert (late.run_id, late.step_id) == ("run-3", "late")


async def test_invalid_cursors_are_refused(make_log: MakeLog) -> None:
    async with make_log() as log:
        for cursor in ("", "x", "-1", "1.2.3", "9" * 40, "١"):
            with pytest.raises(rw.RunwrightError) as caught:
                await log.read_all(cursor)
            assert caught.value.code == "INVALID_CURSOR"
            with pytest.raises(rw.RunwrightError):
                await log.list_runs(cursor=cursor or "no")


async def test_followers_receive_events_as_they_are_appended(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())

        async def follow() -> list[str]:
            seen: list[str] = []
            async for record in log.follow("run-1"):
                seen.append(record.event_type)
                if record.event_type == "RunCompleted":
                    return seen
            return seen

        follower = asyncio.create_task(follow())
        await asyncio.sleep(0.05)
        await log.append([event("StepStarted", "a")])
        await asyncio.sleep(0.05)
        await log.append([event("StepCompleted", "a"), event("RunCompleted")])
        seen = await asyncio.wait_for(follower, 10)
        assert seen == ["RunQueued", "RunStarted", "StepStarted", "StepCompleted", "RunCompleted"]


async def test_wait_for_events_returns_when_one_is_appended(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        waiting = asyncio.create_task(log.wait_for_events(timeout=10))
        await asyncio.sleep(0.05)
        await log.append(event.started())
        assert await waiting is True


async def test_follower_receives_events_appended_by_another_log(durable_url: str, event: History) -> None:
    async with rw.open_log(durable_url) as reader, rw.open_log(durable_url) as writer:
        await reader.append(event.started())
        stream = reader.follow("run-1", after=2)
        following = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.1)
        await writer.append([event("StepStarted", "a")])
        record = await asyncio.wait_for(following, 10)
        assert record.step_id == "a"
        await stream.aclose()


async def test_two_logs_on_one_store_never_disagree(durable_url: str, event: History) -> None:
    """Each log caches runs; neither may rely on its cache after the other has written."""
    async with rw.open_log(durable_url) as one, rw.open_log(durable_url) as two:
        await one.append(event.started())
        await two.append([event("StepStarted", "a")])
        await one.append([event("StepCompleted", "a")])
        assert (await two.append([event("StepCompleted", "a")]))[0].status == "duplicate"
        with pytest.raises(rw.AppendRefused):
            await two.append([event("StepFailed", "a")])
        for number in range(10):
            writer = (one, two)[number % 2]
            await writer.append([event("StepStarted", f"s{number}")])
        results = await asyncio.gather(
            *(log.append([event("StepStarted", f"both-{n}")]) for n in range(10) for log in (one, two))
        )
        assert sum(receipt.status == "appended" for (receipt,) in results) == 10
        assert [record.run_seq for record in await one.read("run-1")] == list(range(1, 25))
        assert [finding async for finding in two.verify()] == []
        assert (await two.rebuild(check=True)).different == []


async def test_snapshot_shows_a_run_at_an_earlier_event_or_time(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("StepStarted", "a")])
        middle = (await log.read("run-1"))[-1].persisted_at
        await asyncio.sleep(0.002)
        await log.append([event("StepCompleted", "a"), event("RunCompleted")])
        assert (await log.snapshot("run-1", at=0)).status == "PENDING"
        assert (await log.snapshot("run-1", at=3)).steps[0].status == "RUNNING"
        assert (await log.snapshot("run-1", at=middle)).last_event_seq == 3
        assert (await log.snapshot("run-1", at=datetime(2000, 1, 1, tzinfo=UTC))).last_event_seq == 0
        assert (await log.snapshot("run-1", at="2999-01-01T00:00:00Z")).status == "COMPLETED"
        for invalid in (6, -1, "yesterday", datetime(2026, 1, 1)):
            with pytest.raises(rw.RunwrightError) as caught:
                await log.snapshot("run-1", at=invalid)
            assert caught.value.code == "INVALID_ARGUMENT"


async def test_run_lists_can_be_filtered_and_paged(make_log: MakeLog) -> None:
    async with make_log() as log:
        for number in range(9):
            events = History(f"run-{number}", plan_id=f"plan-{number % 3}", tenant_id=f"t-{number % 2}")
            await log.append([*events.started(), *([events("RunCompleted")] if number % 2 else [])])
        page = await log.list_runs(limit=4)
        assert [row.identity.run_id for row in page.runs] == ["run-8", "run-7", "run-6", "run-5"]
        rest = await log.list_runs(cursor=page.cursor, limit=50)
        assert [row.identity.run_id for row in rest.runs] == ["run-4", "run-3", "run-2", "run-1", "run-0"]
        assert rest.cursor is None

        async def ids(**conditions: object) -> list[str]:
            return [row.identity.run_id for row in (await log.list_runs(rw.RunFilter(**conditions))).runs]

        assert await ids(status=rw.RunStatus.COMPLETED) == ["run-7", "run-5", "run-3", "run-1"]
        assert await ids(plan_id="plan-0", status=rw.RunStatus.RUNNING) == ["run-6", "run-0"]
        assert await ids(tenant_id="t-1", plan_id="plan-1") == ["run-7", "run-1"]
        assert await ids(since=0) == await ids()
        assert await ids(since=2**52) == []


async def test_run_is_resolved_by_id_unique_prefix_or_last(make_log: MakeLog) -> None:
    async with make_log() as log:
        with pytest.raises(rw.RunwrightError) as caught:
            await log.resolve_run("@last")
        assert caught.value.code == "RUN_NOT_FOUND"
        for run_id in ("ab", "abc", "xy%z", "xy_"):
            await log.append([History(run_id)("RunQueued")])
        assert (await log.resolve_run("ab")).identity.run_id == "ab"
        assert (await log.resolve_run("xy%")).identity.run_id == "xy%z"
        assert (await log.resolve_run("@last")).identity.run_id == "xy_"
        for name in ("a", "x", "", "nothing", "x%"):
            with pytest.raises(rw.RunwrightError) as caught:
                await log.resolve_run(name)
            assert caught.value.code == "RUN_NOT_FOUND"


async def test_runs_beyond_the_cache_limit_are_read_correctly(
    make_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runwright.log.run_log.MAX_CACHED_RUNS", 2)  # fewer than the runs of this test
    async with make_log() as log, make_log() as other:
        for number in range(5):
            events = History(f"run-{number}", plan_id=f"plan-{number}")
            await log.append([*events.started(), events("StepStarted", f"step-{number}")])
        for number in (0, 1, 2, 3, 4, 0, 3):
            records = await log.read(f"run-{number}")
            assert {(record.run_id, record.plan_id) for record in records} == {(f"run-{number}", f"plan-{number}")}
            found = await log.find_event(f"run-{number}", "StepStarted", f"step-{number}")
            assert found == records[2]
        with pytest.raises(rw.RunwrightError) as caught:
            await log.read("run-5")
        assert caught.value.code == "RUN_NOT_FOUND"
        if type(other.store).__name__ != "MemoryStore":
            await other.append(History("run-5").started())
            assert len(await log.read("run-5")) == 2  # the earlier RUN_NOT_FOUND is not cached


async def test_unusual_ids_are_stored_unchanged(make_log: MakeLog) -> None:
    unusual_ids = ["ünïcode ✓", " spaces ", "quote'\"", "new\nline", "a/b\\c", "x" * 512, "%_*?["]
    async with make_log() as log:
        for run_id in unusual_ids:
            events = History(run_id, plan_id=f"p {run_id}"[:500])
            await log.append([*events.started(), events("StepStarted", run_id)])
        for run_id in unusual_ids:
            assert (await log.read(run_id))[2].step_id == run_id
        assert [finding async for finding in log.verify()] == []


async def test_closed_log_raises_store_closed(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
    with pytest.raises(rw.RunwrightError) as caught:
        await log.append([event("RunPaused")])
    assert caught.value.code == "STORE_CLOSED"


async def test_a_log_can_be_opened_again(store_url: str, event: History) -> None:
    log = rw.open_log(store_url)
    for number in range(2):
        async with log:
            await log.append([event("SomethingNew", f"step-{number}")])
            assert len(await log.read("run-1")) == number + 1
