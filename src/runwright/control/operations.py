"""Everything an operator can do, as coroutines on the engine's loop. The app and the command line are thin over it."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from runwright.contract import payloads
from runwright.contract.capabilities import EMBEDDED, validation_report
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord, RunIdentity
from runwright.contract.paths import signal_path
from runwright.contract.plan import SCHEMA_VERSION, ExecutionPlan, ParamType
from runwright.contract.refs import EngineRun, PlanRef
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.expressions import mentioned_steps
from runwright.core.refer import gathered_ref
from runwright.core.values import Missing, Values
from runwright.flows.plans import PlanFunction
from runwright.log.base import RunLog
from runwright.log.model import RunRow
from runwright.log.open import new_event
from runwright.plans.load import plan_from_dict
from runwright.plans.secrets import secret_refs
from runwright.runtimes.engine import Engine
from runwright.runtimes.restore import fold_run
from runwright.tools.secrets import SecretContext

from .params import merge_params
from .planfile import code_of, read_function, read_plan_file, source_of
from .rerun import Fork, carried_steps
from .signals import (
    Actor,
    Refused,
    RunView,
    SignalDecision,
    SignalRequest,
    authorize,
    check_request,
    check_state,
    decision_event_id,
    event_payload,
    question_of,
    run_made_by,
)

SIGNALS_A_MINUTE = 60
RATE_PAGE, RATE_PAGES = 1000, 50
"""How many of a run's last events are looked at for signals of the last minute, at a time and how often."""
SIGNAL_PATIENCE, EVENT_PATIENCE = 3.0, 0.5
"""Seconds to wait for the engine that drives a run to act on a signal, before only the decision is reported. An event
may well be early."""


AnyPlan = ExecutionPlan | PlanFunction[..., Any] | dict[str, Any] | str | Path


def local_actor() -> Actor:
    """Whoever is at this machine; logins come with a server."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "local"
    return Actor(name, "Admin")


class Operations:
    def __init__(self, log: RunLog, engine: Engine, actor: Actor | None = None) -> None:
        self.log = log
        self.engine = engine
        self.actor = actor or local_actor()

    # Starting

    def load(self, plan: AnyPlan) -> ExecutionPlan:
        """A plan from whatever form it comes in."""
        if isinstance(plan, ExecutionPlan):
            return plan
        if isinstance(plan, PlanFunction):
            return read_function(plan, self.engine.tools).plan
        if isinstance(plan, dict):
            return plan_from_dict(plan, self.engine.tools).plan
        return read_plan_file(Path(plan), self.engine.tools).plan

    async def start(
        self,
        plan: ExecutionPlan,
        *,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        tenant_id: str = "default",
        trigger: str = "manual",
        fork: Fork | None = None,
    ) -> str:
        """Start a run, or take up the one that has this id. Returns once the start is durable."""
        merged = merge_params(plan, params or {})
        await self._check_secrets(plan, SecretContext(tenant_id))
        sha256, net = await self.engine.plans.keep(plan)
        report = validation_report(plan, self.engine.provider, EMBEDDED)
        version = plan.metadata.plan_version or sha256
        run = RunIdentity(
            run_id=run_id or self.log.ids.run_id(),
            tenant_id=tenant_id,
            project_id="default",
            environment_id="default",
            plan_id=plan.plan_id,
            plan_version=version,
        )
        queued = payloads.RunQueued(
            queue_position=0,
            estimated_wait_ms=0,
            approval_required=False,
            run_request_id=run.run_id,
            params=merged,
            trigger=trigger,
            origin_run_id=None if fork is None else fork.origin_run_id,
            forked_from_seq=None if fork is None else fork.seq,
        )
        name = quote(run.run_id, safe="")
        started = payloads.RunStarted(
            status="RUNNING",
            engine_run_ref=f"{self.engine.provider}://{name}/{name}"[:1024],
            engine_run=EngineRun(self.engine.provider, run.run_id, run.run_id),
            engine_type=self.engine.provider,
            plan_ref=PlanRef(f"plan:sha256:{sha256}", sha256, SCHEMA_VERSION, plan.plan_id, version),
            context=payloads.RunContext(tenant_id, "default", "default", self.actor.actor_id, trigger),
            started_at=from_micros(self.log.clock.now()),
            validation_report=report,
            degraded=bool(report and report["warnings"]) or None,
            on_failure=str(plan.on_failure),
            source=source_of(sha256) if fork is None else fork.source,
            code=code_of(sha256),
        )
        try:
            await self.engine.start(run, net, queued, started, None if fork is None else fork.carry)
        except RunwrightError as error:
            if error.code != ErrorCode.RUN_ALREADY_EXISTS or run_id is None:
                raise
            await self._check_same(run, sha256, merged)
            await self.take_up(run_id)
        return run.run_id

    async def _check_secrets(self, plan: ExecutionPlan, context: SecretContext) -> None:
        """Refuse a plan that names a secret which cannot be had, as far as that is known before the step runs."""
        wanted: dict[str, str] = {}
        for step in plan.steps:
            for name in (*step.secret_refs, *secret_refs(step.inputs)):
                wanted.setdefault(name, step.step_id)
        if not wanted:
            return
        for name in await asyncio.to_thread(self.engine.secrets.missing, list(wanted), context):
            raise RunwrightError(
                ErrorCode.SECRET_NOT_AVAILABLE,
                f"Step {wanted[name]!r} needs the secret {name!r}, which is not there. "
                "By default it is the environment variable of that name.",
            )

    async def _check_same(self, run: RunIdentity, sha256: str, params: dict[str, Any]) -> None:
        run_id = run.run_id
        if (await self.log.find_run(run_id)).identity.tenant_id != run.tenant_id:
            raise RunwrightError(
                ErrorCode.AUTHZ_TENANT_FORBIDDEN, f"Run {run_id!r} belongs to another tenant. Pick another run id."
            )
        queued = await self.log.find_event(run_id, "RunQueued")
        started = await self.log.find_event(run_id, "RunStarted")
        reference: dict[str, Any] = {} if started is None else (started.payload or {}).get("planRef") or {}
        if reference.get("sha256") != sha256:
            raise RunwrightError(
                ErrorCode.PLAN_MISMATCH,
                f"Run {run_id!r} follows another plan, or another version of it. Pick another run id.",
            )
        before = None if queued is None else (queued.payload or {}).get("params")
        if (before or {}) != params:
            raise RunwrightError(
                ErrorCode.PLAN_MISMATCH, f"Run {run_id!r} was started with other parameters. Pick another run id."
            )

    async def take_up(self, run_id: str) -> None:
        """Go on with a run. If a live process drives it, leave it there; when that one is gone, take it over."""
        try:
            await self.engine.resume(run_id)
        except RunwrightError as error:
            if error.code != ErrorCode.RUN_OWNED:
                raise
            self.engine.want(run_id)

    async def wait(self, run_id: str, timeout: float | None = None) -> RunSnapshot:
        """Wait until the run has ended; the run as it then is, or as it is when the time is up."""
        return await self.engine.ended(run_id, timeout)

    async def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> AsyncIterator[RunEventRecord]:
        """The run's events; with `follow`, those to come until it has ended."""
        if not follow:
            async for record in self.log.events(run_id, after):
                yield record
            return
        async for record in self.log.follow(run_id, after):
            yield record
            if record.event_type in ("RunCompleted", "RunFailed", "RunCancelled"):
                if (await self.log.find_run(run_id)).status not in ENDED:
                    continue  # a foreign log may hold an end that was none
                async for last in self.log.events(run_id, record.run_seq):
                    yield last
                return

    async def result(self, run_id: str, step_id: str) -> Any:
        """What a step gave back."""
        snapshot = await self.log.snapshot(run_id)
        step = next((step for step in snapshot.steps if step.step_id == step_id), None)
        if step is None:
            raise RunwrightError(ErrorCode.STEP_NOT_FOUND, f"Run {run_id!r} has no step {step_id!r} that ran.")
        for event_type in ("StepCompleted", "StepSkipped"):
            record = await self.log.find_event(run_id, event_type, step_id, step.logical_attempt_id)
            if record is not None and record.payload is not None:
                reference = record.payload.get("resultRef")
                value = record.payload.get("result") if reference is None else await self._fetch(reference)
                return [await self._gathered(part) for part in value] if step.iterations and value else value
        raise RunwrightError(
            ErrorCode.STEP_NOT_TERMINAL,
            f"Step {step_id!r} has no result: it is {step.status}. Wait for it, or retry it.",
        )

    async def run_result(self, run_id: str) -> Any:
        """What the run as a whole gave back: the plan says what that is."""
        row = await self.log.find_run(run_id)
        net = await self.engine.net_of(row.identity)
        if row.status is not RunStatus.COMPLETED:
            raise RunwrightError(
                ErrorCode.RUN_NOT_TERMINAL, f"Run {run_id!r} has no result: it is {row.status}. Wait for it."
            )
        state = await fold_run(self.log, run_id, mentioned_steps([net.plan.result]))
        assert state.workings is not None
        values = Values(net, state, state.workings, row.identity)
        while True:
            try:
                return values.result()
            except Missing as missing:
                values.fetched[missing.ref["sha256"]] = await self._fetch(missing.ref)

    async def _fetch(self, reference: dict[str, Any]) -> Any:
        return msgspec.json.decode(await self.engine.results.get(reference))

    async def _gathered(self, part: Any) -> Any:
        reference = gathered_ref(part)
        return part if reference is None else await self._fetch(reference)

    # Signals

    async def signal(
        self,
        run_id: str,
        signal_type: str,
        payload: dict[str, Any] | None = None,
        *,
        reason: str | None = None,
        signal_id: str | None = None,
    ) -> SignalDecision:
        """Decide on a signal and see it acted on. A refusal is a decision too; it comes back, and is in the log."""
        row = await self.log.find_run(run_id)
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
        if signal_type != "EMERGENCY_STOP":  # that is never one too many
            await self._check_rate(row)
        await self._check_engine(row)
        role, refusal = rule.role, None
        try:
            questions = await self.questions(run_id) if signal_type in ("APPROVE", "DENY") else {}
            role = authorize(rule, request, self.actor, question_of(request, questions))
            check_state(request, await self._view(run_id, questions))
        except Refused as refused:
            refusal = refused
        decision = SignalDecision(
            signal_decision_id=self.log.ids.event_id(),
            signal_id=request.signal_id,
            signal_type=request.signal_type,
            decision="ACCEPTED" if refusal is None else "REJECTED",
            payload=request.payload,
            reason=request.reason if refusal is None else refusal.sentence,
            code=None if refusal is None else refusal.code,
            audit={
                "actorId": self.actor.actor_id,
                "actorRole": role,
                "tenantId": row.identity.tenant_id,
                "timestamp": from_micros(self.log.clock.now()),
                "source": self.actor.source,
            },
        )
        if not await self._record(row.identity, request, decision, role):
            earlier = await self._earlier(run_id, request)  # another call with this id was faster
            assert earlier is not None, "its decision is in the log"
            return await self._carry_on(row.identity, request, earlier)
        if refusal is not None:
            return decision
        if signal_type == "RETRY_RUN":
            return await self._retry_run(row.identity, request, decision)
        return await self._apply(run_id, decision)

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
            decided += sum(record.event_type in ("SignalAccepted", "SignalRejected") for record in recent)
            if decided >= SIGNALS_A_MINUTE:
                raise RunwrightError(
                    ErrorCode.SIGNAL_RATE_LIMITED, f"A run takes {SIGNALS_A_MINUTE} signals a minute. Wait a little."
                )
            end -= RATE_PAGE
            if end <= 0 or len(recent) < len(page):
                return

    async def _record(self, run: RunIdentity, request: SignalRequest, decision: SignalDecision, role: str) -> bool:
        """Write the decision. False if there was one already, or another than this: a signal has one decision."""
        event_type = "SignalAccepted" if decision.decision == "ACCEPTED" else "SignalRejected"
        body = msgspec.to_builtins(event_payload(request, decision, role, self.actor))
        event = new_event(
            event_type,
            run,
            step_id=signal_path(request.signal_id),
            payload=body,
            emitted_at=decision.audit["timestamp"],
            event_id=decision_event_id(run.run_id, request.signal_id),
            emitted_by="control/server",
        )
        try:
            (receipt,) = await self.log.append([event])
        except RunwrightError as error:
            if error.code != ErrorCode.EVENT_ID_REUSED:
                raise
            return False  # it was decided otherwise
        return not receipt.idempotent

    async def _decided(self, run_id: str, request: SignalRequest) -> RunEventRecord | None:
        for event_type in ("SignalAccepted", "SignalRejected"):
            record = await self.log.find_event(run_id, event_type, signal_path(request.signal_id))
            if record is not None:
                return record
        return None

    async def _earlier(self, run_id: str, request: SignalRequest) -> SignalDecision | None:
        """The decision on a signal that came before, if this is the same; SIGNAL_DUPLICATE if only its id is."""
        record = await self._decided(run_id, request)
        if record is None:
            return None
        known = msgspec.convert(record.payload or {}, payloads.SignalDecided)
        same_reason = known.code is not None or known.reason == request.reason
        if (known.signal_type, known.payload or {}) != (request.signal_type, request.payload) or not same_reason:
            raise RunwrightError(
                ErrorCode.SIGNAL_DUPLICATE, "A signal with this id and other content was decided before. Draw a new id."
            )
        decision = SignalDecision(
            signal_decision_id=known.signal_decision_id or "",
            signal_id=request.signal_id,
            signal_type=request.signal_type,
            decision="ACCEPTED" if record.event_type == "SignalAccepted" else "REJECTED",
            payload=request.payload,
            reason=known.reason,
            code=known.code,
            audit={
                "actorId": known.actor_id,
                "actorRole": known.actor_role,
                "tenantId": record.tenant_id,
                "timestamp": record.emitted_at,
                "source": known.source,
            },
        )
        return await self._with_result(run_id, decision)

    async def questions(self, run_id: str) -> dict[str, payloads.Approval]:
        """What people are asked now, by step."""
        state = await fold_run(self.log, run_id, frozenset())
        assert state.workings is not None
        awaits = state.workings.awaits.items()
        return {path: awaited.approval for path, awaited in awaits if awaited.approval is not None}

    async def _view(self, run_id: str, questions: dict[str, payloads.Approval]) -> RunView:
        snapshot = await self.log.snapshot(run_id)
        steps = {step.step_id: step.status for step in snapshot.steps}
        try:
            net = await self.engine.net_of((await self.log.find_run(run_id)).identity)
        except RunwrightError:
            return RunView(snapshot.status, steps, dict.fromkeys(steps, (frozenset(), None)), {}, questions)
        known = {node.step.step_id: (self._inputs_of(node.step.kind), node.mentions) for node in net.nodes}
        types = {name: net.plan.param_types.get(name, ParamType.ANY) for name in net.plan.param_names}
        return RunView(snapshot.status, steps, known, types, questions)

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

    # New runs from old ones

    async def rerun(
        self, run_id: str, *, from_step: str | None = None, force: bool = False, new_id: str | None = None
    ) -> str:
        """A new run that names this one; what succeeded before the fork is carried over, unless forced."""
        row = await self.log.find_run(run_id)
        net = await self.engine.net_of(row.identity)
        if from_step is not None and from_step not in net.index:
            raise RunwrightError(ErrorCode.STEP_NOT_FOUND, f"The plan has no step {from_step!r}.")
        if row.status not in ENDED:
            raise RunwrightError(
                ErrorCode.RUN_NOT_TERMINAL, "The run has not ended. Cancel it first, or wait for its end."
            )
        state = await fold_run(self.log, run_id, None)
        assert state.workings is not None
        carried = {} if force else carried_steps(net, state, from_step)
        started = await self.log.find_event(run_id, "RunStarted")
        source = None if started is None or started.payload is None else started.payload.get("source")
        fork = Fork(run_id, row.last_seq, carried, source)
        params = state.workings.params
        return await self.start(
            net.plan, params=params, run_id=new_id, tenant_id=row.identity.tenant_id, trigger="manual", fork=fork
        )

    async def _carry_on(self, run: RunIdentity, request: SignalRequest, decision: SignalDecision) -> SignalDecision:
        """A signal that was decided before. Making a new run is up to whoever sends the signal, so it is made good."""
        is_open = decision.decision == "ACCEPTED" and decision.engine_result is None
        if is_open and request.signal_type == "RETRY_RUN":
            return await self._retry_run(run, request, decision)
        return decision

    async def _retry_run(self, run: RunIdentity, request: SignalRequest, decision: SignalDecision) -> SignalDecision:
        wanted = run_made_by(request.signal_id)  # the same again, should we be cut short and the signal be sent anew
        new_id = await self.rerun(run.run_id, force=bool(request.payload.get("force")), new_id=wanted)
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

    async def status(self, run_id: str) -> RunStatus:
        return (await self.log.find_run(run_id)).status
