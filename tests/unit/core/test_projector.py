"""The projector: gaps, resync, lag, alerts, and immutable snapshots."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from support.event_streams import Event, event_id, streams, to_record, to_records, without_resume

EVENTS = [
    *(Event("RunQueued"), Event("RunStarted"), Event("StepStarted", "a"), Event("StepCompleted", "a")),
    *(Event("StepStarted", "b"), Event("StepFailed", "b"), Event("RunFailed")),
]
RECORDS = to_records(EVENTS)


def alerts_of(projector: rw.SnapshotProjector) -> list[tuple[str, str, str]]:
    return [(alert.code, alert.severity, alert.subject) for alert in projector.alerts.values()]


@pytest.mark.parametrize(
    ("last", "following", "gap"),
    [(0, 1, False), (0, 2, True), (10, 11, False), (10, 12, True), (10, 10, False), (10, 3, False), (10, 1000, True)],
)
def test_a_missing_number_is_detected_as_a_gap(last: int, following: int, gap: bool) -> None:
    assert rw.SnapshotProjector.detect_non_contiguous(last, following) is gap


def test_a_gap_makes_the_snapshot_stale_and_stops_the_fold() -> None:
    projector = rw.SnapshotProjector()
    before = projector.project_run("run-1", RECORDS[:2])
    stale = projector.incremental_project(before, [RECORDS[2], RECORDS[4], RECORDS[5]])
    assert stale.stale
    assert (stale.last_event_seq, stale.running_steps, stale.status) == (3, 1, "RUNNING")
    assert not stale.inconsistent  # A gap does not make a run inconsistent.
    assert alerts_of(projector) == [("PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED", "P2", "3-5")]


def test_each_gap_raises_one_alert() -> None:
    projector = rw.SnapshotProjector()
    before = projector.project_run("run-1", RECORDS[:2])
    for _ in range(3):
        projector.incremental_project(before, RECORDS[3:])
    assert len(projector.alerts) == 1
    projector.incremental_project(before, RECORDS[4:])
    assert alerts_of(projector) == [
        ("PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED", "P2", "2-4"),
        ("PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED", "P2", "2-5"),
    ]


def test_a_resync_from_a_full_read_ends_the_staleness() -> None:
    """No further event is required: reading up to the head at the time of the gap is enough."""
    projector = rw.SnapshotProjector()
    stale = projector.incremental_project(projector.project_run("run-1", RECORDS[:2]), RECORDS[3:6])
    assert not projector.resync_done(stale, 6)
    partly = projector.project_run("run-1", RECORDS[:5])
    assert not projector.resync_done(partly, 6)
    fresh = projector.project_run("run-1", RECORDS[:6])
    assert projector.resync_done(fresh, 6)
    assert (fresh.stale, fresh.last_event_seq) == (False, 6)
    later = projector.incremental_project(fresh, RECORDS[6:])
    assert (later.stale, later.status) == (False, "FAILED")
    assert projector.resync_done(later, 6)


def test_filling_a_gap_gives_the_snapshot_of_a_full_fold() -> None:
    projector = rw.SnapshotProjector()
    stale = projector.incremental_project(projector.project_run("run-1", RECORDS[:2]), RECORDS[3:])
    filled = projector.incremental_project(stale, RECORDS[2:])
    assert without_resume(filled) == without_resume(rw.SnapshotProjector().project_run("run-1", RECORDS))


def test_a_snapshot_stays_stale_without_new_events() -> None:
    projector = rw.SnapshotProjector()
    stale = projector.incremental_project(projector.project_run("run-1", RECORDS[:2]), RECORDS[3:])
    assert projector.incremental_project(stale, []).stale
    assert projector.incremental_project(stale, RECORDS[:2]).stale


def test_a_full_read_with_gaps_can_be_projected() -> None:
    """The contract allows gaps in the numbers; our own log has none."""
    records_with_gaps = [to_record(event, seq) for event, seq in zip(EVENTS, (2, 5, 9, 10, 11, 40, 41), strict=True)]
    snapshot = rw.SnapshotProjector().project_run("run-1", records_with_gaps)
    assert (snapshot.status, snapshot.last_event_seq, snapshot.stale) == ("FAILED", 41, False)


@given(st.permutations(RECORDS), st.lists(st.sampled_from(RECORDS)))
def test_order_and_duplicates_of_events_do_not_matter(order: list[rw.RunEventRecord], more: Any) -> None:
    expected = rw.SnapshotProjector().project_run("run-1", RECORDS)
    assert rw.SnapshotProjector().project_run("run-1", [*order, *more]) == expected
    projector = rw.SnapshotProjector()
    begun = projector.project_run("run-1", RECORDS[:1])
    assert without_resume(projector.incremental_project(begun, [*order, *more])) == without_resume(expected)
    assert projector.alerts == {}


def test_events_of_other_runs_are_ignored() -> None:
    others = [msgspec.structs.replace(record, run_id="run-2") for record in RECORDS]
    projector = rw.SnapshotProjector()
    begun = projector.project_run("run-1", [*others, *RECORDS[:2]])
    assert (begun.run_id, begun.status, begun.last_event_seq) == ("run-1", "RUNNING", 2)
    after = projector.incremental_project(begun, others)
    assert (after.status, after.last_event_seq, after.total_steps) == ("RUNNING", 2, 0)


def test_a_run_without_events_has_no_snapshot() -> None:
    for records in ([], [msgspec.structs.replace(RECORDS[0], run_id="run-2")]):
        with pytest.raises(ValueError, match="run-1"):
            rw.SnapshotProjector().project_run("run-1", records)


# Alerts


def test_an_invalid_transition_alert_has_all_required_facts() -> None:
    projector = rw.SnapshotProjector()
    records = to_records(
        [Event("RunStarted"), Event("StepCompleted", "a"), Event("RunCancelled"), Event("RunCompleted")]
    )
    snapshot = projector.project_run("run-1", records)
    step, run = projector.alerts.values()
    assert (step.code, step.severity, step.run_id, step.subject) == ("INVALID_TRANSITION", "P2", "run-1", event_id(2))
    assert step.facts == {
        "tenantId": "default",
        "projectId": "default",
        "environmentId": "default",
        "eventId": event_id(2),
        "eventType": "StepCompleted",
        "stepId": "a",
        "runSeq": 2,
        "persistedAt": "2026-01-31T09:00:02.000000Z",
        "runStatus": "RUNNING",
        "priorState": "PENDING",
        "attemptedNextState": "SUCCESS",
    }
    assert (run.facts["priorState"], run.facts["attemptedNextState"]) == ("CANCELLED", "COMPLETED")
    assert (run.facts["eventId"], run.facts["runSeq"], run.subject) == (event_id(4), 4, event_id(4))
    assert (snapshot.status, snapshot.inconsistent, snapshot.last_event_seq) == ("CANCELLED", True, 4)


@given(streams(20))
def test_projecting_again_raises_no_second_alert(events: list[Event]) -> None:
    records = to_records([*events, Event("RunCompleted", None, 7), Event("RunCompleted", None, 8)])
    projector = rw.SnapshotProjector()
    first = projector.project_run("run-1", records)
    alerts = dict(projector.alerts)
    assert projector.project_run("run-1", records) == first
    projector.incremental_project(first, records)
    begun = projector.project_run("run-1", records[:1])
    projector.incremental_project(begun, records)
    assert projector.alerts == alerts


async def test_each_alert_is_stored_in_the_log_once() -> None:
    projector = rw.SnapshotProjector()
    begun = projector.project_run("run-1", RECORDS[:2])
    projector.incremental_project(begun, [to_record(Event("RunStarted", None, 2), 3), RECORDS[4]])
    async with rw.open_log("memory://") as log:
        for _ in range(3):
            await log.raise_alerts(projector.alerts.values())
        codes = [alert.code for alert in await log.alerts("run-1")]
        assert sorted(codes) == ["INVALID_TRANSITION", "PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED"]
        assert all(alert.raised_at is not None for alert in await log.alerts())


@pytest.mark.parametrize(("lag", "alerted"), [(0, False), (1_000_000, False), (5_000_000, False), (5_000_001, True)])
def test_a_lag_of_more_than_five_seconds_raises_an_alert(lag: int, alerted: bool) -> None:
    projector = rw.SnapshotProjector()
    snapshot = projector.project_run("run-1", RECORDS[:2])
    nine_o_clock = 1_769_850_000_000_000
    assert projector.observe_lag(snapshot, "2026-01-31T09:00:00.000000Z", nine_o_clock + lag) == lag
    assert [alert.code for alert in projector.alerts.values()] == ["PROJECTOR_LAG_HIGH"] * alerted


def test_a_lag_alert_is_raised_once_per_waiting_event() -> None:
    projector = rw.SnapshotProjector()
    snapshot = projector.project_run("run-1", RECORDS[:2])
    later = 1_769_850_000_000_000 + 12_345_678
    for _ in range(3):
        projector.observe_lag(snapshot, "2026-01-31T09:00:00.000000Z", later)
        projector.observe_lag(snapshot, "2026-01-31T09:00:01.000000Z", later + 1_000_000)
    first, second = projector.alerts.values()
    assert (first.severity, first.run_id, second.run_id) == ("P2", "run-1", "run-1")
    assert first.facts == {"lagMs": 12_345, "lastEventSeq": 2}


# Snapshots


def test_a_snapshot_cannot_be_changed() -> None:
    snapshot = rw.SnapshotProjector().project_run("run-1", RECORDS)
    for name in snapshot.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(snapshot, name, None)
    for name in snapshot.steps[0].__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(snapshot.steps[0], name, None)
    assert isinstance(snapshot.steps, tuple)
    assert isinstance(snapshot.artifacts, tuple)
    hash(snapshot)  # Every part is immutable, so the snapshot is hashable.


@given(streams(20), st.integers(1, 20))
def test_an_incremental_projection_does_not_change_its_input(events: list[Event], cut: int) -> None:
    records = to_records([*events, Event("SomethingNew")])
    projector = rw.SnapshotProjector()
    snapshot = projector.project_run("run-1", records[:cut])
    before = msgspec.msgpack.encode(snapshot)
    first = projector.incremental_project(snapshot, records)
    second = projector.incremental_project(snapshot, records)
    assert msgspec.msgpack.encode(snapshot) == before
    assert without_resume(first) == without_resume(second)
    assert first is not snapshot


PROJECT_TWICE = """
import runwright as rw
from support.event_streams import MANY_PAUSES, to_records
projector, records = rw.SnapshotProjector(), to_records(MANY_PAUSES)
whole = projector.project_run("run-1", records)
in_two = projector.incremental_project(projector.project_run("run-1", records[:50]), records)
print(whole.resume.hex(), in_two.resume.hex(), whole == in_two)
"""


def test_the_same_events_give_the_same_bytes_in_every_process() -> None:
    """Processes can compare their snapshots of a run, whether they projected it at once or incrementally."""
    encodings: set[str] = set()
    for seed in ("1", "2", "3"):
        paths = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        result = subprocess.run(
            [sys.executable, "-c", PROJECT_TWICE], env=environment, capture_output=True, text=True, check=True
        )
        *resumes, equal = result.stdout.split()
        assert equal == "True"
        encodings.update(resumes)
    assert len(encodings) == 1


def test_a_stored_snapshot_can_be_continued() -> None:
    projector = rw.SnapshotProjector()
    snapshot = projector.project_run("run-1", RECORDS[:4])
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=rw.RunSnapshot)
    assert stored == snapshot
    end = projector.incremental_project(stored, RECORDS[4:])
    assert without_resume(end) == without_resume(projector.project_run("run-1", RECORDS))


def test_the_json_of_a_snapshot_has_no_resume_data() -> None:
    document = rw.SnapshotProjector().project_run("run-1", RECORDS).to_json()
    assert "resume" not in document
    assert (document["runId"], document["status"], document["lastEventSeq"]) == ("run-1", "FAILED", 7)
    assert [step["stepId"] for step in document["steps"]] == ["a", "b"]


async def test_the_snapshot_of_the_log_matches_the_projector() -> None:
    run = rw.new_run("run-1", "orders")
    async with rw.open_log("memory://") as log:
        await log.append([rw.new_event(e.event_type, run, step_id=e.step_id, attempt=e.attempt) for e in EVENTS])
        records = await log.read("run-1")
        for seq in range(1, len(records) + 1):
            expected = rw.SnapshotProjector().project_run("run-1", records[:seq])
            assert await log.snapshot("run-1", at=seq) == without_resume(expected)
