"""RunOperations of a server, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec

from runwright.auth.tokens import Token
from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.payloads import Approval
from runwright.contract.plan import ExecutionPlan, content_hash, plan_body
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.plan_loader import AnyPlan, read_any
from runwright.control.run_scope import RunScope
from runwright.control.run_views import follow_to_end
from runwright.control.signal_rules import SignalDecision
from runwright.plans.registry import SUB_PLAN, find_registered, hash_from_ref
from runwright.plans.writer import plan_yaml

from .remote_log import RemoteLog, RemoteOutput, decode_snapshot, run_path
from .transport import HttpTransport

MAX_WAIT_SECONDS = 30.0
"""Longest wait of a single request."""


class RemoteEngine:
    """The engines of the servers: every run counts as driven, and never by this process."""

    def __init__(self, operations: RemoteOperations, transport: HttpTransport) -> None:
        self._operations = operations
        self.step_logs = RemoteOutput(transport)

    def is_driven(self, run_id: str) -> bool:
        del run_id
        return True

    async def wait_until_ended(self, run_id: str, timeout: float | None = None) -> RunSnapshot:
        return await self._operations.wait(run_id, timeout)


class RemoteOperations:
    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self.log = RemoteLog(transport)
        self.engine = RemoteEngine(self, transport)

    def load(self, plan: AnyPlan) -> ExecutionPlan:
        return read_any(plan)

    async def start(
        self,
        plan: ExecutionPlan,
        *,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        place: RunScope | None = None,
    ) -> str:
        """Start a run, or find the run with this id. The id is drawn here, so that the request can be retried."""
        context: dict[str, Any] = {"runId": run_id or self.log.ids.run_id()}
        if place is not None:
            context |= {
                name: value
                for name, value in zip(
                    ("tenantId", "projectId", "environmentId"), msgspec.structs.astuple(place), strict=True
                )
                if value != "default"
            }
        loaded = find_registered(content_hash(plan_body(plan)))
        body = {
            "plan": plan_yaml(plan),
            "parts": [plan_yaml(part) for part in _sub_plans(plan)],
            "context": context,
            "params": params or {},
            "source": None if loaded is None else loaded.file,
        }
        return (await self._transport.post("/v1/runs", body))["runId"]

    async def resume(self, run_id: str) -> None:
        """Check only that the run exists: servers resume runs by themselves."""
        await self.log.find_run(run_id)

    async def wait(self, run_id: str, timeout: float | None = None) -> RunSnapshot:
        clock = self.log.clock
        deadline = None if timeout is None else clock.monotonic() + timeout
        while True:
            remaining = MAX_WAIT_SECONDS
            if deadline is not None:
                remaining = min(MAX_WAIT_SECONDS, max(0.0, deadline - clock.monotonic()))
            document = await self._transport.get(run_path(run_id), {"wait": f"{remaining:.3f}s"})
            snapshot = decode_snapshot(document)
            if snapshot.status in ENDED or (deadline is not None and clock.monotonic() >= deadline):
                return snapshot

    async def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> AsyncIterator[RunEventRecord]:
        async for record in follow_to_end(self.log, run_id, after) if follow else self.log.events(run_id, after):
            yield record

    async def result(self, run_id: str, step_id: str) -> Any:
        return await self._transport.get(f"{run_path(run_id)}/results/{quote(step_id, safe='')}")

    async def run_result(self, run_id: str) -> Any:
        return await self._transport.get(f"{run_path(run_id)}/results")

    async def status(self, run_id: str) -> RunStatus:
        return RunStatus((await self._transport.get(f"{run_path(run_id)}/status"))["status"])

    async def signal(
        self,
        run_id: str,
        signal_type: str,
        payload: dict[str, Any] | None = None,
        *,
        reason: str | None = None,
        signal_id: str | None = None,
    ) -> SignalDecision:
        body = {
            "signalId": signal_id or self.log.ids.event_id(),
            "signalType": signal_type,
            "payload": payload or {},
            "reason": reason,
        }
        return await self._post_signal(f"{run_path(run_id)}/signals", body)

    async def confirm(
        self, run_id: str, signal_id: str, *, agree: bool = True, reason: str | None = None
    ) -> SignalDecision:
        body = {"decision": "ACCEPTED" if agree else "REJECTED", "reason": reason}
        return await self._post_signal(f"{run_path(run_id)}/signals/{signal_id}", body)

    async def _post_signal(self, path: str, body: dict[str, Any]) -> SignalDecision:
        """Return the decision on a signal, also the one inside the error of a rejected signal."""
        try:
            return msgspec.convert(await self._transport.post(path, body), SignalDecision)
        except RunwrightError as error:
            if "decision" not in error.facts:
                raise
            return msgspec.convert(error.facts["decision"], SignalDecision)

    async def questions(self, run_id: str) -> dict[str, Approval]:
        page = await self._transport.get(f"{run_path(run_id)}/questions")
        return {
            question["stepId"]: Approval(
                question["prompt"], question["fields"], question["approvers"], question["expiresAt"]
            )
            for question in page["questions"]
        }

    async def create_token(
        self,
        name: str,
        *,
        tenant_id: str | None,
        roles: Sequence[str],
        scopes: Sequence[str],
        expires_in: str | None,
    ) -> tuple[Token, str]:
        body = {"name": name, "tenantId": tenant_id, "roles": roles, "scopes": scopes, "expiresIn": expires_in}
        created = await self._transport.post("/v1/tokens", body)
        return msgspec.convert(created["details"], Token), created["token"]

    async def list_tokens(self) -> list[Token]:
        return msgspec.convert((await self._transport.get("/v1/tokens"))["tokens"], list[Token])

    async def revoke_token(self, token_id: str) -> None:
        await self._transport.send("DELETE", f"/v1/tokens/{quote(token_id, safe='')}")

    async def fetch_artifact(self, run_id: str, sha256: str) -> bytes:
        return (await self._transport.send("GET", f"{run_path(run_id)}/artifacts/{sha256}")).content

    async def rerun(
        self,
        run_id: str,
        *,
        from_step: str | None = None,
        force: bool = False,
        new_id: str | None = None,
        plan: ExecutionPlan | None = None,
        params: dict[str, Any] | None = None,
    ) -> str:
        body: dict[str, Any] = {"fromStep": from_step, "force": force, "runId": new_id or self.log.ids.run_id()}
        if plan is not None:
            body |= {"plan": plan_yaml(plan), "parts": [plan_yaml(part) for part in _sub_plans(plan)]}
        if params:
            body["params"] = params
        return (await self._transport.post(f"{run_path(run_id)}/rerun", body))["runId"]


def _sub_plans(plan: ExecutionPlan) -> list[ExecutionPlan]:
    """Return the sub-plans of a plan, also indirect ones, as far as this process has read them."""
    found: dict[str, ExecutionPlan] = {}
    pending = [plan]
    while pending:
        for work in pending.pop().tool_calls():
            sha256 = hash_from_ref(str(work.inputs.get("ref", ""))) if work.kind == SUB_PLAN else ""
            loaded = find_registered(sha256)
            if loaded is not None and sha256 not in found:
                found[sha256] = loaded.plan
                pending.append(loaded.plan)
    return list(found.values())


@asynccontextmanager
async def open_remote(server: str, token: str | None) -> AsyncGenerator[RemoteOperations]:
    """Open the operations of a server. The token is not checked before the first request."""
    transport = HttpTransport([server], token)
    try:
        yield RemoteOperations(transport)
    finally:
        await transport.close()
