"""Operations: everything an operator can do, as coroutines on the event loop of the engine. `rw.open` and the command
line are thin layers over it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from runwright.auth.roles import Actor
from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord, RunIdentity
from runwright.contract.plan import ExecutionPlan, content_hash, plan_body
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.fold.execution_state import ChildRun
from runwright.core.fold.payload_reader import read_payload
from runwright.core.fold.run_state import RunState
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.model import RunRow
from runwright.log.run_log import RunLog
from runwright.log.validation import not_found
from runwright.plans.registry import find_registered
from runwright.runtimes.embedded.engine import Engine
from runwright.runtimes.executor.executor import Work
from runwright.runtimes.recovery import fold_run
from runwright.runtimes.services import RunServices

from .confirmation_policy import SignalPolicy
from .plan_loader import AnyPlan, read_any
from .rerun import (
    Fork,
    PlanChange,
    carried_steps,
    changed_calls,
    changed_params,
    reasons_to_run,
    succeeded_steps,
)
from .result_reader import ResultReader
from .run_params import fill_workload, merge_params, rerun_params
from .run_scope import RunScope, local_actor, scope_of
from .run_starter import ParentStep, RunStarter, StartRequest
from .run_views import follow_to_end
from .signal_rules import SignalDecision
from .signal_service import SignalService, open_questions
from .subruns import SubRuns, is_child_run


class Operations:
    def __init__(
        self, log: RunLog, engine: Engine, actor: Actor | None = None, policy: SignalPolicy | None = None
    ) -> None:
        self.log = log
        self.engine = engine
        self.services: RunServices = engine.services
        self.actor = actor or local_actor()
        self.policy = policy or SignalPolicy()
        self._starter = RunStarter(engine, self.actor)
        self._results = ResultReader(engine.services)
        if engine.services.sub_runs is None:
            engine.services.sub_runs = SubRuns(self)

    def as_actor(self, actor: Actor) -> Operations:
        """The same operations, for another actor."""
        return Operations(self.log, self.engine, actor, self.policy)

    async def find(self, run_id: str) -> RunRow:
        """A run that the actor may see; RUN_NOT_FOUND for any other."""
        row = await self.log.find_run(run_id)
        if not self.actor.can_access_tenant(row.identity.tenant_id):
            raise not_found(run_id)
        return row

    async def status(self, run_id: str) -> RunStatus:
        return (await self.log.find_run(run_id)).status

    # Starting

    def load(self, plan: AnyPlan) -> ExecutionPlan:
        """Load a plan from a file, a mapping or a function."""
        return read_any(plan, self.services.tools)

    async def start(
        self,
        plan: ExecutionPlan,
        *,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        place: RunScope | None = None,
    ) -> str:
        """Start a run, or resume the one that has this id. Returns once the start is durable."""
        request = StartRequest(
            plan=plan,
            params=params or {},
            run_id=run_id,
            scope=place or RunScope(),
            working_directory=_current_directory(),
        )
        return await self._start_or_resume(request)

    async def start_or_get(
        self,
        plan: ExecutionPlan,
        *,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        request_id: str | None = None,
        place: RunScope | None = None,
        trigger: str = "manual",
        source: str | None = None,
    ) -> tuple[str, bool]:
        """Start a run, unless it exists: its id, and whether it is new. An existing run is not changed."""
        request = StartRequest(
            plan=plan,
            params=params or {},
            run_id=run_id,
            request_id=request_id,
            scope=place or RunScope(),
            trigger=trigger,
            source=source,
        )
        return await self._starter.start_or_get(request)

    async def _start_or_resume(self, request: StartRequest) -> str:
        started = await self._starter.start_or_get(request)
        if not started.is_new:
            await self.resume(started.run_id)
        return started.run_id

    async def start_child(self, child: ChildRun, work: Work, parent: RunIdentity, before: ChildRun | None) -> None:
        """Start the sub-run of a step, or resume it. A second attempt carries over what succeeded in the first.

        Raises RUN_ALREADY_EXISTS if the id belongs to a run that is not this sub-run.
        """
        context = work.context
        graph = await self.services.plans.graph(child.plan_sha256, parent.tenant_id)
        started = await self._started(parent.run_id)
        inherited = context.workload if work.inputs.inherit else None
        fork = None
        is_same_plan = before is not None and before.plan_sha256 == child.plan_sha256
        if before is not None and is_same_plan and await is_child_run(self.log, before, parent):
            params = fill_workload(graph.plan, merge_params(graph.plan, work.inputs.params, inherited), before.run_id)
            fork = await self._fork_of_child(before, graph, params)
        parent_step = ParentStep(
            parent,
            context.step_id,
            started.sub_plans or {},
            context.iteration,
            inherited,
            started.working_directory,
            None if started.context is None else started.context.triggered_by,
        )
        request = StartRequest(
            plan=graph.plan,
            params=work.inputs.params or {},
            run_id=child.run_id,
            trigger="api",
            fork=fork,
            parent=parent_step,
        )
        await self._start_or_resume(request)

    async def _started(self, run_id: str) -> payloads.RunStarted:
        """The payload of the run's RunStarted, empty if there is none."""
        record = await self.log.find_event(run_id, "RunStarted")
        return payloads.RunStarted() if record is None else read_payload(payloads.RunStarted, record)

    async def _fork_of_child(self, child: ChildRun, graph: PlanGraph, params: dict[str, Any]) -> Fork | None:
        row = await self.log.find_run(child.run_id)
        if row.status is not RunStatus.FAILED:
            return None
        state = await fold_run(self.log, child.run_id, None)
        if state.execution is None or state.execution.params != params:
            return None
        return await self._fork(row, graph, graph, state, frozenset(), from_step=None, force=False)

    async def resume(self, run_id: str) -> None:
        """Drive a run. While a live process drives it, only watch it; resume it once that process is gone."""
        try:
            await self.engine.resume(run_id)
        except RunwrightError as error:
            if error.code != ErrorCode.RUN_OWNED:
                raise
            self.engine.supervisor.watch_run(run_id)

    # Looking

    async def wait(self, run_id: str, timeout: float | None = None) -> RunSnapshot:
        """Wait until the run has ended, or the timeout has passed; return its snapshot."""
        return await self.engine.wait_until_ended(run_id, timeout)

    async def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> AsyncIterator[RunEventRecord]:
        """The events of the run; with `follow`, also later ones until it has ended."""
        async for record in follow_to_end(self.log, run_id, after) if follow else self.log.events(run_id, after):
            yield record

    async def result(self, run_id: str, step_id: str) -> Any:
        """The result of a step, or of the task of a playbook that a result address names."""
        return msgspec.json.decode(await self.result_body(run_id, step_id))

    async def result_body(self, run_id: str, step_id: str) -> bytes:
        """The result of a step or task as JSON, as it is stored."""
        return await self._results.step_result(run_id, step_id)

    async def run_result(self, run_id: str) -> Any:
        """The result of a completed run, as its plan defines it."""
        return await self._results.run_result(run_id)

    async def run_result_body(self, run_id: str) -> bytes:
        """The result of a completed run, as JSON."""
        return await self._results.run_result_body(run_id)

    # Signals

    @property
    def signals(self) -> SignalService:
        plans, find_tool = self.services.run_plans, self.services.tools.get
        return SignalService(self.log, plans, find_tool, self.actor, self, self.rerun, self.policy)

    async def apply(self, run_id: str) -> None:
        """Have the accepted signals of a run applied: by its driver, or by this engine if no process drives it."""
        if self.engine.is_driven(run_id):
            self.engine.on_signal(run_id)
            return
        try:
            await self.engine.apply_signals(run_id)
        except RunwrightError as error:
            if error.code not in (ErrorCode.RUN_OWNED, ErrorCode.STALE_FENCE):
                raise  # otherwise another process has claimed the run, and applies them

    async def signal(
        self,
        run_id: str,
        signal_type: str,
        payload: dict[str, Any] | None = None,
        *,
        reason: str | None = None,
        signal_id: str | None = None,
    ) -> SignalDecision:
        """Decide on a signal, and have it applied. A refusal is a decision too: it is returned, and is in the log."""
        return await self.signals.send(run_id, signal_type, payload, reason=reason, signal_id=signal_id)

    async def signal_as(
        self, actor: Actor, run_id: str, signal_type: str, payload: dict[str, Any], reason: str
    ) -> SignalDecision:
        return await self.as_actor(actor).signal(run_id, signal_type, payload, reason=reason)

    async def confirm(
        self, run_id: str, signal_id: str, *, agree: bool = True, reason: str | None = None
    ) -> SignalDecision:
        """Decide, as a second person, on a signal that requires confirmation."""
        return await self.signals.confirm(run_id, signal_id, agree=agree, reason=reason)

    async def questions(self, run_id: str) -> dict[str, payloads.Approval]:
        """The pending approvals of a run, by step."""
        return await open_questions(self.log, run_id)

    # Reruns

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
        """Start a new run from an ended one, with its plan or a corrected one.

        Successful steps whose definition and inputs are unchanged are carried over, unless they come after `from_step`
        or `force` is set. `params` override those of the ended run.
        """
        row = await self.find(run_id)
        old = await self.services.run_plans.graph_of(row.identity)
        graph = old if plan is None else (await self.services.plans.store(plan, row.identity.tenant_id))[1]
        if from_step is not None and from_step not in graph.index:
            raise RunwrightError(ErrorCode.STEP_NOT_FOUND, f"The plan has no step {from_step!r}.")
        if row.status not in ENDED:
            message = "The run has not ended. Cancel it first, or wait for its end."
            raise RunwrightError(ErrorCode.RUN_NOT_TERMINAL, message)
        if from_step is not None and not graph.runs_steps_once:
            message = "A playbook cannot be rerun from one of its steps; rerun it from the start."
            raise RunwrightError(ErrorCode.CAPABILITY_NOT_SUPPORTED, message)
        state = await fold_run(self.log, run_id, None)
        assert state.execution is not None
        given = rerun_params(old.plan, graph.plan, run_id, state.execution.params, params or {})
        changed = changed_params(state.execution.params, merge_params(graph.plan, given))
        fork = await self._fork(
            row,
            old,
            graph,
            state,
            changed,
            from_step=from_step,
            force=force,
            compares_code=plan is not None,
        )
        request = StartRequest(plan=graph.plan, params=given, run_id=new_id, scope=scope_of(row.identity), fork=fork)
        return await self._start_or_resume(request)

    async def _fork(
        self,
        row: RunRow,
        old: PlanGraph,
        new: PlanGraph,
        state: RunState,
        params: frozenset[str],
        *,
        from_step: str | None,
        force: bool,
        compares_code: bool = False,
    ) -> Fork:
        """The steps that a new run carries over from an ended one. `params`: those whose values differ;
        `compares_code`: functions whose code differs run again."""
        run_id = row.identity.run_id
        started = await self._started(run_id)
        registered = find_registered(content_hash(plan_body(new.plan)))
        calls = frozenset[str]()
        if registered is not None and compares_code:
            calls = changed_calls(started.code, registered.code)
        reasons = reasons_to_run(old, new, succeeded_steps(state), PlanChange(params, calls), from_step)
        carried = {} if force else carried_steps(new, state, reasons)
        source = registered.file if registered is not None and compares_code else None
        return Fork(
            run_id,
            row.last_seq,
            carried,
            source or started.source,
            started.sub_plans or {},
            row.identity.plan_version,
            started.working_directory,
        )


def _current_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None
