"""Steps that wait for a person or an event: approvals with fields, approvals before a step, and events from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runwright.auth.roles import Actor
from runwright.control.operations import Operations
from support.engine import engine, run_plan, statuses, step_of, wait_for_end, wait_for_event
from support.waiting import until

APPROVAL_PLAN: dict[str, Any] = {
    "plan": "release",
    "params": {"name": "shop"},
    "steps": [
        {"id": "build", "noop": {}},
        {
            "id": "ok",
            "approval": {
                "prompt": "Release {{ params.name }}?",
                "fields": {"share": "integer", "note": {"type": "string", "required": False}},
            },
        },
        {"id": "ship", "python": {"code": "share * 2", "args": {"share": "{{ steps.ok.result.answer.share }}"}}},
    ],
}


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def start_run(operations: Operations, plan: dict[str, Any], step: str = "ok", **more: Any) -> str:
    run_id = await operations.start(operations.load(plan), **more)
    await wait_for_event(operations, run_id, "ApprovalRequested", step)
    return run_id


async def test_run_waits_for_approval_and_uses_the_answer(store_url: str) -> None:
    async with engine(store_url) as operations:
        run_id = await start_run(operations, APPROVAL_PLAN)
        snapshot = await operations.log.snapshot(run_id)
        assert (snapshot.status, snapshot.substatus) == ("RUNNING", "WAITING_APPROVAL")
        (row,) = (await operations.log.list_runs()).runs
        assert row.to_json()["substatus"] == "WAITING_APPROVAL"
        asked = await wait_for_event(operations, run_id, "ApprovalRequested", "ok")
        assert (asked.payload or {})["prompt"] == "Release shop?"
        decision = await operations.signal(run_id, "APPROVE", {"answer": {"share": 21}}, reason="fine")
        assert (decision.decision, decision.engine_result) == ("ACCEPTED", "APPROVED")
        snapshot = await wait_for_end(operations, run_id)
        assert snapshot.status == "COMPLETED"
        assert await operations.result(run_id, "ship") == 42
        assert (await operations.result(run_id, "ok"))["reason"] == "fine"
        granted = await wait_for_event(operations, run_id, "ApprovalGranted", "ok")
        assert (granted.payload or {})["answer"] == {"share": 21}
        assert [finding async for finding in operations.log.verify(run_id)] == []


async def test_run_that_waits_for_approval_is_parked(store_url: str) -> None:
    async with engine(store_url, park_after=0.05) as operations:
        run_id = await start_run(operations, APPROVAL_PLAN)
        await until(lambda: _is_parked(operations, run_id))
        await operations.signal(run_id, "APPROVE", {"answer": {"share": 1}})
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def _is_parked(operations: Operations, run_id: str) -> bool:
    return run_id in operations.engine._parked


async def test_denied_approval_fails_the_step_and_can_be_retried(store_url: str) -> None:
    async with engine(store_url) as operations:
        run_id = await start_run(operations, {**APPROVAL_PLAN, "onFailure": "wait"})
        decision = await operations.signal(run_id, "DENY", reason="not today")
        assert decision.engine_result == "DENIED"
        failed = await wait_for_event(operations, run_id, "StepFailed", "ok")
        assert (failed.payload or {})["error"]["code"] == "APPROVAL_DENIED"
        assert "not today" in (failed.payload or {})["error"]["message"]
        assert (await operations.log.snapshot(run_id)).substatus == "embedded/WAITING_OPERATOR"
        await operations.signal(run_id, "RETRY_STEP", {"stepId": "ok"})
        await wait_for_event(operations, run_id, "ApprovalRequested", "ok", 2)
        await operations.signal(run_id, "APPROVE", {"stepId": "ok", "answer": {"share": 3}})
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


NEEDS_APPROVAL_PLAN: dict[str, Any] = {
    "plan": "p",
    "steps": [{"id": "a", "noop": {}}, {"id": "drop", "noop": {}, "needsApproval": True}, {"id": "c", "noop": {}}],
}


async def test_step_that_needs_approval_starts_after_it_is_granted(store_url: str) -> None:
    async with engine(store_url) as operations:
        run_id = await start_run(operations, NEEDS_APPROVAL_PLAN, "drop")
        await asyncio.sleep(0.05)
        assert statuses(await operations.log.snapshot(run_id)) == {"a": "SUCCESS"}
        await operations.signal(run_id, "APPROVE")
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        lines = [f"{name} {step}" for name, step in await _types_and_steps(operations, run_id)]
        assert lines.index("ApprovalGranted drop") < lines.index("StepStarted drop")


async def _types_and_steps(operations: Operations, run_id: str) -> list[tuple[str, str | None]]:
    return [(record.event_type, record.step_id) for record in await operations.log.read(run_id)]


async def test_retry_of_a_denied_step_requests_approval_again(store_url: str) -> None:
    async with engine(store_url) as operations:
        run_id = await start_run(operations, {**NEEDS_APPROVAL_PLAN, "onFailure": "wait"}, "drop")
        await operations.signal(run_id, "DENY", {"stepId": "drop"})
        await wait_for_event(operations, run_id, "StepFailed", "drop")
        await operations.signal(run_id, "RETRY_STEP", {"stepId": "drop"})
        await wait_for_event(operations, run_id, "ApprovalRequested", "drop", 2)
        assert step_of(await operations.log.snapshot(run_id), "drop").logical_attempt_id == 1
        await operations.signal(run_id, "APPROVE", {"stepId": "drop"})
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "asks for 'share'"),
        ({"answer": {"share": "many"}}, "an integer"),
        ({"answer": {"share": 1, "colour": "red"}}, "no field 'colour'"),
        ({"stepId": "build", "answer": {"share": 1}}, "does not wait"),
    ],
)
async def test_an_invalid_answer_is_rejected_with_a_reason(payload: dict[str, Any], message: str) -> None:
    async with engine("memory://") as operations:
        run_id = await start_run(operations, APPROVAL_PLAN)
        decision = await operations.signal(run_id, "APPROVE", payload)
        assert decision.decision == "REJECTED"
        assert message in (decision.reason or "")
        assert "ApprovalGranted" not in [name for name, _ in await _types_and_steps(operations, run_id)]


async def test_only_named_approvers_may_answer(store_url: str) -> None:
    plan = {"plan": "p", "steps": [{"id": "ok", "approval": {"prompt": "?", "approvers": ["jane"]}}]}
    async with engine(store_url) as operations:
        run_id = await start_run(operations, plan)
        operations.actor = Actor("bob", ("Engineer",))
        refused = await operations.signal(run_id, "APPROVE")
        assert (refused.decision, refused.code) == ("REJECTED", "AUTHZ_DENIED")
        operations.actor = Actor("jane", ("Viewer",))
        assert (await operations.signal(run_id, "APPROVE")).decision == "ACCEPTED"
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert (await operations.result(run_id, "ok"))["approvedBy"] == "jane"


async def test_approval_timeout_fails_the_step(store_url: str) -> None:
    plan = {"plan": "p", "steps": [{"id": "ok", "approval": "Now?", "timeout": "200ms"}]}
    async with engine(store_url) as operations:
        snapshot = await run_plan(operations, plan)
        assert snapshot.status == "FAILED"
        assert step_of(snapshot, "ok").error.code == "STEP_TIMEOUT"  # type: ignore[union-attr]
        assert (await operations.log.find_run(snapshot.run_id)).summary.waiting_approvals == 0


@pytest.mark.parametrize("ending", ["cancel", "skip", "fail"])
async def test_no_approval_is_waiting_after_cancel_skip_or_failure(store_url: str, ending: str) -> None:
    steps = [
        {"id": "ok", "approval": "Now?", "dependsOn": []},
        {"id": "late", "noop": {}, "needsApproval": True, "dependsOn": []},
        {"id": "w", "wait": {"event": "go"}, "dependsOn": []},
        {"id": "broken", "python": {"code": "1 / 0"}, "dependsOn": ["w"]},
    ]
    async with engine(store_url) as operations:
        run_id = await start_run(operations, {"plan": "p", "steps": steps})
        await wait_for_event(operations, run_id, "ApprovalRequested", "late")
        if ending == "cancel":
            await operations.signal(run_id, "CANCEL")
        elif ending == "fail":
            await operations.signal(run_id, "EVENT", {"name": "go"})
        else:
            await operations.signal(run_id, "SKIP_STEP", {"stepId": "late"})
            await operations.signal(run_id, "APPROVE", {"stepId": "ok"})
            await operations.signal(run_id, "EVENT", {"name": "go"})
        snapshot = await wait_for_end(operations, run_id)
        assert snapshot.status == ("CANCELLED" if ending == "cancel" else "FAILED")
        assert not {"RUNNING", "PENDING"} & {str(step.status) for step in snapshot.steps}
        assert (await operations.log.find_run(run_id)).summary.waiting_approvals == 0
        assert [finding async for finding in operations.log.verify(run_id)] == []


async def test_external_event_with_matching_key_completes_a_wait(store_url: str) -> None:
    plan = {
        "plan": "p",
        "steps": [
            {"id": "w", "wait": {"event": "file", "key": "{{ run.id }}"}},
            {"id": "use", "python": {"code": "name", "args": {"name": "{{ steps.w.result.payload.name }}"}}},
        ],
    }
    async with engine(store_url) as operations:
        run_id = await operations.start(operations.load(plan), run_id="r1")
        await wait_for_event(operations, run_id, "StepDelayed", "w")
        other = await operations.signal(run_id, "EVENT", {"name": "file", "key": "another"})
        assert other.engine_result is None
        sent = await operations.signal(run_id, "EVENT", {"name": "file", "key": "r1", "payload": {"name": "a.csv"}})
        assert sent.engine_result == "DELIVERED"
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert await operations.result(run_id, "use") == "a.csv"


async def test_early_event_is_stored_for_the_step_that_waits_later(store_url: str) -> None:
    plan = {"plan": "p", "steps": [{"id": "first", "wait": {"event": "one"}}, {"id": "then", "wait": {"event": "two"}}]}
    async with engine(store_url) as operations:
        run_id = await operations.start(operations.load(plan))
        await wait_for_event(operations, run_id, "StepDelayed", "first")
        early = asyncio.create_task(operations.signal(run_id, "EVENT", {"name": "two", "payload": 2}))
        await asyncio.sleep(0.1)
        await operations.signal(run_id, "EVENT", {"name": "one", "payload": 1})
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert (await early).decision == "ACCEPTED"
        assert (await operations.result(run_id, "then"))["payload"] == 2


async def test_waiting_run_can_be_approved_by_another_engine(durable_url: str) -> None:
    async with engine(durable_url) as operations:
        run_id = await start_run(operations, APPROVAL_PLAN)
    async with engine(durable_url) as operations:
        decision = await operations.signal(run_id, "APPROVE", {"answer": {"share": 5}})
        assert decision.engine_result == "APPROVED"
        assert ("StepCompleted", "ok") in await _types_and_steps(operations, run_id)
        assert not [
            step for name, step in await _types_and_steps(operations, run_id) if (name, step) == ("StepStarted", "ship")
        ]
        await operations.resume(run_id)
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert ("ApprovalGranted", "ok") in await _types_and_steps(operations, run_id)


async def test_run_is_not_parked_while_an_end_waits_for_output(file_store: str) -> None:
    """The end of a step is reported once its output is stored; a signal in between must not lose it."""
    steps = [
        {"id": "ok", "approval": "Now?"},
        {"id": "work", "python": {"code": "1"}},
    ]
    async with engine(file_store, park_after=0.0) as operations:
        loop, logs = asyncio.get_running_loop(), operations.engine.step_logs
        callbacks: list[Callable[[], None]] = []
        logs.when_stored = callbacks.append  # type: ignore[method-assign]
        run_id = await start_run(operations, {"plan": "p", "order": "graph", "steps": steps})

        async def has_ended() -> bool:
            return bool(callbacks)

        await until(has_ended)
        await operations.signal(run_id, "EVENT", {"name": "nobody waits for it"})
        await asyncio.sleep(0.3)
        loop.call_soon(callbacks[0])
        await wait_for_event(operations, run_id, "StepCompleted", "work")
        await operations.signal(run_id, "CANCEL")
