"""Runs: start, list, inspect, rerun."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, HeaderParameter, JSONBody, PathParameter, QueryParameter

from runwright.auth.audit import AuditedRun
from runwright.auth.roles import Action, check_tenant
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, content_hash, plan_body
from runwright.contract.refs import DEFAULT_TENANT
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED, RunStatus
from runwright.contract.workflow_engine import EmbeddedRunRef, RunStatusSnapshot
from runwright.control.plan_loader import read_sent
from runwright.control.run_scope import RunScope
from runwright.control.run_views import undriven_runs
from runwright.control.time_text import parse_time
from runwright.control.workflow_engine import status_of
from runwright.log.model import RunFilter, RunRow
from runwright.plans.durations import InvalidDuration, parse_duration
from runwright.server.middleware import ENCODED_SLASH
from runwright.server.request_context import InjectedContext, RequestContext
from runwright.server.responses import check_etag, json_response, problem_responses, validate_storable
from runwright.server.schemas import Rerun, RunDetail, RunList, StartedRun, StartRun
from runwright.tools.python import PythonTool, make_file_importable

MAX_WAIT_SECONDS = 60.0

RunId = Annotated[str, PathParameter(description="Id of the run.")]
IfNoneMatch = Annotated[
    str | None, HeaderParameter(name="If-None-Match", description="ETag of the version that the caller has.")
]


def decode_slashes(name: str) -> str:
    """Restore the encoded slashes of a name from a path, which the middleware replaced."""
    return name.replace(ENCODED_SLASH, "/")


@post(
    "/v1/runs",
    operation_id="startRun",
    tags=["runs"],
    summary="Start a run",
    description="Returns once the start is durable. The same request again returns the same run, unchanged. An "
    "Operator may start plans that are in this store; a plan that is new to it requires an Engineer.",
    status_code=201,
    responses={
        200: ResponseSpec(StartedRun, description="The run existed already.", generate_examples=False),
        **problem_responses(404, 409, 413, 415, 422),
    },
)
async def start_run(
    request_context: InjectedContext,
    data: JSONBody[StartRun],
    key: Annotated[str | None, HeaderParameter(name="Idempotency-Key", max_length=512)] = None,
) -> Response[StartedRun]:
    start_context = data.context
    tenant_id = start_context.tenant_id or request_context.actor.tenant_id or DEFAULT_TENANT
    request_context.run_id = start_context.run_id
    request_context.permit(Action.START, tenant_id=tenant_id, run_id=start_context.run_id)
    try:
        check_tenant(request_context.actor, tenant_id)
    except RunwrightError as error:
        request_context.audit_denial(Action.START, error, tenant_id=tenant_id, run=start_context.run_id)
        raise
    validate_storable(msgspec.to_builtins(data))
    if key is not None and data.run_request_id not in (None, key):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Idempotency-Key and runRequestId must be equal.")
    if data.source is not None:
        request_context.permit(
            Action.UPLOAD_PLAN, tenant_id=tenant_id
        )  # Code is imported from the folder of this file.
    plan, sub_plans = await request_context.read_plan(
        partial(_read_plans, request_context, data.plan, data.parts, data.source)
    )
    await _check_plans(request_context, [plan, *sub_plans], tenant_id)
    await _store_plans(request_context, sub_plans, tenant_id)
    audited = AuditedRun(start_context.run_id, start_context.project_id, start_context.environment_id, 1, 1)
    await request_context.audit_action(Action.START, tenant_id=tenant_id, run=audited, planId=plan.plan_id)
    run_id, created = await request_context.operations.start_or_get(
        plan,
        params=data.params,
        run_id=start_context.run_id,
        request_id=data.run_request_id or key,
        place=RunScope(tenant_id, start_context.project_id, start_context.environment_id),
        trigger="api",
        source=data.source,
    )
    row = await request_context.service.log.find_run(run_id)
    return json_response(_started(row, created), status=201 if created else 200, headers=_location(run_id))


def _read_plans(
    context: RequestContext, document: dict[str, Any] | str, parts: Sequence[dict[str, Any] | str], source: str | None
) -> tuple[ExecutionPlan, list[ExecutionPlan]]:
    """Return the plan of a request and all of its sub-plans."""
    tools = context.service.operations.engine.services.tools
    if context.service.settings.steps == "workers":
        tools = {**tools, PythonTool.kind: PythonTool(is_remote=True)}
    elif source is not None and Path(source).is_file():
        make_file_importable(Path(source))  # As for a plan that is read from this file.
    sent = [read_sent(each, tools) for each in (*parts, document)]
    *sub_plans, plan = [plan for loaded in sent for plan in (*loaded.sub_plans, loaded.plan)]
    return plan, sub_plans


async def _store_plans(context: RequestContext, plans: Sequence[ExecutionPlan], tenant_id: str) -> None:
    for plan in plans:
        await context.service.operations.engine.services.plans.store(plan, tenant_id)


async def _check_plans(context: RequestContext, plans: list[ExecutionPlan], tenant_id: str) -> None:
    """Deny plans that are not in the store yet, unless the caller is an Engineer."""
    if context.actor.role_for("Engineer") is not None:
        return
    for plan in plans:
        try:
            await context.service.log.plan(content_hash(plan_body(plan)), tenant_id)
        except RunwrightError as error:
            if error.code != ErrorCode.PLAN_NOT_FOUND:
                raise
            context.permit(Action.UPLOAD_PLAN, tenant_id=tenant_id)


def _location(run_id: str) -> dict[str, str]:
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
    description="By page, or one run by its ids in another engine.",
    responses=problem_responses(),
)
async def list_runs(
    request_context: InjectedContext,
    status: FromQuery[RunStatus | None] = None,
    plan_id: Annotated[str | None, QueryParameter(name="planId", max_length=512)] = None,
    tenant_id: Annotated[str | None, QueryParameter(name="tenantId", max_length=512)] = None,
    since: Annotated[
        str | None, QueryParameter(description="Only runs created since (2h, or RFC 3339).", max_length=64)
    ] = None,
    id_prefix: Annotated[str | None, QueryParameter(name="idPrefix", max_length=512)] = None,
    provider: Annotated[str | None, QueryParameter(max_length=1024)] = None,
    workflow_id: Annotated[str | None, QueryParameter(name="workflowId", max_length=1024)] = None,
    provider_run_id: Annotated[str | None, QueryParameter(name="providerRunId", max_length=1024)] = None,
    provider_scope: Annotated[
        str | None,
        QueryParameter(
            name="providerScope", description="Temporal's namespace, or Conductor's address.", max_length=1024
        ),
    ] = None,
    cursor: Annotated[str | None, QueryParameter(max_length=64)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 50,
) -> Response[RunList]:
    request_context.permit(Action.READ)
    log = request_context.service.log
    visible_tenant = request_context.actor.tenant_id or tenant_id
    if tenant_id is not None and not request_context.actor.can_access_tenant(tenant_id):
        return json_response({"runs": [], "cursor": None})
    request_context.service.audit.count_read(request_context.actor, Action.READ, tenant_id=visible_tenant)
    has_filter = any(value is not None for value in (status, plan_id, since, cursor))
    engine_ids = (provider, workflow_id, provider_run_id, provider_scope)
    has_engine_ids = any(value is not None for value in engine_ids)
    if has_filter and (id_prefix is not None or has_engine_ids):
        message = "status, planId, since and cursor cannot be combined with idPrefix or the ids of another engine."
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, message)
    if has_engine_ids:
        if provider is None or workflow_id is None or provider_run_id is None:
            message = "provider, workflowId and providerRunId must be given together."
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, message)
        find = log.find_engine_run(
            provider, workflow_id, provider_run_id, tenant_id=visible_tenant, scope=provider_scope
        )
        rows, next_cursor = await _rows_of(find), None
    elif id_prefix is not None:
        rows, next_cursor = await log.find_by_prefix(id_prefix, limit, tenant_id=visible_tenant), None
    else:
        after = None if since is None else parse_time(since, log.clock.now())
        page = await log.list_runs(RunFilter(status, plan_id, visible_tenant, after), cursor=cursor, limit=limit)
        rows, next_cursor = list(page.runs), page.cursor
    undriven = await undriven_runs(log, rows)
    documents = [{**row.to_json(), **undriven.get(row.identity.run_id, {})} for row in rows]
    return json_response({"runs": documents, "cursor": next_cursor})


async def _rows_of(find: Awaitable[RunRow]) -> list[RunRow]:
    try:
        return [await find]
    except RunwrightError as error:
        if error.code != ErrorCode.RUN_NOT_FOUND:
            raise
        return []


@get(
    "/v1/runs/{runId:str}",
    operation_id="getRun",
    tags=["runs"],
    summary="Get a run, now or at an earlier time",
    description="With `wait`, the response is sent when the run has ended or the time is over.",
    responses={304: ResponseSpec(None, description="Not modified."), **problem_responses(404)},
)
async def get_run(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803 - as in the path
    at_seq: Annotated[int | None, QueryParameter(name="atSeq", ge=0, le=2**53)] = None,
    at_time: Annotated[str | None, QueryParameter(name="atTime", max_length=64)] = None,
    wait: Annotated[
        str | None, QueryParameter(description="Duration such as 30s, at most one minute.", max_length=16)
    ] = None,
    if_none_match: IfNoneMatch = None,
) -> Response[RunDetail]:
    run_id = decode_slashes(runId)
    row = await request_context.authorize_run(Action.READ, run_id)
    log = request_context.service.log
    if at_seq is not None and at_time is not None:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "atSeq and atTime cannot be combined.")
    if wait is not None:
        await _wait_until_ended(request_context, row, wait)
        await request_context.check_access()
        row = await log.find_run(run_id)
    if at_seq is not None or at_time is not None:
        return await _get_earlier_state(request_context, run_id, at_seq, at_time, if_none_match)
    undriven = (await undriven_runs(log, [row])).get(run_id, {})
    version = f"{run_id}|{row.last_seq}|{row.edition}|{undriven.get('substatus')}"
    etag = check_etag(if_none_match, version, immutable=False)
    if etag.not_modified is not None:
        return etag.not_modified
    snapshot = await log.snapshot(run_id)
    document = {**snapshot.to_json(), **undriven, "asOf": from_micros(log.clock.now())}
    return json_response(document, headers=etag.headers)


async def _wait_until_ended(context: RequestContext, row: RunRow, text: str) -> None:
    try:
        seconds = min(parse_duration(text), MAX_WAIT_SECONDS)
    except InvalidDuration as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Invalid wait: {error}") from None
    if row.status not in ENDED:
        await context.service.wait_until_ended(row.identity.run_id, seconds)


async def _get_earlier_state(
    context: RequestContext, run_id: str, seq: int | None, time: str | None, if_none_match: str | None
) -> Response[Any]:
    log = context.service.log
    at = seq if time is None else from_micros(parse_time(time, log.clock.now()))
    snapshot = await log.snapshot(run_id, at)
    row = await log.find_run(run_id)
    version = f"{run_id}|{snapshot.last_event_seq}|{row.edition}|at"
    etag = check_etag(if_none_match, version, immutable=seq is not None)
    if etag.not_modified is not None:
        return etag.not_modified
    events = await log.read(run_id, max(0, snapshot.last_event_seq - 1), 1)
    as_of = events[0].persisted_at if events and snapshot.last_event_seq else from_micros(row.created_at)
    return json_response({**snapshot.to_json(), "asOf": as_of}, headers=etag.headers)


@get(
    "/v1/runs/{runId:str}/status",
    operation_id="getRunStatus",
    tags=["runs"],
    summary="Get the status of a run",
    description="RunStatusSnapshot of IWorkflowEngine. The cost does not depend on the length of the run.",
    responses=problem_responses(404),
)
async def get_status(request_context: InjectedContext, runId: RunId) -> Response[RunStatusSnapshot]:  # noqa: N803
    row = await request_context.authorize_run(Action.READ, decode_slashes(runId))
    undriven = await undriven_runs(request_context.service.log, [row])
    return json_response({**msgspec.to_builtins(status_of(row)), **undriven.get(row.identity.run_id, {})})


@post(
    "/v1/runs/{runId:str}/rerun",
    operation_id="rerun",
    tags=["runs"],
    summary="Start a new run from a finished one, reusing successful steps",
    description="Results of steps that succeeded before `fromStep` are reused, unless `force` is set. With `plan`, a "
    "corrected plan: steps whose definition and inputs are unchanged are reused; it requires an Engineer if it is new.",
    status_code=201,
    responses=problem_responses(404, 409, 413, 415, 422),
)
async def rerun(request_context: InjectedContext, runId: RunId, data: JSONBody[Rerun]) -> Response[StartedRun]:  # noqa: N803
    run_id = decode_slashes(runId)
    row = await request_context.authorize_run(Action.RERUN, run_id)
    validate_storable(msgspec.to_builtins(data))
    await request_context.audit_run_action(Action.RERUN, row, fromStep=data.from_step)
    plan: ExecutionPlan | None = None
    if data.plan is not None:
        plan, sub_plans = await request_context.read_plan(
            partial(_read_plans, request_context, data.plan, data.parts, None)
        )
        await _check_plans(request_context, [plan, *sub_plans], row.identity.tenant_id)
        await _store_plans(request_context, sub_plans, row.identity.tenant_id)
    new_id = await request_context.operations.rerun(
        run_id, from_step=data.from_step, force=data.force, new_id=data.run_id, plan=plan, params=data.params
    )
    new = await request_context.service.log.find_run(new_id)
    return json_response(_started(new, True), status=201, headers=_location(new_id))


ROUTES = [start_run, list_runs, get_run, get_status, rerun]
