"""Everything an operator can do, as coroutines on the engine's loop. The app and the command line are thin over it."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from runwright.contract import payloads
from runwright.contract.capabilities import EMBEDDED, validation_report
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord, RunIdentity
from runwright.contract.plan import SCHEMA_VERSION, ExecutionPlan, Step
from runwright.contract.refs import DEFAULT_TENANT, EngineRun, PlanRef
from runwright.contract.resultref import digest_in, parse_result_address
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED, RunStatus, StepStatus
from runwright.core.expressions import has_expression, mentioned_steps
from runwright.core.net import Net
from runwright.core.refer import part_of
from runwright.core.values import Missing, Values
from runwright.log.arguments import not_found
from runwright.log.base import RunLog
from runwright.log.model import RunRow
from runwright.log.reader import run_or_none
from runwright.plans.inputs import is_open
from runwright.plans.known import SUB_PLAN, hash_in, known
from runwright.plans.secrets import secret_refs
from runwright.runtimes.engine import Engine
from runwright.runtimes.executor import Work
from runwright.runtimes.resolving import resolve
from runwright.runtimes.restore import fold_run
from runwright.tools.python import make_importable
from runwright.tools.secrets import SecretContext

from .access import Actor
from .params import check_params, fill_workload, given_of, merge_params
from .planfile import AnyPlan, read_any
from .policy import Policy
from .requests import run_of_request
from .rerun import Fork, carried_steps
from .signalling import Signalling, open_questions
from .signals import SignalDecision
from .subruns import SubRuns, child_id
from .views import to_its_end


@cache
def local_actor() -> Actor:
    """Whoever is at this machine."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "local"
    return Actor(name, ("Admin",))


class Place(msgspec.Struct, frozen=True):
    """Whose run it is, and where."""

    tenant_id: str = DEFAULT_TENANT
    project_id: str = "default"
    environment_id: str = "default"


class Parent(msgspec.Struct, frozen=True):
    """The step that a run is."""

    run: RunIdentity
    step_id: str
    files: dict[str, str]
    """Where the plans of its steps came from, by hash: their code lies beside them."""
    iteration: dict[str, Any] | None = None
    """The iteration of a playbook's loop that it is part of."""
    workload: dict[str, Any] | None = None
    """What it inherits."""


class Part(msgspec.Struct, frozen=True):
    """A plan inside another: the step that is a run of it, as people name it, and its hash."""

    step_id: str
    sha256: str
    plan: ExecutionPlan


def _files(*hashes: str) -> dict[str, str]:
    """The files that plans were read from, as far as this process knows."""
    found = {sha256: read.file for sha256 in hashes if (read := known(sha256)) is not None}
    return {sha256: file for sha256, file in found.items() if file is not None}


class Operations:
    def __init__(self, log: RunLog, engine: Engine, actor: Actor | None = None, policy: Policy | None = None) -> None:
        self.log = log
        self.engine = engine
        self.actor = actor or local_actor()
        self.policy = policy or Policy()
        if engine.sub_runs is None:
            engine.sub_runs = SubRuns(self)

    async def find(self, run_id: str) -> RunRow:
        """A run that the actor may know of; RUN_NOT_FOUND for any other."""
        row = await self.log.find_run(run_id)
        if not self.actor.sees(row.identity.tenant_id):
            raise not_found(run_id)
        return row

    # Starting

    def load(self, plan: AnyPlan) -> ExecutionPlan:
        """A plan from whatever form it comes in."""
        return read_any(plan, self.engine.tools)

    async def start(
        self,
        plan: ExecutionPlan,
        *,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        place: Place | None = None,
        trigger: str = "manual",
        fork: Fork | None = None,
        parent: Parent | None = None,
    ) -> str:
        """Start a run, or take up the one that has this id. Returns once the start is durable."""
        started, is_new = await self.begin(
            plan, params=params, run_id=run_id, place=place, trigger=trigger, fork=fork, parent=parent
        )
        if not is_new:
            await self.take_up(started)
        return started

    async def begin(
        self,
        plan: ExecutionPlan,
        *,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        request_id: str | None = None,
        place: Place | None = None,
        trigger: str = "manual",
        source: str | None = None,
        fork: Fork | None = None,
        parent: Parent | None = None,
    ) -> tuple[str, bool]:
        """Start a run, unless it is there already: its id, and whether it is new. One that is there is not touched.

        The same `request_id` for the same plan in the same place is the same run.
        """
        merged = merge_params(plan, params or {}, None if parent is None else parent.workload)
        where = msgspec.structs.astuple(place or Place()) if parent is None else parent.run.context[1:4]
        parts = await self._parts(plan, where[0])
        await self._check_secrets([Part("", "", plan), *parts], SecretContext(where[0], where[2]))
        sha256, net = await self.engine.plans.keep(plan, where[0])
        report = validation_report(plan, self.engine.provider, EMBEDDED)
        self.engine.check_stores(net)
        version = plan.metadata.plan_version or sha256
        request = None if request_id is None else (*where, plan.plan_id, version, request_id)
        if request is not None:
            run_id = await run_of_request(self.log.desk, request, run_id)
        run = RunIdentity(
            run_id=run_id or self.log.ids.run_id(),
            tenant_id=where[0],
            project_id=where[1],
            environment_id=where[2],
            plan_id=plan.plan_id,
            plan_version=version,
        )
        queued = payloads.RunQueued(
            queue_position=0,
            estimated_wait_ms=0,
            approval_required=False,
            run_request_id=request_id or run.run_id,
            params=fill_workload(plan, merged, run.run_id),
            trigger=trigger,
            origin_run_id=None if fork is None else fork.origin_run_id,
            forked_from_seq=None if fork is None else fork.seq,
            parent_run_id=None if parent is None else parent.run.run_id,
            parent_step_id=None if parent is None else parent.step_id,
            parent_iter=None if parent is None else parent.iteration,
        )
        name = quote(run.run_id, safe="")
        read = known(sha256)
        files = {} if parent is None else parent.files
        files = {**({} if fork is None else fork.files), **files, **_files(sha256, *(part.sha256 for part in parts))}
        started = payloads.RunStarted(
            status="RUNNING",
            engine_run_ref=f"{self.engine.provider}://{name}/{name}"[:1024],
            engine_run=EngineRun(self.engine.provider, run.run_id, run.run_id),
            engine_type=self.engine.provider,
            plan_ref=PlanRef(f"plan:sha256:{sha256}", sha256, SCHEMA_VERSION, plan.plan_id, version),
            context=payloads.RunContext(*where, triggered_by=self.actor.actor_id, trigger_source=trigger),
            started_at=from_micros(self.log.clock.now()),
            validation_report=report,
            degraded=bool(report and report["warnings"]) or None,
            on_failure=str(plan.on_failure),
            source=(source or files.get(sha256)) if fork is None else fork.source,
            code=None if read is None else read.code,
            sub_plans={sha: file for sha, file in files.items() if sha != sha256} or None,
        )
        if started.source is not None:
            make_importable(str(Path(started.source).parent))
        try:
            await self.engine.start(run, net, queued, started, None if fork is None else fork.carry)
        except RunwrightError as error:
            if error.code != ErrorCode.RUN_ALREADY_EXISTS or run_id is None:
                raise
            await self._check_same(run, sha256, queued)
            return run.run_id, False
        return run.run_id, True

    async def start_child(self, run_id: str, work: Work, parent: RunIdentity) -> None:
        """Start the run that a step is, or take it up. A second attempt goes on where the one before it failed."""
        context = work.context
        net = await self.engine.plans.net(hash_in(work.inputs.ref), parent.tenant_id)
        files = await self._files_of(parent.run_id)
        inherited = context.workload if work.inputs.inherit else None
        fork = None
        if context.attempt > 1:
            before = child_id(parent.run_id, context.step_id, context.attempt - 1)
            given = fill_workload(net.plan, merge_params(net.plan, work.inputs.params, inherited), before)
            fork = await self._fork_of_child(before, net, given)
        await self.start(
            net.plan,
            params=work.inputs.params,
            run_id=run_id,
            trigger="api",
            fork=fork,
            parent=Parent(parent, context.step_id, files, context.iteration, inherited),
        )

    async def _files_of(self, run_id: str) -> dict[str, str]:
        started = await self.log.find_event(run_id, "RunStarted")
        return {} if started is None else (started.payload or {}).get("subPlans") or {}

    async def _fork_of_child(self, run_id: str, net: Net, params: dict[str, Any]) -> Fork | None:
        row = await run_or_none(self.log, run_id)
        if row is None or row.status is not RunStatus.FAILED:  # none: its start was refused
            return None
        fork, before = await self._fork(row, net, None, force=False)
        return fork if before == params else None

    async def _parts(
        self, plan: ExecutionPlan, tenant_id: str, step_id: str = "", seen: set[str] | None = None
    ) -> list[Part]:
        """All plans that steps of this one are runs of, each once, and in the plan store."""
        parts: list[Part] = []
        seen = set() if seen is None else seen
        for work in plan.work():
            if work.kind != SUB_PLAN:
                continue
            name = f"{step_id}/{work.name}".lstrip("/")
            child = await self._sub_plan(str(work.inputs["ref"]), tenant_id, name)
            given: Any = work.inputs.get("params") or {}
            if not is_open(given):
                check_params(child, given, f"Step {name!r}: ", later=is_open)
            sha256 = hash_in(str(work.inputs["ref"]))
            if sha256 not in seen:
                seen.add(sha256)
                parts += [Part(name, sha256, child), *await self._parts(child, tenant_id, name, seen)]
        return parts

    async def _sub_plan(self, ref: str, tenant_id: str, step_id: str) -> ExecutionPlan:
        if (read := known(hash_in(ref))) is not None:
            await self.engine.plans.keep(read.plan, tenant_id)
            return read.plan
        try:
            return (await self.engine.plans.net(hash_in(ref), tenant_id)).plan
        except RunwrightError as error:
            if error.code != ErrorCode.PLAN_NOT_FOUND:
                raise
            raise RunwrightError(
                ErrorCode.PLAN_NOT_FOUND,
                f"Step {step_id!r} is a run of {ref}, which this store does not have. Name its file with `path`.",
            ) from None

    async def _check_secrets(self, parts: list[Part], context: SecretContext) -> None:
        """Refuse a plan that names a secret which cannot be had, as far as that is known before the step runs: what is
        left to workers has theirs."""
        wanted: dict[str, str] = {}
        queue_of = self.engine.plans.queue_of
        for part in parts:
            for work in part.plan.work():
                # One that an expression makes shows when the step runs.
                names = [name for name in (*work.secret_refs, *secret_refs(work.inputs)) if not has_expression(name)]
                if not names or queue_of(Step(step_id=work.name, kind=work.kind, dispatch=work.dispatch)) is not None:
                    continue
                for name in names:
                    wanted.setdefault(name, f"{part.step_id}/{work.name}".lstrip("/"))
        if not wanted:
            return
        for name in await asyncio.to_thread(self.engine.secrets.missing, list(wanted), context):
            raise RunwrightError(
                ErrorCode.SECRET_NOT_AVAILABLE,
                f"Step {wanted[name]!r} needs the secret {name!r}, which is not there. "
                "By default it is the environment variable of that name.",
            )

    async def _check_same(self, run: RunIdentity, sha256: str, wanted: payloads.RunQueued) -> None:
        run_id = run.run_id
        if (await self.log.find_run(run_id)).identity.tenant_id != run.tenant_id:
            raise RunwrightError(ErrorCode.RUN_ALREADY_EXISTS, f"The run id {run_id!r} is taken. Pick another.")
        queued = await self.log.find_event(run_id, "RunQueued")
        started = await self.log.find_event(run_id, "RunStarted")
        reference: dict[str, Any] = {} if started is None else (started.payload or {}).get("planRef") or {}
        if reference.get("sha256") != sha256:
            raise RunwrightError(
                ErrorCode.PLAN_MISMATCH,
                f"Run {run_id!r} follows another plan, or another version of it. Pick another run id.",
            )
        before: dict[str, Any] = {} if queued is None else queued.payload or {}
        if before.get("parentRunId") != wanted.parent_run_id:
            raise RunwrightError(ErrorCode.PLAN_MISMATCH, f"Run {run_id!r} belongs elsewhere. Pick another run id.")
        if (before.get("params") or {}) != wanted.params:
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
            self.engine.lookout.want(run_id)

    async def wait(self, run_id: str, timeout: float | None = None) -> RunSnapshot:
        """Wait until the run has ended; the run as it then is, or as it is when the time is up."""
        return await self.engine.ended(run_id, timeout)

    async def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> AsyncIterator[RunEventRecord]:
        """The run's events; with `follow`, those to come until it has ended."""
        async for record in to_its_end(self.log, run_id, after) if follow else self.log.events(run_id, after):
            yield record

    async def result(self, run_id: str, step_id: str) -> Any:
        """What a step gave back, or the task of a playbook that the address names."""
        run = (await self.log.find_run(run_id)).identity
        if (address := parse_result_address(step_id)) is not None:
            if address.run_id != run_id:
                raise RunwrightError(ErrorCode.REFERENCE_NOT_AVAILABLE, "That is the address of another run's result.")
            return await resolve(self.log, self.engine.results, step_id, run.tenant_id)
        snapshot = await self.log.snapshot(run_id)
        step = next((step for step in snapshot.steps if step.step_id == step_id), None)
        if step is None:
            raise RunwrightError(ErrorCode.STEP_NOT_FOUND, f"Run {run_id!r} has no step {step_id!r} that ran.")
        for event_type in ("StepCompleted", "StepSkipped"):
            record = await self.log.find_event(run_id, event_type, step_id, step.logical_attempt_id)
            if record is not None and record.payload is not None:
                reference = record.payload.get("resultRef")
                value = record.payload.get("result") if reference is None else await self._fetch(run, reference)
                if step.iterations and isinstance(value, list):
                    return [await self._gathered(run, part) for part in value]  # pyright: ignore[reportUnknownVariableType]
                return value
        advice = " Wait for it." if step.status in (StepStatus.PENDING, StepStatus.RUNNING) else ""
        raise RunwrightError(
            ErrorCode.STEP_NOT_TERMINAL, f"Step {step_id!r} has no result: it is {step.status}.{advice}"
        )

    async def run_result(self, run_id: str) -> Any:
        """What the run as a whole gave back: the plan says what that is."""
        row = await self.log.find_run(run_id)
        net = await self.engine.net_of(row.identity)
        if row.status is not RunStatus.COMPLETED:
            is_over = row.status in ENDED
            code = ErrorCode.RUN_TERMINAL if is_over else ErrorCode.RUN_NOT_TERMINAL
            advice = "" if is_over else " Wait for it."
            raise RunwrightError(code, f"Run {run_id!r} has no result: it is {row.status}.{advice}")
        wanted = mentioned_steps([net.plan.result]) if net.routes is None else net.routes.results
        state = await fold_run(self.log, run_id, wanted)
        assert state.workings is not None
        values = Values(net, state, state.workings, row.identity)
        while True:
            try:
                return values.result()
            except Missing as missing:
                for ref in missing.refs.values():
                    values.at_hand.add(digest_in(ref), await self._fetch(row.identity, ref), 0)

    async def _fetch(self, run: RunIdentity, reference: dict[str, Any]) -> Any:
        return msgspec.json.decode(await self.engine.results.get(run, reference))

    async def _gathered(self, run: RunIdentity, part: Any) -> Any:
        stored = part_of(part)
        if stored is None:
            return part
        return msgspec.json.decode(stored.raw or b"null") if stored.ref is None else await self._fetch(run, stored.ref)

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
        return await self.signalling.send(run_id, signal_type, payload, reason=reason, signal_id=signal_id)

    async def confirm(
        self, run_id: str, signal_id: str, *, agree: bool = True, reason: str | None = None
    ) -> SignalDecision:
        """Decide, as a second person, on a signal that waits for one."""
        return await self.signalling.confirm(run_id, signal_id, agree=agree, reason=reason)

    @property
    def signalling(self) -> Signalling:
        return Signalling(self.log, self.engine, self.actor, self.rerun, self.policy)

    async def questions(self, run_id: str) -> dict[str, payloads.Approval]:
        """What people are asked now, by step."""
        return await open_questions(self.log, run_id)

    def acting_as(self, actor: Actor) -> Operations:
        """The same, for somebody else."""
        return Operations(self.log, self.engine, actor, self.policy)

    # New runs from old ones

    async def rerun(
        self, run_id: str, *, from_step: str | None = None, force: bool = False, new_id: str | None = None
    ) -> str:
        """A new run that names this one; what succeeded before the fork is carried over, unless forced."""
        row = await self.find(run_id)
        net = await self.engine.net_of(row.identity)
        if from_step is not None and from_step not in net.index:
            raise RunwrightError(ErrorCode.STEP_NOT_FOUND, f"The plan has no step {from_step!r}.")
        if row.status not in ENDED:
            raise RunwrightError(
                ErrorCode.RUN_NOT_TERMINAL, "The run has not ended. Cancel it first, or wait for its end."
            )
        fork, params = await self._fork(row, net, from_step, force=force)
        params = given_of(net.plan, params, row.identity.run_id)
        place = Place(*row.identity.context[1:4])
        return await self.start(net.plan, params=params, run_id=new_id, place=place, trigger="manual", fork=fork)

    async def _fork(self, row: RunRow, net: Net, from_step: str | None, *, force: bool) -> tuple[Fork, dict[str, Any]]:
        """What a new run takes from an old one, and the parameters that one had."""
        run_id = row.identity.run_id
        if from_step is not None and net.routes is not None:
            raise RunwrightError(
                ErrorCode.CAPABILITY_NOT_SUPPORTED,
                "A playbook begins anew: it cannot be run again from one of its steps.",
            )
        state = await fold_run(self.log, run_id, None)
        assert state.workings is not None
        carried = {} if force else carried_steps(net, state, from_step)
        started = await self.log.find_event(run_id, "RunStarted")
        source = None if started is None or started.payload is None else started.payload.get("source")
        fork = Fork(run_id, row.last_seq, carried, source, await self._files_of(run_id))
        return fork, state.workings.params

    async def status(self, run_id: str) -> RunStatus:
        return (await self.log.find_run(run_id)).status
