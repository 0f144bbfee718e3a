"""Authorization of every route: without a token, with invalid tokens, for other tenants and for each role."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import msgspec

from runwright.auth.roles import ALLOWED, ROLES, SCOPES, Action
from runwright.server.rate_limit import RateLimiter
from support.events import History
from support.server import HELLO, WAITING, Caller, RunningServer, run_path, running_server
from support.waiting import until


class Route(NamedTuple):
    act: Action | None
    """The required action; None if any valid token suffices."""
    body: Any = None
    about_run: bool = True
    """Whether callers without access get 404 for the run."""


SIGNAL = "9b2d6c1e-8f44-4c0b-9a57-0d6a1f1c2e33"
ROUTES: dict[tuple[str, str], Route] = {
    ("POST", "/v1/runs"): Route(Action.UPLOAD_PLAN, {"plan": {**HELLO, "version": "never seen"}}, False),
    ("GET", "/v1/runs"): Route(Action.READ, None, False),
    ("GET", "/v1/runs/{runId}"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/status"): Route(Action.READ),
    ("POST", "/v1/runs/{runId}/rerun"): Route(Action.RERUN, {}),
    ("GET", "/v1/runs/{runId}/events"): Route(Action.READ),
    ("GET", "/v1/log"): Route(Action.READ, None, False),
    ("GET", "/v1/runs/{runId}/entities"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/plan"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/artifacts"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/artifacts/{sha256}"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/results"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/results/{ref}"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/logs"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/logs/{entity}"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/stream"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/decisions"): Route(Action.READ),
    ("GET", "/v1/runs/{runId}/questions"): Route(Action.READ),
    ("POST", "/v1/runs/{runId}/signals"): Route(Action.SIGNAL, {"signalType": "PAUSE"}),
    ("GET", "/v1/runs/{runId}/signals/{signalId}"): Route(Action.READ),
    ("POST", "/v1/runs/{runId}/signals/{signalId}"): Route(Action.SIGNAL, {"decision": "ACCEPTED"}),
    ("POST", "/v1/runs/{runId}/events/{name}"): Route(Action.SIGNAL, {}),
    ("POST", "/v1/events"): Route(Action.APPEND, [], False),
    ("GET", "/v1/stream"): Route(Action.READ, None, False),
    ("POST", "/v1/leases"): Route(Action.EXECUTE_STEPS, {"worker": "w", "queues": ["q"], "waitSeconds": 0}, False),
    ("POST", "/v1/leases/beat"): Route(Action.EXECUTE_STEPS, {"worker": "w", "leases": []}, False),
    ("POST", "/v1/leases/{leaseId}/result"): Route(Action.EXECUTE_STEPS, {"result": 1}, False),
    ("POST", "/v1/leases/{leaseId}/release"): Route(Action.EXECUTE_STEPS, None, False),
    ("POST", "/v1/leases/{leaseId}/checkpoint"): Route(Action.EXECUTE_STEPS, {"state": 1}, False),
    ("POST", "/v1/leases/{leaseId}/output"): Route(Action.EXECUTE_STEPS, {"parts": []}, False),
    ("POST", "/v1/leases/{leaseId}/artifacts"): Route(Action.EXECUTE_STEPS, None, False),
    ("POST", "/v1/leases/{leaseId}/fetch"): Route(Action.EXECUTE_STEPS, {"uri": "x", "kind": "y"}, False),
    ("POST", "/v1/leases/{leaseId}/resolve"): Route(Action.EXECUTE_STEPS, {"ref": "x"}, False),
    ("GET", "/v1/alerts"): Route(Action.READ, None, False),
    ("GET", "/v1/audit"): Route(Action.READ_AUDIT, None, False),
    ("GET", "/v1/tokens"): Route(Action.MANAGE_TOKENS, None, False),
    ("POST", "/v1/tokens"): Route(Action.MANAGE_TOKENS, {"name": "x", "roles": ["Viewer"]}, False),
    ("DELETE", "/v1/tokens/{tokenId}"): Route(Action.MANAGE_TOKENS, None, False),
    ("GET", "/v1/whoami"): Route(None, None, False),
    ("GET", "/v1/verify"): Route(Action.CHECK_STORE, None, False),
    ("GET", "/v1/heads"): Route(Action.CHECK_STORE, None, False),
    ("GET", "/v1/store"): Route(Action.CHECK_STORE, None, False),
    ("POST", "/v1/rebuild"): Route(Action.CHECK_STORE, None, False),
    ("GET", "/metrics"): Route(Action.READ_METRICS, None, False),
}
OPEN = {("GET", "/healthz"), ("GET", "/readyz")}
DECIDES = {"/v1/runs/{runId}/signals", "/v1/runs/{runId}/events/{name}"}
"""Routes where the rule of the signal decides; a denial is recorded in the log of the run."""


def filled(path: str) -> str:
    for name, value in (("runId", "mine"), ("sha256", "0" * 64), ("ref", "wait"), ("entity", "wait"), ("name", "e")):
        path = path.replace(f"{{{name}}}", value)
    if path == "/v1/log":
        path += "?types=RunStarted&since=2026-01-01T00:00:00Z"
    if "{leaseId}" in path:
        path = path.replace("{leaseId}", "1-1") + "?worker=w"
    return path.replace("{signalId}", SIGNAL).replace("{tokenId}", "nosuch")


async def send(there: RunningServer, token: str | None, key: tuple[str, str], **more: Any) -> httpx.Response:
    """Return the response; its body is read unless it is a stream."""
    method, path = key
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    body = {"json": ROUTES[key].body} if ROUTES[key].body is not None else {}
    if key == ("POST", "/v1/runs/{runId}/signals"):
        body["json"] = {**body["json"], "signalId": str(uuid4())}
    http = there.anonymous.http
    async with http.stream(method, filled(path), headers=headers, timeout=30, **body, **more) as answer:
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            await answer.aread()
        return answer


async def test_table_lists_every_route(file_store: str) -> None:
    async with running_server(file_store) as there:
        document = await there.caller().get("/openapi.json")
        found = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
        assert found == set(ROUTES) | OPEN


async def test_every_route_requires_a_valid_token(file_store: str) -> None:
    async with running_server(file_store) as there:
        admin = await there.caller_with("Admin", name="root")
        await admin.start(WAITING, context={"runId": "mine"})
        service = there.service
        by = service.local_user(None, None)
        _, expired = await service.tokens.create("late", by=by, roles=["Admin"], lifetime=1e-6)
        revoked_token, revoked = await service.tokens.create("out", by=by, roles=["Admin"])
        await service.tokens.revoke(revoked_token.token_id, by=by)
        good = admin.token or ""
        wrong = {
            "nobody": None,
            "expired": expired,
            "revoked": revoked,
            "unknown": f"{good[:-4]}AAAA",
            "no token of ours": "eyJhbGciOi",
            "of another token": f"{revoked.rpartition('_')[0]}_{good.rpartition('_')[2]}",
        }
        service.failed_login_limiter = RateLimiter(0, service.log.clock.monotonic)  # The failures are intended here.
        for who, token in wrong.items():
            for key in ROUTES:
                answer = await send(there, token, key)
                problem = answer.json()
                assert answer.status_code == 401, (who, key, problem)
                assert problem["code"] == ("AUTHN_REQUIRED" if token is None else "AUTHN_FAILED")
                assert answer.headers["www-authenticate"].startswith("Bearer")
        for _, path in OPEN:
            await there.caller().get(path)


async def test_each_role_and_scope_has_exactly_its_permissions(file_store: str) -> None:
    async with running_server(file_store) as there:
        admin = await there.caller_with("Admin", name="root")
        await admin.start(WAITING, context={"runId": "mine"})
        holders = {role: await there.caller_with(role) for role in ROLES}
        holders |= {scope: await there.caller_with(scopes=(scope,)) for scope in SCOPES}
        rank = {"Viewer": 0, "Operator": 1, "Engineer": 2, "Admin": 3}
        for holder, caller in holders.items():
            for key, route in ROUTES.items():
                allowed = route.act is None or any(
                    holder == needed or (holder in rank and needed in rank and rank[holder] >= rank[needed])
                    for needed in ALLOWED[route.act]
                )
                answer = await send(there, caller.token, key)
                if allowed and key[1] in DECIDES and rank.get(holder, 0) < 1:
                    assert answer.json()["decision"]["decision"] == "REJECTED", (holder, key)
                    continue
                code = "" if answer.status_code < 400 else answer.json()["code"]
                assert (code == "AUTHZ_DENIED") == (not allowed), (holder, key, answer.status_code, code)
                assert answer.status_code == 403 if not allowed else answer.status_code < 500, (holder, key, code)


async def test_run_of_another_tenant_is_not_found(store: str) -> None:
    async with running_server(store) as there:
        mine = await there.caller_with("Engineer", tenant="acme")
        before = await mine.start_waiting("mine")
        other = await there.caller_with("Admin", tenant="other", scopes=("events:server", "steps"), name="olga")
        for key, route in ROUTES.items():
            if not route.about_run:
                continue
            answer = await send(there, other.token, key)
            assert (answer.status_code, answer.json()["code"]) == (404, "RUN_NOT_FOUND"), key
            nosuch = answer.json()["detail"]
            assert nosuch == "Run 'mine' not found. `runwright list` shows the existing runs."
        assert (await other.get("/v1/runs"))["runs"] == []
        assert (await other.get("/v1/runs?tenantId=acme"))["runs"] == []
        assert (await other.get("/v1/runs?idPrefix=mi"))["runs"] == []
        assert (await other.get("/v1/runs?provider=embedded&workflowId=mine&providerRunId=mine"))["runs"] == []
        assert (await other.get("/v1/audit?runId=mine&outcome=GRANTED"))["entries"] == []
        assert (await other.get("/v1/audit?tenantId=acme"))["entries"] == []
        assert (await other.get("/v1/alerts?runId=mine", 404))["code"] == "RUN_NOT_FOUND"
        assert (await other.get("/v1/verify?runId=mine", 404))["code"] == "RUN_NOT_FOUND"
        assert {token["name"] for token in (await other.get("/v1/tokens"))["tokens"]} == {"olga"}
        assert await mine.get(f"{run_path('mine')}/events") == before
        await mine.signal("mine", "CANCEL")


async def test_tenant_admin_cannot_use_store_wide_routes(file_store: str) -> None:
    async with running_server(file_store) as there:
        bound = await there.caller_with("Admin", tenant="acme", scopes=("metrics",))
        for path in ("/v1/verify", "/v1/heads", "/metrics"):
            assert (await bound.get(path, 403))["code"] == "AUTHZ_DENIED"
        assert (await bound.post("/v1/rebuild", None, 403))["code"] == "AUTHZ_DENIED"


async def test_tenant_admin_creates_tokens_for_own_tenant_only(file_store: str) -> None:
    async with running_server(file_store) as there:
        bound = await there.caller_with("Admin", tenant="acme")
        made = await bound.post("/v1/tokens", {"name": "jane", "roles": ["Operator"]}, 201)
        assert made["details"]["tenantId"] == "acme"
        jane = there.caller(made["token"])
        assert (await jane.get("/v1/whoami"))["tenantId"] == "acme"
        other = await bound.post("/v1/tokens", {"name": "x", "roles": ["Viewer"], "tenantId": "other"}, 403)
        assert other["code"] == "AUTHZ_TENANT_FORBIDDEN"
        system = await bound.post("/v1/tokens", {"name": "x", "roles": ["System"]}, 403)
        assert system["code"] == "AUTHZ_DENIED"
        for token in (await bound.get("/v1/tokens"))["tokens"]:
            assert token["tenantId"] == "acme"
            assert "digest" not in token
        await bound.request("DELETE", f"/v1/tokens/{made['details']['tokenId']}", 204)
        assert (await jane.get("/v1/whoami", 401))["code"] == "AUTHN_FAILED"


async def test_operator_runs_only_plans_that_are_stored(file_store: str) -> None:
    async with running_server(file_store) as there:
        engineer, operator = await there.caller_with("Engineer"), await there.caller_with("Operator")
        assert (await operator.start(HELLO, 403))["code"] == "AUTHZ_DENIED"
        await engineer.run(HELLO)
        await operator.run(HELLO)


async def test_store_contains_no_token_text(file_store: str) -> None:
    async with running_server(file_store) as there:
        admin = await there.caller_with("Admin")
        await admin.get("/v1/runs")
        secret = (admin.token or "").split("_", 2)[2].encode()  # The secret may contain underscores.
        await there.service.audit.flush()
        folder = there.service.log.store.path.parent  # type: ignore[attr-defined]
        assert all(secret not in file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def test_audit_records_allowed_and_denied_actions(store: str) -> None:
    async with running_server(store) as there:
        admin = await there.caller_with("Admin", name="root")
        viewer = await there.caller_with("Viewer", tenant="acme", name="vera")
        engineer = await there.caller_with("Engineer", tenant="acme", name="eve")
        await engineer.start(WAITING, context={"runId": "mine"})
        for _ in range(3):
            await viewer.get(run_path("mine"))
        await viewer.start(HELLO, 403)
        await viewer.signal("mine", "CANCEL", 403)
        await engineer.signal("mine", "CANCEL")
        await there.caller().get(run_path("mine"), 401)

        async def entries(query: str) -> list[Any]:
            return (await admin.get(f"/v1/audit?{query}"))["entries"]

        by_run = await entries("runId=mine")
        assert {(each["actorId"], each["action"], each["outcome"]) for each in by_run} >= {
            ("eve", "runs.start", "GRANTED"),
            ("eve", "runs.signal", "GRANTED"),
            ("vera", "runs.read", "GRANTED"),
            ("vera", "runs.signal", "DENIED"),
        }
        looked = next(each for each in by_run if (each["actorId"], each["action"]) == ("vera", "runs.read"))
        assert (looked["count"], looked["facts"]["sourceIp"]) == (3, "127.0.0.1")
        denied = await entries("actorId=vera&outcome=DENIED")
        assert {(each["action"], each["code"]) for each in denied} == {
            ("runs.start", "AUTHZ_DENIED"),
            ("runs.signal", "AUTHZ_DENIED"),
        }
        logins = await entries("action=login")
        assert [(each["outcome"], each["code"]) for each in logins] == [("DENIED", "AUTHN_REQUIRED")]
        assert {each["tenantId"] for each in await entries("tenantId=acme")} == {"acme"}
        assert await entries("since=2099-01-01T00:00:00Z") == []
        assert await entries("until=2000-01-01T00:00:00Z") == []
        first = await admin.get("/v1/audit?limit=2")
        rest = await admin.get(f"/v1/audit?limit=1000&cursor={first['cursor']}")
        keys = [int(each["auditId"]) for each in (*first["entries"], *rest["entries"])]
        assert keys == sorted(keys, reverse=True)


async def wait_until_failed(caller: Caller, run_id: str, attempt: int) -> None:
    async def has_failed() -> bool:
        (step,) = (await caller.get(run_path(run_id)))["steps"]
        return (step["status"], step["logicalAttemptId"]) == ("FAILED", attempt)

    await until(has_failed)


async def test_audit_and_decisions_name_the_run_and_its_attempts(store: str) -> None:
    failing = {"plan": "p", "onFailure": "wait", "steps": [{"id": "a", "shell": "exit 1"}]}
    async with running_server(store) as there:
        admin = await there.caller_with("Admin")
        history = History("observed", project_id="finance", environment_id="prod")
        queued, started = history.started()
        await there.service.log.append([queued, msgspec.structs.replace(started, engine_attempt_id=3)])
        await admin.get(run_path("observed"))
        await admin.start(failing, context={"runId": "mine", "projectId": "finance", "environmentId": "prod"})
        await wait_until_failed(admin, "mine", attempt=1)
        first = await admin.signal("mine", "RETRY_STEP", payload={"stepId": "a"})
        await wait_until_failed(admin, "mine", attempt=2)
        second = await admin.signal("mine", "RETRY_STEP", payload={"stepId": "a"})
        for decision, attempt in ((first, 1), (second, 2)):
            expected = {
                "projectId": "finance",
                "environmentId": "prod",
                "engineAttemptId": 1,
                "logicalAttemptId": attempt,
            }
            assert expected.items() <= decision["audit"].items()
            recorded = await admin.get(f"{run_path('mine')}/signals/{decision['signalId']}")
            assert recorded["audit"] == decision["audit"]
        for run_id, engine_attempt in (("observed", 3), ("mine", 1)):
            for entry in (await admin.get(f"/v1/audit?runId={run_id}"))["entries"]:
                found = [entry[name] for name in ("projectId", "environmentId", "engineAttemptId", "logicalAttemptId")]
                assert found == ["finance", "prod", engine_attempt, 1]
