"""RunStarter: validate a plan and its parameters, store the plan, and start a run of it."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from runwright.auth.roles import Actor
from runwright.contract import payloads
from runwright.contract.capabilities import EMBEDDED_CAPABILITIES, validation_report
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.plan import SCHEMA_VERSION, ExecutionPlan, Step
from runwright.contract.refs import EngineRun, PlanRef
from runwright.contract.timestamps import from_micros
from runwright.core.expressions.template import has_expression
from runwright.core.fold.execution_state import ChildRun
from runwright.plans.registry import SUB_PLAN, find_registered, hash_from_ref
from runwright.plans.secret_refs import secret_names
from runwright.runtimes.embedded.engine import Engine
from runwright.tools.python import make_file_importable
from runwright.tools.secrets import SecretContext

from .idempotency import run_of_request
from .rerun import Fork
from .run_params import check_sub_plan_params, fill_workload, merge_params
from .run_scope import RunScope, scope_of
from .subruns import is_child_run


class ParentStep(msgspec.Struct, frozen=True):
    """The step whose sub-run is started."""

    run: RunIdentity
    step_id: str
    files: dict[str, str]
    """The files of the plans of its steps, by hash: their modules are next to them."""
    iteration: dict[str, Any] | None = None
    """The iteration of a playbook loop that it belongs to."""
    workload: dict[str, Any] | None = None
    """The workload that the sub-run inherits."""
    working_directory: str | None = None
    started_by: str | None = None
    """Who started the run of the step: the sub-run counts as started by the same person."""


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    plan: ExecutionPlan
    params: dict[str, Any] = {}
    run_id: str | None = None
    request_id: str | None = None
    """The same request id for the same plan in the same scope is the same run."""
    scope: RunScope = RunScope()
    trigger: str = "manual"
    source: str | None = None
    working_directory: str | None = None
    """Where relative paths of steps begin. None: in the folder of the process that executes them."""
    fork: Fork | None = None
    parent: ParentStep | None = None


class StartResult(NamedTuple):
    run_id: str
    is_new: bool


class SubPlan(msgspec.Struct, frozen=True):
    """A plan that a step of another plan runs."""

    step_id: str
    sha256: str
    plan: ExecutionPlan


class RunStarter:
    def __init__(self, engine: Engine, actor: Actor) -> None:
        self._engine = engine
        self._services = engine.services
        self._log = engine.log
        self._actor = actor

    async def start_or_get(self, request: StartRequest) -> StartResult:
        """Start a run, unless it exists. An existing run is not changed; PLAN_MISMATCH if it has another plan."""
        plan, parent = request.plan, request.parent
        params = merge_params(plan, request.params, None if parent is None else parent.workload)
        scope = request.scope if parent is None else scope_of(parent.run)
        sub_plans = await self._sub_plans(plan, scope.tenant_id)
        context = SecretContext(scope.tenant_id, scope.environment_id)
        await self._check_secrets([SubPlan("", "", plan), *sub_plans], context)
        sha256, graph = await self._services.plans.store(plan, scope.tenant_id)
        report = validation_report(plan, self._services.provider, EMBEDDED_CAPABILITIES)
        self._services.check_stores(graph)
        run = await self._identity(request, scope, sha256)
        queued = _queued(request, run, fill_workload(plan, params, run.run_id))
        started = self._started(request, run, sha256, report, _files(request, sha256, sub_plans))
        if started.source is not None:
            make_file_importable(Path(started.source))
        carry_over = None if request.fork is None else request.fork.emit_carried_over
        try:
            await self._engine.start(run, graph, queued, started, carry_over)
        except RunwrightError as error:
            has_id = request.run_id is not None or request.request_id is not None
            if error.code != ErrorCode.RUN_ALREADY_EXISTS or not has_id:
                raise
            if parent is None:
                await self._check_same(run, sha256, queued)
            elif not await is_child_run(self._log, ChildRun(1, run.run_id, sha256), parent.run):
                raise _id_taken(run.run_id) from None
            return StartResult(run.run_id, is_new=False)
        return StartResult(run.run_id, is_new=True)

    async def _identity(self, request: StartRequest, scope: RunScope, sha256: str) -> RunIdentity:
        plan, run_id = request.plan, request.run_id or self._log.ids.run_id()
        version = plan.metadata.plan_version or sha256
        if request.request_id is not None:
            key = (*msgspec.structs.astuple(scope), plan.plan_id, version, request.request_id)
            run_id = await run_of_request(self._log.store.side_tables, key, run_id)
        return RunIdentity(
            run_id=run_id,
            tenant_id=scope.tenant_id,
            project_id=scope.project_id,
            environment_id=scope.environment_id,
            plan_id=plan.plan_id,
            plan_version=version,
        )

    def _started(
        self,
        request: StartRequest,
        run: RunIdentity,
        sha256: str,
        report: dict[str, Any] | None,
        files: dict[str, str],
    ) -> payloads.RunStarted:
        plan, provider, fork = request.plan, self._services.provider, request.fork
        name, read = quote(run.run_id, safe=""), find_registered(sha256)
        scope = (run.tenant_id, run.project_id, run.environment_id)
        parent_starter = None if request.parent is None else request.parent.started_by
        return payloads.RunStarted(
            status="RUNNING",
            engine_run_ref=f"{provider}://{name}/{name}"[:1024],
            engine_run=EngineRun(provider, run.run_id, run.run_id),
            engine_type=provider,
            plan_ref=PlanRef(f"plan:sha256:{sha256}", sha256, SCHEMA_VERSION, plan.plan_id, run.plan_version),
            context=payloads.RunStartedContext(
                *scope, triggered_by=parent_starter or self._actor.actor_id, trigger_source=request.trigger
            ),
            started_at=from_micros(self._log.clock.now()),
            validation_report=report,
            degraded=bool(report and report["warnings"]) or None,
            on_failure=str(plan.on_failure),
            source=(request.source or files.get(sha256)) if fork is None else fork.source,
            working_directory=_working_directory(request),
            code=None if read is None else read.code,
            sub_plans={sha: file for sha, file in files.items() if sha != sha256} or None,
        )

    # Sub-plans and secrets

    async def _sub_plans(
        self, plan: ExecutionPlan, tenant_id: str, step_id: str = "", seen: set[str] | None = None
    ) -> list[SubPlan]:
        """All plans that steps of this plan run, directly or not, each once. They are in the plan store afterwards."""
        found: list[SubPlan] = []
        seen = set() if seen is None else seen
        for work in plan.tool_calls():
            if work.kind != SUB_PLAN:
                continue
            name, ref = f"{step_id}/{work.name}".lstrip("/"), str(work.inputs["ref"])
            child = await self._sub_plan(ref, tenant_id, name)
            check_sub_plan_params(child, work.inputs, name)
            sha256 = hash_from_ref(ref)
            if sha256 not in seen:
                seen.add(sha256)
                found += [SubPlan(name, sha256, child), *await self._sub_plans(child, tenant_id, name, seen)]
        return found

    async def _sub_plan(self, ref: str, tenant_id: str, step_id: str) -> ExecutionPlan:
        plans = self._services.plans
        if (read := find_registered(hash_from_ref(ref))) is not None:
            await plans.store(read.plan, tenant_id)
            return read.plan
        try:
            return (await plans.graph(hash_from_ref(ref), tenant_id)).plan
        except RunwrightError as error:
            if error.code != ErrorCode.PLAN_NOT_FOUND:
                raise
            raise RunwrightError(
                ErrorCode.PLAN_NOT_FOUND,
                f"Step {step_id!r} references sub-plan {ref}, which is not in this store. "
                "Use `path` to load it from a file.",
            ) from None

    async def _check_secrets(self, plans: list[SubPlan], context: SecretContext) -> None:
        """Refuse a plan that names a secret which is not available, as far as that is known before the step runs. Steps
        that workers execute use the secrets of the workers."""
        wanted: dict[str, str] = {}
        queue_of = self._services.plans.queue_of
        for each in plans:
            for work in each.plan.tool_calls():
                # A name that contains an expression is known only when the step runs.
                names = [name for name in (*work.secret_refs, *secret_names(work.inputs)) if not has_expression(name)]
                if not names or queue_of(Step(step_id=work.name, kind=work.kind, dispatch=work.dispatch)) is not None:
                    continue
                for name in names:
                    wanted.setdefault(name, f"{each.step_id}/{work.name}".lstrip("/"))
        if not wanted:
            return
        for name in await asyncio.to_thread(self._services.secrets.missing, list(wanted), context):
            raise RunwrightError(
                ErrorCode.SECRET_NOT_AVAILABLE,
                f"Step {wanted[name]!r} needs the secret {name!r}, which is not available. "
                "By default it is the environment variable of that name.",
            )

    async def _check_same(self, run: RunIdentity, sha256: str, wanted: payloads.RunQueued) -> None:
        """Refuse a run id that belongs to a run of another tenant or plan, with other parameters, or to a sub-run."""
        run_id = run.run_id
        if (await self._log.find_run(run_id)).identity.tenant_id != run.tenant_id:
            raise _id_taken(run_id)
        queued = await self._log.find_event(run_id, "RunQueued")
        started = await self._log.find_event(run_id, "RunStarted")
        reference: dict[str, Any] = {} if started is None else (started.payload or {}).get("planRef") or {}
        if reference.get("sha256") != sha256:
            message = (
                f"Run {run_id!r} is a run of another plan, or of another version of it. Choose another run id, or "
                f"start a new run that keeps its unchanged steps: runwright rerun {shlex.quote(run_id)} --plan FILE"
            )
            raise RunwrightError(ErrorCode.PLAN_MISMATCH, message)
        existing: dict[str, Any] = {} if queued is None else queued.payload or {}
        if existing.get("parentRunId") is not None:
            message = f"Run {run_id!r} is a step of another run. Choose another run id."
            raise RunwrightError(ErrorCode.PLAN_MISMATCH, message)
        if (existing.get("params") or {}) != wanted.params:
            message = f"Run {run_id!r} was started with other parameters. Choose another run id."
            raise RunwrightError(ErrorCode.PLAN_MISMATCH, message)


def _id_taken(run_id: str) -> RunwrightError:
    return RunwrightError(ErrorCode.RUN_ALREADY_EXISTS, f"The run id {run_id!r} is taken. Choose another run id.")


def _queued(request: StartRequest, run: RunIdentity, params: dict[str, Any]) -> payloads.RunQueued:
    fork, parent = request.fork, request.parent
    return payloads.RunQueued(
        queue_position=0,
        estimated_wait_ms=0,
        approval_required=False,
        run_request_id=request.request_id or run.run_id,
        params=params,
        trigger=request.trigger,
        origin_run_id=None if fork is None else fork.origin_run_id,
        origin_plan_version=None if fork is None else fork.origin_plan_version,
        forked_from_seq=None if fork is None else fork.seq,
        carried_over=None if fork is None else fork.carried_over,
        parent_run_id=None if parent is None else parent.run.run_id,
        parent_step_id=None if parent is None else parent.step_id,
        parent_iter=None if parent is None else parent.iteration,
    )


def _working_directory(request: StartRequest) -> str | None:
    """A sub-run and a rerun continue where their origin made its files."""
    if request.parent is not None:
        return request.parent.working_directory
    if request.fork is not None and request.fork.working_directory is not None:
        return request.fork.working_directory
    return request.working_directory


def _files(request: StartRequest, sha256: str, sub_plans: list[SubPlan]) -> dict[str, str]:
    """The files of the plan and its sub-plans by hash, as far as they are known."""
    files: dict[str, str] = {}
    if request.fork is not None:
        files |= request.fork.files
    if request.parent is not None:
        files |= request.parent.files
    for digest in (sha256, *(each.sha256 for each in sub_plans)):
        if (read := find_registered(digest)) is not None and read.file is not None:
            files[digest] = read.file
    return files
