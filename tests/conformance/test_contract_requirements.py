"""Requirements of the source contracts on a log that no other test covers.

`docs/conformance.md` maps each rule of the contracts to the tests that check it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import runwright as rw
from runwright.log.anchor import compare, make_anchor
from runwright.log.export_import import Importer
from support.events import History

MakeLog = Callable[..., rw.RunLog]


async def code_of(work: object) -> str:
    with pytest.raises(rw.RunwrightError) as caught:
        await work
    return caught.value.code


def emitted(event: rw.RunEventWrite, moment: str) -> rw.RunEventWrite:
    return msgspec.structs.replace(event, emitted_at=moment)


# The envelope: RunEvents 2, 3.1, 4; ExecutionSemantics A.2

REQUIRED = [
    "eventId", "eventType", "runId", "tenantId", "projectId", "environmentId", "planId", "planVersion",
    "engineAttemptId", "logicalAttemptId", "idempotencyKey", "emittedAt",
]  # fmt: skip


def broken_events(event: History) -> Iterable[tuple[str, dict[str, Any]]]:
    """Events with exactly one defect, each with a description of it."""

    def document(name: str, step_id: str | None, **changes: Any) -> dict[str, Any]:
        content = {**json.loads(msgspec.json.encode(event(name))), "stepId": step_id, **changes}
        if "idempotencyKey" not in changes:
            names = ("runId", "stepId", "logicalAttemptId", "eventType", "planId", "planVersion")
            content["idempotencyKey"] = rw.idempotency_key(*(content[name] for name in names))
        return {name: value for name, value in content.items() if value is not None}

    for kind, step_id in (("RunQueued", None), ("RunPaused", None), ("StepStarted", "a"), ("SomethingNew", "a")):
        whole = document(kind, step_id)
        for name in REQUIRED:
            yield f"{kind} without {name}", {key: value for key, value in whole.items() if key != name}
        for name in ("runId", "eventType", "planId", "planVersion"):
            yield f"{kind} with a bar in {name}", document(kind, step_id, **{name: "a|b"})
        for name, value in (
            ("eventId", "5f2b6c1e-8a34-1b0f-9c7d-1e2f3a4b5c6d"),
            ("eventId", "5f2b6c1e-8a34-5b0f-9c7d-1e2f3a4b5c6d"),
            ("emittedAt", "2026-01-31T08:00:00"),
            ("emittedAt", "2026-01-31T08:00:00+01:00"),
            ("logicalAttemptId", 0),
            ("engineAttemptId", 0),
            ("runSeq", 7),
            ("persistedAt", "2026-01-31T08:00:00Z"),
            ("engineRunRef", "temporal://a/b/c/d"),
            ("payload", ["x"]),
            ("idempotencyKey", "0" * 64),
        ):
            yield f"{kind} with {name} {value}", document(kind, step_id, **{name: value})
        preimage_with_tenant = f"default|run-1|{step_id or 'RUN'}|1|{kind}|orders|1"
        wrong = sha256(preimage_with_tenant.encode()).hexdigest()
        yield f"{kind} with its tenant in the key", document(kind, step_id, idempotencyKey=wrong)
    yield "a run event with a step", document("RunPaused", "a")
    for kind in ("StepStarted", "StepCompleted", "StepFailed", "StepSkipped"):
        yield f"{kind} of no step", document(kind, None)
        yield f"{kind} of a step without a name", document(kind, "")
        yield f"{kind} with a bar in its step", document(kind, "a|b")
    yield "a payload that does not fit", document("RunPaused", None, payload={"reason": 7})
    yield "an error that is no object", document("StepFailed", "a", payload={"error": "broken"})


async def test_invalid_envelope_or_payload_is_refused_and_not_stored(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([event("RunStarted"), event("StepStarted", "other")])  # none of the events below
        before = await log.read("run-1")
        for description, document in broken_events(event):
            for _ in range(2):
                (outcome,) = await log.ingest([json.dumps(document).encode()])
                assert (outcome.status, getattr(outcome, "code", None)) == ("refused", "SCHEMA_VALIDATION_FAILED"), (
                    description
                )
        assert await log.read("run-1") == before
        assert len((await log.list_runs()).runs) == 1


async def test_key_fields_are_hashed_without_normalization(make_log: MakeLog, event: History) -> None:
    """Surrounding spaces, capitals, composed and decomposed letters: the key is over the text as sent."""
    names = ("runId", "stepId", "logicalAttemptId", "eventType", "planId", "planVersion")
    async with make_log() as log:
        for number, field in enumerate([name for name in names if name != "logicalAttemptId"]):
            document = json.loads(msgspec.json.encode(event("SomethingNew", "a")))
            document |= {"runId": f"run-{number}", field: " \tÉ e\u0301 \u00a0"}
            preimage = "|".join(str(document[name]) for name in names)
            document["idempotencyKey"] = sha256(preimage.encode("utf-8")).hexdigest()
            (outcome,) = await log.ingest([json.dumps(document).encode()])
            assert outcome.status == "appended", field
            (record,) = await log.read(document["runId"])
            assert json.loads(msgspec.json.encode(record)).items() >= document.items()


def test_event_ids_are_random_and_not_derived(event: History) -> None:
    one, two = event("RunStarted"), event("RunStarted")
    assert one.idempotency_key == two.idempotency_key
    assert one.event_id != two.event_id
    assert uuid.UUID(one.event_id).version == 4


async def test_engine_attempt_defaults_to_one(make_log: MakeLog, event: History) -> None:
    old = {"eventType": "RUN_STARTED", "runId": "old", "emittedAt": "2026-01-01T00:00:00Z", "eventId": "1"}
    context = {"tenantId": "t", "projectId": "p", "environmentId": "e", "planId": "p", "planVersion": "1"}
    async with make_log() as log:
        await log.append([event("RunQueued")])
        await Importer(log).import_lines([msgspec.json.encode({**old, "context": context})])
        for run_id in ("run-1", "old"):
            assert [record.engine_attempt_id for record in await log.read(run_id)] == [1]


async def test_task_checkpoint_and_signal_events_do_not_collide(make_log: MakeLog, event: History) -> None:
    """Each event names its entity in stepId; the log accepts any name, also one outside our grammar."""
    paths = ["load[0]", "load[1]", "load~2[0]", "load@2[0]", "load[0]/fetch", "load[0]/fetch@2", "]]@~//[", "RUN", " "]
    fine_grained = [
        *(event("TaskStarted", path) for path in paths),
        *(event("CheckpointWritten", "load", ordinal) for ordinal in (1, 2, 3)),
        *(event("SignalAccepted", f"signal/{number}") for number in (1, 2)),
    ]
    async with make_log() as log:
        receipts = await log.append([*event.started(), *fine_grained])
        assert [receipt.run_seq for receipt in receipts] == list(range(1, len(fine_grained) + 3))
        assert [record.step_id for record in await log.read("run-1", after=2)] == [
            item.step_id for item in fine_grained
        ]


# Clocks: RunEvents 2.3


async def test_authority_sets_persisted_time_and_keeps_emitted_time(make_log: MakeLog, event: History) -> None:
    emitted_times = ["2999-01-01T00:00:00Z", "1999-12-31T23:59:59.5+00:00", "2024-02-29T00:00:00.123456789Z"]
    items = [*event.started(), event("StepStarted", "a")]
    async with make_log() as log:
        await log.append([emitted(item, moment) for item, moment in zip(items, emitted_times, strict=True)])
        records = await log.read("run-1")
    assert [record.emitted_at for record in records] == emitted_times
    now = datetime.now(UTC)
    for record in records:
        persisted_at = datetime.fromisoformat(record.persisted_at)
        assert abs(now - persisted_at) < timedelta(minutes=10)
        assert persisted_at.utcoffset() == timedelta(0)


async def test_time_filters_use_the_authoritys_clock(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([emitted(event("RunQueued"), "2999-01-01T00:00:00Z")])
        await log.append([emitted(event("RunStarted"), "1999-01-01T00:00:00Z")])
        middle = (await log.read("run-1"))[-1].persisted_at
        await asyncio.sleep(0.002)
        await log.append([emitted(event("RunCompleted"), "1999-01-01T00:00:00Z")])
        assert (await log.snapshot("run-1", at="2010-01-01T00:00:00Z")).last_event_seq == 0
        assert (await log.snapshot("run-1", at=middle)).last_event_seq == 2
        assert (await log.snapshot("run-1", at="2900-01-01T00:00:00Z")).last_event_seq == 3
        for year, found in ((2010, 1), (2900, 0)):
            since = int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
            assert len((await log.list_runs(rw.RunFilter(since=since))).runs) == found


# Identity and duplicates: RunEvents 2.5, 3.2; ExecutionSemantics 1.1, 1.3


async def test_concurrent_duplicates_all_refer_to_one_stored_event(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        same = [event("StepStarted", "a") for _ in range(20)]  # each has its own event id
        answers = [receipt for (receipt,) in await asyncio.gather(*(log.append([item]) for item in same))]
        (record,) = await log.read("run-1", after=2)
        assert {(a.event_id, a.run_seq, a.persisted_at) for a in answers} == {(record.event_id, 3, record.persisted_at)}
        assert sorted(answer.status for answer in answers) == ["appended"] + ["duplicate"] * 19


async def test_repeated_engine_attempt_is_a_duplicate(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("StepStarted", "a")])
        again = rw.new_event("StepStarted", event.run, step_id="a", engine_attempt=3)
        (receipt,) = await log.append([again])
        assert (receipt.status, receipt.run_seq) == ("duplicate", 3)
        third = rw.new_event("StepCompleted", event.run, step_id="a", engine_attempt=3)
        await log.append([third])
        assert [record.engine_attempt_id for record in await log.read("run-1")] == [1, 1, 1, 3]


async def test_a_producer_can_rebuild_its_event_ids_from_the_log(make_log: MakeLog, event: History) -> None:
    """A registry of ids needs no storage of its own: after a restart the log has the id of each key."""
    emitted_before = [*event.started(), event("StepStarted", "a")]
    async with make_log() as log:
        await log.append(emitted_before)
        registry = {record.idempotency_key: record.event_id async for record in log.events("run-1")}
        assert registry == {item.idempotency_key: item.event_id for item in emitted_before}
        lost = event("StepStarted", "a")  # emitted again by a producer that lost its ids
        (receipt,) = await log.append([lost])
        assert receipt.event_id == registry[lost.idempotency_key] != lost.event_id


async def test_database_constraints_reject_a_reused_seq_or_key(durable_url: str, event: History) -> None:
    """The authority never tries this; the constraints protect the log from any other writer."""
    async with rw.open_log(durable_url) as log:
        await log.append([*event.started(), event("StepStarted", "a")])
    copied = (
        "event_type, step_id, schema_version, engine_attempt_id, logical_attempt_id, emitted_at, persisted_at, hash"
    )
    for seq, key in (("run_seq", "event_id"), ("99", "idempotency_key")):
        if durable_url.startswith("sqlite"):
            statement = (
                f"INSERT INTO event (run_key, event_id, run_seq, idempotency_key, {copied})"
                f" SELECT run_key, zeroblob(16), {seq}, {key}, {copied} FROM event WHERE run_seq = 3"
            )
            connection = apsw.Connection(durable_url.removeprefix("sqlite:///"))
            with pytest.raises(apsw.ConstraintError):
                connection.execute(statement)
            connection.close()
        else:
            statement = (
                f"INSERT INTO event (run_key, event_id, run_seq, idempotency_key, shard, pos, {copied})"
                f" SELECT run_key, '\\x00', {seq}, {key}, shard, 1000000, {copied} FROM event WHERE run_seq = 3"
            )
            server = await asyncpg.connect(durable_url)
            with pytest.raises(asyncpg.UniqueViolationError):
                await server.execute(statement)
            await server.close()


async def test_stored_events_never_change(make_log: MakeLog, event: History) -> None:
    """The log is append-only: no operation on a run changes its stored events."""
    async with make_log() as log:
        await log.append([*event.started(), event("StepStarted", "a"), event("StepFailed", "a", error={"code": "ONE"})])
        before_changes = await log.read("run-1")
        fence = await log.leases.claim_run("run-1", await log.leases.acquire("me", ttl=30))
        await log.append([event("StepFailed", "a", error={"code": "TWO"})], fence=fence)
        assert await code_of(log.append([event("StepCompleted", "a")], fence=fence)) == "INVALID_TRANSITION"
        await log.append([event("StepStarted", "a", 2), event("StepCompleted", "a", 2)], fence=fence)
        await log.append([event("RunCancelled")], fence=fence)
        await log.rebuild()
        assert (await log.read("run-1"))[:4] == before_changes
        assert (await log.read_all()).records[:4] == before_changes


# Unknown types and unpersisted events: RunEvents 1.3


async def test_unknown_event_types_are_returned_and_deduplicated(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("SomethingNew", "x", deep={"a": [1, None]}), event("AnotherThing")])
        assert [r.status for r in await log.append([event("SomethingNew", "x", deep={"a": [1, None]})])] == [
            "duplicate"
        ]
        for records in (await log.read("run-1"), (await log.read_all()).records):
            assert [record.event_type for record in records[2:]] == ["SomethingNew", "AnotherThing"]
            assert records[2].payload == {"deep": {"a": [1, None]}}
        projector = rw.SnapshotProjector()
        before = projector.project_run("run-1", await log.read("run-1", limit=2))
        after = projector.incremental_project(before, await log.read("run-1", after=2))
        assert (after.last_event_seq, after.status, after.steps) == (4, "RUNNING", ())
        assert projector.alerts == {}


def test_unpersisted_events_cannot_be_folded(event: History) -> None:
    """Only the authority's number gives the position of an event; a producer's event has none."""
    with pytest.raises(AttributeError, match="run_seq"):
        rw.SnapshotProjector().project_run("run-1", event.started())  # type: ignore[arg-type]


# Transitions: RunEvents 5; ExecutionSemantics 1.2

REACHED_BY: dict[str, list[str]] = {
    "PENDING": ["RunQueued"],
    "APPROVED": ["RunQueued", "RunApproved"],
    "RUNNING": ["RunQueued", "RunStarted"],
    "PAUSED": ["RunQueued", "RunStarted", "RunPaused"],
    "COMPLETED": ["RunQueued", "RunStarted", "RunCompleted"],
    "FAILED": ["RunQueued", "RunStarted", "RunFailed"],
    "CANCELLED": ["RunQueued", "RunStarted", "RunCancelled"],
}
RUN_MOVES: dict[str, tuple[str, str]] = {
    "RunApproved": ("PENDING", "APPROVED"),
    "RunStarted": ("PENDING APPROVED", "RUNNING"),
    "RunPaused": ("RUNNING", "PAUSED"),
    "RunResumed": ("PAUSED", "RUNNING"),
    "RunCompleted": ("RUNNING", "COMPLETED"),
    "RunFailed": ("PENDING APPROVED RUNNING PAUSED", "FAILED"),
    "RunCancelled": ("PENDING APPROVED RUNNING PAUSED", "CANCELLED"),
    "SignalAccepted": (" ".join(REACHED_BY), "as it was"),
    "SignalRejected": (" ".join(REACHED_BY), "as it was"),
}
STEP_REACHED_BY: dict[str, list[str]] = {
    "PENDING": [],
    "RUNNING": ["StepStarted"],
    "SUCCESS": ["StepStarted", "StepCompleted"],
    "FAILED": ["StepStarted", "StepFailed"],
    "SKIPPED": ["StepSkipped"],
}
STEP_MOVES = {
    "StepStarted": ("PENDING", "RUNNING"),
    "StepCompleted": ("RUNNING", "SUCCESS"),
    "StepFailed": ("RUNNING", "FAILED"),
    "StepSkipped": ("PENDING", "SKIPPED"),
}


async def test_runs_allow_exactly_the_contracts_transitions(make_log: MakeLog) -> None:
    async with make_log() as log:
        for status, history in REACHED_BY.items():
            for name, (legal_in, leads_to) in RUN_MOVES.items():
                event = History(f"{status} {name}")
                await log.append([event(earlier) for earlier in history])
                move = event(name, "signal/1" if name.startswith("Signal") else None, 9)  # attempt 9 is no duplicate
                if status in legal_in.split():
                    await log.append([move])
                    expected = status if leads_to == "as it was" else leads_to
                else:
                    assert await code_of(log.append([move])) == "INVALID_TRANSITION", event.run.run_id
                    expected = status
                snapshot = await log.snapshot(event.run.run_id)
                assert (snapshot.status, snapshot.inconsistent) == (expected, False), event.run.run_id
                assert snapshot.last_event_seq == len(history) + (status in legal_in.split())


async def test_steps_allow_exactly_the_contracts_transitions(make_log: MakeLog) -> None:
    async with make_log() as log:
        for status, history in STEP_REACHED_BY.items():
            for name, (legal_in, leads_to) in STEP_MOVES.items():
                if name in history:
                    continue  # that would be a duplicate
                event = History(f"{status} {name}")
                await log.append([*event.started(), *(event(earlier, "a") for earlier in history)])
                if status == legal_in:
                    await log.append([event(name, "a")])
                    expected = leads_to
                else:
                    assert await code_of(log.append([event(name, "a")])) == "INVALID_TRANSITION", event.run.run_id
                    expected = status
                steps = (await log.snapshot(event.run.run_id)).steps
                assert [step.status for step in steps] == ([] if expected == "PENDING" else [expected])


async def test_refused_event_is_accepted_once_it_is_legal(make_log: MakeLog, event: History) -> None:
    early = event("StepCompleted", "a")
    async with make_log() as log:
        await log.append(event.started())
        for _ in range(3):
            assert await code_of(log.append([early])) == "INVALID_TRANSITION"
        assert len(await log.read("run-1")) == 2
        await log.append([event("StepStarted", "a")])
        (receipt,) = await log.append([early])
        assert (receipt.status, receipt.run_seq, receipt.event_id) == ("appended", 4, early.event_id)


async def test_append_checks_run_in_a_fixed_order(make_log: MakeLog, event: History) -> None:
    """Each event has two defects and the refusal names the one that is checked first. Producers rely on it."""

    def changed(item: rw.RunEventWrite, **changes: Any) -> rw.RunEventWrite:
        return msgspec.structs.replace(item, **changes)

    bad_payload = msgspec.Raw(b'{"error": "text"}')
    invalid, stale = "SCHEMA_VALIDATION_FAILED", rw.Fence("nobody", 7)
    async with make_log() as log:
        queued, started = event.started()
        await log.append([queued, started, event("StepStarted", "a")])
        illegal = event("StepFailed", "b")
        cases: list[tuple[str, rw.RunEventWrite, dict[str, Any]]] = [
            (invalid, changed(started, tenant_id="other", idempotency_key="0" * 64), {}),  # key, context
            ("RUN_CONTEXT_MISMATCH", changed(started, tenant_id="other"), {}),  # context, duplicate
            ("EVENT_ID_REUSED", changed(illegal, event_id=queued.event_id, raw_payload=bad_payload), {}),  # id, payload
            (invalid, changed(illegal, raw_payload=bad_payload), {"fence": stale}),  # payload, fence
            ("STALE_FENCE", illegal, {"fence": stale, "expected_seq": 1}),  # fence, expected number
            ("SEQ_CONFLICT", illegal, {"expected_seq": 1}),  # expected number, transition
            ("INVALID_TRANSITION", illegal, {}),
        ]
        for code, item, options in cases:
            assert await code_of(log.append([item], **options)) == code
        duplicate = changed(started, event_id=queued.event_id, raw_payload=msgspec.Raw(b'{"status": 7}'))
        (receipt,) = await log.append(
            [duplicate], fence=stale, expected_seq=1
        )  # duplicates are accepted despite other defects
        assert (receipt.status, receipt.event_id) == ("duplicate", started.event_id)
        assert len(await log.read("run-1")) == 3


# Snapshots and projections: ExecutionSemantics 1.1, 1.4, 1.5, A.1


async def test_only_the_first_run_start_changes_the_snapshot(make_log: MakeLog, event: History) -> None:
    first = {"engineRunRef": "temporal://default/orders/w/r", "startedAt": "2026-02-11T10:30:00.000Z"}
    async with make_log() as log:
        await log.append([event("RunQueued"), event("RunStarted", **first)])
        await log.append([event("RunStarted", engineRunRef="conductor://x/y", startedAt="2027-01-01T00:00:00Z")])
        snapshot = await log.snapshot("run-1")
    assert (snapshot.status, snapshot.last_event_seq) == ("RUNNING", 2)
    assert (snapshot.engine_run_ref, snapshot.started_at) == (first["engineRunRef"], first["startedAt"])


async def test_snapshot_lists_a_step_from_its_first_transition_on(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("StepScheduled", "a")])
        assert await code_of(log.append([event("StepCompleted", "b")])) == "INVALID_TRANSITION"
        assert (await log.snapshot("run-1")).steps == ()
        await log.append([event("StepStarted", "b"), event("StepSkipped", "a")])
        steps = (await log.snapshot("run-1")).steps
        assert [(step.step_id, step.status) for step in steps] == [("b", "RUNNING"), ("a", "SKIPPED")]


async def test_projector_recovers_from_a_missed_event(make_log: MakeLog, event: History) -> None:
    projector = rw.SnapshotProjector()
    async with make_log() as log:
        await log.append(event.started())
        snapshot = projector.project_run("run-1", await log.read("run-1"))
        await log.append([event("StepStarted", "a"), event("StepFailed", "a"), event("StepStarted", "a", 2)])
        news = await log.read("run-1", after=snapshot.last_event_seq)
        stale = projector.incremental_project(snapshot, news[1:])  # the first new event is lost
        assert (stale.stale, stale.last_event_seq, stale.steps) == (True, 2, ())
        fresh = projector.project_run("run-1", await log.read("run-1"))
        assert projector.resync_done(fresh, news[-1].run_seq)
        await log.append([event("StepCompleted", "a", 2), event("RunCompleted")])
        end = projector.incremental_project(fresh, await log.read("run-1", after=fresh.last_event_seq))
        assert msgspec.structs.replace(end, resume=b"") == await log.snapshot("run-1")
        for _ in range(2):
            await log.raise_alerts(projector.alerts.values())
        (alert,) = await log.alerts("run-1")
        assert (alert.code, alert.severity) == ("PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED", "P2")


# The write budget: ExecutionSemantics 5


def test_write_budget_defaults_to_three_seconds() -> None:
    assert inspect.signature(rw.open_log).parameters["write_budget"].default == 3.0


async def test_no_event_is_acknowledged_before_it_is_stored(tmp_path: Path, event: History) -> None:
    """The log never fails open; whether a start may proceed without being stored is decided by its driver."""
    path = tmp_path / "runs.db"
    ends = [event("StepCompleted", "b"), event("StepFailed", "c"), event("StepStarted", "a")]
    async with rw.open_log(f"sqlite:///{path}", write_budget=0.3) as log:
        await log.append([*event.started(), event("StepStarted", "b"), event("StepStarted", "c")])
        connection = apsw.Connection(str(path))
        connection.execute("BEGIN IMMEDIATE")
        errors = await asyncio.gather(*(log.append([item]) for item in ends), return_exceptions=True)
        connection.execute("ROLLBACK")
        connection.close()
        for error in errors:
            assert isinstance(error, rw.RunwrightError)
            assert (error.code, error.facts["retryable"]) == ("STORE_WRITE_BUDGET_EXCEEDED", True)
        assert len(await log.read("run-1")) == 4
        assert [receipt.status for receipt in await log.append(ends)] == ["appended"] * 3


# Single source of truth: RFC-002


async def test_run_list_reads_summaries_and_no_events(durable_url: str) -> None:
    """The list is the same after all events were deleted, so it does not read them."""
    async with rw.open_log(durable_url) as log:
        for number in range(3):
            event = History(f"run-{number}")
            await log.append([*event.started(), event("StepStarted", "a"), event("RunCancelled")])
        before = [row.to_json() for row in (await log.list_runs()).runs]
    if durable_url.startswith("sqlite"):
        apsw.Connection(durable_url.removeprefix("sqlite:///")).execute("DELETE FROM event")
    else:
        server = await asyncpg.connect(durable_url)
        await server.execute("DELETE FROM event")
        await server.close()
    async with rw.open_log(durable_url) as log:
        assert [row.to_json() for row in (await log.list_runs()).runs] == before
        assert [row["status"] for row in before] == ["CANCELLED"] * 3


RFC_002 = {
    "RUN_STARTED": "RunStarted",
    "STEP_STARTED": "StepStarted",
    "STEP_FAILED": "StepFailed",
    "STEP_COMPLETED": "StepCompleted",
    "RETRY_SCHEDULED": "StepRetryScheduled",
    "CHECKPOINT_WRITTEN": "CheckpointWritten",
    "APPROVAL_REQUESTED": "ApprovalRequested",
    "APPROVAL_GRANTED": "ApprovalGranted",
    "RUN_COMPLETED": "RunCompleted",
    "RUN_FAILED": "RunFailed",
}


async def test_rfc_002_event_types_are_converted_on_import_only(make_log: MakeLog, event: History) -> None:
    context = {"tenantId": "t", "projectId": "p", "environmentId": "e", "planId": "p", "planVersion": "1"}
    lines: list[bytes] = []
    for name in RFC_002:
        about = {} if name.startswith("RUN") else {"stepId": "a"}
        old = {"eventType": name, "runId": "old", "emittedAt": "2026-01-01T00:00:00Z", "context": context}
        lines.append(msgspec.json.encode({**old, **about}))
    async with make_log() as log:
        await log.append([event("RunQueued"), event("RUN_STARTED")])
        assert [record.event_type for record in await log.read("run-1")] == ["RunQueued", "RUN_STARTED"]
        assert (await log.snapshot("run-1")).status == "PENDING"  # the log treats it as an unknown type
        assert {outcome.status for outcome in await Importer(log).import_lines(lines)} == {"appended"}
        assert [record.event_type for record in await log.read("old")] == list(RFC_002.values())
        assert (await log.snapshot("old")).status == "COMPLETED"


async def test_anchor_detects_changes_that_keep_the_chain_valid(make_log: MakeLog) -> None:
    """A cut tail, a deleted run and a rewritten history each have a valid chain."""
    key = Ed25519PrivateKey.generate()
    cut, deleted, rewritten, whole = (History(name) for name in ("cut", "deleted", "anew", "whole"))
    async with make_log() as log, rw.open_log("memory://") as before:
        await log.append([*cut.started(), *rewritten.started(), *whole.started()])
        assert [finding async for finding in compare(log, await make_anchor(log, key))] == []
        own_anchor = await make_anchor(log, key)
        await log.append([whole("RunCompleted")])
        assert [finding async for finding in compare(log, own_anchor)] == []  # new events are no finding
        await before.append([*cut.started(), cut("RunCancelled"), *rewritten.started(), *deleted.started()])
        found = [finding async for finding in compare(log, await make_anchor(before, key))]
        assert [(finding.run_id, finding.kind, finding.run_seq) for finding in found] == [
            ("anew", "CHANGED", 2),
            ("cut", "MISSING", 3),
            ("deleted", "MISSING", None),
        ]
        assert [finding async for finding in log.verify()] == []
