"""Refused signals: error code, one event in the log, and no effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runwright as rw
from runwright.auth.roles import Actor
from runwright.control.operations import Operations
from support.engine import (
    engine,
    event_lines,
    lines_of_types,
    python_inputs,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)

PLAN: dict[str, Any] = {
    "plan": "p",
    "params": {"day": 1},
    "onFailure": "wait",
    "order": "graph",
    "steps": [
        {"id": "done", "noop": {}},
        {"id": "failed", "python": python_inputs("1 / 0")},
        {"id": "running"},
        {"id": "pending", "dependsOn": ["running"], "noop": {}},
    ],
}


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@asynccontextmanager
async def run_with_all_step_states(store: str, folder: Path) -> AsyncGenerator[tuple[Operations, str]]:
    """A run with a step in each state."""
    plan = {
        **PLAN,
        "steps": [
            step if step["id"] != "running" else {**step, "python": wait_for_file_inputs(folder / "go")}
            for step in PLAN["steps"]
        ],
    }
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(plan))
        await wait_for_event(operations, run_id, "StepFailed", "failed")
        await wait_for_event(operations, run_id, "StepCompleted", "done")
        await wait_for_event(operations, run_id, "StepStarted", "running")
        yield operations, run_id


REFUSED = [
    ("RETRY_STEP", {"stepId": "nosuch"}, None, "STEP_NOT_FOUND"),
    ("SKIP_STEP", {"stepId": "nosuch"}, None, "STEP_NOT_FOUND"),
    ("INJECT_OVERRIDE", {"stepId": "nosuch", "override": {}}, "why", "STEP_NOT_FOUND"),
    ("RETRY_STEP", {"stepId": "running"}, None, "STEP_NOT_TERMINAL"),
    ("RETRY_STEP", {"stepId": "running", "force": True}, None, "STEP_NOT_TERMINAL"),
    ("RETRY_STEP", {"stepId": "pending"}, None, "STEP_NOT_TERMINAL"),
    ("SKIP_STEP", {"stepId": "running"}, None, "STEP_NOT_TERMINAL"),
    ("INJECT_OVERRIDE", {"stepId": "running", "override": {}}, "why", "STEP_NOT_TERMINAL"),
    ("RETRY_STEP", {"stepId": "done"}, None, "STEP_TERMINAL"),
    ("SKIP_STEP", {"stepId": "done"}, None, "STEP_TERMINAL"),
    ("INJECT_OVERRIDE", {"stepId": "done", "override": {}}, "why", "STEP_TERMINAL"),
    ("RETRY_RUN", {}, None, "RUN_NOT_TERMINAL"),
    ("UPDATE_PARAMS", {"params": {"day": 2}}, None, "AUTHZ_REASON_REQUIRED"),
    ("INJECT_OVERRIDE", {"stepId": "pending", "override": {}}, None, "AUTHZ_REASON_REQUIRED"),
    ("ESCALATE_ALERT", {"level": "P1"}, None, "AUTHZ_DENIED"),
]


@pytest.mark.parametrize(
    ("kind", "payload", "reason", "code"),
    REFUSED,
    ids=[f"{case[0]} {case[3]} {case[1].get('stepId', '')}" for case in REFUSED],
)
async def test_a_refusal_has_its_code_and_is_in_the_log(
    store: str, tmp_path: Path, kind: str, payload: dict[str, Any], reason: str | None, code: str
) -> None:
    async with run_with_all_step_states(store, tmp_path) as (operations, run_id):
        before = await event_lines(operations, run_id)
        decision = await operations.signal(run_id, kind, payload, reason=reason)
        assert (decision.decision, decision.code) == ("REJECTED", code)
        assert decision.reason
        assert decision.audit["actorId"] == operations.actor.actor_id
        assert (await event_lines(operations, run_id))[len(before) :] == [f"SignalRejected {kind} {code}"]
        record = await wait_for_event(operations, run_id, "SignalRejected", f"signal/{decision.signal_id}")
        written = record.payload or {}
        assert written["signalDecisionId"] == decision.signal_decision_id
        assert (written["signalId"], written["signalType"], written.get("payload", {})) == (
            decision.signal_id,
            kind,
            payload,
        )
        assert written["code"] == code
        assert written["actorId"] == operations.actor.actor_id


@pytest.mark.parametrize(
    "kind",
    ["PAUSE", "RESUME", "CANCEL", "RETRY_STEP", "SKIP_STEP", "UPDATE_PARAMS", "INJECT_OVERRIDE", "EMERGENCY_STOP"],
)
async def test_an_ended_run_rejects_signals(store: str, kind: str) -> None:
    payload: dict[str, Any] = {
        "RETRY_STEP": {"stepId": "a", "force": True},
        "SKIP_STEP": {"stepId": "a"},
        "UPDATE_PARAMS": {"params": {"day": 2}},
        "INJECT_OVERRIDE": {"stepId": "a", "override": {}},
        "EMERGENCY_STOP": {"reason": "x"},
    }.get(kind, {})
    async with engine(store) as operations:
        run_id = await operations.start(
            operations.load({"plan": "p", "params": {"day": 1}, "steps": [{"id": "a", "noop": {}}]})
        )
        await wait_for_end(operations, run_id)
        decision = await operations.signal(run_id, kind, payload, reason="why")
        assert (decision.decision, decision.code) == ("REJECTED", "RUN_TERMINAL")
        assert (await event_lines(operations, run_id))[-1] == f"SignalRejected {kind} RUN_TERMINAL"
        assert (await operations.log.snapshot(run_id)).status == "COMPLETED"


INVALID = [
    ("NOSUCH", {}, None),
    ("pause", {}, None),
    ("PAUSE", {"reason": "x" * 501}, None),
    ("PAUSE", {"why": "x"}, None),
    ("PAUSE", {"reason": 5}, None),
    ("RESUME", {"reason": "x"}, None),
    ("CANCEL", {"force": True}, None),
    ("RETRY_STEP", {}, None),
    ("RETRY_STEP", {"stepId": 5}, None),
    ("RETRY_STEP", {"stepId": "failed", "force": "yes"}, None),
    ("RETRY_STEP", {"stepId": "failed", "more": 1}, None),
    ("SKIP_STEP", {}, None),
    ("UPDATE_PARAMS", {}, "why"),
    ("UPDATE_PARAMS", {"params": [1]}, "why"),
    ("INJECT_OVERRIDE", {"stepId": "pending"}, "why"),
    ("EMERGENCY_STOP", {}, None),
    ("EMERGENCY_STOP", {"reason": ""}, None),
    ("EMERGENCY_STOP", {"reason": "x" * 1001}, None),
    ("ESCALATE_ALERT", {"level": "LOUD"}, None),
    ("PAUSE", {}, ""),
    ("UPDATE_PARAMS", {"params": {"day": "x" * 70_000}}, "why"),
]


async def test_invalid_signal_payload_is_refused_without_an_event(store: str, tmp_path: Path) -> None:
    async with run_with_all_step_states(store, tmp_path) as (operations, run_id):
        before = await event_lines(operations, run_id)
        for kind, payload, reason in INVALID:
            with pytest.raises(rw.RunwrightError) as caught:
                await operations.signal(run_id, kind, payload, reason=reason)
            assert caught.value.code == "SIGNAL_INVALID_PAYLOAD", (kind, payload)
        for signal_id in ("5", "01890a5d-ac96-774b-bcce-b302099a8057", "x" * 36):  # The second is a UUID v7.
            with pytest.raises(rw.RunwrightError) as caught:
                await operations.signal(run_id, "PAUSE", signal_id=signal_id)
            assert caught.value.code == "SIGNAL_INVALID_PAYLOAD", signal_id
        assert await event_lines(operations, run_id) == before


async def test_an_unknown_run_is_not_found(store: str) -> None:
    async with engine(store) as operations:
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.signal("nosuch", "PAUSE")
        assert caught.value.code == "RUN_NOT_FOUND"
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.signal("nosuch", "NOSUCH")  # The run is checked before the type.
        assert caught.value.code == "RUN_NOT_FOUND"


ROLES = {
    "PAUSE": ("Operator", {}),
    "CANCEL": ("Operator", {}),
    "SKIP_STEP": ("Engineer", {"stepId": "pending"}),
    "RETRY_STEP": ("Engineer", {"stepId": "failed"}),
    "UPDATE_PARAMS": ("Admin", {"params": {"day": 2}}),
    "EMERGENCY_STOP": ("Admin", {"reason": "fire"}),
}


@pytest.mark.parametrize("kind", ROLES)
async def test_signals_require_their_role_and_record_it(store: str, tmp_path: Path, kind: str) -> None:
    needed, payload = ROLES[kind]
    order = ["Viewer", "Operator", "Engineer", "Admin"]
    async with run_with_all_step_states(store, tmp_path) as (operations, run_id):
        for role in order[: order.index(needed)]:
            weak = Operations(operations.log, operations.engine, Actor("somebody", (role,)))
            refused = await weak.signal(run_id, kind, payload, reason="why")
            assert (refused.decision, refused.code) == ("REJECTED", "AUTHZ_DENIED")
        admin = await operations.signal(run_id, kind, payload, reason="why")
        assert admin.decision == "ACCEPTED"
        record = await wait_for_event(operations, run_id, "SignalAccepted", f"signal/{admin.signal_id}")
        assert (record.payload or {})["actorRole"] == needed  # The least powerful sufficient role is recorded.
        assert (record.payload or {})["reason"] == "why"


# Repeated signals


async def test_the_same_signal_again_gets_the_earlier_decision(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with run_with_all_step_states(store_url, tmp_path) as (operations, run_id):
        signal_id = operations.log.ids.event_id()
        first = await operations.signal(run_id, "PAUSE", {"reason": "x"}, signal_id=signal_id)
        before = await event_lines(operations, run_id)
        again = await operations.signal(run_id, "PAUSE", {"reason": "x"}, signal_id=signal_id.upper())
        assert again.signal_decision_id == first.signal_decision_id
        assert (again.decision, again.engine_result) == ("ACCEPTED", "PAUSED")
        refused = await operations.signal(run_id, "SKIP_STEP", {"stepId": "done"})
        refused_again = await operations.signal(run_id, "SKIP_STEP", {"stepId": "done"}, signal_id=refused.signal_id)
        assert (refused_again.decision, refused_again.code) == ("REJECTED", "STEP_TERMINAL")
        assert refused_again.signal_decision_id == refused.signal_decision_id
        assert len(await event_lines(operations, run_id)) == len(before) + 1


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [("CANCEL", {"reason": "x"}, None), ("PAUSE", {}, None), ("PAUSE", {"reason": "x"}, "more")],
)
async def test_the_same_id_with_other_content_is_a_duplicate(
    store: str, tmp_path: Path, kind: str, payload: dict[str, Any], reason: str | None
) -> None:
    async with run_with_all_step_states(store, tmp_path) as (operations, run_id):
        first = await operations.signal(run_id, "PAUSE", {"reason": "x"})
        before = await event_lines(operations, run_id)
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.signal(run_id, kind, payload, reason=reason, signal_id=first.signal_id)
        assert caught.value.code == "SIGNAL_DUPLICATE"
        assert await event_lines(operations, run_id) == before


async def test_one_of_two_concurrent_signals_with_one_id_is_decided(store: str, tmp_path: Path) -> None:
    async with run_with_all_step_states(store, tmp_path) as (operations, run_id):
        signal_id = operations.log.ids.event_id()
        results = await asyncio.gather(
            operations.signal(run_id, "PAUSE", signal_id=signal_id),
            operations.signal(run_id, "UPDATE_PARAMS", {"params": {"day": 5}}, reason="r", signal_id=signal_id),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, rw.RunwrightError)]
        assert [error.code for error in refused] == ["SIGNAL_DUPLICATE"]
        assert len(lines_of_types(await event_lines(operations, run_id), "SignalAccepted", "SignalProcessed")) == 2


async def test_one_signal_id_may_be_used_for_two_runs(store: str) -> None:
    plan = {"plan": "p", "steps": [{"id": "a", "wait": "100s"}]}
    async with engine(store) as operations:
        signal_id = operations.log.ids.event_id()
        for _ in range(2):
            run_id = await operations.start(operations.load(plan))
            assert (await operations.signal(run_id, "PAUSE", signal_id=signal_id)).engine_result == "PAUSED"


async def test_a_decision_is_a_record_with_all_its_fields(store: str, tmp_path: Path) -> None:
    async with run_with_all_step_states(store, tmp_path) as (operations, run_id):
        decision = await operations.signal(run_id, "PAUSE", reason="lunch")
        document = msgspec.to_builtins(decision)
    assert document["decision"] == "ACCEPTED"
    assert document["reason"] == "lunch"
    assert set(document["audit"]) >= {"actorId", "actorRole", "tenantId", "timestamp"}
    assert document["audit"]["tenantId"] == "default"
    assert document["engineProcessedAt"].endswith("Z")
    assert document["engineResult"] == "PAUSED"


async def test_a_run_takes_sixty_signals_a_minute(store: str) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [{"id": "a", "wait": "100s"}]}))
        for _ in range(60):
            assert (await operations.signal(run_id, "SKIP_STEP", {"stepId": "nosuch"})).code == "STEP_NOT_FOUND"
        before = await event_lines(operations, run_id)
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.signal(run_id, "PAUSE")
        assert caught.value.code == "SIGNAL_RATE_LIMITED"
        assert await event_lines(operations, run_id) == before


async def test_large_events_do_not_hide_signals_from_the_limit(store: str) -> None:
    """Pages of events end early where events are large."""
    async with engine(store) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [{"id": "a", "wait": "1h"}]}))
        run = (await operations.log.find_run(run_id)).identity
        large = {"text": "x" * 600_000}
        await operations.log.append([rw.new_event("Custom", run, step_id=f"c{n}", payload=large) for n in range(10)])
        for _ in range(60):
            await operations.signal(run_id, "UPDATE_PARAMS", {"params": {}})
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.signal(run_id, "PAUSE")
        assert caught.value.code == "SIGNAL_RATE_LIMITED"


async def test_rejected_signals_of_others_do_not_count(store: str) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [{"id": "a", "wait": "100s"}]}))
        viewer = operations.as_actor(Actor("viewer", ("Viewer",)))
        for _ in range(60):
            assert (await viewer.signal(run_id, "PAUSE")).code == "AUTHZ_DENIED"
        with pytest.raises(rw.RunwrightError) as caught:
            await viewer.signal(run_id, "PAUSE")
        assert caught.value.code == "SIGNAL_RATE_LIMITED"
        assert (await operations.signal(run_id, "CANCEL")).decision == "ACCEPTED"


async def test_emergency_stop_is_exempt_from_the_rate_limit(store: str) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [{"id": "a", "wait": "100s"}]}))
        for _ in range(60):
            await operations.signal(run_id, "SKIP_STEP", {"stepId": "nosuch"})
        stopped = await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "fire"})
        assert (stopped.decision, stopped.engine_result) == ("ACCEPTED", "CANCELLED")
