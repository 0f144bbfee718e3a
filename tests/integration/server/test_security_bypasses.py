"""Attempts to bypass the rules; each of them was possible once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

import runwright as rw
from runwright.auth.audit import AuditFilter
from support.server import HELLO, Caller, run_path, running_server


async def lease(worker: Caller) -> dict[str, Any]:
    (found,) = (await worker.post("/v1/leases", {"worker": "w", "queues": ["default"]}))["leases"]
    return found


async def test_repeated_result_is_not_applied_to_another_run(store: str) -> None:
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        await me.start(HELLO, context={"runId": "one"})
        first = await lease(me)
        await me.post(f"/v1/leases/{first['leaseId']}/result?worker=w", {"result": 1})
        assert (await me.get(f"{run_path('one')}?wait=30s"))["status"] == "COMPLETED"
        await me.start(HELLO, context={"runId": "two"})
        second = await lease(me)
        assert second["leaseId"] != first["leaseId"]
        again = await me.post(f"/v1/leases/{first['leaseId']}/result?worker=w", {"result": 1}, 409)
        assert again["code"] == "LEASE_LOST"
        assert (await me.get(f"{run_path('two')}/status"))["status"] == "RUNNING"


async def test_invalid_worker_reports_cannot_hang_the_run(store: str) -> None:
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        await me.start(HELLO, context={"runId": "r"})
        path = f"/v1/leases/{(await lease(me))['leaseId']}"
        deep: Any = 1
        for _ in range(300):
            deep = [deep]
        large = await me.post(f"{path}/checkpoint?worker=w", {"state": "x" * 1_100_000}, 413)
        assert large["code"] == "PAYLOAD_TOO_LARGE"
        for action, body in (("checkpoint", {"state": deep}), ("result", {"result": deep}), ("result", {"reslut": 1})):
            assert (await me.post(f"{path}/{action}?worker=w", body, 400))["code"], action
        error = {"code": "X" * 1000, "message": "m" * 1_500_000, "facts": {"t": "x" * 100_000}}
        await me.post(f"{path}/result?worker=w", {"error": error})
        ended = await me.get(f"{run_path('r')}?wait=30s")
        assert ended["status"] == "FAILED"
        assert len(ended["steps"][0]["error"]["message"]) == 2000


async def test_long_run_id_does_not_break_the_audit(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        await me.get(run_path("x" * 6000), 404)
        await me.get(run_path("other"), 404)
        await server.service.audit.flush()
        found = await server.service.audit.list(AuditFilter(run_id="other"))
        assert [entry.outcome for entry in found.entries] == ["DENIED"]


async def test_operator_cannot_name_the_source_of_a_plan(file_store: str) -> None:
    async with running_server(file_store) as server:
        engineer, operator = await server.caller_with("Engineer"), await server.caller_with("Operator")
        await engineer.run(HELLO)
        before = list(sys.path)
        denied = await operator.post("/v1/runs", {"plan": HELLO, "source": "/tmp/elsewhere/x.yaml"}, 403)
        assert denied["code"] == "AUTHZ_DENIED"
        assert sys.path == before


async def test_artifact_is_scoped_to_its_tenant(store: str) -> None:
    async with running_server(store, steps="workers") as server:
        ours, theirs = (
            await server.caller_with("Engineer", tenant="a"),
            await server.caller_with("Engineer", tenant="b"),
        )
        worker_a = await server.caller_with(scopes=("steps",), tenant="a", name="wa")
        worker_b = await server.caller_with(scopes=("steps",), tenant="b", name="wb")
        await ours.start(HELLO, context={"runId": "ours"})
        path = f"/v1/leases/{(await lease(worker_a))['leaseId']}"
        headers = {"content-type": "application/octet-stream"}
        ref = await worker_a.request(
            "POST", f"{path}/artifacts?worker=w", 201, content=b"for our eyes only", headers=headers
        )
        await worker_a.post(f"{path}/result?worker=w", {"result": 1, "artifacts": [ref]})
        await ours.get(f"{run_path('ours')}?wait=30s")
        await theirs.start(HELLO, context={"runId": "theirs"})
        path = f"/v1/leases/{(await lease(worker_b))['leaseId']}"
        fetched = await worker_b.post(f"{path}/fetch?worker=w", ref, 404)
        assert fetched["code"] == "REFERENCE_NOT_AVAILABLE"
        claimed = await worker_b.post(f"{path}/result?worker=w", {"result": 1, "artifacts": [ref]}, 400)
        assert claimed["code"] == "INVALID_ARGUMENT"
        await worker_b.post(f"{path}/result?worker=w", {"result": 1})
        await theirs.get(f"{run_path('theirs')}?wait=30s")
        assert (await theirs.get(f"{run_path('theirs')}/artifacts/{ref['sha256']}", 404))[
            "code"
        ] == "REFERENCE_NOT_AVAILABLE"
        answer = await ours.http.get(f"{run_path('ours')}/artifacts/{ref['sha256']}")
        assert answer.content == b"for our eyes only"


async def test_reference_in_a_payload_gives_no_access(store: str) -> None:
    async with running_server(store) as server:
        ours, theirs = (
            await server.caller_with("Engineer", tenant="a"),
            await server.caller_with("Engineer", tenant="b"),
        )
        run_id = await ours.run({"plan": "big", "steps": [{"id": "s", "python": {"code": "'x' * 100_000"}}]})
        ended = next(
            e for e in (await ours.get(f"{run_path(run_id)}/events"))["events"] if e["eventType"] == "StepCompleted"
        )
        ref = ended["payload"]["resultRef"]
        plan = {"plan": "p", "steps": [{"id": "w", "wait": {"event": "x"}}]}
        await theirs.start(plan, context={"runId": "theirs"})
        await theirs.post(f"{run_path('theirs')}/events/x", {"payload": {"resultRef": ref}})
        await theirs.get(f"{run_path('theirs')}?wait=30s")
        opened = await theirs.get(f"{run_path('theirs')}/results/{ref['sha256']}", 404)
        assert opened["code"] == "REFERENCE_NOT_AVAILABLE"


BIG = {"plan": "big", "steps": [{"id": "s", "python": {"code": "'x' * 100_000"}}]}
KEEPS = {"plan": "keeps", "steps": [{"id": "s", "artifact": {"put": "secret.txt"}}]}


def foreign_event(kind: str, **more: Any) -> dict[str, Any]:
    """An event of a run of tenant b, as another engine reports it."""
    return json.loads(msgspec.json.encode(rw.new_event(kind, rw.new_run("told", "p", tenant_id="b"), **more)))


async def status(caller: Caller, run_id: str) -> str:
    return (await caller.get(run_path(run_id)))["status"]


async def test_hash_gives_no_access_to_data_of_another_tenant(store: str, tmp_path: Path) -> None:
    """A plan or an event that names a hash of another tenant gives no access to its data."""
    (tmp_path / "secret.txt").write_text("for our eyes only")
    async with running_server(store) as server:
        ours = await server.caller_with("Engineer", tenant="a")
        theirs = await server.caller_with("Engineer", tenant="b", scopes=("events:server", "events:worker"))
        run_id = await ours.run(KEEPS)
        (stored,) = (await ours.get(f"{run_path(run_id)}/artifacts"))["artifacts"]
        big = await ours.run(BIG)
        events = (await ours.get(f"{run_path(big)}/events"))["events"]
        plan_ref = next(e["payload"]["planRef"] for e in events if e["eventType"] == "RunStarted")
        value = next(e["payload"]["resultRef"] for e in events if e["eventType"] == "StepCompleted")

        gets = {"plan": "p", "steps": [{"id": "s", "artifact": {"get": stored["artifact"], "to": "stolen.txt"}}]}
        stolen = await theirs.run(gets)
        assert (await theirs.get(run_path(stolen)))["steps"][0]["error"]["code"] == "REFERENCE_NOT_AVAILABLE"
        assert not (tmp_path / "stolen.txt").exists()
        runs = {"plan": "p", "steps": [{"id": "s", "plan": {"ref": plan_ref["uri"]}}]}
        assert (await theirs.post("/v1/runs", {"plan": runs}, 404))["code"] == "PLAN_NOT_FOUND"
        await theirs.post(
            "/v1/events",
            [
                foreign_event("RunStarted", payload={"planRef": {**plan_ref, "planId": "p", "planVersion": "1"}}),
                foreign_event("StepStarted", step_id="s"),
                foreign_event(
                    "StepCompleted", step_id="s", payload={"resultRef": value, "artifactRefs": [stored["artifact"]]}
                ),
            ],
        )
        assert (await theirs.get(f"{run_path('told')}/plan", 404))["code"] == "PLAN_NOT_FOUND"
        for path in (f"results/{value['sha256']}", "results/s", f"artifacts/{stored['artifact']['sha256']}"):
            assert (await theirs.get(f"{run_path('told')}/{path}", 404))["code"] == "REFERENCE_NOT_AVAILABLE", path

        # The tenant itself can read all of it.
        assert await status(ours, await ours.run(gets)) == await status(ours, await ours.run(runs)) == "COMPLETED"
        assert (tmp_path / "stolen.txt").read_text() == "for our eyes only"
        assert (await ours.get(f"{run_path(big)}/plan"))["metadata"]["planId"] == "big"
        assert await ours.get(f"{run_path(big)}/results/{value['sha256']}") == "x" * 100_000


async def test_playbook_part_is_scoped_to_its_tenant(file_store: str) -> None:
    loop = {"in": [1], "iterator": "n"}
    playbook = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "book"},
        "workbook": [{"name": "each", "loop": loop, "tool": {"kind": "noop"}}],
        "workflow": [{"step": "s", "tool": {"kind": "workbook", "name": "each"}}],
    }
    async with running_server(file_store) as server:
        ours, theirs = (
            await server.caller_with("Engineer", tenant="a"),
            await server.caller_with("Engineer", tenant="b"),
        )
        run_id = await ours.run(playbook)
        child = next(run for run in (await ours.get("/v1/runs"))["runs"] if run["runId"] != run_id)
        started = (await ours.get(f"{run_path(child['runId'])}/events?eventType=RunStarted"))["events"][0]
        part = {"plan": "p", "steps": [{"id": "s", "plan": {"ref": started["payload"]["planRef"]["uri"]}}]}
        assert (await theirs.post("/v1/runs", {"plan": part}, 404))["code"] == "PLAN_NOT_FOUND"
        assert await status(ours, await ours.run(part)) == "COMPLETED"


async def test_refused_token_request_is_audited_as_denied(file_store: str) -> None:
    async with running_server(file_store) as server:
        root, admin = (
            await server.caller_with("Admin", name="root"),
            await server.caller_with("Admin", tenant="a", name="ann"),
        )
        await admin.post("/v1/tokens", {"name": "x", "roles": ["System"]}, 403)
        await admin.post("/v1/tokens", {"name": "x", "roles": ["Viewer"], "tenantId": "b"}, 403)
        entries = (await root.get("/v1/audit?actorId=ann"))["entries"]
        assert {(each["outcome"], each["tenantId"]) for each in entries} == {("DENIED", "a")}


async def test_invented_names_are_not_metric_labels(file_store: str) -> None:
    async with running_server(file_store) as server:
        admin = await server.caller_with("Admin")
        await server.caller().get("/v1/runs/made-up", 401)
        assert "made-up" not in await admin.get("/metrics")


async def test_cross_site_request_is_not_from_the_local_user(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        headers = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
        assert (await me.post("/v1/rebuild?check=false", None, 401, headers=headers))["code"] == "AUTHN_REQUIRED"
        await me.post("/v1/rebuild", None, headers={"origin": server.address})


async def test_odd_requests_get_standard_responses(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        run_id = await me.run(HELLO, context={"runId": "r"})
        deep = b'{"plan": ' + b"[" * 20_000
        answer = await me.http.post("/v1/runs", content=deep, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        for path in ("/v1/runs?planId=%00", "/v1/audit?actorId=%00", "/v1/runs?idPrefix=r&status=FAILED"):
            assert (await me.get(path, 400))["code"] == "INVALID_ARGUMENT"
        astral = "\U0001f600" * 500
        long = await me.post("/v1/runs", {"plan": HELLO, "runRequestId": astral, "context": {"projectId": astral}}, 400)
        assert long["code"] == "INVALID_ARGUMENT"
        assert (await me.get(f"{run_path(run_id)}/events?afterSeq=9007199254740992"))["lastEventSeq"] == 5
        assert (await me.get(f"{run_path(run_id)}/logs?after=zzz", 400))["code"] == "INVALID_ARGUMENT"
        head = await me.http.head(run_path(run_id))
        assert (head.status_code, head.content) == (200, b"")
        wrong = await me.http.get("/v1/events")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert "atSeq" in (await me.get(f"{run_path(run_id)}?atSeq=-1", 400))["detail"]
