"""The Append Authority, on every store: order, duplicates, refusals, batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

import runwright as rw
from support.events import History

MakeLog = Callable[..., rw.RunLog]


async def refusal(log: rw.RunLog, *events: rw.RunEventWrite, **options: object) -> rw.AppendRefused:
    with pytest.raises(rw.AppendRefused) as caught:
        await log.append(list(events), **options)
    return caught.value


async def test_events_get_consecutive_numbers_and_come_back_as_written(make_log: MakeLog, event: History) -> None:
    written = [*event.started(), event("StepStarted", "a"), event("StepCompleted", "a", result={"rows": 3})]
    async with make_log() as log:
        receipts = await log.append(written)
        records = await log.read("run-1")
    assert [receipt.run_seq for receipt in receipts] == [1, 2, 3, 4]
    assert all(receipt.status == "appended" and receipt.persisted and not receipt.idempotent for receipt in receipts)
    for before, after, receipt in zip(written, records, receipts, strict=True):
        assert after.event_id == before.event_id == receipt.event_id
        assert after.persisted_at == receipt.persisted_at
        for field in rw.RunEventWrite.__struct_fields__:
            if field not in ("schema_version", "raw_payload"):
                assert getattr(after, field) == getattr(before, field)
        assert bytes(after.raw_payload) == bytes(before.raw_payload)
        assert len(after.hash) == 64
    assert records[3].payload == {"result": {"rows": 3}}


async def test_the_payload_is_kept_byte_for_byte(make_log: MakeLog, event: History) -> None:
    unusual_json = b'{ "a" :1.50,\n "b":"\\u00e4\xc3\xa4", "big": 123456789012345678901234567890 , "a2":{}}'
    async with make_log() as log:
        await log.append(event.started())
        await log.append([msgspec.structs.replace(event("StepStarted", "a"), raw_payload=msgspec.Raw(unusual_json))])
        assert bytes((await log.read("run-1"))[2].raw_payload) == unusual_json


async def test_a_duplicate_succeeds_with_the_first_ones_metadata(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        first = await log.append(event.started())
        again = await log.append(event.started())  # new event ids, same keys
        assert [receipt.status for receipt in again] == ["duplicate", "duplicate"]
        for one, two in zip(first, again, strict=True):
            assert (two.event_id, two.run_seq, two.persisted_at) == (one.event_id, one.run_seq, one.persisted_at)
            assert two.idempotent and not two.persisted
        assert len(await log.read("run-1")) == 2


async def test_duplicate_succeeds_when_its_transition_is_now_illegal(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("RunCompleted")])
        (again,) = await log.append([event("RunStarted")])
        assert (again.status, again.run_seq) == ("duplicate", 2)


async def test_a_duplicate_within_one_batch_counts_once(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        receipts = await log.append([*event.started(), event("RunStarted")])
        assert [receipt.status for receipt in receipts] == ["appended", "appended", "duplicate"]
        assert receipts[2].run_seq == 2


async def test_payload_mismatch_is_counted_and_the_first_event_stays(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("StepStarted", "a"), event("StepFailed", "a", error={"code": "ONE"})])
        (receipt,) = await log.append([event("StepFailed", "a", error={"code": "TWO"})])
        assert receipt.status == "duplicate"
        assert log.store.counters.payload_mismatches == 1
        (step,) = (await log.snapshot("run-1")).steps
        assert step.error is not None
        assert step.error.code == "ONE"


async def test_an_event_id_may_not_name_two_events_of_a_run(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        queued, started = event.started()
        await log.append([queued])
        reused = msgspec.structs.replace(started, event_id=queued.event_id)
        error = await refusal(log, reused)
        assert error.code == "EVENT_ID_REUSED"
        other = History("run-2")
        await log.append(
            [msgspec.structs.replace(other("RunQueued"), event_id=queued.event_id)]
        )  # allowed in another run


async def test_illegal_transition_gets_the_same_refusal_every_time(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        first = await refusal(log, event("StepCompleted", "a"))
        second = await refusal(log, event("StepCompleted", "a"))
        assert first.code == second.code == "INVALID_TRANSITION"
        assert (first.detail, first.facts) == (second.detail, second.facts)
        assert first.facts == {
            "attemptedEventType": "StepCompleted",
            "expectedState": "RUNNING",
            "actualState": "PENDING",
        }
        assert len(await log.read("run-1")) == 2


async def test_run_context_cannot_change(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        for name in ("tenant_id", "project_id", "environment_id"):
            other_context = History(**{name: "other"})
            error = await refusal(log, other_context("StepStarted", "a"))
            assert error.code == "RUN_CONTEXT_MISMATCH"
        assert (await refusal(log, History(plan_id="other")("RunStarted"))).code == "RUN_CONTEXT_MISMATCH"
        assert (await refusal(log, History(plan_version="2")("RunStarted"))).code == "RUN_CONTEXT_MISMATCH"


async def test_accepted_append_creates_a_run_and_refused_does_not(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await refusal(log, event("StepStarted", "a"))
        with pytest.raises(rw.RunwrightError) as caught:
            await log.read("run-1")
        assert caught.value.code == "RUN_NOT_FOUND"
        await log.append([event("RunQueued")])
        assert (await log.snapshot("run-1")).status == "PENDING"


async def test_refused_event_does_not_fix_the_context_of_a_new_run(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        other_context = History(tenant_id="other")
        results = await asyncio.gather(
            log.append([other_context("StepStarted", "a")]), log.append([event("RunQueued")]), return_exceptions=True
        )
        assert isinstance(results[0], rw.AppendRefused)
        assert not isinstance(results[1], BaseException)
        assert (await log.find_run("run-1")).identity.tenant_id == "default"


async def test_a_batch_is_all_or_nothing_for_each_run(make_log: MakeLog, event: History) -> None:
    other = History("run-2")
    async with make_log() as log:
        error = await refusal(
            log, event("RunQueued"), other("RunQueued"), event("StepCompleted", "a"), other("RunStarted")
        )
        assert [result.status for result in error.results] == ["not_attempted", "appended", "refused", "appended"]
        with pytest.raises(rw.RunwrightError):
            await log.read("run-1")
        assert [record.event_type for record in await log.read("run-2")] == ["RunQueued", "RunStarted"]


async def test_refused_batch_does_not_affect_later_appends(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        for _ in range(2):
            error = await refusal(
                log, event("StepStarted", "a"), event("RunPaused"), event("StepFailed", "a"), event("StepFailed", "b")
            )
            assert [result.status for result in error.results] == ["not_attempted"] * 3 + ["refused"]
        receipts = await log.append([event("StepStarted", "a"), event("StepCompleted", "a"), event("RunCompleted")])
        assert [receipt.run_seq for receipt in receipts] == [3, 4, 5]
        snapshot = await log.snapshot("run-1")
        assert (snapshot.status, snapshot.total_steps, snapshot.pauses) == ("COMPLETED", 1, 0)
        assert (await log.rebuild(check=True)).different == []


async def test_ingest_stops_each_run_at_its_first_refusal(make_log: MakeLog, event: History) -> None:
    other = History("run-2")
    async with make_log() as log:
        blocked: set[str] = set()
        results = await log.ingest(
            [event("RunQueued"), other("RunQueued"), event("StepCompleted", "a"), event("RunStarted")], blocked=blocked
        )
        assert [result.status for result in results] == ["appended", "appended", "refused", "not_attempted"]
        more = await log.ingest([event("RunStarted"), other("RunStarted")], blocked=blocked)
        assert [result.status for result in more] == ["not_attempted", "appended"]
        assert blocked == {"run-1"}


async def test_create_run_is_atomic_and_refuses_existing_runs(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        receipts = await log.create_run(event.run, event.started())
        assert [receipt.run_seq for receipt in receipts] == [1, 2]
        for events in (event.started(), []):
            with pytest.raises(rw.RunwrightError) as caught:
                await log.create_run(event.run, events)
            assert caught.value.code == "RUN_ALREADY_EXISTS"
        empty = History("run-2")
        assert await log.create_run(empty.run) == []
        assert (await log.snapshot("run-2")).last_event_seq == 0
        with pytest.raises(rw.AppendRefused):
            await log.create_run(History("run-3").run, [History("run-3")("RunCompleted")])
        with pytest.raises(rw.RunwrightError):
            await log.find_run("run-3")


async def test_append_with_expected_seq_is_conditional(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([event("RunQueued")], expected_seq=0)
        error = await refusal(log, event("RunStarted"), expected_seq=0)
        assert error.code == "SEQ_CONFLICT"
        assert error.facts["lastEventSeq"] == 1
        (receipt,) = await log.append([event("RunStarted")], expected_seq=1)
        assert receipt.run_seq == 2
        (again,) = await log.append([event("RunStarted")], expected_seq=1)
        assert again.status == "duplicate"  # a retry of a stored event succeeds despite its expected_seq


async def test_exactly_one_of_many_conditional_appends_succeeds(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        steps = [event("StepStarted", f"step-{number}") for number in range(20)]
        results = await asyncio.gather(*(log.append([step], expected_seq=2) for step in steps), return_exceptions=True)
        assert sum(not isinstance(result, BaseException) for result in results) == 1
        assert len(await log.read("run-1")) == 3


async def test_concurrent_appends_to_many_runs_leave_a_valid_log(make_log: MakeLog) -> None:
    async def one(number: int) -> None:
        events = History(f"run-{number:03}")
        await log.append(events.started())
        for step in ("a", "b", "c"):
            await log.append([events("StepStarted", step)])
            await log.append([events("StepCompleted", step)])
        await log.append([events("RunCompleted")])

    async with make_log() as log:
        await asyncio.gather(*(one(number) for number in range(60)))
        page = await log.read_all(limit=10_000)
        for number in range(60):
            seqs = [record.run_seq for record in page.records if record.run_id == f"run-{number:03}"]
            assert seqs == list(range(1, 10))
        assert [finding async for finding in log.verify()] == []
        assert (await log.rebuild(check=True)).different == []


async def test_unknown_event_types_are_stored_and_change_no_status(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("SomethingNew", "anything", x=1), event("AnotherThing")])
        snapshot = await log.snapshot("run-1")
        assert (snapshot.status, snapshot.last_event_seq, snapshot.total_steps) == ("RUNNING", 4, 0)
        await log.append([event("RunCompleted")])
        (receipt,) = await log.append([event("SomethingNew", "after the end")])
        assert receipt.run_seq == 6


async def test_persisted_time_never_runs_backwards_within_a_run(make_log: MakeLog, event: History) -> None:
    class UnsteadyClock:
        times = iter([5_000_000, 9_000_000, 2_000_000, 1_000_000, 9_500_000] + [10_000_000] * 1000)

        def now(self) -> int:
            return next(self.times)

        def monotonic(self) -> float:
            return 0.0

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    async with make_log(clock=UnsteadyClock()) as log:
        for item in (*event.started(), event("StepStarted", "a"), event("StepCompleted", "a")):
            await log.append([item])
        times = [record.persisted_at for record in await log.read("run-1")]
        assert times == sorted(times)
        assert [finding async for finding in log.verify()] == []


@pytest.mark.parametrize("size", [600, 3000])
async def test_long_runs_are_validated_like_short_ones(make_log: MakeLog, event: History, size: int) -> None:
    """Beyond 2048 events keys are read from the store instead of memory, with the same results."""
    async with make_log() as log:
        await log.append(event.started())
        steps = [f"step-{number}" for number in range(size // 2)]
        for start in range(0, len(steps), 100):
            batch = steps[start : start + 100]
            await log.append([e for step in batch for e in (event("StepStarted", step), event("StepCompleted", step))])
        first = (await log.read("run-1", limit=3))[2]
        assert (await log.append([event("StepStarted", "step-0")]))[0].run_seq == first.run_seq
        assert (await refusal(log, event("StepFailed", "step-0"))).facts["actualState"] == "SUCCESS"
        assert (await refusal(log, event("StepStarted", "step-0", 2))).code == "INVALID_TRANSITION"
        assert (await refusal(log, event("StepStarted", "new", 2))).facts["actualState"] == "PENDING"
        for used in (first.event_id, (await log.read("run-1", after=size - 5, limit=1))[0].event_id):
            reused = msgspec.structs.replace(event("StepStarted", "new"), event_id=used)
            assert (await refusal(log, reused)).code == "EVENT_ID_REUSED"
        await log.append([event("StepStarted", "flaky"), event("StepFailed", "flaky")])
        await log.append([event("StepRetryScheduled", "flaky")])
        assert (await log.snapshot("run-1")).substatus == "RETRYING"
        await log.append([event("StepStarted", "flaky", 2)])
        await log.append([event("SignalAccepted", "signal/s1"), event("StepCompleted", "flaky", 2)])
        assert (await refusal(log, event("StepStarted", "flaky", 3, forcedBy="s2"))).code == "INVALID_TRANSITION"
        await log.append([event("StepStarted", "flaky", 3, forcedBy="s1")])
        assert (await log.rebuild(check=True)).different == []
    async with make_log() as log:
        if "memory" not in type(log.store).__name__.lower():
            assert (await refusal(log, event("StepSkipped", "flaky", 2))).facts["actualState"] == "SUCCESS"
            await log.append([event("StepFailed", "flaky", 3)])
            assert (await log.snapshot("run-1")).failed_steps == 1
            assert (await log.rebuild(check=True)).different == []
