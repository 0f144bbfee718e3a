"""States that follow from a run's history, on every store; lists and details always agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import runwright as rw
from support.events import History

MakeLog = Callable[..., rw.RunLog]


async def test_second_pause_and_resume_are_stored_and_counted(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("RunPaused"), event("RunResumed")])
        receipts = await log.append([event("RunPaused", attempt=2), event("RunResumed", attempt=2)])
        assert [receipt.status for receipt in receipts] == ["appended", "appended"]
        snapshot = await log.snapshot("run-1")
        assert (snapshot.status, snapshot.pauses, snapshot.last_event_seq) == ("RUNNING", 2, 6)
        assert (await log.snapshot("run-1", at=5)).status == "PAUSED"


async def test_paused_run_reports_that_it_is_draining(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), *(event("StepStarted", step) for step in "abc"), event("RunPaused")])
        snapshot = await log.snapshot("run-1")
        assert (snapshot.status, snapshot.substatus) == ("PAUSED", "DRAINING")
        assert snapshot.message == "Workflow paused. Waiting for 3 in-flight tasks to complete."
        await log.append([event("StepCompleted", step) for step in "abc"])
        assert (await log.snapshot("run-1")).substatus is None


async def test_a_run_that_needs_approval_starts_only_when_approved(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([event("RunQueued", approvalRequired=True)])
        assert (await log.snapshot("run-1")).substatus == "WAITING_APPROVAL"
        with pytest.raises(rw.AppendRefused) as caught:
            await log.append([event("RunStarted")])
        assert caught.value.code == "INVALID_TRANSITION"
        await log.append([event("RunApproved"), event("RunStarted")])
        assert (await log.snapshot("run-1")).status == "RUNNING"


async def test_attempts_follow_failures_and_never_skip(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("StepStarted", "a")])
        for too_early in (event("StepStarted", "a", 2), event("StepStarted", "b", 2), event("StepSkipped", "a", 2)):
            with pytest.raises(rw.AppendRefused):
                await log.append([too_early])
        await log.append([event("StepFailed", "a"), event("StepRetryScheduled", "a")])
        assert (await log.snapshot("run-1")).substatus == "RETRYING"
        await log.append([event("StepStarted", "a", 2)])
        assert (await log.snapshot("run-1")).substatus is None
        await log.append([event("StepCompleted", "a", 2)])
        (step,) = (await log.snapshot("run-1")).steps
        assert (step.status, step.logical_attempt_id, list(step.earlier_attempts)) == ("SUCCESS", 2, ["FAILED"])


async def test_forced_retry_needs_an_accepted_signal(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("StepStarted", "a"), event("StepCompleted", "a")])
        forced = event("StepStarted", "a", 2, forcedBy="s-1")
        with pytest.raises(rw.AppendRefused):
            await log.append([forced])
        await log.append([event("SignalRejected", "signal/s-1")])
        with pytest.raises(rw.AppendRefused):
            await log.append([forced])
        await log.append([event("SignalAccepted", "signal/s-1"), forced])
        snapshot = await log.snapshot("run-1")
        assert (snapshot.completed_steps, snapshot.running_steps) == (0, 1)


@pytest.mark.parametrize("ending", ["RunCompleted", "RunFailed", "RunCancelled"])
async def test_ended_run_accepts_no_transitions(make_log: MakeLog, event: History, ending: str) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("StepStarted", "a"), event(ending)])
        status = (await log.snapshot("run-1")).status
        others = {"RunCompleted", "RunFailed", "RunCancelled"} - {ending}
        for name in sorted(others | {"RunPaused", "RunResumed", "RunApproved"}):
            with pytest.raises(rw.AppendRefused) as caught:
                await log.append([event(name)])
            assert caught.value.code == "INVALID_TRANSITION"
        for late in (event("StepCompleted", "a"), event("StepStarted", "b"), event("StepSkipped", "b")):
            with pytest.raises(rw.AppendRefused):
                await log.append([late])
        await log.append([event("RunProcessed"), event("RunArchived"), event("SignalRejected", "signal/x")])
        assert (await log.snapshot("run-1")).status == status


async def test_observed_run_stores_illegal_events_as_inconsistent(make_log: MakeLog, event: History) -> None:
    """A foreign log with RunCompleted after RunCancelled is CANCELLED and INCONSISTENT, with one alert."""
    async with make_log() as log:
        await log.create_run(event.run, event.started(), enforcement=rw.Enforcement.OBSERVE)
        late = event("RunCompleted")
        for _ in range(2):
            await log.append([event("RunCancelled"), late])
        snapshot = await log.snapshot("run-1")
        assert (snapshot.status, snapshot.inconsistent, snapshot.last_event_seq) == ("CANCELLED", True, 4)
        (alert,) = await log.alerts("run-1")
        assert (alert.code, alert.subject) == ("INVALID_TRANSITION", late.event_id)
        for name in ("tenantId", "projectId", "environmentId", "eventId", "eventType", "runSeq", "persistedAt"):
            assert alert.facts[name]
        assert (alert.facts["priorState"], alert.facts["attemptedNextState"]) == ("CANCELLED", "COMPLETED")
        (row,) = (await log.list_runs()).runs
        assert row.to_json()["inconsistent"] is True


async def test_observed_run_state_counts_applied_events_only(make_log: MakeLog, event: History) -> None:
    """A key in an observed log does not mean that its event was applied."""
    async with make_log() as log:
        await log.create_run(event.run, enforcement=rw.Enforcement.OBSERVE)
        await log.append([event("StepCompleted", "a")])  # before the run was queued: stored, not applied
        await log.append([*event.started(), event("StepStarted", "a")])
        snapshot = await log.snapshot("run-1")
        assert (snapshot.steps[0].status, snapshot.running_steps, snapshot.inconsistent) == ("RUNNING", 1, True)
        assert (await log.find_run("run-1")).summary.running_steps == 1
        assert (await log.rebuild(check=True)).different == []


async def test_run_list_agrees_with_run_details(make_log: MakeLog, event: History) -> None:
    steps = [
        *event.started(),
        event("StepStarted", "a"),
        event("StepFailed", "a", error={"code": "X", "message": "no"}),
        event("StepRetryScheduled", "a"),
        event("StepStarted", "a", 2),
        event("RunPaused"),
        event("StepCompleted", "a", 2),
        event("StepSkipped", "b"),
        event("ApprovalRequested", "c"),
        event("RunResumed"),
        event("ApprovalGranted", "c"),
        event("RunFailed", rootCause={"stepId": "a", "code": "X"}),
    ]
    async with make_log() as log:
        for item in steps:
            await log.append([item])
            detail, (row,) = await log.snapshot("run-1"), (await log.list_runs()).runs
            listed = row.to_json()
            for name, value in detail.to_json().items():
                if name in listed:
                    assert listed[name] == value, name
        assert (await log.rebuild(check=True)).different == []


async def test_old_payloads_are_upcast_on_read_and_for_lookup(make_log: MakeLog, event: History) -> None:
    old = msgspec.structs.replace(
        event("RunStarted", engineRunRef="temporal://default/interpreter/wf-1/provider-run-7"), schema_version=1
    )
    async with make_log() as log:
        await log.append([event("RunQueued"), old])
        record = (await log.read("run-1"))[1]
        assert record.schema_version == 1
        assert record.payload is not None
        assert record.payload["engineRun"]["workflowId"] == "wf-1"
        assert b'engineRun"' not in bytes(record.raw_payload)  # the stored payload is unchanged
        found = await log.find_engine_run("temporal", "wf-1", "provider-run-7")
        assert found.identity.run_id == "run-1"


async def test_run_is_found_by_its_engine_reference(make_log: MakeLog, event: History) -> None:
    reference = {"provider": "conductor", "workflowId": "wf", "runId": "r", "conductorUrl": "http://127.0.0.1"}
    async with make_log() as log:
        await log.append([event("RunQueued"), event("RunStarted", engineRun=reference)])
        assert (await log.find_engine_run("conductor", "wf", "r")).identity.run_id == "run-1"
        with pytest.raises(rw.RunwrightError) as caught:
            await log.find_engine_run("temporal", "wf", "r")
        assert caught.value.code == "RUN_NOT_FOUND"


TEMPORAL = {"provider": "temporal", "namespace": "prod", "workflowId": "wf", "runId": "r7"}


@pytest.mark.parametrize(
    "payload",
    [
        {"engineRunRef": "temporal://prod/interpreter/wf/r7"},
        {"engineRunRef": TEMPORAL},
        {"engineRunRef": "temporal://prod/interpreter/wf/r7", "engineRun": TEMPORAL},
    ],
    ids=["text", "object", "both"],
)
async def test_run_is_found_by_every_form_of_its_reference(
    make_log: MakeLog, event: History, payload: dict[str, Any]
) -> None:
    async with make_log() as log:
        await log.append([event("RunQueued"), event("RunStarted", **payload)])
        assert (await log.find_engine_run("temporal", "wf", "r7", scope="prod")).identity.run_id == "run-1"
        assert (await log.snapshot("run-1")).engine_run_ref in (
            "temporal://prod/interpreter/wf/r7",
            "temporal://prod/-/wf/r7",
        )
        with pytest.raises(rw.RunwrightError) as caught:
            await log.find_engine_run("temporal", "wf", "r7", scope="staging")
        assert caught.value.code == "RUN_NOT_FOUND"
        assert (await log.rebuild(check=True)).different == []


async def test_provider_ids_are_looked_up_within_a_tenant(make_log: MakeLog) -> None:
    async with make_log() as log:
        for tenant in ("a", "b"):
            history = History(f"of-{tenant}", tenant_id=tenant)
            await log.append([history("RunQueued"), history("RunStarted", engineRun=TEMPORAL)])
        for tenant in ("a", "b"):
            row = await log.find_engine_run("temporal", "wf", "r7", tenant_id=tenant)
            assert row.identity.run_id == f"of-{tenant}"
        with pytest.raises(rw.RunwrightError) as caught:
            await log.find_engine_run("temporal", "wf", "r7")
        assert caught.value.code == "INVALID_ARGUMENT"


async def test_payload_of_a_pending_approval_cannot_be_redacted(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([event("RunQueued", approvalRequired=True, params={"customer": "Jane"})])
        with pytest.raises(rw.RunwrightError) as caught:
            await log.redact("run-1", 1)
        assert caught.value.code == "INVALID_ARGUMENT"
        with pytest.raises(rw.AppendRefused):
            await log.append([event("RunStarted")])
        await log.append([event("RunApproved"), event("RunStarted")])
        await log.redact("run-1", 1)
        assert [finding.kind async for finding in log.verify()] == ["REDACTED"]
        first = (await log.read("run-1"))[0]
        assert (first.redacted, first.payload) == (True, None)
        assert (await log.snapshot("run-1")).status == "RUNNING"
        assert (await log.rebuild(check=True)).different == []


async def test_payload_of_a_forced_start_cannot_be_redacted(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("StepStarted", "a"), event("StepCompleted", "a")])
        await log.append([event("SignalAccepted", "signal/s"), event("StepStarted", "a", 2, forcedBy="s")])
        with pytest.raises(rw.RunwrightError):
            await log.redact("run-1", 6)
        assert [finding async for finding in log.verify()] == []
