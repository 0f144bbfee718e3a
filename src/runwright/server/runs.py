"""Runs: start one, list them, look at one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, HeaderParameter, JSONBody, PathParameter, QueryParameter

from runwright.contract.engine import EmbeddedRunRef, RunStatusSnapshot
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, content_hash, plan_body
from runwright.contract.refs import DEFAULT_TENANT
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.access import Act, check_tenant
from runwright.control.moments import moment
from runwright.control.operations import Place
from runwright.control.planfile import read_sent
from runwright.control.views import RECOVERING, left_behind
from runwright.control.workflow_engine import status_of
from runwright.log.model import RunFilter, RunRow
from runwright.plans.durations import NoDuration, read_duration
from runwright.tools.python import PythonTool, make_importable

from .answers import answer, check_text, problems, tagged
from .call import Asking, Call
from .gate import SLASH
from .model import Rerun, RunDetail, RunList, StartedRun, StartRun

LONGEST_WAIT = 60.0

RunId = Annotated[str, PathParameter(description="The run's id.")]
Asked = Annotated[str | None, HeaderParameter(name="If-None-Match", description="The ETag of what you have.")]


def real(name: str) -> str:
    """A name from a path as it was written."""
    return name.replace(SLASH, "/")


@post(
    "/v1/runs",
    operation_id="startRun",
    tags=["runs"],
    summary="Start a run",
    description="Returns once the start is durable. The same request again is the same run, and is not touched. An "
    "Operator may start plans that this store has; a plan that is new to it takes an Engineer.",
    status_code=201,
    responses={
        200: ResponseSpec(StartedRun, description="The run was there already.", generate_examples=False),
        **problems(404, 409, 413, 415, 422),
    },
)
async def start_run(
    call: Asking,
    data: JSONBody[StartRun],
    key: Annotated[str | None, HeaderParameter(name="Idempotency-Key", max_length=512)] = None,
) -> Response[StartedRun]:
    context = data.context
    tenant_id = context.tenant_id or call.actor.tenant_id or DEFAULT_TENANT
    call.run_id = context.run_id
    call.permit(Act.START, tenant_id=tenant_id, run_id=context.run_id)
    try:
        check_tenant(call.actor, tenant_id)
    except RunwrightError as error:
        call.denied(Act.START, error, tenant_id=tenant_id, run_id=context.run_id)
        raise
    check_text(msgspec.to_builtins(data))
    if key is not None and data.run_request_id not in (None, key):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Idempotency-Key and runRequestId say different things.")
    if data.source is not None:
        call.permit(Act.BRING_PLAN, tenant_id=tenant_id)  # code is looked for there
    plan, parts = await asyncio.to_thread(_read, call, data)
    await _check_plans(call, [plan, *parts], tenant_id)
    for part in parts:
        await call.service.operations.engine.plans.keep(part, tenant_id)
    place = Place(tenant_id, context.project_id, context.environment_id)
    await call.act(Act.START, tenant_id=tenant_id, run_id=context.run_id, planId=plan.plan_id)
    run_id, created = await call.operations.begin(
        plan,
        params=data.params,
        run_id=context.run_id,
        request_id=data.run_request_id or key,
        place=place,
        trigger="api",
        source=data.source,
    )
    row = await call.service.log.find_run(run_id)
    return answer(_started(row, created), status=201 if created else 200, headers=_at_address(run_id))


def _read(call: Call, data: StartRun) -> tuple[ExecutionPlan, list[ExecutionPlan]]:
    tools = call.service.operations.engine.tools
    if call.service.settings.steps == "workers":
        tools = {**tools, PythonTool.kind: PythonTool(elsewhere=True)}
    elif data.source is not None and Path(data.source).is_file():
        make_importable(str(Path(data.source).parent))  # as for a plan that is read from there
    sent = [read_sent(document, tools) for document in (*data.parts, data.plan)]
    *parts, plan = [plan for loaded in sent for plan in (*loaded.parts, loaded.plan)]
    return plan, parts


async def _check_plans(call: Call, plans: list[ExecutionPlan], tenant_id: str) -> None:
    """Somebody who may only start what is there brings nothing new."""
    if call.actor.role_for("Engineer") is not None:
        return
    for plan in plans:
        try:
            await call.service.log.plan(content_hash(plan_body(plan)), tenant_id)
        except RunwrightError as error:
            if error.code != ErrorCode.PLAN_NOT_FOUND:
                raise
            call.permit(Act.BRING_PLAN, tenant_id=tenant_id)


def _at_address(run_id: str) -> dict[str, str]:
    return {"location": f"/v1/runs/{quote(run_id, safe='')}"}


def _started(row: RunRow, created: bool) -> StartedRun:
    run = row.identity
    return StartedRun(
        run_id=run.run_id,
        created=created,
        status=row.status,
        tenant_id=run.tenant_id,
        project_id=run.project_id,
        environment_id=run.environment_id,
        plan_id=run.plan_id,
        plan_version=run.plan_version,
        engine_run_ref=msgspec.to_builtins(EmbeddedRunRef(workflow_id=run.run_id, run_id=run.run_id)),
    )


@get(
    "/v1/runs",
    operation_id="listRuns",
    tags=["runs"],
    summary="List runs, newest first",
    description="By page, or one run by the ids that another engine knows it under.",
    responses=problems(),
)
async def list_runs(
    call: Asking,
    status: FromQuery[RunStatus | None] = None,
    plan_id: Annotated[str | None, QueryParameter(name="planId", max_length=512)] = None,
    tenant_id: Annotated[str | None, QueryParameter(name="tenantId", max_length=512)] = None,
    since: Annotated[
        str | None, QueryParameter(description="Created since: RFC 3339, or how long ago, such as 2h.", max_length=64)
    ] = None,
    id_prefix: Annotated[str | None, QueryParameter(name="idPrefix", max_length=512)] = None,
    provider: Annotated[str | None, QueryParameter(max_length=1024)] = None,
    workflow_id: Annotated[str | None, QueryParameter(name="workflowId", max_length=1024)] = None,
    provider_run_id: Annotated[str | None, QueryParameter(name="providerRunId", max_length=1024)] = None,
    cursor: Annotated[str | None, QueryParameter(max_length=64)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 50,
) -> Response[RunList]:
    call.permit(Act.READ)
    log = call.service.log
    wanted = call.actor.tenant_id or tenant_id
    if tenant_id is not None and not call.actor.sees(tenant_id):
        return answer({"runs": [], "cursor": None})
    call.service.audit.looked(call.actor, Act.READ, tenant_id=wanted)
    filters = (status, plan_id, since, cursor)
    named = id_prefix is not None or provider is not None or workflow_id is not None or provider_run_id is not None
    if named and any(each is not None for each in filters):
        sentence = "A run by its id, or by another engine's: status, planId, since and cursor do not go with that."
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, sentence)
    if provider is not None or workflow_id is not None or provider_run_id is not None:
        rows, following = await _by_engine(call, provider, workflow_id, provider_run_id), None
    elif id_prefix is not None:
        rows, following = await log.find_by_prefix(id_prefix, limit, tenant_id=wanted), None
    else:
        after = None if since is None else moment(since, log.clock.now())
        page = await log.list_runs(RunFilter(status, plan_id, wanted, after), cursor=cursor, limit=limit)
        rows, following = list(page.runs), page.cursor
    left = await left_behind(log, rows)
    documents = [{**row.to_json(), **(RECOVERING if row.identity.run_id in left else {})} for row in rows]
    return answer({"runs": documents, "cursor": following})


async def _by_engine(call: Call, provider: str | None, workflow_id: str | None, run_id: str | None) -> list[RunRow]:
    if provider is None or workflow_id is None or run_id is None:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, "Give all three of provider, workflowId and providerRunId, or none."
        )
    try:
        row = await call.service.log.find_engine_run(provider, workflow_id, run_id)
    except RunwrightError as error:
        if error.code != ErrorCode.RUN_NOT_FOUND:
            raise
        return []
    return [row] if call.actor.sees(row.identity.tenant_id) else []


@get(
    "/v1/runs/{runId:str}",
    operation_id="getRun",
    tags=["runs"],
    summary="Look at a run, as it is or as it was",
    description="With `wait`, the answer comes when the run has ended, or when the time is up.",
    responses={304: ResponseSpec(None, description="You have it already."), **problems(404)},
)
async def get_run(
    call: Asking,
    runId: RunId,  # noqa: N803 - as in the address
    at_seq: Annotated[int | None, QueryParameter(name="atSeq", ge=0, le=2**53)] = None,
    at_time: Annotated[str | None, QueryParameter(name="atTime", max_length=64)] = None,
    wait: Annotated[str | None, QueryParameter(description="Such as 30s; a minute at most.", max_length=16)] = None,
    asked: Asked = None,
) -> Response[RunDetail]:
    run_id = real(runId)
    row = await call.look(Act.READ, run_id)
    log = call.service.log
    if at_seq is not None and at_time is not None:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Give atSeq or atTime, not both.")
    if wait is not None:
        await _wait(call, row, wait)
        row = await log.find_run(run_id)
    if at_seq is not None or at_time is not None:
        return await _at(call, run_id, at_seq, at_time, asked)
    left = await left_behind(log, [row])
    headers, known = tagged(asked, f"{run_id}|{row.last_seq}|{row.edition}|{bool(left)}", immutable=False)
    if known is not None:
        return known
    snapshot = await log.snapshot(run_id)
    document = {**snapshot.to_json(), **(RECOVERING if left else {}), "asOf": from_micros(log.clock.now())}
    return answer(document, headers=headers)


async def _wait(call: Call, row: RunRow, text: str) -> None:
    try:
        seconds = min(read_duration(text), LONGEST_WAIT)
    except NoDuration as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"wait: {error}") from None
    if row.status not in ENDED:
        await call.service.until_ended(row.identity.run_id, seconds)


async def _at(call: Call, run_id: str, seq: int | None, time: str | None, asked: str | None) -> Response[Any]:
    log = call.service.log
    at = seq if time is None else from_micros(moment(time, log.clock.now()))
    snapshot = await log.snapshot(run_id, at)
    row = await log.find_run(run_id)
    headers, known = tagged(asked, f"{run_id}|{snapshot.last_event_seq}|{row.edition}|at", immutable=seq is not None)
    if known is not None:
        return known
    events = await log.read(run_id, max(0, snapshot.last_event_seq - 1), 1)
    as_of = events[0].persisted_at if events and snapshot.last_event_seq else from_micros(row.created_at)
    return answer({**snapshot.to_json(), "asOf": as_of}, headers=headers)


@get(
    "/v1/runs/{runId:str}/status",
    operation_id="getRunStatus",
    tags=["runs"],
    summary="A run's status alone",
    description="What IWorkflowEngine calls RunStatusSnapshot. Costs the same however long the run is.",
    responses=problems(404),
)
async def get_status(call: Asking, runId: RunId) -> Response[RunStatusSnapshot]:  # noqa: N803
    row = await call.look(Act.READ, real(runId))
    left = await left_behind(call.service.log, [row])
    return answer({**msgspec.to_builtins(status_of(row)), **(RECOVERING if left else {})})


@post(
    "/v1/runs/{runId:str}/rerun",
    operation_id="rerun",
    tags=["runs"],
    summary="Make a new run from one that has ended",
    description="What succeeded before `fromStep` is carried over, unless `force` says otherwise.",
    status_code=201,
    responses=problems(404, 409, 413, 415, 422),
)
async def rerun(call: Asking, runId: RunId, data: JSONBody[Rerun]) -> Response[StartedRun]:  # noqa: N803
    run_id = real(runId)
    row = await call.look(Act.RERUN, run_id)
    check_text(msgspec.to_builtins(data))
    await call.act(Act.RERUN, tenant_id=row.identity.tenant_id, run_id=run_id, fromStep=data.from_step)
    made = await call.operations.rerun(run_id, from_step=data.from_step, force=data.force, new_id=data.run_id)
    new = await call.service.log.find_run(made)
    return answer(_started(new, True), status=201, headers=_at_address(made))


ROUTES = [start_run, list_runs, get_run, get_status, rerun]
