"""A run of one tenant has the id that a sub-run of another tenant would get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.server import Caller, RunningServer, run_path, running_server
from support.waiting import until

CHILD = {"plan": "child", "steps": [{"id": "extract", "python": {"code": "1 / 0"}}]}
WAIT = {"plan": "child", "steps": [{"id": "wait", "wait": "1h"}]}


async def _two_tenants(server: RunningServer) -> tuple[Caller, Caller]:
    return await server.caller_with("Engineer", tenant="a"), await server.caller_with("Engineer", tenant="b")


async def _store_plan(caller: Caller, plan: dict[str, Any], run_id: str) -> str:
    """Store a plan by running it; return its reference."""
    await caller.start(plan, context={"runId": run_id})
    events = (await caller.get(f"{run_path(run_id)}/events?eventType=RunStarted"))["events"]
    return f"plan:sha256:{events[0]['payload']['planRef']['sha256']}"


async def _events(caller: Caller, run_id: str) -> list[dict[str, Any]]:
    return (await caller.get(f"{run_path(run_id)}/events"))["events"]


async def _status(caller: Caller, run_id: str, wait: str = "30s") -> str:
    return (await caller.get(f"{run_path(run_id)}?wait={wait}"))["status"]


async def test_retried_sub_run_reuses_no_step_of_another_tenant(file_store: str) -> None:
    async with running_server(file_store) as server:
        a, b = await _two_tenants(server)
        secret = {"id": "extract", "noop": {"result": "4111"}}
        plan = {
            "plan": "orders",
            "steps": [secret, {"id": "fails", "dependsOn": ["extract"], "python": {"code": "1 / 0"}}],
        }
        await b.run(plan, context={"runId": "orders/day"})
        ref = await _store_plan(a, CHILD, "stored")
        parent = {
            "plan": "p",
            "onFailure": "wait",
            "steps": [{"id": "day", "plan": {"ref": ref}, "retry": {"maxAttempts": 2, "initial": "10ms"}}],
        }
        await a.start(parent, context={"runId": "orders"})

        async def has_failed_twice() -> bool:
            return [event["eventType"] for event in await _events(a, "orders")].count("StepFailed") == 2

        await until(has_failed_twice)
        initiated = [event for event in await _events(a, "orders") if event["eventType"] == "ChildRunInitiated"]
        children = [event["payload"]["childRunId"] for event in initiated]
        assert len(children) == 2
        for child in children:
            assert "4111" not in str(await _events(a, child))
            assert '"orders/day"' not in json.dumps(await _events(a, child))
        await a.signal("orders", "CANCEL")


@pytest.mark.parametrize("stop", ["timeout", "CANCEL", "EMERGENCY_STOP"])
async def test_ended_parent_does_not_stop_a_run_of_another_tenant(file_store: str, stop: str) -> None:
    async with running_server(file_store) as server:
        a, b = await _two_tenants(server)
        await b.start_waiting("orders/day")
        ref = await _store_plan(a, WAIT, "stored")
        step: dict[str, Any] = {"id": "day", "plan": {"ref": ref}}
        if stop == "timeout":
            step["timeout"] = "1ms"
        await a.start({"plan": "p", "steps": [step]}, context={"runId": "orders"})
        if stop != "timeout":
            admin = await server.caller_with("Admin", tenant="a")
            await admin.signal("orders", stop, payload={"reason": "fire"} if stop == "EMERGENCY_STOP" else {})
        assert await _status(a, "orders") in ("FAILED", "CANCELLED")
        assert await _status(b, "orders/day", "1s") == "RUNNING"
        assert not [event for event in await _events(b, "orders/day") if event["eventType"].startswith("Signal")]
        await b.signal("orders/day", "CANCEL")


async def test_taken_id_of_a_sub_run_is_replaced(file_store: str) -> None:
    async with running_server(file_store) as server:
        a, b = await _two_tenants(server)
        await a.start_waiting("night/load")
        ref = await _store_plan(b, {"plan": "child", "steps": [{"id": "x", "noop": {"result": 1}}]}, "stored")
        await b.start({"plan": "p", "steps": [{"id": "load", "plan": {"ref": ref}}]}, context={"runId": "night"})
        assert await _status(b, "night") == "COMPLETED"
        (initiated,) = [event for event in await _events(b, "night") if event["eventType"] == "ChildRunInitiated"]
        child = initiated["payload"]["childRunId"]
        assert child.startswith("night/load.")
        assert await _status(b, child) == "COMPLETED"
        await a.get(run_path(child), 404)
        await a.signal("night/load", "CANCEL")
