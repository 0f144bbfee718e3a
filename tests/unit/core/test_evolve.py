"""The fold: every transition, legal or not, against tables in this file."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from runwright.core.fold.evolve import evolve
from runwright.core.fold.run_state import RunState
from support.event_streams import RUN, Event, Opinion, streams, to_record, to_records, to_write, without_resume

# The history that leads to each status of a run, and the effect of each event then (-: it is not allowed).

HISTORIES: dict[str, list[Event]] = {
    "PENDING": [Event("RunQueued")],
    "APPROVED": [Event("RunQueued"), Event("RunApproved")],
    "RUNNING": [Event("RunQueued"), Event("RunStarted")],
    "PAUSED": [Event("RunQueued"), Event("RunStarted"), Event("RunPaused")],
    "COMPLETED": [Event("RunQueued"), Event("RunStarted"), Event("RunCompleted")],
    "FAILED": [Event("RunQueued"), Event("RunStarted"), Event("RunFailed")],
    "CANCELLED": [Event("RunQueued"), Event("RunStarted"), Event("RunCancelled")],
}

RUN_TABLE = """
                  PENDING    APPROVED   RUNNING    PAUSED     COMPLETED  FAILED     CANCELLED
    RunQueued     PENDING    APPROVED   -          -          -          -          -
    RunApproved   APPROVED   -          -          -          -          -          -
    RunStarted    RUNNING    RUNNING    -          -          -          -          -
    RunPaused     -          -          PAUSED     -          -          -          -
    RunResumed    -          -          -          RUNNING    -          -          -
    RunCompleted  -          -          COMPLETED  -          -          -          -
    RunFailed     FAILED     FAILED     FAILED     FAILED     -          -          -
    RunCancelled  CANCELLED  CANCELLED  CANCELLED  CANCELLED  -          -          -
"""

STEP_TABLE = """
                   PENDING    RUNNING    SUCCESS    FAILED     SKIPPED
    StepStarted    RUNNING    again      again      again      -
    StepCompleted  -          SUCCESS    again      -          -
    StepFailed     -          FAILED     -          again      -
    StepSkipped    SKIPPED    -          -          -          again
"""
"""For one attempt. "again": the event is a duplicate, which changes nothing and is allowed."""

NEXT_ATTEMPT_TABLE = """
                   PENDING    RUNNING    SUCCESS    FAILED     SKIPPED
    StepStarted    -          -          -          RUNNING    -
    StepCompleted  -          -          -          -          -
    StepFailed     -          -          -          -          -
    StepSkipped    -          -          -          SKIPPED    -
"""
"""Attempt 2, by the status of attempt 1."""

FORCED_TABLE = """
                   PENDING    RUNNING    SUCCESS    FAILED     SKIPPED
    StepStarted    -          -          RUNNING    RUNNING    RUNNING
    StepCompleted  -          -          -          -          -
    StepFailed     -          -          -          -          -
    StepSkipped    -          -          -          SKIPPED    -
"""
"""Attempt 2, by the status of attempt 1, where the event names an accepted signal: RETRY_STEP with force."""

RUN_FOR_STEP_TABLE = """
                   PENDING    APPROVED   RUNNING    PAUSED     COMPLETED  FAILED     CANCELLED
    StepStarted    -          -          RUNNING    RUNNING    -          -          -
    StepSkipped    SKIPPED    SKIPPED    SKIPPED    SKIPPED    -          -          -
    StepCompleted  ?          ?          SUCCESS    SUCCESS    -          -          -
    StepFailed     ?          ?          FAILED     FAILED     -          -          -
"""
"""By the status of the run, for a step that is otherwise ready. "?": no step runs before its run."""

STEP_HISTORIES: dict[str, list[Event]] = {
    "PENDING": [],
    "RUNNING": [Event("StepStarted", "a")],
    "SUCCESS": [Event("StepStarted", "a"), Event("StepCompleted", "a")],
    "FAILED": [Event("StepStarted", "a"), Event("StepFailed", "a")],
    "SKIPPED": [Event("StepSkipped", "a")],
}


def cells(table: str) -> list[tuple[str, str, str]]:
    """Parse a table into (event type, status, outcome) for each cell."""
    head, *lines = table.strip().splitlines()
    rows = [line.split() for line in lines]
    return [(name, status, outcome) for name, *row in rows for status, outcome in zip(head.split(), row, strict=True)]


def project(events: list[Event]) -> tuple[rw.RunSnapshot, list[rw.Alert]]:
    projector = rw.SnapshotProjector()
    snapshot = projector.project_run("run-1", to_records(events))
    return snapshot, list(projector.alerts.values())


def plain(snapshot: rw.RunSnapshot) -> rw.RunSnapshot:
    """Return the part of a snapshot that an invalid event must not change."""
    return msgspec.structs.replace(snapshot, resume=b"", last_event_seq=0, inconsistent=False)


async def offer(history: list[Event], event: Event) -> str:
    """Send one more event to a strict log; return appended, duplicate, or the code of the refusal."""
    async with rw.open_log("memory://") as log:
        await log.append([to_write(earlier, place) for place, earlier in enumerate(history, 1)])
        (outcome,) = await log.ingest([to_write(event, 99)])
        return outcome.code if isinstance(outcome, rw.Refusal) else outcome.status


async def check(history: list[Event], event: Event, outcome: str, read: Any) -> None:
    """Check that the fold of a foreign log and the append to our log both agree with the table."""
    before, earlier_alerts = project(history)
    after, alerts = project([*history, event])
    assert earlier_alerts == []
    assert after.last_event_seq == before.last_event_seq + 1
    if outcome == "-":
        assert plain(after) == plain(before)
        assert after.inconsistent
        (alert,) = alerts
        assert (alert.code, alert.facts["eventType"]) == ("INVALID_TRANSITION", event.event_type)
        assert await offer(history, event) == "INVALID_TRANSITION"
    else:
        assert (after.inconsistent, alerts) == (False, [])
        assert await offer(history, event) == ("duplicate" if outcome == "again" else "appended")
        if outcome == "again":
            assert plain(after) == plain(before)
        else:
            assert read(after) == outcome


def run_status(snapshot: rw.RunSnapshot) -> str:
    return snapshot.status


def newest_attempt(snapshot: rw.RunSnapshot) -> str:
    (step,) = snapshot.steps
    return step.status


@pytest.mark.parametrize(("event_type", "status", "outcome"), cells(RUN_TABLE))
async def test_run_transitions_follow_the_table(event_type: str, status: str, outcome: str) -> None:
    assert project(HISTORIES[status])[0].status == status
    await check(HISTORIES[status], Event(event_type, None, 9), outcome, run_status)


@pytest.mark.parametrize("event_type", ["RunQueued", "RunStarted"])
async def test_a_run_may_begin_with_queued_or_started(event_type: str) -> None:
    async with rw.open_log("memory://") as log:
        await log.append([to_write(Event(event_type), 1)])
    assert project([Event(event_type)])[0].status == {"RunQueued": "PENDING", "RunStarted": "RUNNING"}[event_type]


async def test_a_run_that_needs_approval_starts_only_once_approved() -> None:
    queued = [Event("RunQueued", None, 1, {"approvalRequired": True})]
    await check(queued, Event("RunStarted"), "-", run_status)
    await check(queued, Event("RunApproved"), "APPROVED", run_status)
    await check([*queued, Event("RunApproved")], Event("RunStarted"), "RUNNING", run_status)
    await check(queued, Event("RunCancelled"), "CANCELLED", run_status)
    await check(queued, Event("RunFailed"), "FAILED", run_status)


async def test_queueing_a_run_again_still_requires_approval() -> None:
    queued = [
        Event("RunQueued", None, 1, {"approvalRequired": True, "originRunId": "run-0"}),
        Event("RunQueued", None, 2),
    ]
    await check(queued, Event("RunStarted"), "-", run_status)
    assert project(queued)[0].origin_run_id == "run-0"


@pytest.mark.parametrize(("event_type", "status", "outcome"), cells(STEP_TABLE))
async def test_attempt_transitions_follow_the_table(event_type: str, status: str, outcome: str) -> None:
    history = HISTORIES["RUNNING"] + STEP_HISTORIES[status]
    await check(history, Event(event_type, "a"), outcome, newest_attempt)


@pytest.mark.parametrize(("event_type", "status", "outcome"), cells(NEXT_ATTEMPT_TABLE))
async def test_the_next_attempt_requires_a_failed_attempt(event_type: str, status: str, outcome: str) -> None:
    history = HISTORIES["RUNNING"] + STEP_HISTORIES[status]
    await check(history, Event(event_type, "a", 2), outcome, newest_attempt)


@pytest.mark.parametrize(("event_type", "status", "_"), cells(NEXT_ATTEMPT_TABLE))
async def test_attempt_numbers_never_skip(event_type: str, status: str, _: str) -> None:
    history = [*HISTORIES["RUNNING"], Event("SignalAccepted", "signal/s1"), *STEP_HISTORIES[status]]
    await check(history, Event(event_type, "a", 3), "-", newest_attempt)
    await check(history, Event(event_type, "a", 3, {"forcedBy": "s1"}), "-", newest_attempt)


@pytest.mark.parametrize(("event_type", "status", "outcome"), cells(FORCED_TABLE))
async def test_a_forced_attempt_may_follow_any_end(event_type: str, status: str, outcome: str) -> None:
    history = [*HISTORIES["RUNNING"], Event("SignalAccepted", "signal/s1"), *STEP_HISTORIES[status]]
    await check(history, Event(event_type, "a", 2, {"forcedBy": "s1"}), outcome, newest_attempt)


@pytest.mark.parametrize(("event_type", "status", "outcome"), cells(NEXT_ATTEMPT_TABLE))
@pytest.mark.parametrize(
    "signals",
    [
        [],
        [Event("SignalAccepted", "signal/s2")],
        [Event("SignalRejected", "signal/s1")],
        [Event("SignalAccepted", "s1")],
        [Event("SignalAccepted", "signal/s1", 2)],  # A signal is accepted as attempt 1; another attempt does not count.
    ],
    ids=["no signal", "another", "rejected", "no signal's path", "another attempt"],
)
async def test_forced_by_requires_an_accepted_signal(
    event_type: str, status: str, outcome: str, signals: list[Event]
) -> None:
    history = HISTORIES["RUNNING"] + signals + STEP_HISTORIES[status]
    await check(history, Event(event_type, "a", 2, {"forcedBy": "s1"}), outcome, newest_attempt)


@pytest.mark.parametrize(("event_type", "status", "outcome"), cells(RUN_FOR_STEP_TABLE))
async def test_step_transitions_depend_on_the_status_of_the_run(event_type: str, status: str, outcome: str) -> None:
    """A paused run allows this too: running steps drain, and a start may have been in progress."""
    start = [Event("StepStarted", "a")] if event_type in ("StepCompleted", "StepFailed") else []
    if outcome == "?":
        await check(HISTORIES[status], Event(event_type, "a"), "-", newest_attempt)
        return
    begun, ended = HISTORIES[status][:2], HISTORIES[status][2:]
    await check([*begun, *start, *ended], Event(event_type, "a"), outcome, newest_attempt)


@pytest.mark.parametrize("status", HISTORIES)
@pytest.mark.parametrize(
    "event",
    [
        Event("SignalAccepted", "signal/s1"),
        Event("SignalRejected", "signal/s1"),
        Event("StepRetryScheduled", "a"),
        Event("ApprovalRequested", "a"),
        Event("ApprovalGranted", "a"),
        Event("StepDelayed", "a"),
        Event("CheckpointWritten", "a", 3),
        Event("AdmissionEvaluated"),
        Event("RunParamsUpdated"),
        Event("RunDrainTimedOut"),
        Event("WorkflowFinished"),
        Event("RunProcessed"),
        Event("RunArchived"),
        Event("SomethingNew"),
        Event("SomethingNew", "a"),
    ],
    ids=lambda event: f"{event.event_type}-{event.step_id}",
)
async def test_other_types_are_always_legal_and_change_no_status(event: Event, status: str) -> None:
    before = project(HISTORIES[status])[0]
    after, alerts = project([*HISTORIES[status], event])
    assert (after.status, after.steps, after.inconsistent, alerts) == (status, (), False, [])
    assert after.last_event_seq == before.last_event_seq + 1
    assert await offer(HISTORIES[status], event) == "appended"


# Contents of a snapshot


def running(*events: Event) -> rw.RunSnapshot:
    snapshot, alerts = project([*HISTORIES["RUNNING"], *events])
    assert alerts == []
    return snapshot


def test_a_paused_run_drains_until_its_steps_have_ended() -> None:
    starts = [Event("StepStarted", step) for step in "abc"]
    ends = [Event("StepCompleted", "a"), Event("StepFailed", "b")]
    three = running(*starts, Event("RunPaused"))
    assert (three.status, three.substatus) == ("PAUSED", "DRAINING")
    assert three.message == "Workflow paused. Waiting for 3 in-flight tasks to complete."
    one = running(*starts, Event("RunPaused"), *ends)
    assert (one.substatus, one.running_steps) == ("DRAINING", 1)
    assert one.message == "Workflow paused. Waiting for 1 in-flight task to complete."
    drained = running(*starts, Event("RunPaused"), *ends, Event("StepCompleted", "c"))
    assert (drained.status, drained.substatus, drained.message) == ("PAUSED", None, None)


def test_a_timed_out_drain_ends_and_the_next_pause_drains_again() -> None:
    timed_out = [Event("StepStarted", "a"), Event("RunPaused"), Event("RunDrainTimedOut")]
    assert (running(*timed_out).status, running(*timed_out).substatus) == ("PAUSED", None)
    again = [*timed_out, Event("RunResumed"), Event("RunPaused", None, 2)]
    assert running(*again).substatus == "DRAINING"


def test_a_run_is_retrying_until_the_next_attempt_starts() -> None:
    failed = [Event("StepStarted", "a"), Event("StepFailed", "a")]
    assert running(*failed).substatus is None
    scheduled = running(*failed, Event("StepRetryScheduled", "a"))
    assert (scheduled.status, scheduled.substatus) == ("RUNNING", "RETRYING")
    (step,) = scheduled.steps
    assert (step.status, step.logical_attempt_id, step.retry_scheduled) == ("FAILED", 1, True)
    started = running(*failed, Event("StepRetryScheduled", "a"), Event("StepStarted", "a", 2))
    assert started.substatus is None
    (step,) = started.steps
    assert (step.status, step.logical_attempt_id, step.earlier_attempts) == ("RUNNING", 2, ("FAILED",))


@pytest.mark.parametrize(
    "events",
    [
        [Event("StepRetryScheduled", "a")],
        [Event("StepStarted", "a"), Event("StepRetryScheduled", "a")],
        [Event("StepStarted", "a"), Event("StepRetryScheduled", "a"), Event("StepFailed", "a")],
        [Event("StepStarted", "a"), Event("StepCompleted", "a"), Event("StepRetryScheduled", "a")],
        [Event("StepStarted", "a"), Event("StepFailed", "a"), Event("StepRetryScheduled", "a", 2)],
        [Event("StepStarted", "a"), Event("StepFailed", "a"), Event("StepRetryScheduled", "b")],
    ],
)
def test_a_retry_schedule_without_a_failed_attempt_is_ignored(events: list[Event]) -> None:
    assert running(*events).substatus is None


def test_a_skip_ends_a_scheduled_retry() -> None:
    skipped = running(
        Event("StepStarted", "a"),
        Event("StepFailed", "a"),
        Event("StepRetryScheduled", "a"),
        Event("StepSkipped", "a", 2),
    )
    assert (skipped.substatus, skipped.failed_steps, skipped.skipped_steps) == (None, 0, 1)


def test_a_run_waits_for_approval_of_itself_or_of_a_step() -> None:
    queued, _ = project([Event("RunQueued", None, 1, {"approvalRequired": True})])
    assert (queued.status, queued.substatus) == ("PENDING", "WAITING_APPROVAL")
    asked = [Event("ApprovalRequested", "a"), Event("ApprovalRequested", "b")]
    assert running(*asked).substatus == "WAITING_APPROVAL"
    assert running(*asked, Event("ApprovalGranted", "a")).substatus == "WAITING_APPROVAL"
    assert running(*asked, Event("ApprovalGranted", "a"), Event("ApprovalDenied", "b")).substatus is None
    assert running(Event("ApprovalRequested", "a"), Event("ApprovalRequested", "a", 2)).message is not None


def test_a_second_pause_is_counted_with_its_reason() -> None:
    twice = [Event("RunPaused"), Event("RunResumed"), Event("RunPaused", None, 2, {"reason": "again"})]
    assert (running(*twice).status, running(*twice).pauses, running(*twice).reason) == ("PAUSED", 2, "again")
    assert running(*twice, Event("RunResumed", None, 2)).status == "RUNNING"


def test_a_cancelled_run_that_completes_is_inconsistent() -> None:
    """Policy A: the event is not applied, the status does not change, the run is INCONSISTENT, with one alert."""
    events = [*HISTORIES["CANCELLED"], Event("RunCompleted", None, 1, {"reason": "late"})]
    snapshot, (alert,) = project(events)
    assert (snapshot.status, snapshot.inconsistent, snapshot.reason) == ("CANCELLED", True, None)
    assert snapshot.last_event_seq == 4
    assert snapshot.completed_at == "2026-01-31T08:00:03Z"
    assert (alert.facts["priorState"], alert.facts["attemptedNextState"]) == ("CANCELLED", "COMPLETED")


def test_events_after_an_invalid_event_are_folded() -> None:
    snapshot, alerts = project([*HISTORIES["RUNNING"], Event("StepCompleted", "a"), Event("StepStarted", "a")])
    assert (snapshot.running_steps, snapshot.inconsistent, len(alerts)) == (1, True, 1)


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_a_repeated_history_changes_only_the_watermark(history: list[Event]) -> None:
    once, _ = project(history)
    twice, alerts = project([*history, *history])
    assert plain(twice) == plain(once)
    assert (twice.last_event_seq, twice.inconsistent, alerts) == (2 * len(history), False, [])


def test_a_duplicate_step_event_changes_only_the_watermark() -> None:
    history = [
        *(Event("StepStarted", "a"), Event("StepFailed", "a", 1, {"error": {"code": "ONE"}})),
        *(Event("StepRetryScheduled", "a"), Event("StepStarted", "a", 2), Event("StepCompleted", "a", 2)),
        *(Event("StepSkipped", "b", 1, {"reasonCode": "CONDITION_FALSE"}),),
    ]
    once = running(*history)
    for place, event in enumerate(history):
        for repeated in (event, event._replace(payload={"error": {"code": "TWO"}, "reasonCode": "OTHER"})):
            again = running(*history, repeated)
            assert plain(again) == plain(once), place
            assert again.last_event_seq == once.last_event_seq + 1


def test_an_event_that_was_already_folded_is_ignored() -> None:
    state = RunState(detailed=True)
    assert evolve(state, to_record(Event("RunStarted"), 5)) is None
    assert evolve(state, to_record(Event("RunCompleted"), 5)) is None
    assert evolve(state, to_record(Event("RunCompleted"), 4)) is None
    assert (state.summary.status, state.summary.last_event_seq) == ("RUNNING", 5)


def test_a_step_has_attempts_times_artifacts_and_error() -> None:
    artifact = {"uri": "s3://b/x", "kind": "table", "sizeBytes": 3}
    error = {"code": "TIMEOUT", "message": "too slow", "retryable": True, "category": "infra"}
    failed = running(Event("StepStarted", "a"), Event("StepFailed", "a", 1, {"error": error}))
    (step,) = failed.steps
    assert msgspec.to_builtins(step) == {
        "stepId": "a",
        "status": "FAILED",
        "logicalAttemptId": 1,
        "engineAttemptId": 1,
        "startedAt": "2026-01-31T08:00:03Z",
        "completedAt": "2026-01-31T08:00:04Z",
        "error": error,
    }
    done = running(
        *(Event("StepStarted", "a"), Event("StepFailed", "a", 1, {"error": error}), Event("StepStarted", "a", 2)),
        Event("StepCompleted", "a", 2, {"artifactRefs": [artifact]}),
    )
    (step,) = done.steps
    assert (step.error, step.started_at) == (None, "2026-01-31T08:00:05Z")
    assert list(msgspec.to_builtins(step.artifacts)) == [artifact]
    skipped = running(Event("StepSkipped", "a", 1, {"reasonCode": "OPERATOR_SKIP"}))
    assert skipped.steps[0].reason_code == "OPERATOR_SKIP"


def test_a_completed_run_has_each_artifact_of_its_steps_once() -> None:
    def artifact(name: str) -> dict[str, str]:
        return {"uri": f"s3://b/{name}", "kind": "table"}

    def completed(step: str, *names: str) -> list[Event]:
        refs = {"artifactRefs": [artifact(name) for name in names]}
        return [Event("StepStarted", step), Event("StepCompleted", step, 1, refs)]

    steps = [*completed("a", "x", "y"), *completed("b", "y"), Event("StepSkipped", "c")]
    end = Event("RunCompleted", None, 1, {"artifactRefs": [artifact("z"), artifact("x")]})
    assert running(*steps).artifacts == ()
    uris = [ref.uri for ref in running(*steps, end).artifacts]
    assert uris == ["s3://b/x", "s3://b/y", "s3://b/z"]
    assert running(*steps, Event("RunFailed")).artifacts == ()


CAUSE = {"stepId": "b", "code": "BROKEN", "message": "it broke"}


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        ({"rootCause": CAUSE}, CAUSE),
        ({"rootCause": CAUSE, "error": {"code": "OTHER"}}, CAUSE),
        ({"error": {"code": "RUN_TIMEOUT", "message": "too long"}}, {"code": "RUN_TIMEOUT", "message": "too long"}),
        ({}, {"stepId": "a", "code": "LAST", "message": "the last to fail"}),
        (None, {"stepId": "a", "code": "LAST", "message": "the last to fail"}),
    ],
)
def test_a_failed_run_has_a_root_cause(payload: dict[str, Any] | None, cause: dict[str, Any]) -> None:
    steps = [
        *(
            Event("StepStarted", "b"),
            Event("StepFailed", "b", 1, {"error": {"code": "FIRST"}}),
            Event("StepStarted", "a"),
        ),
        Event("StepFailed", "a", 1, {"error": {"code": "LAST", "message": "the last to fail"}}),
    ]
    failed = running(*steps, Event("RunFailed", None, 1, payload))
    assert msgspec.to_builtins(failed.root_cause) == cause
    assert running(*steps, Event("RunCancelled", None, 1, payload)).root_cause is None
    assert running(*steps).root_cause is None


def test_the_start_time_is_that_of_the_payload_or_the_event() -> None:
    for payload, expected in (
        ({"startedAt": "2026-01-01T00:00:00Z"}, "2026-01-01T00:00:00Z"),
        ({"startedAt": "yesterday"}, "2026-01-31T08:00:01Z"),
        (None, "2026-01-31T08:00:01Z"),
    ):
        snapshot, _ = project([Event("RunStarted", None, 1, payload), Event("RunCompleted")])
        assert snapshot.started_at == expected
        assert snapshot.completed_at == "2026-01-31T08:00:02Z"
    assert snapshot.total_duration_ms == 1000
    assert project([Event("RunQueued"), Event("RunCancelled")])[0].total_duration_ms is None


def test_the_snapshot_has_the_engine_run_reference() -> None:
    structured = {"provider": "temporal", "workflowId": "w", "runId": "r"}
    snapshot, _ = project(
        [Event("RunStarted", None, 1, {"engineRunRef": "temporal://n/t/w/r", "engineRun": structured})]
    )
    assert snapshot.engine_run_ref == "temporal://n/t/w/r"


def test_an_invalid_foreign_payload_is_folded_as_empty() -> None:
    """The fold accepts foreign logs with invalid payloads; only an append refuses those."""
    snapshot, alerts = project(
        [
            Event("RunQueued", None, 1, {"approvalRequired": "perhaps"}),
            Event("RunStarted", None, 1, {"engineRun": 7, "engineRunRef": []}),
            Event("StepStarted", "a", 1, {"forcedBy": 1}),
            Event("StepFailed", "a", 1, {"error": "broken", "artifactRefs": "none"}),
            Event("RunFailed", None, 1, {"rootCause": 1, "artifactRefs": {}}),
        ]
    )
    assert (snapshot.status, snapshot.failed_steps, alerts) == ("FAILED", 1, [])
    assert snapshot.steps[0].error is None


def test_long_text_is_truncated_in_snapshots() -> None:
    long = "x" * 100_000
    start = Event("RunStarted", None, 1, {"startedAt": f"2026-01-31T08:00:00.{'1' * 100_000}Z"})
    end = Event("RunFailed", None, 1, {"reason": long, "error": {"message": long}})
    snapshot, _ = project([start, end])
    assert snapshot.reason is not None
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.message is not None
    assert len(snapshot.reason) == len(snapshot.root_cause.message) == 1000
    assert snapshot.started_at is not None
    assert len(snapshot.started_at) <= 1000


# Random streams of events


@given(streams())
def test_the_fold_agrees_with_the_reference_model(events: list[Event]) -> None:
    model, projector = Opinion(), rw.SnapshotProjector()
    verdicts = [model.hear(event) for event in events]
    snapshot = projector.project_run("run-1", to_records(events or [Event("SomethingNew")]))
    for name, count in model.counts().items():
        assert getattr(snapshot, name) == count, name
    assert snapshot.status == model.run_status
    assert snapshot.substatus == model.substatus()
    assert snapshot.inconsistent == model.inconsistent
    assert {s.step_id: (s.logical_attempt_id, s.status) for s in snapshot.steps} == model.steps()
    assert {s.step_id for s in snapshot.steps if s.retry_scheduled} == model.retrying()
    reported = {alert.facts["runSeq"] for alert in projector.alerts.values()}
    assert reported == _first_of_each_id(events, [n for n, verdict in enumerate(verdicts, 1) if verdict == "illegal"])
    for step in snapshot.steps:
        earlier = [model.step_status(step.step_id, n) for n in range(1, step.logical_attempt_id)]
        assert list(step.earlier_attempts) == earlier


def _first_of_each_id(events: list[Event], places: list[int]) -> set[int]:
    first: dict[str, int] = {}
    for place in places:
        first.setdefault(to_write(events[place - 1], place).event_id, place)
    return set(first.values())


@given(streams(), st.data())
def test_an_incremental_fold_gives_the_snapshot_of_a_full_fold(events: list[Event], data: st.DataObject) -> None:
    records = to_records([*events, Event("SomethingNew")])
    whole_projector, piecemeal = rw.SnapshotProjector(), rw.SnapshotProjector()
    whole = whole_projector.project_run("run-1", records)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=6)) | {1})
    snapshot = piecemeal.project_run("run-1", records[: cuts[0]])
    for start, end in zip(cuts, [*cuts[1:], len(records)], strict=True):
        overlap = data.draw(st.integers(0, start))  # Some events may be applied twice.
        snapshot = piecemeal.incremental_project(snapshot, records[start - overlap : end])
        assert without_resume(snapshot) == without_resume(rw.SnapshotProjector().project_run("run-1", records[:end]))
    assert without_resume(snapshot) == without_resume(whole)
    assert piecemeal.alerts == whole_projector.alerts


@given(streams(), st.sampled_from(["RunCompleted", "RunFailed", "RunCancelled"]), streams(15))
def test_an_ended_run_does_not_change(before: list[Event], end: str, after: list[Event]) -> None:
    started = [Event("RunStarted", None, 9), *before, Event("RunResumed", None, 9), Event(end, None, 9)]
    ended, _ = project(started)
    later, _ = project([*started, *after])
    if ended.status not in ("COMPLETED", "FAILED", "CANCELLED"):
        return  # The start of the run was not legal.
    names = ("status", "completed_at", "reason", "root_cause", "artifacts", "pauses", "started_at")
    assert all(getattr(later, name) == getattr(ended, name) for name in names)
    assert {s.step_id: s.status for s in later.steps} == {s.step_id: s.status for s in ended.steps}


def test_the_snapshot_has_the_identity_of_its_run() -> None:
    snapshot, _ = project(HISTORIES["RUNNING"])
    for name in RUN.__struct_fields__:
        assert getattr(snapshot, name) == getattr(RUN, name)
