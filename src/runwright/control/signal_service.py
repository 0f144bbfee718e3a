"""SignalService: decide on a signal, record the decision in the log, and have the signal applied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from runwright.auth.roles import ENGINE, Actor
from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord, RunIdentity
from runwright.contract.paths import signal_path
from runwright.contract.plan import ParamType
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED
from runwright.contract.workflow_engine import SignalRequest
from runwright.core.expressions.template import has_expression
from runwright.core.fold.payload_reader import read_payload
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.builders import new_event
from runwright.log.model import EventFilter, RunRow
from runwright.log.run_log import RunLog
from runwright.log.validation import not_found
from runwright.runtimes.plan_resolver import PlanResolver
from runwright.runtimes.recovery import fold_run
from runwright.tools.base import Tool
from runwright.tools.wait import WaitTool

from .confirmation_policy import SignalPolicy
from .signal_rules import (
    PlanStep,
    Refused,
    Rule,
    SignalDecision,
    SignalState,
    authorize,
    check_request,
    check_second_person,
    check_state,
    decision_event_id,
    event_payload,
    question_of,
    retried_run_id,
    revision_event_id,
)

SIGNALS_PER_MINUTE = 60
RATE_PAGE, RATE_PAGES = 1000, 50
"""Events per page, and the number of pages, that are searched backwards for signals of the last minute."""
SIGNAL_TIMEOUT, EVENT_TIMEOUT = 3.0, 0.5
"""Seconds to wait until the process that drives the run has applied a signal; afterwards only the decision is reported.
No step may wait for an event yet."""


async def open_questions(log: RunLog, run_id: str) -> dict[str, payloads.Approval]:
    """The pending approvals of a run, by step."""
    state = await fold_run(log, run_id, frozenset())
    assert state.execution is not None
    awaits = state.execution.pending_inputs.items()
    return {path: awaited.approval for path, awaited in awaits if awaited.approval is not None}


DECIDED = {"SignalAccepted": "ACCEPTED", "SignalRejected": "REJECTED", "SignalRevisionRequired": "REVISION_REQUIRED"}
EVENT_OF = {decision: event_type for event_type, decision in DECIDED.items()}


class SignalApplier(Protocol):
    """Has the accepted signals of a run applied."""

    async def apply(self, run_id: str) -> None:
        """Notify the process that drives the run, or apply its signals here if no live process does."""
        ...


class SignalService:
    """Needs the log, the plans and the tools; an engine only to apply a signal to a run that no process drives."""

    def __init__(
        self,
        log: RunLog,
        plans: PlanResolver,
        find_tool: Callable[[str], Tool | None],
        actor: Actor,
        applier: SignalApplier,
        rerun: Callable[..., Awaitable[str]],
        policy: SignalPolicy | None = None,
    ) -> None:
        self.log = log
        self.actor = actor
        self._plans = plans
        self._find_tool = find_tool
        self._applier = applier
        self._rerun = rerun
        self._policy = policy or SignalPolicy()

    async def send(
        self,
        run_id: str,
        signal_type: str,
        payload: dict[str, Any] | None = None,
        *,
        reason: str | None = None,
        signal_id: str | None = None,
    ) -> SignalDecision:
        """Decide on a signal, and have it applied. A refusal is a decision too: it is returned, and is in the log."""
        row = await self._find(run_id)
        request = SignalRequest(
            signal_id=(signal_id or self.log.ids.event_id()).lower(),
            signal_type=signal_type,
            payload=payload or {},
            reason=reason,
        )
        rule = check_request(request)
        earlier = await self._existing(run_id, request)
        if earlier is not None:
            return await self._resume(row.identity, request, earlier)
        if signal_type != "EMERGENCY_STOP" and self.actor.source != ENGINE:  # these are not limited
            await self._check_rate(row)
        graph = await self._graph(row)
        role, refusal = await self._evaluate(run_id, rule, request, graph)
        second = refusal is None and self._needs_second_person(request, row.identity)
        decision = await self._decision(row, request, rule, role, refusal)
        if second:
            decision = msgspec.structs.replace(
                decision, decision="REVISION_REQUIRED", policy_decision_id=f"second-person/{signal_type}"
            )
        return await self._record_and_apply(row.identity, request, decision, refusal)

    async def confirm(
        self, run_id: str, signal_id: str, *, agree: bool = True, reason: str | None = None
    ) -> SignalDecision:
        """Decide, as a second person, on a signal that requires confirmation."""
        row = await self._find(run_id)
        signal_id = signal_id.lower()
        waiting = await self._decided(run_id, signal_id)
        if waiting is None:
            raise RunwrightError(ErrorCode.SIGNAL_NOT_FOUND, f"Signal {signal_id[:64]!r} of run {run_id!r} not found.")
        known = msgspec.convert(waiting.payload or {}, payloads.SignalDecided)
        request = SignalRequest(
            signal_id=signal_id,
            signal_type=known.signal_type or "",
            payload=known.payload or {},
            reason=known.reason if known.code is None else None,
        )
        if waiting.event_type != "SignalRevisionRequired":
            return await self._with_result(run_id, decision_in(waiting))
        check_second_person(self.actor, known.actor_id)
        rule = check_request(request)
        role, refusal = await self._evaluate(run_id, rule, request, await self._graph_or_none(row))
        if refusal is not None and refusal.code in (ErrorCode.AUTHZ_DENIED, ErrorCode.AUTHZ_REASON_REQUIRED):
            raise RunwrightError(refusal.code, refusal.sentence)  # it still waits for a person who may confirm it
        if refusal is None and not agree:
            refusal = Refused(ErrorCode.AUTHZ_DENIED, reason or f"{self.actor.actor_id} did not confirm it.")
        decision = msgspec.structs.replace(
            await self._decision(row, request, rule, role, refusal),
            policy_decision_id=f"second-person/{request.signal_type}",
        )
        return await self._record_and_apply(row.identity, request, decision, refusal, requested_by=known.actor_id)

    async def find(self, run_id: str, signal_id: str) -> SignalDecision:
        """The record of the decision on a signal."""
        row = await self._find(run_id)
        record = await self._decided(run_id, signal_id.lower())
        if record is None:
            raise RunwrightError(ErrorCode.SIGNAL_NOT_FOUND, f"Signal {signal_id[:64]!r} of run {run_id!r} not found.")
        return await self._with_result(row.identity.run_id, decision_in(record))

    async def _find(self, run_id: str) -> RunRow:
        row = await self.log.find_run(run_id)
        if not self.actor.can_access_tenant(row.identity.tenant_id):
            raise not_found(run_id)
        return row

    def _needs_second_person(self, request: SignalRequest, run: RunIdentity) -> bool:
        return self.actor.source != ENGINE and self._policy.needs_second_person(request.signal_type, run.environment_id)

    async def _evaluate(
        self, run_id: str, rule: Rule, request: SignalRequest, graph: PlanGraph | None
    ) -> tuple[str, Refused | None]:
        """The role in which the actor may send this, and the reason for a refusal."""
        role = next(iter(self.actor.roles), "")
        try:
            asks = request.signal_type in ("APPROVE", "DENY")
            questions = await open_questions(self.log, run_id) if asks else {}
            started_by = await self._started_by(run_id) if asks and self.actor.creators else None
            role = authorize(rule, request, self.actor, question_of(request, questions), started_by)
            check_state(request, await self._load_state(run_id, questions, graph), self._inputs_of)
        except Refused as refused:
            return role, refused
        return role, None

    async def _started_by(self, run_id: str) -> str | None:
        started = await self.log.find_event(run_id, "RunStarted")
        context = None if started is None else read_payload(payloads.RunStarted, started).context
        return None if context is None else context.triggered_by

    async def _decision(
        self, row: RunRow, request: SignalRequest, rule: Rule, role: str, refusal: Refused | None
    ) -> SignalDecision:
        run = row.identity
        audit = {
            "actorId": self.actor.actor_id,
            "actorRole": role,
            "tenantId": run.tenant_id,
            "projectId": run.project_id,
            "environmentId": run.environment_id,
            "engineAttemptId": row.summary.engine_attempt_id,
            "logicalAttemptId": await self._logical_attempt(run.run_id, request),
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

    async def _logical_attempt(self, run_id: str, request: SignalRequest) -> int:
        """The attempt of the step that the signal is about; 1 if it is about the run, of which a rerun is another."""
        step_id = request.payload.get("stepId")
        steps = (await self.log.snapshot(run_id)).steps if step_id is not None else ()
        return next((step.logical_attempt_id for step in steps if step.step_id == step_id), 1)

    async def _record_and_apply(
        self,
        run: RunIdentity,
        request: SignalRequest,
        decision: SignalDecision,
        refusal: Refused | None,
        requested_by: str | None = None,
    ) -> SignalDecision:
        """Record the decision, then have the signal applied."""
        if not await self._record(run, request, decision, requested_by):
            earlier = await self._existing(run.run_id, request)  # another request with this id was faster
            assert earlier is not None, "its decision is in the log"
            return await self._resume(run, request, earlier)
        if refusal is not None or decision.decision != "ACCEPTED":
            return decision
        if request.signal_type == "RETRY_RUN":
            return await self._retry_run(run, request, decision)
        return await self._apply(run.run_id, decision)

    async def _graph(self, row: RunRow) -> PlanGraph | None:
        """The plan of a run. Raises PLAN_NOT_FOUND for a run of another engine, which takes its signals there; None if
        such a run has ended."""
        return await (self._graph_or_none(row) if row.status in ENDED else self._plans.graph_of(row.identity))

    async def _graph_or_none(self, row: RunRow) -> PlanGraph | None:
        try:
            return await self._plans.graph_of(row.identity)
        except RunwrightError:
            return None

    async def _check_rate(self, row: RunRow) -> None:
        """At most 60 signals per run and minute: counted in the log, from its end backwards.

        Rejected signals count only for their sender, so that they cannot prevent others from acting.
        """
        run_id, since = row.identity.run_id, from_micros(self.log.clock.now() - 60_000_000)
        end, count = row.last_seq, 0
        for _ in range(RATE_PAGES):
            start = max(0, end - RATE_PAGE)
            decided = await self._decided_between(run_id, start, end)
            count += sum(record.persisted_at > since and self._counts(record) for record in decided)
            if count >= SIGNALS_PER_MINUTE:
                message = f"Rate limit exceeded ({SIGNALS_PER_MINUTE} signals per run and minute). Retry later."
                raise RunwrightError(ErrorCode.SIGNAL_RATE_LIMITED, message)
            if start == 0 or (await self.log.read(run_id, start, 1))[0].persisted_at <= since:
                return
            end = start

    async def _decided_between(self, run_id: str, start: int, end: int) -> list[RunEventRecord]:
        """The decisions on signals among the events after `start` and up to `end`. Pages may end early."""
        found: list[RunEventRecord] = []
        while page := await self.log.select(run_id, EventFilter(tuple(DECIDED)), start, RATE_PAGE):
            found += [record for record in page if record.run_seq <= end]
            start = page[-1].run_seq
            if start >= end:
                break
        return found

    def _counts(self, record: RunEventRecord) -> bool:
        is_rejected = record.event_type == "SignalRejected"
        return not is_rejected or (record.payload or {}).get("actorId") == self.actor.actor_id

    async def _record(
        self, run: RunIdentity, request: SignalRequest, decision: SignalDecision, requested_by: str | None
    ) -> bool:
        """Append the decision. False if the signal was decided before, in the same way or otherwise."""
        waits = decision.decision == "REVISION_REQUIRED"
        body = event_payload(request, decision, decision.audit["actorRole"], self.actor)
        event = new_event(
            EVENT_OF[decision.decision],
            run,
            step_id=signal_path(request.signal_id),
            payload=msgspec.to_builtins(msgspec.structs.replace(body, requested_by=requested_by)),
            emitted_at=decision.audit["timestamp"],
            engine_attempt=decision.audit["engineAttemptId"],
            event_id=(revision_event_id if waits else decision_event_id)(run.run_id, request.signal_id),
            emitted_by="control/server",
        )
        try:
            (receipt,) = await self.log.append([event])
        except RunwrightError as error:
            if error.code != ErrorCode.EVENT_ID_REUSED:
                raise
            return False
        return not receipt.idempotent

    async def _decided(self, run_id: str, signal_id: str) -> RunEventRecord | None:
        for event_type in DECIDED:
            record = await self.log.find_event(run_id, event_type, signal_path(signal_id))
            if record is not None:
                return record
        return None

    async def _existing(self, run_id: str, request: SignalRequest) -> SignalDecision | None:
        """The decision on an earlier request with the same content. SIGNAL_DUPLICATE if only the id is the same."""
        record = await self._decided(run_id, request.signal_id)
        if record is None:
            return None
        known = msgspec.convert(record.payload or {}, payloads.SignalDecided)
        same_reason = known.code is not None or known.reason == request.reason
        if (known.signal_type, known.payload or {}) != (
            request.signal_type,
            request.payload,
        ) or not same_reason:
            message = "A signal with this id and other content was decided before. Use a new id."
            raise RunwrightError(ErrorCode.SIGNAL_DUPLICATE, message)
        return await self._with_result(run_id, decision_in(record))

    async def _load_state(
        self, run_id: str, questions: dict[str, payloads.Approval], graph: PlanGraph | None
    ) -> SignalState:
        snapshot = await self.log.snapshot(run_id)
        steps = {step.step_id: step.status for step in snapshot.steps}
        if graph is None:
            return SignalState(snapshot.status, steps, dict.fromkeys(steps, PlanStep()), {}, questions)
        known = {node.step.step_id: PlanStep(node.step.kind, node.mentions) for node in graph.nodes}
        types = {name: graph.plan.param_types.get(name, ParamType.ANY) for name in graph.plan.param_names}
        events = await self._event_names(run_id, graph)
        return SignalState(snapshot.status, steps, known, types, questions, not graph.runs_steps_once, events)

    async def _event_names(self, run_id: str, graph: PlanGraph) -> frozenset[str] | None:
        """The events that steps of a run can wait for; None if that is known only when they run."""
        names = [call.inputs.get("event") for call in graph.plan.tool_calls() if call.kind == WaitTool.kind]
        is_overridden = await self.log.select(run_id, EventFilter(("StepOverridden",), None), limit=1) if names else []
        if is_overridden or any(has_expression(name) for name in names):
            return None
        return frozenset(str(name) for name in names if name is not None)

    def _inputs_of(self, kind: str) -> frozenset[str]:
        tool = self._find_tool(kind)
        return frozenset() if tool is None else frozenset(tool.inputs.__struct_encode_fields__)

    async def _apply(self, run_id: str, decision: SignalDecision) -> SignalDecision:
        """Have the signal applied, and wait a while for the result."""
        await self._applier.apply(run_id)
        timeout = EVENT_TIMEOUT if decision.signal_type == "EVENT" else SIGNAL_TIMEOUT
        deadline = self.log.clock.monotonic() + timeout
        while True:
            current = await self._with_result(run_id, decision)
            rest = deadline - self.log.clock.monotonic()
            if current.engine_result is not None or rest <= 0:
                return current
            await self.log.wait_for_events(min(rest, 0.5))

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

    async def _resume(self, run: RunIdentity, request: SignalRequest, decision: SignalDecision) -> SignalDecision:
        """Continue with a signal that was decided before. The sender creates a missing run of RETRY_RUN."""
        is_open = decision.decision == "ACCEPTED" and decision.engine_result is None
        if is_open and request.signal_type == "RETRY_RUN":
            return await self._retry_run(run, request, decision)
        return decision

    async def _retry_run(self, run: RunIdentity, request: SignalRequest, decision: SignalDecision) -> SignalDecision:
        wanted = retried_run_id(run.run_id, decision)  # the same when the signal is sent again, after a crash
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
    """The decision that an event records."""
    known = msgspec.convert(record.payload or {}, payloads.SignalDecided)
    audit = {
        "actorId": known.actor_id,
        "actorRole": known.actor_role,
        "tenantId": record.tenant_id,
        "projectId": record.project_id,
        "environmentId": record.environment_id,
        "engineAttemptId": record.engine_attempt_id,
        "logicalAttemptId": known.logical_attempt_id or record.logical_attempt_id,
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
