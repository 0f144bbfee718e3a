"""What an operator can do, done by a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec

from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.payloads import Approval
from runwright.contract.plan import ExecutionPlan, content_hash, plan_body
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.operations import Place
from runwright.control.planfile import AnyPlan, read_any
from runwright.control.signals import SignalDecision
from runwright.control.tokens import Token
from runwright.control.views import to_its_end
from runwright.plans.known import SUB_PLAN, hash_in, known
from runwright.plans.write import plan_yaml

from .line import Line
from .log import RemoteLog, address, snapshot_of
from .output import RemoteOutput

LONGEST_WAIT = 30.0


class RemoteEngine:
    """The servers' engines, seen from here: somebody drives every run, and it is not us."""

    def __init__(self, operations: RemoteOperations, line: Line) -> None:
        self._operations = operations
        self.step_logs = RemoteOutput(line)

    def is_driven(self, run_id: str) -> bool:
        del run_id
        return True

    async def ended(self, run_id: str, timeout: float | None = None) -> RunSnapshot:
        return await self._operations.wait(run_id, timeout)


class RemoteOperations:
    def __init__(self, line: Line) -> None:
        self._line = line
        self.log = RemoteLog(line)
        self.engine = RemoteEngine(self, line)

    def load(self, plan: AnyPlan) -> ExecutionPlan:
        return read_any(plan)

    async def start(
        self,
        plan: ExecutionPlan,
        *,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        place: Place | None = None,
    ) -> str:
        """Start a run, or find the one that has this id. The id is drawn here, so that it may be asked for twice."""
        context: dict[str, Any] = {"runId": run_id or self.log.ids.run_id()}
        if place is not None:
            context |= {
                name: value
                for name, value in zip(
                    ("tenantId", "projectId", "environmentId"), msgspec.structs.astuple(place), strict=True
                )
                if value != "default"
            }
        read = known(content_hash(plan_body(plan)))
        body = {
            "plan": plan_yaml(plan),
            "parts": [plan_yaml(part) for part in _parts(plan)],
            "context": context,
            "params": params or {},
            "source": None if read is None else read.file,
        }
        return (await self._line.post("/v1/runs", body))["runId"]

    async def take_up(self, run_id: str) -> None:
        """A server does that by itself; only see that the run is there."""
        await self.log.find_run(run_id)

    async def wait(self, run_id: str, timeout: float | None = None) -> RunSnapshot:
        clock = self.log.clock
        until = None if timeout is None else clock.monotonic() + timeout
        while True:
            left = LONGEST_WAIT if until is None else min(LONGEST_WAIT, max(0.0, until - clock.monotonic()))
            document = await self._line.get(address(run_id), {"wait": f"{left:.3f}s"})
            snapshot = snapshot_of(document)
            if snapshot.status in ENDED or (until is not None and clock.monotonic() >= until):
                return snapshot

    async def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> AsyncIterator[RunEventRecord]:
        async for record in to_its_end(self.log, run_id, after) if follow else self.log.events(run_id, after):
            yield record

    async def result(self, run_id: str, step_id: str) -> Any:
        return await self._line.get(f"{address(run_id)}/results/{quote(step_id, safe='')}")

    async def run_result(self, run_id: str) -> Any:
        return await self._line.get(f"{address(run_id)}/results")

    async def status(self, run_id: str) -> RunStatus:
        return RunStatus((await self._line.get(f"{address(run_id)}/status"))["status"])

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
        return await self._decide(f"{address(run_id)}/signals", body)

    async def confirm(
        self, run_id: str, signal_id: str, *, agree: bool = True, reason: str | None = None
    ) -> SignalDecision:
        body = {"decision": "ACCEPTED" if agree else "REJECTED", "reason": reason}
        return await self._decide(f"{address(run_id)}/signals/{signal_id}", body)

    async def _decide(self, path: str, body: dict[str, Any]) -> SignalDecision:
        """A refusal is a decision too."""
        try:
            return msgspec.convert(await self._line.post(path, body), SignalDecision)
        except RunwrightError as error:
            if "decision" not in error.facts:
                raise
            return msgspec.convert(error.facts["decision"], SignalDecision)

    async def questions(self, run_id: str) -> dict[str, Approval]:
        asked = (await self._line.get(f"{address(run_id)}/questions"))["questions"]
        return {
            each["stepId"]: Approval(each["prompt"], each["fields"], each["approvers"], each["expiresAt"])
            for each in asked
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
        made = await self._line.post("/v1/tokens", body)
        return msgspec.convert(made["details"], Token), made["token"]

    async def list_tokens(self) -> list[Token]:
        return msgspec.convert((await self._line.get("/v1/tokens"))["tokens"], list[Token])

    async def revoke_token(self, token_id: str) -> None:
        await self._line.send("DELETE", f"/v1/tokens/{quote(token_id, safe='')}")

    async def fetch_artifact(self, run_id: str, sha256: str) -> bytes:
        return (await self._line.send("GET", f"{address(run_id)}/artifacts/{sha256}")).content

    async def rerun(
        self, run_id: str, *, from_step: str | None = None, force: bool = False, new_id: str | None = None
    ) -> str:
        body = {"fromStep": from_step, "force": force, "runId": new_id or self.log.ids.run_id()}
        return (await self._line.post(f"{address(run_id)}/rerun", body))["runId"]


def _parts(plan: ExecutionPlan) -> list[ExecutionPlan]:
    """All plans that steps of this one are runs of, as far as they were read here."""
    found: dict[str, ExecutionPlan] = {}
    waiting = [plan]
    while waiting:
        for work in waiting.pop().work():
            sha256 = hash_in(str(work.inputs.get("ref", ""))) if work.kind == SUB_PLAN else ""
            part = known(sha256)
            if part is not None and sha256 not in found:
                found[sha256] = part.plan
                waiting.append(part.plan)
    return list(found.values())


@asynccontextmanager
async def open_remote(server: str, token: str | None) -> AsyncGenerator[RemoteOperations]:
    line = Line([server], token)
    try:
        yield RemoteOperations(line)
    finally:
        await line.close()
