"""Sending a signal: decide, write the decision down, and see it acted on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.engine import SignalRequest
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord, RunIdentity
from runwright.contract.paths import signal_path
from runwright.contract.plan import ParamType
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED
from runwright.log.arguments import not_found
from runwright.log.base import RunLog
from runwright.log.model import RunRow
from runwright.log.open import new_event
from runwright.runtimes.engine import Engine
from runwright.runtimes.restore import fold_run

from .access import ENGINE, Actor
from .policy import Policy
from .signals import (
    Refused,
    Rule,
    RunView,
    SignalDecision,
    authorize,
    check_request,
    check_state,
    decision_event_id,
    event_payload,
    question_of,
    revision_event_id,
    run_made_by,
)

SIGNALS_A_MINUTE = 60
RATE_PAGE, RATE_PAGES = 1000, 50
"""How many of a run's last events are looked at for signals of the last minute, at a time and how often."""
SIGNAL_PATIENCE, EVENT_PATIENCE = 3.0, 0.5
"""Seconds to wait for the engine that drives a run to act on a signal, before only the decision is reported. An event
may well be early."""


async def open_questions(log: RunLog, run_id: str) -> dict[str, payloads.Approval]:
    """What people are asked now, by step."""
    state = await fold_run(log, run_id, frozenset())
    assert state.workings is not None
    awaits = state.workings.awaits.items()
    return {path: awaited.approval for path, awaited in awaits if awaited.approval is not None}


DECIDED = {"SignalAccepted": "ACCEPTED", "SignalRejected": "REJECTED", "SignalRevisionRequired": "REVISION_REQUIRED"}
EVENT_OF = {decision: event_type for event_type, decision in DECIDED.items()}


class Signalling:
    def __init__(
        self,
        log: RunLog,
        engine: Engine,
        actor: Actor,
        rerun: Callable[..., Awaitable[str]],
        policy: Policy | None = None,
    ) -> None:
        self.log = log
        self.engine = engine
        self.actor = actor
        self._rerun = rerun
        self._policy = policy or Policy()

    async def send(
        self,
        run_id: str,
        signal_type: str,
        payload: dict[str, Any] | None = None,
        *,
        reason: str | None = None,
        signal_id: str | None = None,
    ) -> SignalDecision:
        """Decide on a signal and see it acted on. A refusal is a decision too; it comes back, and is in the log."""
        row = await self._find(run_id)
        request = SignalRequest(
            signal_id=(signal_id or self.log.ids.event_id()).lower(),
            signal_type=signal_type,
            payload=payload or {},
            reason=reason,
        )
        rule = check_request(request)
        earlier = await self._earlier(run_id, request)
        if earlier is not None:
            return await self._carry_on(row.identity, request, earlier)
        if signal_type != "EMERGENCY_STOP" and self.actor.source != ENGINE:  # those are never one too many
            await self._check_rate(row)
        await self._check_engine(row)
        role, refusal = await self._judge(run_id, rule, request)
        second = refusal is None and self._needs_second(request, row.identity)
        decision = self._decision(row.identity, request, rule, role, refusal)
        if second:
            decision = msgspec.structs.replace(
                decision, decision="REVISION_REQUIRED", policy_decision_id=f"second-person/{signal_type}"
            )
        return await self._settle(row.identity, request, decision, refusal)

    async def confirm(
        self, run_id: str, signal_id: str, *, agree: bool = True, reason: str | None = None
    ) -> SignalDecision:
        """Decide, as a second person, on a signal that waits for one."""
        row = await self._find(run_id)
        signal_id = signal_id.lower()
        waiting = await self._decided(run_id, signal_id)
        if waiting is None:
            raise RunwrightError(ErrorCode.SIGNAL_NOT_FOUND, f"Run {run_id!r} was sent no signal {signal_id[:64]!r}.")
        known = msgspec.convert(waiting.payload or {}, payloads.SignalDecided)
        request = SignalRequest(
            signal_id=signal_id,
            signal_type=known.signal_type or "",
            payload=known.payload or {},
            reason=known.reason if known.code is None else None,
        )
        if waiting.event_type != "SignalRevisionRequired":
            return await self._with_result(run_id, decision_in(waiting))
        if known.actor_id == self.actor.actor_id:
            raise RunwrightError(ErrorCode.AUTHZ_DENIED, "You sent this signal. Somebody else has to agree to it.")
        rule = check_request(request)
        role, refusal = await self._judge(run_id, rule, request)
        if refusal is not None and refusal.code in (ErrorCode.AUTHZ_DENIED, ErrorCode.AUTHZ_REASON_REQUIRED):
            raise RunwrightError(refusal.code, refusal.sentence)  # it waits for somebody who may
        if refusal is None and not agree:
            refusal = Refused(ErrorCode.AUTHZ_DENIED, reason or f"{self.actor.actor_id} did not agree.")
        decision = msgspec.structs.replace(
            self._decision(row.identity, request, rule, role, refusal),
            policy_decision_id=f"second-person/{request.signal_type}",
        )
        return await self._settle(row.identity, request, decision, refusal, requested_by=known.actor_id)

    async def find(self, run_id: str, signal_id: str) -> SignalDecision:
        """The record of the decision on a signal."""
        row = await self._find(run_id)
        record = await self._decided(run_id, signal_id.lower())
        if record is None:
            raise RunwrightError(ErrorCode.SIGNAL_NOT_FOUND, f"Run {run_id!r} was sent no signal {signal_id[:64]!r}.")
        return await self._with_result(row.identity.run_id, decision_in(record))

    async def _find(self, run_id: str) -> RunRow:
        row = await self.log.find_run(run_id)
        if not self.actor.sees(row.identity.tenant_id):
            raise not_found(run_id)
        return row

    def _needs_second(self, request: SignalRequest, run: RunIdentity) -> bool:
        return self.actor.source != ENGINE and self._policy.needs_second(request.signal_type, run.environment_id)

    async def _judge(self, run_id: str, rule: Rule, request: SignalRequest) -> tuple[str, Refused | None]:
        """The role in which the actor may do this, and what speaks against it."""
        role = next(iter(self.actor.roles), "")
        try:
            asks = request.signal_type in ("APPROVE", "DENY")
            questions = await open_questions(self.log, run_id) if asks else {}
            role = authorize(rule, request, self.actor, question_of(request, questions))
            check_state(request, await self._view(run_id, questions))
        except Refused as refused:
            return role, refused
        return role, None

    def _decision(
        self, run: RunIdentity, request: SignalRequest, rule: Rule, role: str, refusal: Refused | None
    ) -> SignalDecision:
        audit = {
            "actorId": self.actor.actor_id,
            "actorRole": role,
            "tenantId": run.tenant_id,
            "timestamp": from_micros(self.log.clock.now()),
            "source": self.actor.source,
            "sourceIp": self.actor.source_ip,
            "userAgent": self.actor.user_agent,
        }
        return SignalDecision(
            signal_decision_id=self.log.ids.event_id(),
            signal_id=request.signal_id,
            signal_type=request.signal_type,
            decision="ACCEPTED" if refusal is None else "REJECTED",
            payload=request.payload,
            reason=request.reason if refusal is None else refusal.sentence,
            code=None if refusal is None else refusal.code,
            policy_decision_id=f"role/{rule.role}",
            audit={name: value for name, value in audit.items() if value is not None},
        )

    async def _settle(
        self,
        run: RunIdentity,
        request: SignalRequest,
        decision: SignalDecision,
        refusal: Refused | None,
        requested_by: str | None = None,
    ) -> SignalDecision:
        """Write the decision down, then see it acted on."""
        if not await self._record(run, request, decision, requested_by):
            earlier = await self._earlier(run.run_id, request)  # another call with this id was faster
            assert earlier is not None, "its decision is in the log"
            return await self._carry_on(run, request, earlier)
        if refusal is not None or decision.decision != "ACCEPTED":
            return decision
        if request.signal_type == "RETRY_RUN":
            return await self._retry_run(run, request, decision)
        return await self._apply(run.run_id, decision)

    async def _check_engine(self, row: RunRow) -> None:
        """A run that another engine drives takes its signals there; one that has ended is nobody's."""
        if row.status not in ENDED:
            await self.engine.net_of(row.identity)

    async def _check_rate(self, row: RunRow) -> None:
        """At most 60 signals a run a minute, whoever sends them: counted in the log, from its end backwards."""
        since = from_micros(self.log.clock.now() - 60_000_000)
        end, decided = row.last_seq, 0
        for _ in range(RATE_PAGES):
            page = await self.log.read(row.identity.run_id, max(0, end - RATE_PAGE), RATE_PAGE)
            recent = [record for record in page if record.run_seq <= end and record.persisted_at > since]
            decided += sum(record.event_type in DECIDED for record in recent)
            if decided >= SIGNALS_A_MINUTE:
                raise RunwrightError(
                    ErrorCode.SIGNAL_RATE_LIMITED, f"A run takes {SIGNALS_A_MINUTE} signals a minute. Wait a little."
                )
            end -= RATE_PAGE
            if end <= 0 or len(recent) < len(page):
                return

    async def _record(
        self, run: RunIdentity, request: SignalRequest, decision: SignalDecision, requested_by: str | None
    ) -> bool:
        """Write the decision. False if there was one already, or another than this: a signal has one decision."""
        waits = decision.decision == "REVISION_REQUIRED"
        body = event_payload(request, decision, decision.audit["actorRole"], self.actor)
        event = new_event(
            EVENT_OF[decision.decision],
            run,
            step_id=signal_path(request.signal_id),
            payload=msgspec.to_builtins(msgspec.structs.replace(body, requested_by=requested_by)),
            emitted_at=decision.audit["timestamp"],
            event_id=(revision_event_id if waits else decision_event_id)(run.run_id, request.signal_id),
            emitted_by="control/server",
        )
        try:
            (receipt,) = await self.log.append([event])
        except RunwrightError as error:
            if error.code != ErrorCode.EVENT_ID_REUSED:
                raise
            return False  # it was decided otherwise
        return not receipt.idempotent

    async def _decided(self, run_id: str, signal_id: str) -> RunEventRecord | None:
        for event_type in DECIDED:
            record = await self.log.find_event(run_id, event_type, signal_path(signal_id))
            if record is not None:
                return record
        return None

    async def _earlier(self, run_id: str, request: SignalRequest) -> SignalDecision | None:
        """The decision on a signal that came before, if this is the same; SIGNAL_DUPLICATE if only its id is."""
        record = await self._decided(run_id, request.signal_id)
        if record is None:
            return None
        known = msgspec.convert(record.payload or {}, payloads.SignalDecided)
        same_reason = known.code is not None or known.reason == request.reason
        if (known.signal_type, known.payload or {}) != (request.signal_type, request.payload) or not same_reason:
            raise RunwrightError(
                ErrorCode.SIGNAL_DUPLICATE, "A signal with this id and other content was decided before. Draw a new id."
            )
        return await self._with_result(run_id, decision_in(record))

    async def _view(self, run_id: str, questions: dict[str, payloads.Approval]) -> RunView:
        snapshot = await self.log.snapshot(run_id)
        steps = {step.step_id: step.status for step in snapshot.steps}
        try:
            net = await self.engine.net_of((await self.log.find_run(run_id)).identity)
        except RunwrightError:
            return RunView(snapshot.status, steps, dict.fromkeys(steps, (frozenset(), None)), {}, questions)
        known = {node.step.step_id: (self._inputs_of(node.step.kind), node.mentions) for node in net.nodes}
        types = {name: net.plan.param_types.get(name, ParamType.ANY) for name in net.plan.param_names}
        return RunView(snapshot.status, steps, known, types, questions, net.routes is not None)

    def _inputs_of(self, kind: str) -> frozenset[str]:
        tool = self.engine.tools.get(kind)
        return frozenset() if tool is None else frozenset(tool.inputs.__struct_encode_fields__)

    async def _apply(self, run_id: str, decision: SignalDecision) -> SignalDecision:
        """Have it acted on: by the engine that drives the run, here or elsewhere, or by ourselves if none does."""
        if self.engine.is_driven(run_id):
            self.engine.signalled(run_id)
        else:
            try:
                await self.engine.apply_signals(run_id)
            except RunwrightError as error:
                if error.code not in (ErrorCode.RUN_OWNED, ErrorCode.STALE_FENCE):
                    raise  # otherwise somebody took it up in the meantime, and acts on it
        patience = EVENT_PATIENCE if decision.signal_type == "EVENT" else SIGNAL_PATIENCE
        deadline = self.log.clock.monotonic() + patience
        while True:
            settled = await self._with_result(run_id, decision)
            left = deadline - self.log.clock.monotonic()
            if settled.engine_result is not None or left <= 0:
                return settled
            await self.log.wait_for_news(min(left, 0.5))

    async def _with_result(self, run_id: str, decision: SignalDecision) -> SignalDecision:
        record = await self.log.find_event(run_id, "SignalProcessed", signal_path(decision.signal_id))
        if record is None or record.payload is None:
            return decision
        return msgspec.structs.replace(
            decision,
            engine_processed_at=record.emitted_at,
            engine_result=record.payload.get("engineResult"),
            new_run_id=record.payload.get("newRunId"),
        )

    async def _carry_on(self, run: RunIdentity, request: SignalRequest, decision: SignalDecision) -> SignalDecision:
        """A signal that was decided before. Making a new run is up to whoever sends the signal, so it is made good."""
        is_open = decision.decision == "ACCEPTED" and decision.engine_result is None
        if is_open and request.signal_type == "RETRY_RUN":
            return await self._retry_run(run, request, decision)
        return decision

    async def _retry_run(self, run: RunIdentity, request: SignalRequest, decision: SignalDecision) -> SignalDecision:
        wanted = run_made_by(request.signal_id)  # the same again, should we be cut short and the signal be sent anew
        new_id = await self._rerun(run.run_id, force=bool(request.payload.get("force")), new_id=wanted)
        processed = new_event(
            "SignalProcessed",
            run,
            step_id=signal_path(request.signal_id),
            payload={
                "signalId": request.signal_id,
                "signalType": request.signal_type,
                "engineResult": "NEW_RUN",
                "newRunId": new_id,
            },
            emitted_by="control/server",
        )
        await self.log.append([processed])
        return await self._with_result(run.run_id, decision)


def decision_in(record: RunEventRecord) -> SignalDecision:
    """The record of a decision, from the event that holds it."""
    known = msgspec.convert(record.payload or {}, payloads.SignalDecided)
    audit = {
        "actorId": known.actor_id,
        "actorRole": known.actor_role,
        "tenantId": record.tenant_id,
        "timestamp": record.emitted_at,
        "source": known.source,
        "sourceIp": known.source_ip,
        "userAgent": known.user_agent,
        "requestedBy": known.requested_by,
    }
    return SignalDecision(
        signal_decision_id=known.signal_decision_id or "",
        signal_id=known.signal_id or (record.step_id or "").rpartition("/")[2],
        signal_type=known.signal_type or "",
        decision=DECIDED[record.event_type],
        payload=known.payload or {},
        reason=known.reason,
        code=known.code,
        policy_decision_id=known.policy_decision_id,
        audit={name: value for name, value in audit.items() if value is not None},
    )
