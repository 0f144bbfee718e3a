"""Every event that our engine writes: complete, of its schema, and by whom it may be written."""

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

# What an event may leave out, and why.
MAY_MISS: dict[str, set[str]] = {
    "RunQueued": {
        "originRunId",
        "forkedFromSeq",
        "parentRunId",
        "parentStepId",
        "parentIter",
    },  # of a run that comes from another
    "RunStarted": {
        "validationReport",
        "degraded",
        "source",
        "code",
        "subPlans",
    },  # something to report; a plan from a file
    "StepStarted": {"forcedBy", "worker"},  # by a signal; where one took it
    "StepCompleted": {"result", "resultRef", "extracted", "artifactRefs"},  # null; beyond 64 KiB; where there are any
    "StepFailed": {"artifactRefs"},
    "StepSkipped": {"signalId", "originRunId", "result", "resultRef", "artifactRefs"},
    "StepRetryScheduled": {"signalId"},
    "StepDelayed": {"event", "key"},  # where it waits for one
    "StepOverridden": {"newTarget"},
    "ApprovalRequested": {"expiresAt", "approvers", "fields", "by", "answer", "reason", "signalId"},
    "ApprovalGranted": {"prompt", "fields", "approvers", "expiresAt", "reason", "answer"},
    "ApprovalDenied": {"prompt", "fields", "approvers", "expiresAt", "reason", "answer"},
    "LoopStarted": {"items", "itemsRef", "carriedOver", "maxInFlight"},  # one of the first two; of a playbook
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
    "SignalRejected": {"payload", "sourceIp", "userAgent", "requestedBy"},  # what comes over HTTP has more
    "SignalProcessed": {"newRunId"},
    "RunPaused": {"reason"},
    "RunResumed": {"reason"},
    "RunDrainTimedOut": {"signalId"},  # no signal asked for it
    "RunCompleted": {"reason", "signalId", "rootCause", "error", "artifactRefs", "artifactsLeftOut"},
    "RunFailed": {"reason", "signalId", "artifactRefs", "artifactsLeftOut"},
    "RunCancelled": {"reason", "rootCause", "error", "artifactRefs", "artifactsLeftOut"},
}


async def everything(operations: Operations, folder: Path) -> list[rw.RunEventRecord]:
    """Runs that make the engine write every type of event it knows."""
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
    asks = {
        "plan": "asks",
        "onFailure": "continue",
        "steps": [{"id": "a", "approval": "?"}, {"id": "b", "approval": "?"}],
    }
    asked = await operations.start(operations.load(asks))
    for step, kind in (("a", "DENY"), ("b", "APPROVE")):
        await wait_for_event(operations, asked, "ApprovalRequested", step)
        await operations.signal(asked, kind)
    await wait_for_end(operations, asked)

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
    run_ids = [first, asked, failed.run_id, retried.new_run_id, *stopped, late.run_id]
    return [record for run_id in run_ids for record in await operations.log.read(run_id)]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[rw.RunEventRecord]:
    import asyncio

    folder = tmp_path_factory.mktemp("events")

    async def gather() -> list[rw.RunEventRecord]:
        async with engine(f"sqlite:///{folder}/runs.db", drain_timeout=0.2) as operations:
            return await everything(operations, folder)

    return asyncio.run(gather())


def test_the_runs_write_every_type_that_the_engine_has(records: list[rw.RunEventRecord]) -> None:
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
    whole = jsonschema.Draft202012Validator(schemas.record_schema())
    for record in records:
        document = json.loads(msgspec.json.encode(record))
        whole.validate(document)
        schema = json.loads((FOLDER / f"{record.event_type}.schema.json").read_text())
        known = schema["properties"]
        jsonschema.Draft202012Validator(schema).validate(
            {name: value for name, value in document.items() if name in known}
        )


def test_every_payload_is_of_its_type_and_has_no_field_beyond_it(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        fields = {field.encode_name for field in msgspec.structs.fields(CATALOG[record.event_type].payload)}
        payload = record.payload or {}
        msgspec.convert(payload, CATALOG[record.event_type].payload)
        assert set(payload) <= fields, record.event_type


def missing(records: list[rw.RunEventRecord]) -> dict[str, set[str]]:
    """The fields that some event left out although it could have known them."""
    found: dict[str, set[str]] = defaultdict(set)
    for record in records:
        fields = {field.encode_name for field in msgspec.structs.fields(CATALOG[record.event_type].payload)}
        absent = fields - set(record.payload or {}) - MAY_MISS.get(record.event_type, set())
        if absent:
            found[record.event_type] |= absent
    return dict(found)


def test_every_field_that_makes_sense_is_filled_in(records: list[rw.RunEventRecord]) -> None:
    assert missing(records) == {}


def test_errors_say_all_that_they_can(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        error: dict[str, Any] | None = (record.payload or {}).get("error")
        if error is not None:
            assert set(error) >= {"code", "message", "retryable", "category"}, (
                record.event_type,
                record.step_id,
                error,
            )


def test_a_skip_says_why_in_words(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        if record.event_type == "StepSkipped":
            assert (record.payload or {})["reasonCode"]
            assert (record.payload or {})["reason"]


def test_whoever_decides_is_the_server_and_whoever_runs_a_tool_the_worker(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        assert record.emitted_by is not None
        component, _, role = record.emitted_by.partition("/")
        assert component in ("embedded", "control")
        assert role == CATALOG[record.event_type].role, record.event_type


def test_levels_and_attempts_are_as_the_catalogue_says(records: list[rw.RunEventRecord]) -> None:
    for record in records:
        level = CATALOG[record.event_type].level
        assert (record.step_id is None) == (level is Level.RUN)
        assert record.schema_version == CATALOG[record.event_type].schema_version
        assert record.logical_attempt_id >= 1
        assert record.engine_attempt_id >= 1


def test_a_run_starts_as_agreed(records: list[rw.RunEventRecord]) -> None:
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


def test_keys_are_what_the_formula_gives(records: list[rw.RunEventRecord]) -> None:
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
