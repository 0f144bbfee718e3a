"""Requirements of the source contracts for engines that no other test covers.

`docs/conformance-engine.md` maps each rule of the contracts to its test; the tests here fill the gaps.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runwright as rw
from runwright.auth.roles import Actor
from runwright.contract.workflow_engine import SignalRequest
from runwright.control.operations import Operations
from runwright.control.run_scope import RunScope
from runwright.control.signal_rules import RULES, Refused, authorize, check_request
from runwright.log.append.prepare import PreparedEvent
from runwright.runtimes.settings import EngineSettings
from support.engine import (
    engine,
    event_lines,
    fail_once_inputs,
    lines_of_types,
    python_inputs,
    run_plan,
    skip_reasons,
    statuses,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)

SMALL = {"plan": "p", "steps": [{"id": "a", "noop": {}}]}


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def note_inputs(file: Path) -> dict[str, Any]:
    return {"call": "support.engine_steps:note", "args": {"file": str(file)}}


# Capabilities: IWorkflowEngine 4

UNSUPPORTED = "workflow.child.workflows"


@pytest.mark.parametrize(
    ("name", "fallback"),
    [(UNSUPPORTED, None), (UNSUPPORTED, "reject"), ("fly", None), ("fly", "emulate"), ("fly", "degrade")],
)
async def test_plan_with_an_unsupported_capability_is_refused(store_url: str, name: str, fallback: str | None) -> None:
    """An unknown capability is refused for every fallback behaviour."""
    needs: dict[str, Any] = {"requiresCapabilities": ["cancel.cooperative", name]}
    if fallback is not None:
        needs["fallbackBehavior"] = fallback
    async with engine(store_url) as operations:
        with pytest.raises(rw.RunwrightError) as caught:
            await run_plan(operations, {**SMALL, **needs})
        assert caught.value.code == "CAPABILITY_NOT_SUPPORTED"
        assert name in caught.value.detail
        assert (await operations.log.list_runs()).runs == []


@pytest.mark.parametrize(("fallback", "code"), [("emulate", "CAPABILITY_EMULATED"), ("degrade", "CAPABILITY_DEGRADED")])
async def test_run_start_reports_emulated_or_degraded_capabilities(store_url: str, fallback: str, code: str) -> None:
    needs = {"requiresCapabilities": ["cancel.forced", UNSUPPORTED], "fallbackBehavior": fallback}
    async with engine(store_url) as operations:
        snapshot = await run_plan(operations, {**SMALL, **needs})
        started = (await wait_for_event(operations, snapshot.run_id, "RunStarted")).payload or {}
    assert snapshot.status == "COMPLETED"
    assert started["degraded"] is True
    report = started["validationReport"]
    assert (report["planId"], report["targetAdapter"], report["status"]) == ("p", "embedded", "WARNINGS")
    assert report["capabilityChecks"] == [
        {"capability": "cancel.forced", "supported": True},
        {"capability": UNSUPPORTED, "supported": False},
    ]
    assert [(warning["code"], warning["capability"]) for warning in report["warnings"]] == [(code, UNSUPPORTED)]


async def test_a_plan_whose_needs_are_met_is_not_degraded(store: str) -> None:
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {**SMALL, "requiresCapabilities": ["cancel.forced"]})
        started = (await wait_for_event(operations, snapshot.run_id, "RunStarted")).payload or {}
    assert (started["validationReport"]["status"], started.get("degraded")) == ("VALID", None)


# Plans by reference: IWorkflowEngine 1, 3.1


async def test_no_event_holds_the_plan_only_a_reference_to_it(store_url: str) -> None:
    plan = {"plan": "p", "description": "a-mark", "steps": [{"id": "a", "python": python_inputs("len('b-mark')")}]}
    async with engine(store_url) as operations:
        snapshot = await run_plan(operations, plan)
        records = await operations.log.read(snapshot.run_id)
        reference = (await wait_for_event(operations, snapshot.run_id, "RunStarted")).payload["planRef"]  # type: ignore[index]
        body = await operations.log.plan(reference["sha256"])
    assert sha256(body).hexdigest() == reference["sha256"]
    assert b"a-mark" in body and b"b-mark" in body
    written = b"".join(msgspec.json.encode(record) for record in records)
    assert b"a-mark" not in written and b"b-mark" not in written


async def test_plan_with_a_wrong_hash_is_not_run(store_url: str, history: Any) -> None:
    """The bytes in the plan store are hashed before they are used; the error names both hashes."""
    body = json.dumps({"metadata": {"planId": "p"}, "order": "graph", "steps": [{"stepId": "a", "kind": "noop"}]})
    approved, found = "1" * 64, sha256(body.encode()).hexdigest()
    reference = {"uri": f"plan:sha256:{approved}", "sha256": approved, "schemaVersion": "v1.0", "planId": "p"}
    made = history("run-1", "p", "1")
    async with engine(store_url) as operations:
        await operations.log.store_plan(approved, body.encode())
        await operations.log.append([made("RunQueued"), made("RunStarted", planRef={**reference, "planVersion": "1"})])
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.resume("run-1")
        assert caught.value.code == "PLAN_INTEGRITY_VALIDATION_FAILED"
        assert approved in caught.value.detail and found in caught.value.detail
        assert not operations.engine.is_driven("run-1")
        assert await event_lines(operations, "run-1") == ["RunQueued", "RunStarted"]


# Scope and ids of events: IWorkflowEngine 2.1.3; RunEvents 2.4, 2.5


async def test_every_event_has_the_scope_and_plan_of_its_run(store_url: str, tmp_path: Path) -> None:
    """Signals name only the run; tenant, project, environment and plan come from the stored run."""
    plan = {
        **SMALL,
        "version": "7",
        "steps": [{"id": "a", "python": wait_for_file_inputs(tmp_path / "never")}, {"id": "b", "noop": {}}],
    }
    async with engine(store_url) as operations:
        run_id = await operations.start(operations.load(plan), place=RunScope("acme"))
        await wait_for_event(operations, run_id, "StepStarted", "a")
        refused = await operations.signal(run_id, "SKIP_STEP", {"stepId": "a"})
        decision = await operations.signal(run_id, "CANCEL")
        await wait_for_end(operations, run_id)
        records = await operations.log.read(run_id)
    assert {record.event_type for record in records} >= {
        "SignalRejected",
        "SignalAccepted",
        "StepSkipped",
        "StepFailed",
    }
    assert [record.event_type for record in records[:2]] == ["RunQueued", "RunStarted"]
    for record in records:
        assert (record.run_id, record.tenant_id, record.project_id) == (run_id, "acme", "default")
        assert (record.environment_id, record.plan_id, record.plan_version) == ("default", "p", "7")
    assert decision.audit["tenantId"] == refused.audit["tenantId"] == "acme"


async def test_a_run_without_an_id_gets_a_random_one(store: str) -> None:
    async with engine(store) as operations:
        made = {await operations.start(operations.load(SMALL)) for _ in range(20)}
    assert len(made) == 20
    assert {uuid.UUID(run_id).version for run_id in made} == {4}


async def test_recovery_of_an_idle_run_makes_no_new_attempt(durable_url: str, tmp_path: Path) -> None:
    """The end of a process interrupts neither a pause nor a wait, so no attempt is repeated."""
    go = tmp_path / "go"
    steps: list[dict[str, Any]] = [
        {"id": "a", "python": wait_for_file_inputs(go)},
        {"id": "w", "wait": "0.3s"},
        {"id": "b", "noop": {}},
    ]
    plan = {"plan": "p", "steps": steps}
    async with engine(durable_url) as one:
        await one.start(one.load(plan), run_id="run-1")
        await wait_for_event(one, "run-1", "StepStarted", "a")
        await one.signal("run-1", "PAUSE")
        go.touch()
        await wait_for_event(one, "run-1", "StepCompleted", "a")
    async with engine(durable_url) as two:
        await two.start(two.load(plan), run_id="run-1")
        await two.signal("run-1", "RESUME")
        await wait_for_event(two, "run-1", "StepDelayed", "w")
    async with engine(durable_url) as three:
        await three.start(three.load(plan), run_id="run-1")
        assert (await wait_for_end(three, "run-1")).status == "COMPLETED"
        records = await three.log.read("run-1")
    assert {record.engine_attempt_id for record in records} == {1}


def with_new_ids(events: list[PreparedEvent]) -> list[PreparedEvent]:
    """The same events under other ids, as sent by a producer that lost its id registry."""
    found: list[PreparedEvent] = []
    for made in events:
        other = uuid.uuid4()
        stored = msgspec.structs.replace(made.stored, event_id=other.bytes)
        found.append(msgspec.structs.replace(made, event_id=str(other), stored=stored))
    return found


@pytest.mark.parametrize("arrives", ["not", "after another", "unknown", "under another id"])
async def test_repeated_append_keeps_event_ids_and_the_log_wins(
    store: str, monkeypatch: pytest.MonkeyPatch, arrives: str
) -> None:
    offered: dict[tuple[str, str | None], set[str]] = {}
    tried: set[tuple[str, str | None]] = set()
    async with engine(store) as operations:
        real = operations.log.append_prepared

        async def offer(events: list[PreparedEvent], **more: Any) -> list[rw.Receipt]:
            names = [(made.stored.event_type, made.stored.step_id) for made in events]
            for name, made in zip(names, events, strict=True):
                offered.setdefault(name, set()).add(made.event_id)
            if tried >= set(names):
                return await real(events, **more)
            tried.update(names)
            if arrives == "after another":  # The driver refolds the run and drafts the same events.
                raise rw.RunwrightError(rw.ErrorCode.SEQ_CONFLICT, "Somebody was faster.")
            if arrives == "not":
                raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "Try again.", outcome="not written")
            await real(with_new_ids(events) if arrives == "under another id" else events, **more)
            raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "Nobody knows.", outcome="unknown")

        monkeypatch.setattr(operations.log, "append_prepared", offer)
        snapshot = await run_plan(operations, {"plan": "p", "steps": [{"id": name, "noop": {}} for name in "abc"]})
        records = await operations.log.read(snapshot.run_id)
    assert snapshot.status == "COMPLETED"
    assert len(records) == 9
    written = {(record.event_type, record.step_id): record.event_id for record in records}
    for name, ids in offered.items():
        assert len(ids) == 1, f"{name} has more than one id"
        assert ({written[name]} == ids) == (arrives != "under another id")
    assert len(offered) > 3


# Events first: IWorkflowEngine 1; ExecutionSemantics 5


async def test_no_step_runs_before_its_start_is_durable(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, held_back = tmp_path / "notes", list[str]()
    notes.touch()
    steps: list[dict[str, Any]] = [{"id": name, "python": note_inputs(notes)} for name in "abc"]
    async with engine(store) as operations:
        for method in ("create_run", "append_prepared"):
            real = getattr(operations.log, method)

            async def slow(*args: Any, real: Any = real, **more: Any) -> Any:
                (events,) = (argument for argument in args if isinstance(argument, list))
                starts = [made.stored.step_id for made in events if made.stored.event_type == "StepStarted"]
                await asyncio.sleep(0.1)
                assert not {line.split()[0] for line in notes.read_text().splitlines()} & set(starts)
                held_back.extend(starts)
                return await real(*args, **more)

            monkeypatch.setattr(operations.log, method, slow)
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
    assert snapshot.status == "COMPLETED"
    assert held_back == ["a", "b", "c"]
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["a", "b", "c"]


# PAUSE, RESUME, CANCEL, status: IWorkflowEngine 1, 2.1.2; ExecutionSemantics 6


async def test_pause_and_resume_repeat_no_completed_step(store_url: str, tmp_path: Path) -> None:
    go, notes = tmp_path / "go", tmp_path / "notes"
    steps: list[dict[str, Any]] = [
        {"id": "a", "python": note_inputs(notes)},
        {"id": "b", "python": wait_for_file_inputs(go)},
        {"id": "c", "python": note_inputs(notes)},
        {"id": "d", "python": note_inputs(notes)},
    ]
    async with engine(store_url) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": steps}))
        await wait_for_event(operations, run_id, "StepStarted", "b")
        for _ in range(2):
            await operations.signal(run_id, "PAUSE")
            await operations.signal(run_id, "RESUME")
        go.touch()
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        lines = lines_of_types(await event_lines(operations, run_id), "StepStarted")
    assert lines == [f"StepStarted {name}" for name in "abcd"]
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["a", "c", "d"]


async def test_retry_due_during_a_pause_waits_for_the_resume(store_url: str, tmp_path: Path) -> None:
    step = {
        "id": "a",
        "retry": {"maxAttempts": 2, "initial": "1.5s", "jitter": False},
        "python": fail_once_inputs(tmp_path / "n"),
    }
    async with engine(store_url) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [step]}))
        await wait_for_event(operations, run_id, "StepRetryScheduled", "a")
        assert (await operations.signal(run_id, "PAUSE")).engine_result == "PAUSED"
        await asyncio.sleep(2)
        assert lines_of_types(await event_lines(operations, run_id), "StepStarted") == ["StepStarted a"]
        await operations.signal(run_id, "RESUME")
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


def test_drain_timeout_is_five_minutes_by_default() -> None:
    assert EngineSettings().drain_timeout == 300
    assert EngineSettings(drain_timeout=1).drain_timeout == 1


async def test_a_paused_run_can_be_cancelled(store_url: str, tmp_path: Path) -> None:
    steps = [{"id": "a", "python": wait_for_file_inputs(tmp_path / "never")}, {"id": "b", "noop": {}}]
    async with engine(store_url) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": steps}))
        await wait_for_event(operations, run_id, "StepStarted", "a")
        await operations.signal(run_id, "PAUSE")
        assert (await operations.signal(run_id, "CANCEL")).engine_result == "CANCELLED"
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
    assert snapshot.status == "CANCELLED"
    assert statuses(snapshot) == {"a": "FAILED", "b": "SKIPPED"}
    assert skip_reasons(lines) == {"b": "RUN_CANCELLED"}


CANONICAL = ("DRAINING", "RETRYING", "CONTINUE_AS_NEW", "WAITING_APPROVAL", "RECOVERING")


async def test_run_status_has_the_fields_of_the_contract(store_url: str, tmp_path: Path) -> None:
    """Fields of a status query: `completedAt` only after the end; a substatus is canonical or adapter-specific."""
    go, substatuses = tmp_path / "go", set[str]()
    steps: list[dict[str, Any]] = [
        {"id": "bad", "python": fail_once_inputs(tmp_path / "bad")},
        {"id": "flaky", "retry": {"maxAttempts": 2, "initial": "30s"}, "python": fail_once_inputs(tmp_path / "flaky")},
        {"id": "held", "python": wait_for_file_inputs(go)},
    ]
    async with engine(store_url) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "onFailure": "wait", "steps": steps}))

        async def check_status(status: str) -> None:
            document = json.loads(msgspec.json.encode(await operations.log.snapshot(run_id)))
            assert (document["runId"], document["status"]) == (run_id, status)
            assert document["startedAt"].endswith("Z")
            assert ("completedAt" in document) == (status == "COMPLETED")
            if (substatus := document.get("substatus")) is not None:
                assert document["message"]
                assert substatus in CANONICAL or re.fullmatch(r"embedded/[A-Z_]+", substatus)
                substatuses.add(substatus)

        await wait_for_event(operations, run_id, "StepFailed", "bad")
        await check_status("RUNNING")
        await operations.signal(run_id, "RETRY_STEP", {"stepId": "bad"})
        await wait_for_event(operations, run_id, "StepRetryScheduled", "flaky")
        await check_status("RUNNING")
        await operations.signal(run_id, "RETRY_STEP", {"stepId": "flaky"})
        await wait_for_event(operations, run_id, "StepStarted", "held")
        await operations.signal(run_id, "PAUSE")
        await check_status("PAUSED")
        await operations.signal(run_id, "RESUME")
        go.touch()
        await wait_for_end(operations, run_id)
        await check_status("COMPLETED")
    assert substatuses == {"embedded/WAITING_OPERATOR", "RETRYING", "DRAINING"}


# Signals: the order of the checks, the record first, the roles

PAYLOADS: dict[str, dict[str, Any]] = {
    "RETRY_STEP": {"stepId": "a"},
    "SKIP_STEP": {"stepId": "a"},
    "UPDATE_PARAMS": {"params": {}},
    "INJECT_OVERRIDE": {"stepId": "a", "override": {}},
    "EVENT": {"name": "paid"},
    "EMERGENCY_STOP": {"reason": "fire"},
    "ESCALATE_ALERT": {"level": "P1"},
}
ALLOWED_ROLES = {
    "PAUSE": {"Operator", "Engineer", "Admin"},
    "RESUME": {"Operator", "Engineer", "Admin"},
    "CANCEL": {"Operator", "Engineer", "Admin"},
    "RETRY_STEP": {"Engineer", "Admin"},
    "SKIP_STEP": {"Engineer", "Admin"},
    "RETRY_RUN": {"Engineer", "Admin"},
    "UPDATE_PARAMS": {"Admin"},
    "INJECT_OVERRIDE": {"Admin"},
    "APPROVE": {"Operator", "Engineer", "Admin"},
    "DENY": {"Operator", "Engineer", "Admin"},
    "EVENT": {"Operator", "Engineer", "Admin"},
    "EMERGENCY_STOP": {"Admin"},
    "ESCALATE_ALERT": {"System"},
}


def test_each_signal_is_allowed_for_its_roles_only() -> None:
    assert RULES.keys() == ALLOWED_ROLES.keys()
    for kind, roles in ALLOWED_ROLES.items():
        request = SignalRequest(
            signal_id=str(uuid.uuid4()), signal_type=kind, payload=PAYLOADS.get(kind, {}), reason="why"
        )
        rule = check_request(request)
        for role in ("Viewer", "Operator", "Engineer", "Admin", "System", "Stranger"):
            try:
                authorize(rule, request, Actor("somebody", (role,)))
                allowed = True
            except Refused as refused:
                assert refused.code == "AUTHZ_DENIED"
                allowed = False
            assert allowed == (role in roles), (kind, role)


async def test_signal_checks_are_made_in_a_fixed_order(store_url: str) -> None:
    """The order is run, payload, role, reason, state; the first failed check is reported."""
    plan = {"plan": "p", "params": {"x": 1}, "steps": [{"id": "a", "wait": "100s"}]}
    async with engine(store_url) as operations:
        run_id = await operations.start(operations.load(plan))
        viewer = Operations(operations.log, operations.engine, Actor("somebody", ("Viewer",)))
        for target, code in (("nosuch", "RUN_NOT_FOUND"), (run_id, "SIGNAL_INVALID_PAYLOAD")):
            with pytest.raises(rw.RunwrightError) as caught:
                await viewer.signal(target, "SKIP_STEP", {"step": "nosuch"})
            assert caught.value.code == code
        assert (await viewer.signal(run_id, "SKIP_STEP", {"stepId": "nosuch"})).code == "AUTHZ_DENIED"
        unknown = {"stepId": "nosuch", "override": {}}
        assert (await viewer.signal(run_id, "INJECT_OVERRIDE", unknown)).code == "AUTHZ_DENIED"
        assert (await operations.signal(run_id, "INJECT_OVERRIDE", unknown)).code == "AUTHZ_REASON_REQUIRED"
        assert (await operations.signal(run_id, "INJECT_OVERRIDE", unknown, reason="why")).code == "STEP_NOT_FOUND"


async def test_a_decision_that_cannot_be_written_is_not_carried_out(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"plan": "p", "steps": [{"id": "a", "wait": "100s"}]}
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(plan))
        await wait_for_event(operations, run_id, "StepDelayed", "a")
        before = await event_lines(operations, run_id)

        async def full(*_: Any, **__: Any) -> None:
            raise rw.RunwrightError(rw.ErrorCode.STORE_FULL, "No space left on device.")

        with monkeypatch.context() as patched:
            patched.setattr(operations.log, "append", full)
            with pytest.raises(rw.RunwrightError) as caught:
                await operations.signal(run_id, "CANCEL")
        assert caught.value.code == "STORE_FULL"
        await asyncio.sleep(0.3)
        assert await event_lines(operations, run_id) == before
        assert (await operations.log.snapshot(run_id)).status == "RUNNING"
