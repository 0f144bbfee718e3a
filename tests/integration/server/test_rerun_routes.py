"""Reruns over HTTP with a corrected plan."""

from __future__ import annotations

from typing import Any

import runwright as rw
from support.server import run_path, running_server, server_in_thread


def plan(command: str, **more: Any) -> dict[str, Any]:
    steps = [{"id": "a", "noop": {"result": 5}}, {"id": "b", "shell": command}]
    return {"plan": "p", "params": {"n": 1}, "steps": steps, **more}


async def test_a_corrected_plan_keeps_unchanged_steps(store: str) -> None:
    async with running_server(store) as server:
        engineer = await server.caller_with("Engineer", tenant="acme")
        operator = await server.caller_with("Operator", tenant="acme")
        stranger = await server.caller_with("Engineer", tenant="other")
        run_id = await engineer.run(plan("false"))
        path, body = f"{run_path(run_id)}/rerun", {"plan": plan("true"), "params": {"n": 2}}
        assert (await operator.post(path, body, 403))["code"] == "AUTHZ_DENIED"
        assert (await stranger.post(path, body, 404))["code"] == "RUN_NOT_FOUND"
        assert (await engineer.post(path, {**body, "params": {"m": 1}}, 400))["code"] == "INVALID_ARGUMENT"
        assert (await engineer.post(path, {"plan": {"plan": "p"}}, 422))["code"] == "INVALID_PLAN_SCHEMA"
        second = (await engineer.post(path, body, 201))["runId"]
        ended = await engineer.get(f"{run_path(second)}?wait=30s")
        assert (ended["status"], ended["tenantId"]) == ("COMPLETED", "acme")
        assert await engineer.get(f"{run_path(second)}/results/a") == 5
        (queued, *_) = (await engineer.get(f"{run_path(second)}/events"))["events"]
        first = await engineer.get(run_path(run_id))
        payload = queued["payload"]
        assert payload["params"] == {"n": 2}
        assert (payload["originRunId"], payload["originPlanVersion"]) == (run_id, first["planVersion"])
        assert payload["carriedOver"] == 1


def test_clients_send_a_corrected_plan(store: str) -> None:
    with server_in_thread(store) as address, rw.connect(address) as app:
        run = app.start(plan("false"))
        assert run.wait().status == "FAILED"
        again = app.rerun(run.run_id, plan=plan("true"), params={"n": 3})
        assert again.wait().status == "COMPLETED"
        assert again.result("a") == 5
