"""Signals that need the confirmation of a second person, where the policy requires it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runwright.contract.errors import RunwrightError
from runwright.control.confirmation_policy import read_policy
from support.server import WAITING, Caller, RunningServer, run_path, running_server
from support.waiting import until

POLICY = """
[policy]
secondPerson = ["EMERGENCY_STOP"]

[policy.environments.prod]
secondPerson = ["CANCEL"]
"""


@pytest.fixture(autouse=True)
def _policy(tmp_path: Path) -> None:
    (tmp_path / "runwright.toml").write_text(POLICY)


async def confirm(caller: Caller, run_id: str, signal_id: str, expected: int = 200, decision: str = "ACCEPTED") -> Any:
    return await caller.post(f"{run_path(run_id)}/signals/{signal_id}", {"decision": decision}, expected)


async def test_signal_waits_for_confirmation_and_then_applies(store: str) -> None:
    async with running_server(store) as server:
        one, two = await server.caller_with("Engineer", name="one"), await server.caller_with("Operator", name="two")
        await one.start(WAITING, context={"runId": "r", "environmentId": "prod"})
        asked = await one.signal("r", "CANCEL", 202, reason="wrong day")
        assert (asked["decision"], asked["policyDecisionId"]) == ("REVISION_REQUIRED", "second-person/CANCEL")
        assert (await one.get(f"{run_path('r')}/status"))["status"] == "RUNNING"
        signal_id = asked["signalId"]
        again = await one.post(
            f"{run_path('r')}/signals", {"signalId": signal_id, "signalType": "CANCEL", "reason": "wrong day"}, 202
        )
        assert again["signalDecisionId"] == asked["signalDecisionId"]
        assert (await confirm(one, "r", signal_id, 403))["code"] == "AUTHZ_DENIED"
        agreed = await confirm(two, "r", signal_id)
        assert (agreed["decision"], agreed["engineResult"]) == ("ACCEPTED", "CANCELLED")
        assert (agreed["audit"]["actorId"], agreed["reason"]) == ("two", "wrong day")
        assert (await two.get(f"{run_path('r')}?wait=30s"))["status"] == "CANCELLED"
        (record,) = (await one.get(f"{run_path('r')}/decisions"))["decisions"]
        assert (record["decision"], record["audit"]["requestedBy"]) == ("ACCEPTED", "one")
        types = [event["eventType"] for event in (await one.get(f"{run_path('r')}/events"))["events"]]
        assert types.index("SignalRevisionRequired") < types.index("SignalAccepted") < types.index("RunCancelled")
        assert (await confirm(one, "r", signal_id))["signalDecisionId"] == agreed["signalDecisionId"]


async def create_token(caller: Caller, server: RunningServer, name: str, role: str, expected: int = 201) -> Caller:
    """Have a caller create a token, and return a caller that uses it."""
    created = await caller.post("/v1/tokens", {"name": name, "roles": [role]}, expected)
    return server.caller(created.get("token"))


async def test_sender_cannot_confirm_with_a_token_it_created(store: str) -> None:
    async with running_server(store) as server:
        jane = await server.caller_with("Admin", name="jane")
        omar = await server.caller_with("Operator", name="omar")
        minted = await create_token(jane, server, "mia", "Admin")
        indirect = await create_token(minted, server, "max", "Operator")
        await jane.start(WAITING, context={"runId": "r", "environmentId": "prod"})
        signal_id = (await jane.signal("r", "CANCEL", 202))["signalId"]
        for caller in (minted, indirect):
            assert (await confirm(caller, "r", signal_id, 403))["code"] == "AUTHZ_DENIED"
        assert (await confirm(omar, "r", signal_id))["decision"] == "ACCEPTED"


async def test_starter_cannot_approve_with_a_token_it_created(store: str) -> None:
    plan = {"plan": "p", "steps": [{"id": "ok", "approval": {"prompt": "Go?", "approvers": ["omar", "mia"]}}]}
    async with running_server(store) as server:
        jane, omar = await server.caller_with("Admin", name="jane"), await server.caller_with("Viewer", name="omar")
        mia = await create_token(jane, server, "mia", "Viewer")
        await jane.start(plan, context={"runId": "r"})

        async def is_asked() -> bool:
            return (await jane.get(f"{run_path('r')}/events?eventType=ApprovalRequested&stepId=ok"))["events"] != []

        await until(is_asked)
        assert (await mia.signal("r", "APPROVE", 403, payload={"stepId": "ok"}))["code"] == "AUTHZ_DENIED"
        assert (await omar.signal("r", "APPROVE", payload={"stepId": "ok"}))["decision"] == "ACCEPTED"


async def test_starter_cannot_approve_a_sub_run_with_a_token_it_created(store: str) -> None:
    """A sub-run is started by the starter of its parent, not by the server."""
    asking = {"plan": "q", "steps": [{"id": "ok", "approval": {"prompt": "Go?", "approvers": ["omar", "mia"]}}]}
    async with running_server(store) as server:
        jane, omar = await server.caller_with("Admin", name="jane"), await server.caller_with("Viewer", name="omar")
        mia = await create_token(jane, server, "mia", "Viewer")
        await jane.start(asking, context={"runId": "stored"})
        started = (await jane.get(f"{run_path('stored')}/events?eventType=RunStarted"))["events"][0]["payload"]
        steps = [{"id": "sub", "plan": {"ref": f"plan:sha256:{started['planRef']['sha256']}"}}]
        await jane.start({"plan": "p", "steps": steps}, context={"runId": "r"})
        child = run_path("r/sub")

        async def is_asked() -> bool:
            found = await jane.http.get(f"{child}/events?eventType=ApprovalRequested&stepId=ok")
            return found.status_code == 200 and found.json()["events"] != []

        await until(is_asked)
        assert (await mia.signal("r/sub", "APPROVE", 403, payload={"stepId": "ok"}))["code"] == "AUTHZ_DENIED"
        assert (await omar.signal("r/sub", "APPROVE", payload={"stepId": "ok"}))["decision"] == "ACCEPTED"


@pytest.mark.parametrize("name", ["jane", "Jane", "ｊａｎｅ", "JANE"])
async def test_names_of_tokens_are_unique_as_people_read_them(store: str, name: str) -> None:
    async with running_server(store) as server:
        jane = await server.caller_with("Admin", name="jane", tenant="acme")
        admin = await server.caller_with("Admin", name="root")
        refused = await admin.post("/v1/tokens", {"name": name, "roles": ["Viewer"], "tenantId": "other"}, 409)
        assert refused["code"] == "TOKEN_NAME_TAKEN"
        token_id = (await jane.get("/v1/whoami"))["tokenId"]
        await admin.request("DELETE", f"/v1/tokens/{token_id}", 204)
        await admin.post("/v1/tokens", {"name": name, "roles": ["Viewer"]}, 201)


async def test_name_of_another_script_that_looks_the_same_is_taken() -> None:
    async with running_server("memory://") as server:
        admin = await server.caller_with("Admin", name="root")
        await admin.post("/v1/tokens", {"name": "\u043e\u0441\u0435", "roles": ["Viewer"]}, 201)
        refused = await admin.post("/v1/tokens", {"name": "oce", "roles": ["Viewer"]}, 409)
        assert refused["code"] == "TOKEN_NAME_TAKEN"
        for name in ("Zoë", "Łukasz", "Søren", "Иван", "Ελένη"):
            await admin.post("/v1/tokens", {"name": name, "roles": ["Viewer"]}, 201)


@pytest.mark.parametrize(
    "name", ["jane ", " jane", "j  ane", "j\u0430ne", "jane\ufe0f", "jan\u034fe", "jane\u3164", "j\u0251ne"]
)
async def test_misleading_names_of_tokens_are_refused(name: str) -> None:
    async with running_server("memory://") as server:
        refused = await server.caller().post("/v1/tokens", {"name": name, "roles": ["Viewer"]}, 400)
        assert refused["code"] == "INVALID_ARGUMENT"


async def test_second_person_can_reject_a_signal(store: str) -> None:
    async with running_server(store) as server:
        one, two = await server.caller_with("Engineer", name="one"), await server.caller_with("Operator", name="two")
        await one.start(WAITING, context={"runId": "r", "environmentId": "prod"})
        signal_id = (await one.signal("r", "CANCEL", 202))["signalId"]
        refused = await confirm(two, "r", signal_id, decision="REJECTED")
        assert refused["decision"] == "REJECTED"
        assert (await confirm(two, "r", signal_id, 403))["decision"]["decision"] == "REJECTED"
        assert (await one.get(f"{run_path('r')}/status"))["status"] == "RUNNING"


async def test_confirmation_requires_role_and_tenant(store: str) -> None:
    async with running_server(store) as server:
        one, viewer = await server.caller_with("Admin", name="one"), await server.caller_with("Viewer", name="two")
        other = await server.caller_with("Admin", name="three", tenant="other")
        await one.start(WAITING, context={"runId": "r"})
        signal_id = (await one.signal("r", "EMERGENCY_STOP", 202, payload={"reason": "fire"}))["signalId"]
        assert (await confirm(viewer, "r", signal_id, 403))["code"] == "AUTHZ_DENIED"
        assert (await confirm(other, "r", signal_id, 404))["code"] == "RUN_NOT_FOUND"
        four = await server.caller_with("Admin", name="four")
        assert (await confirm(four, "r", signal_id))["decision"] == "ACCEPTED"  # the signal was still pending
        assert (await one.get(f"{run_path('r')}?wait=30s"))["status"] == "CANCELLED"


async def test_other_environments_need_no_confirmation(store: str) -> None:
    async with running_server(store) as server:
        one = server.caller()
        await one.start(WAITING, context={"runId": "r", "environmentId": "dev"})
        assert (await one.signal("r", "CANCEL"))["decision"] == "ACCEPTED"
        nosuch = server.service.log.ids.event_id()
        assert (await confirm(one, "r", nosuch, 404))["code"] == "SIGNAL_NOT_FOUND"


@pytest.mark.parametrize(
    "table",
    [
        {"secondPersons": []},
        {"secondPerson": "CANCEL"},
        {"secondPerson": ["CANCLE"]},
        {"environments": []},
        {"environments": {"prod": []}},
        {"environments": {"prod": {"second": []}}},
    ],
)
def test_invalid_policy_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(RunwrightError) as caught:
        read_policy(table)
    assert "runwright.toml" in caught.value.detail
