"""Every event that the embedded engine writes: payload fields, JSON schema and emitter role."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

import runwright as rw
import runwright.contract.schemas as schemas
from runwright.contract.catalog import CATALOG, Level
from runwright.control.operations import Operations
from support.engine import (
    engine,
    fail_once_inputs,
    python_inputs,
    run_plan,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)

FOLDER = Path(schemas.__file__).parent / "json_schemas"

# Payload fields that events of a type may omit, with the reason.
MAY_OMIT: dict[str, set[str]] = {
    "RunQueued": {
        "originRunId",
        "originPlanVersion",
        "carriedOver",
        "forkedFromSeq",
        "parentRunId",
        "parentStepId",
        "parentIter",
    },  # Only reruns and sub-runs have them.
    "RunStarted": {
        "validationReport",
        "degraded",
        "source",
        "code",
        "subPlans",
    },  # Only with findings to report, or for a plan from a file.
    "StepStarted": {"forcedBy", "worker"},  # Only if a signal forced it, or a worker claimed it.
    "StepCompleted": {
        "result",
        "resultRef",
        "extracted",
        "artifactRefs",
    },  # Null results are omitted; large ones are references.
    "StepFailed": {"artifactRefs"},
    "StepSkipped": {"signalId", "originRunId", "result", "resultRef", "artifactRefs"},
    "StepRetryScheduled": {"signalId"},
    "StepDelayed": {"event", "key"},  # Only if the step waits for an event.
    "StepOverridden": {"newTarget"},
    "ApprovalRequested": {"expiresAt", "approvers", "fields", "by", "answer", "reason", "signalId"},
    "ApprovalGranted": {"prompt", "fields", "approvers", "expiresAt", "reason", "answer"},
    "ApprovalDenied": {"prompt", "fields", "approvers", "expiresAt", "reason", "answer"},
    "LoopStarted": {
        "items",
        "itemsRef",
        "carriedOver",
        "maxInFlight",
    },  # Either items or itemsRef; the others are optional.
    "LoopIterationStarted": {
        "item",
        "itemRef",
        "result",
        "resultRef",
        "extracted",
        "durationMs",
        "error",
        "queue",
        "worker",
    },
    "LoopIterationDone": {"item", "itemRef", "result", "resultRef", "extracted", "error", "queue", "worker"},
    "LoopIterationFailed": {"item", "itemRef", "result", "resultRef", "extracted", "queue", "worker"},
    "SignalAccepted": {"reason", "code", "payload", "sourceIp", "userAgent", "requestedBy"},
    "SignalRejected": {"payload", "sourceIp", "userAgent", "requestedBy"},  # Signals over HTTP have more fields.
    "SignalProcessed": {"newRunId"},
    "RunPaused": {"reason"},
    "RunResumed": {"reason"},
    "RunDrainTimedOut": {"signalId"},  # No signal causes it.
    "RunCompleted": {"reason", "signalId", "rootCause", "error", "artifactRefs", "artifactsLeftOut"},
    "RunFailed": {"reason", "signalId", "artifactRefs", "artifactsLeftOut"},
    "RunCancelled": {"reason", "rootCause", "error", "artifactRefs", "artifactsLeftOut"},
}


async def write_all_event_types(operations: Operations, folder: Path) -> list[rw.RunEventRecord]:
    """Start runs that write every event type of the engine, and return their events."""
    go, never = folder / "go", folder / "never"
    steps = [
        {"id": "sum", "python": python_inputs("1 + 1")},
        {"id": "big", "python": {"call": "support.engine_steps:big", "args": {"size": 70_000}}},
        {"id": "flaky", "retry": {"maxAttempts": 2, "initial": 0}, "python": fail_once_inputs(folder / "flaky")},
        {"id": "waits", "wait": "10ms"},
        {"id": "no", "when": False, "noop": {}},
        {"id": "marks", "python": {"call": "support.engine_steps:checkpoint", "args": {"state": {"at": 1}}}},
        {
            "id": "each",
            "foreach": [1, 2],
            "retry": {"maxAttempts": 2, "initial": 0},
            "python": fail_once_inputs(folder / "each-{{ item }}"),
        },
        {"id": "each-wait", "foreach": [0], "wait": "{{ item }}"},
        {"id": "operator", "python": fail_once_inputs(folder / "operator")},
        {"id": "held", "python": wait_for_file_inputs(go)},
        {"id": "later", "python": {"call": "support.engine_steps:echo", "args": {"x": 1}}},
    ]
    plan = {"plan": "all", "params": {"day": 1}, "onFailure": "wait", "steps": steps}
    first = await operations.start(operations.load(plan))
    await wait_for_event(operations, first, "StepFailed", "operator")
    await operations.signal(first, "RETRY_STEP", {"stepId": "operator"}, reason="again")
    await wait_for_event(operations, first, "StepStarted", "held")
    await operations.signal(first, "SKIP_STEP", {"stepId": "nosuch"})
    await operations.signal(first, "UPDATE_PARAMS", {"params": {"day": 2}}, reason="late")
    await operations.signal(first, "INJECT_OVERRIDE", {"stepId": "later", "override": {"args": {"x": 2}}}, reason="fix")
    await operations.signal(first, "PAUSE", reason="lunch")
    await wait_for_event(operations, first, "RunDrainTimedOut")
    await operations.signal(first, "RESUME")
    go.touch()
    assert (await wait_for_end(operations, first)).status == "COMPLETED"

    failing = {
        "plan": "bad",
        "steps": [
            {"id": "ok", "noop": {}},
            {"id": "bad", "when": "{{ 1 / 0 }}", "noop": {}},
            {"id": "rest", "noop": {}},
        ],
    }
    approval_plan = {
        "plan": "asks",
        "onFailure": "continue",
        "steps": [{"id": "a", "approval": "?"}, {"id": "b", "approval": "?"}],
    }
    approval_run_id = await operations.start(operations.load(approval_plan))
    for step, kind in (("a", "DENY"), ("b", "APPROVE")):
        await wait_for_event(operations, approval_run_id, "ApprovalRequested", step)
        await operations.signal(approval_run_id, kind)
    await wait_for_end(operations, approval_run_id)

    failed = await run_plan(operations, failing)
    retried = await operations.signal(failed.run_id, "RETRY_RUN")
    assert retried.new_run_id is not None
    await wait_for_end(operations, retried.new_run_id)

    stopped = []
    for kind, payload in (("CANCEL", {}), ("EMERGENCY_STOP", {"reason": "fire"})):
        plan = {
            "plan": "stopped",
            "order": "graph",
            "steps": [
                {"id": "a", "python": wait_for_file_inputs(never)},
                {"id": "e", "foreach": [1], "python": wait_for_file_inputs(never)},
            ],
        }
        run_id = await operations.start(operations.load(plan))
        await wait_for_event(operations, run_id, "LoopIterationStarted", "e[0]")
        await operations.signal(run_id, kind, payload)
        await wait_for_end(operations, run_id)
        stopped.append(run_id)
    late = await run_plan(
        operations, {"plan": "late", "timeout": "0.2s", "steps": [{"id": "a", "python": wait_for_file_inputs(never)}]}
    )
    run_ids = [first, approval_run_id, failed.run_id, retried.new_run_id, *stopped, late.run_id]
    return [record for run_id in run_ids for record in await operations.log.read(run_id)]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[rw.RunEventRecord]:
    import asyncio

    folder = tmp_path_factory.mktemp("events")

    async def gather() -> list[rw.RunEventRecord]:
        async with engine(f"sqlite:///{folder}/runs.db", drain_timeout=0.2) as operations:
            return await write_all_event_types(operations, folder)

    return asyncio.run(gather())


def test_runs_write_every_event_type_of_the_engine(records: list[rw.RunEventRecord]) -> None:
    assert {record.event_type for record in records} == {
        "RunQueued",
        "RunStarted",
        "StepStarted",
        "StepCompleted",
        "StepFailed",
        "StepSkipped",
        "StepRetryScheduled",
        "StepDelayed",
        "StepOverridden",
        "ApprovalRequested",
        "ApprovalGranted",
        "ApprovalDenied",
        "LoopStarted",
        "LoopDone",
        "LoopIterationStarted",
        "LoopIterationDone",
        "LoopIterationFailed",
        "CheckpointWritten",
        "SignalAccepted",
        "SignalRejected",
        "SignalProcessed",
        "RunParamsUpdated",
        "RunPaused",
        "RunResumed",
        "RunDrainTimedOut",
        "RunCompleted",
        "RunFailed",
        "RunCancelled",
    }


def test_every_event_fits_its_json_schema(records: list[rw.RunEventRecord]) -> None:
    record_validator = jsonschema.Draft202012Validator(schemas.record_schema())
    for record in records:
        document = json.loads(msgspec.json.encode(record))
        record_validator.validate(document)
        schema = json.loads((FOLDER / f"{record.event_type}.schema.json").read_text())
        known = schema["properties"]
        jsonschema.Draft202012Validator(schema).validate(
            {name: value for name, value in document.items() if name in known}
        )


def test_every_payload_has_only_the_fields_of_its_type(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        fields = {field.encode_name for field in msgspec.structs.fields(CATALOG[record.event_type].payload)}
        payload = record.payload or {}
        msgspec.convert(payload, CATALOG[record.event_type].payload)
        assert set(payload) <= fields, record.event_type


def missing_fields(records: list[rw.RunEventRecord]) -> dict[str, set[str]]:
    """Return the fields that an event omitted although they are required, by event type."""
    found: dict[str, set[str]] = defaultdict(set)
    for record in records:
        fields = {field.encode_name for field in msgspec.structs.fields(CATALOG[record.event_type].payload)}
        absent = fields - set(record.payload or {}) - MAY_OMIT.get(record.event_type, set())
        if absent:
            found[record.event_type] |= absent
    return dict(found)


def test_no_event_omits_a_required_payload_field(records: list[rw.RunEventRecord]) -> None:
    assert missing_fields(records) == {}


def test_errors_have_code_message_retryable_and_category(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        error: dict[str, Any] | None = (record.payload or {}).get("error")
        if error is not None:
            assert set(error) >= {"code", "message", "retryable", "category"}, (
                record.event_type,
                record.step_id,
                error,
            )


def test_skipped_steps_have_a_reason_code_and_a_reason(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        if record.event_type == "StepSkipped":
            assert (record.payload or {})["reasonCode"]
            assert (record.payload or {})["reason"]


def test_emitter_role_of_each_event_matches_the_catalogue(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        assert record.emitted_by is not None
        component, _, role = record.emitted_by.partition("/")
        assert component in ("embedded", "control")
        assert role == CATALOG[record.event_type].role, record.event_type


def test_levels_versions_and_attempts_match_the_catalogue(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        level = CATALOG[record.event_type].level
        assert (record.step_id is None) == (level is Level.RUN)
        assert record.schema_version == CATALOG[record.event_type].schema_version
        assert record.logical_attempt_id >= 1
        assert record.engine_attempt_id >= 1


def test_run_queued_and_run_started_have_expected_payloads(records: list[rw.RunEventRecord]) -> None:
    queued, started = (
        next(record.payload or {} for record in records if record.event_type == name)
        for name in ("RunQueued", "RunStarted")
    )
    run_id = records[0].run_id
    assert queued == {
        "queuePosition": 0,
        "estimatedWaitMs": 0,
        "approvalRequired": False,
        "runRequestId": run_id,
        "params": {"day": 1},
        "trigger": "manual",
    }
    assert started["status"] == "RUNNING"
    assert started["engineType"] == "embedded"
    assert started["engineRun"] == {"provider": "embedded", "workflowId": run_id, "runId": run_id}
    assert started["engineRunRef"] == f"embedded://{run_id}/{run_id}"
    assert set(started["planRef"]) >= {"uri", "sha256", "schemaVersion", "planId", "planVersion"}
    assert started["context"]["tenantId"] == "default"
    assert started["context"]["triggerSource"] == "manual"
    assert started["onFailure"] == "wait"


def test_a_plain_step_costs_two_events(records: list[rw.RunEventRecord]) -> None:
    assert [record.event_type for record in records if record.step_id == "sum"] == ["StepStarted", "StepCompleted"]


def test_idempotency_keys_match_the_formula(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        expected = rw.idempotency_key(
            record.run_id,
            record.step_id,
            record.logical_attempt_id,
            record.event_type,
            record.plan_id,
            record.plan_version,
        )
        assert record.idempotency_key == expected
