"""The fold: every transition there is, legal or not, against a table written down here by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from runwright.core.fold.evolve import evolve
from runwright.core.fold.state import RunState
from support.event_streams import RUN, Event, Opinion, streams, to_record, to_records, to_write, without_resume

# How a run gets to each of its statuses, and what each event then does (None: it may not happen).

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
"""Of one attempt. "again": the very same event was there before, so it changes nothing and is no offence."""

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
"""By the run's status, of a step that is otherwise ready for it. "?": no step runs before its run."""

STEP_HISTORIES: dict[str, list[Event]] = {
    "PENDING": [],
    "RUNNING": [Event("StepStarted", "a")],
    "SUCCESS": [Event("StepStarted", "a"), Event("StepCompleted", "a")],
    "FAILED": [Event("StepStarted", "a"), Event("StepFailed", "a")],
    "SKIPPED": [Event("StepSkipped", "a")],
}


def cells(table: str) -> list[tuple[str, str, str]]:
    """(event type, status, outcome) for each place in a table."""
    head, *lines = table.strip().splitlines()
    rows = [line.split() for line in lines]
    return [(name, status, what) for name, *row in rows for status, what in zip(head.split(), row, strict=True)]


def project(events: list[Event]) -> tuple[rw.RunSnapshot, list[rw.Alert]]:
    projector = rw.SnapshotProjector()
    snapshot = projector.project_run("run-1", to_records(events))
    return snapshot, list(projector.alerts.values())


def plain(snapshot: rw.RunSnapshot) -> rw.RunSnapshot:
    """What an event that may not happen must leave as it was."""
    return msgspec.structs.replace(snapshot, resume=b"", last_event_seq=0, inconsistent=False)


async def offer(history: list[Event], event: Event) -> str:
    """What a strict log says to one more event: appended, duplicate, or the code of its refusal."""
    async with rw.open_log("memory://") as log:
        await log.append([to_write(earlier, place) for place, earlier in enumerate(history, 1)])
        (outcome,) = await log.ingest([to_write(event, 99)])
        return outcome.code if isinstance(outcome, rw.Refusal) else outcome.status


async def check(history: list[Event], event: Event, outcome: str, read: Any) -> None:
    """Both layers that judge agree with the table: the fold of a foreign log, and the log at append."""
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
async def test_a_run_moves_by_the_table(event_type: str, status: str, outcome: str) -> None:
    assert project(HISTORIES[status])[0].status == status
    await check(HISTORIES[status], Event(event_type, None, 9), outcome, run_status)


@pytest.mark.parametrize("event_type", ["RunQueued", "RunStarted"])
async def test_a_run_may_begin_with_either_event_and_with_nothing_before_it(event_type: str) -> None:
    async with rw.open_log("memory://") as log:
        await log.append([to_write(Event(event_type), 1)])
    assert project([Event(event_type)])[0].status == {"RunQueued": "PENDING", "RunStarted": "RUNNING"}[event_type]


async def test_a_run_that_needs_approval_starts_only_when_it_is_approved() -> None:
    queued = [Event("RunQueued", None, 1, {"approvalRequired": True})]
    await check(queued, Event("RunStarted"), "-", run_status)
    await check(queued, Event("RunApproved"), "APPROVED", run_status)
    await check([*queued, Event("RunApproved")], Event("RunStarted"), "RUNNING", run_status)
    await check(queued, Event("RunCancelled"), "CANCELLED", run_status)
    await check(queued, Event("RunFailed"), "FAILED", run_status)


async def test_queueing_a_run_again_does_not_lift_the_need_for_approval() -> None:
    queued = [
        Event("RunQueued", None, 1, {"approvalRequired": True, "originRunId": "run-0"}),
        Event("RunQueued", None, 2),
    ]
    await check(queued, Event("RunStarted"), "-", run_status)
    assert project(queued)[0].origin_run_id == "run-0"


@pytest.mark.parametrize(("event_type", "status", "outcome"), cells(STEP_TABLE))
async def test_an_attempt_moves_by_the_table(event_type: str, status: str, outcome: str) -> None:
    history = HISTORIES["RUNNING"] + STEP_HISTORIES[status]
    await check(history, Event(event_type, "a"), outcome, newest_attempt)


@pytest.mark.parametrize(("event_type", "status", "outcome"), cells(NEXT_ATTEMPT_TABLE))
async def test_the_next_attempt_waits_for_the_one_before_to_fail(event_type: str, status: str, outcome: str) -> None:
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
    "beside",
    [
        [],
        [Event("SignalAccepted", "signal/s2")],
        [Event("SignalRejected", "signal/s1")],
        [Event("SignalAccepted", "s1")],
        [Event("SignalAccepted", "signal/s1", 2)],  # a signal is accepted once; what this is, nobody knows
    ],
    ids=["no signal", "another", "rejected", "no signal's path", "another attempt"],
)
async def test_naming_a_signal_that_was_not_accepted_forces_nothing(
    event_type: str, status: str, outcome: str, beside: list[Event]
) -> None:
    history = HISTORIES["RUNNING"] + beside + STEP_HISTORIES[status]
    await check(history, Event(event_type, "a", 2, {"forcedBy": "s1"}), outcome, newest_attempt)


@pytest.mark.parametrize(("event_type", "status", "outcome"), cells(RUN_FOR_STEP_TABLE))
async def test_a_step_moves_only_while_its_run_lets_it(event_type: str, status: str, outcome: str) -> None:
    """Also while the run is paused: running steps drain, and a start may have been under way."""
    under_way = [Event("StepStarted", "a")] if event_type in ("StepCompleted", "StepFailed") else []
    if outcome == "?":
        await check(HISTORIES[status], Event(event_type, "a"), "-", newest_attempt)
        return
    begun, ended = HISTORIES[status][:2], HISTORIES[status][2:]
    await check([*begun, *under_way, *ended], Event(event_type, "a"), outcome, newest_attempt)


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
async def test_every_other_type_is_legal_in_any_state_and_changes_no_status(event: Event, status: str) -> None:
    before = project(HISTORIES[status])[0]
    after, alerts = project([*HISTORIES[status], event])
    assert (after.status, after.steps, after.inconsistent, alerts) == (status, (), False, [])
    assert after.last_event_seq == before.last_event_seq + 1
    assert await offer(HISTORIES[status], event) == "appended"


# What a snapshot says


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


def test_a_drain_that_took_too_long_is_over_but_the_next_pause_drains_anew() -> None:
    timed_out = [Event("StepStarted", "a"), Event("RunPaused"), Event("RunDrainTimedOut")]
    assert (running(*timed_out).status, running(*timed_out).substatus) == ("PAUSED", None)
    again = [*timed_out, Event("RunResumed"), Event("RunPaused", None, 2)]
    assert running(*again).substatus == "DRAINING"


def test_a_run_is_retrying_from_the_schedule_to_the_start_of_the_next_attempt() -> None:
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
def test_a_schedule_that_fits_no_failed_attempt_says_nothing(events: list[Event]) -> None:
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


def test_a_second_pause_is_a_pause() -> None:
    twice = [Event("RunPaused"), Event("RunResumed"), Event("RunPaused", None, 2, {"reason": "again"})]
    assert (running(*twice).status, running(*twice).pauses, running(*twice).reason) == ("PAUSED", 2, "again")
    assert running(*twice, Event("RunResumed", None, 2)).status == "RUNNING"


def test_a_run_completed_after_it_was_cancelled_stays_cancelled_and_is_marked() -> None:
    """Policy A: the event is not applied, the status untouched, the run INCONSISTENT, one alert."""
    events = [*HISTORIES["CANCELLED"], Event("RunCompleted", None, 1, {"reason": "late"})]
    snapshot, (alert,) = project(events)
    assert (snapshot.status, snapshot.inconsistent, snapshot.reason) == ("CANCELLED", True, None)
    assert snapshot.last_event_seq == 4
    assert snapshot.completed_at == "2026-01-31T08:00:03Z"
    assert (alert.facts["priorState"], alert.facts["attemptedNextState"]) == ("CANCELLED", "COMPLETED")


def test_what_comes_after_an_event_that_may_not_happen_is_folded_all_the_same() -> None:
    snapshot, alerts = project([*HISTORIES["RUNNING"], Event("StepCompleted", "a"), Event("StepStarted", "a")])
    assert (snapshot.running_steps, snapshot.inconsistent, len(alerts)) == (1, True, 1)


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_hearing_a_history_twice_changes_nothing_but_the_watermark(history: list[Event]) -> None:
    once, _ = project(history)
    twice, alerts = project([*history, *history])
    assert plain(twice) == plain(once)
    assert (twice.last_event_seq, twice.inconsistent, alerts) == (2 * len(history), False, [])


def test_a_duplicate_of_any_step_event_changes_nothing_but_the_watermark() -> None:
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


def test_an_event_that_was_folded_already_is_passed_over() -> None:
    state = RunState(detailed=True)
    assert evolve(state, to_record(Event("RunStarted"), 5)) is None
    assert evolve(state, to_record(Event("RunCompleted"), 5)) is None
    assert evolve(state, to_record(Event("RunCompleted"), 4)) is None
    assert (state.summary.status, state.summary.last_event_seq) == ("RUNNING", 5)


def test_a_step_is_told_with_its_attempts_times_artifacts_and_error() -> None:
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


def test_a_completed_run_gathers_the_artifacts_of_its_steps_once_each() -> None:
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
def test_a_failed_run_says_why(payload: dict[str, Any] | None, cause: dict[str, Any]) -> None:
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


def test_a_start_says_its_own_time_or_takes_the_events() -> None:
    for payload, moment in (
        ({"startedAt": "2026-01-01T00:00:00Z"}, "2026-01-01T00:00:00Z"),
        ({"startedAt": "yesterday"}, "2026-01-31T08:00:01Z"),
        (None, "2026-01-31T08:00:01Z"),
    ):
        snapshot, _ = project([Event("RunStarted", None, 1, payload), Event("RunCompleted")])
        assert snapshot.started_at == moment
        assert snapshot.completed_at == "2026-01-31T08:00:02Z"
    assert snapshot.total_duration_ms == 1000
    assert project([Event("RunQueued"), Event("RunCancelled")])[0].total_duration_ms is None


def test_the_start_of_a_run_names_its_engines_run() -> None:
    structured = {"provider": "temporal", "workflowId": "w", "runId": "r"}
    snapshot, _ = project(
        [Event("RunStarted", None, 1, {"engineRunRef": "temporal://n/t/w/r", "engineRun": structured})]
    )
    assert snapshot.engine_run_ref == "temporal://n/t/w/r"


def test_a_payload_from_elsewhere_that_does_not_fit_counts_as_an_empty_one() -> None:
    """Foreign logs are folded, not judged by their payloads: only the log itself refuses those."""
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


def test_a_snapshot_does_not_grow_with_the_text_it_is_told() -> None:
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


# Any stream of events at all


@given(streams())
def test_the_fold_and_the_second_opinion_agree_on_any_stream(events: list[Event]) -> None:
    opinion, projector = Opinion(), rw.SnapshotProjector()
    verdicts = [opinion.hear(event) for event in events]
    snapshot = projector.project_run("run-1", to_records(events or [Event("SomethingNew")]))
    for name, count in opinion.counts().items():
        assert getattr(snapshot, name) == count, name
    assert snapshot.status == opinion.run_status
    assert snapshot.substatus == opinion.substatus()
    assert snapshot.inconsistent == opinion.inconsistent
    assert {s.step_id: (s.logical_attempt_id, s.status) for s in snapshot.steps} == opinion.steps()
    assert {s.step_id for s in snapshot.steps if s.retry_scheduled} == opinion.retrying()
    told = {alert.facts["runSeq"] for alert in projector.alerts.values()}
    assert told == _first_of_each_id(events, [n for n, verdict in enumerate(verdicts, 1) if verdict == "illegal"])
    for step in snapshot.steps:
        earlier = [opinion.step_status(step.step_id, n) for n in range(1, step.logical_attempt_id)]
        assert list(step.earlier_attempts) == earlier


def _first_of_each_id(events: list[Event], places: list[int]) -> set[int]:
    first: dict[str, int] = {}
    for place in places:
        first.setdefault(to_write(events[place - 1], place).event_id, place)
    return set(first.values())


@given(streams(), st.data())
def test_folding_in_pieces_gives_the_same_snapshot_as_folding_whole(events: list[Event], data: st.DataObject) -> None:
    records = to_records([*events, Event("SomethingNew")])
    whole_projector, piecemeal = rw.SnapshotProjector(), rw.SnapshotProjector()
    whole = whole_projector.project_run("run-1", records)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=6)) | {1})
    snapshot = piecemeal.project_run("run-1", records[: cuts[0]])
    for start, end in zip(cuts, [*cuts[1:], len(records)], strict=True):
        overlap = data.draw(st.integers(0, start))  # some of it may come a second time
        snapshot = piecemeal.incremental_project(snapshot, records[start - overlap : end])
        assert without_resume(snapshot) == without_resume(rw.SnapshotProjector().project_run("run-1", records[:end]))
    assert without_resume(snapshot) == without_resume(whole)
    assert piecemeal.alerts == whole_projector.alerts


@given(streams(), st.sampled_from(["RunCompleted", "RunFailed", "RunCancelled"]), streams(15))
def test_nothing_leaves_an_end(before: list[Event], end: str, after: list[Event]) -> None:
    started = [Event("RunStarted", None, 9), *before, Event("RunResumed", None, 9), Event(end, None, 9)]
    ended, _ = project(started)
    later, _ = project([*started, *after])
    if ended.status not in ("COMPLETED", "FAILED", "CANCELLED"):
        return  # a start that was never legal
    names = ("status", "completed_at", "reason", "root_cause", "artifacts", "pauses", "started_at")
    assert all(getattr(later, name) == getattr(ended, name) for name in names)
    assert {s.step_id: s.status for s in later.steps} == {s.step_id: s.status for s in ended.steps}


def test_the_run_is_named_once_and_for_all() -> None:
    snapshot, _ = project(HISTORIES["RUNNING"])
    for name in RUN.__struct_fields__:
        assert getattr(snapshot, name) == getattr(RUN, name)
