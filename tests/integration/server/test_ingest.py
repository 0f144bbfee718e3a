"""Events from other engines: one, many, by line; receipts and refusals in the order of the request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import runwright as rw
from support.server import run_path, running_server


def event(kind: str, run: str = "r1", tenant: str = "default", **more: Any) -> dict[str, Any]:
    made = rw.new_event(kind, rw.new_run(run, "p", tenant_id=tenant), **more)
    return msgspec.json.decode(msgspec.json.encode(made))


async def test_one_event_is_appended_once(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        sent = event("RunQueued")
        first = await me.post("/v1/events", sent, 201)
        assert first["appended"] == [sent["eventId"]]
        again = await me.post("/v1/events", sent, 200)
        assert (again["appended"], again["deduped"]) == ([], [sent["eventId"]])
        assert again["results"][0]["runSeq"] == 1


async def test_refused_event_is_a_problem_document(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        await me.post("/v1/events", event("RunQueued"), 201)
        assert (await me.post("/v1/events", event("RunCompleted"), 409))["code"] == "INVALID_TRANSITION"
        assert (await me.post("/v1/events", {**event("RunStarted"), "idempotencyKey": "0" * 64}, 400))[
            "code"
        ] == "SCHEMA_VALIDATION_FAILED"
        assert (await me.post("/v1/events", {**event("RunStarted"), "extra": 1}, 400))[
            "code"
        ] == "SCHEMA_VALIDATION_FAILED"
        large = event("Noted", step_id="n", payload={"t": "x" * 1_200_000})
        assert (await me.post("/v1/events", large, 413))["code"] == "PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize("form", ["list", "object", "lines"])
async def test_batch_is_appended_up_to_the_first_refusal_per_run(store: str, form: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        events = [
            event("RunQueued"),
            event("RunQueued", "r2"),
            event("RunCompleted"),
            event("RunStarted"),
            event("RunStarted", "r2"),
        ]
        if form == "lines":
            lines = b"\n".join(msgspec.json.encode(each) for each in events)
            headers = {"content-type": "application/x-ndjson"}
            answer = await me.request("POST", "/v1/events", 207, content=lines, headers=headers)
        else:
            answer = await me.post("/v1/events", events if form == "list" else {"events": events}, 207)
        assert [each["status"] for each in answer["results"]] == [
            "appended",
            "appended",
            "refused",
            "not_attempted",
            "appended",
        ]
        assert answer["results"][2]["code"] == "INVALID_TRANSITION"
        assert (await me.get(f"{run_path('r1')}/status"))["status"] == "PENDING"
        assert (await me.get(f"{run_path('r2')}/status"))["status"] == "RUNNING"
        assert (await me.post("/v1/events", [], 200))["results"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1",
        b"[{}, 2]x",
        b'"text"',
        b"null",
        b'{"events": 3}',
        b'{"events": [], "more": 1}',
        b"\xff\xfe",
        b"[" * 5000,
        b"1e999",
    ],
)
async def test_bodies_without_valid_events_are_refused(file_store: str, body: bytes) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        answer = await me.http.post("/v1/events", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == "SCHEMA_VALIDATION_FAILED"
        assert (await me.get("/v1/runs"))["runs"] == []


async def test_tenant_can_write_only_its_own_events(store: str) -> None:
    async with running_server(store) as server:
        mine = await server.caller_with(scopes=("events:server",), tenant="acme")
        other = await server.caller_with(scopes=("events:server",), tenant="other")
        await mine.post("/v1/events", event("RunQueued", tenant="acme"), 201)
        named = await other.post("/v1/events", event("RunStarted", tenant="acme"), 403)
        assert named["code"] == "AUTHZ_TENANT_FORBIDDEN"
        mismatch = await other.post("/v1/events", event("RunStarted", tenant="other"), 409)
        assert mismatch["code"] == "RUN_CONTEXT_MISMATCH"
        assert "acme" not in mismatch["detail"]
        for field in ("project_id", "environment_id", "plan_id", "plan_version"):
            context = {"run_id": "r1", "plan_id": "p", "tenant_id": "other"} | {field: "guess"}
            guess = rw.new_event("RunStarted", rw.new_run(**context))
            refused = await other.post("/v1/events", msgspec.to_builtins(guess), 409)
            assert {**refused, "requestId": ""} == {**mismatch, "requestId": ""}
        mixed = await other.post(
            "/v1/events",
            [event("RunQueued", "r2", "other"), event("RunStarted", "r1", "acme"), event("RunStarted", "r2", "other")],
            207,
        )
        assert [each.get("code", each["status"]) for each in mixed["results"]] == [
            "appended",
            "AUTHZ_TENANT_FORBIDDEN",
            "appended",
        ]
        row = await server.service.log.find_run("r1")
        assert row.last_seq == 1


@pytest.mark.parametrize("event_type", ["StepStarted", "StepCompleted", "LoopIterationStarted"])
async def test_worker_cannot_start_a_step_that_was_not_scheduled(store: str, event_type: str) -> None:
    async with running_server(store) as server:
        server_caller = await server.caller_with(scopes=("events:server",))
        worker_caller = await server.caller_with(scopes=("events:worker",))
        path = "a[0]" if event_type.startswith("Loop") else "a"
        posted = event(event_type, step_id=path, payload={"index": 0})
        for number in range(2):  # a run that does not exist, and one that does
            refused = await worker_caller.post("/v1/events", posted, 403)
            assert (refused["code"], "no server has scheduled" in refused["detail"]) == ("AUTHZ_DENIED", True)
            if not number:
                await server_caller.post("/v1/events", [event("RunQueued"), event("RunStarted")])
        assert (await server.service.log.find_run(posted["runId"])).last_seq == 2


async def test_worker_does_not_learn_which_runs_of_others_exist(store: str) -> None:
    async with running_server(store) as server:
        other = await server.caller_with(scopes=("events:server",))
        worker_caller = await server.caller_with(tenant="a", scopes=("events:worker",))
        scheduled = event("StepScheduled", step_id="a")
        await other.post("/v1/events", [event("RunQueued"), event("RunStarted"), scheduled])
        started = {**event("StepStarted", step_id="a"), "tenantId": "a"}
        existing = await worker_caller.post("/v1/events", started, 403)
        unknown = await worker_caller.post("/v1/events", {**started, "runId": "unknown"}, 403)
        assert (existing["code"], existing["detail"]) == (unknown["code"], unknown["detail"])


async def test_worker_cannot_write_server_events(store: str) -> None:
    async with running_server(store) as server:
        server_caller = await server.caller_with(scopes=("events:server",))
        worker_caller = await server.caller_with(scopes=("events:worker",))
        await server_caller.post("/v1/events", [event("RunQueued"), event("RunStarted")])
        refused = await worker_caller.post("/v1/events", event("RunCompleted"), 403)
        assert refused["code"] == "AUTHZ_DENIED"
        await server_caller.post("/v1/events", event("StepScheduled", step_id="a"), 201)
        await worker_caller.post("/v1/events", event("StepStarted", step_id="a"), 201)
        both = await worker_caller.post("/v1/events", [event("RunFailed"), event("StepCompleted", step_id="a")], 207)
        assert [each["status"] for each in both["results"]] == ["refused", "not_attempted"]
        await worker_caller.post("/v1/events", event("Something.Else", step_id="x"), 201)  # an unknown type has no role
