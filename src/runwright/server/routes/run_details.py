"""Parts of a run: events, entities, plan, artifacts, results, output; and search of events in all runs."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, QueryParameter

from runwright.auth.roles import Action
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.noetl.view import noetl_event, parse_event_types
from runwright.contract.paths import parse_path
from runwright.contract.plan import content_hash, plan_body
from runwright.contract.result_ref import ref_digest
from runwright.contract.snapshot import StepSnapshot
from runwright.contract.timestamps import is_utc
from runwright.control.run_views import artifacts_of, with_pending
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.model import EventFilter, RunRow
from runwright.log.run_log import RunLog, is_full_page
from runwright.plans.writer import plan_yaml
from runwright.server.request_context import InjectedContext, RequestContext
from runwright.server.responses import IMMUTABLE, check_etag, json_response, problem_responses
from runwright.server.schemas import ArtifactList, Entity, EntityPage, EventPage, FoundEvents, LogPage
from runwright.server.stream_writer import body_response, file_response

from .runs import IfNoneMatch, RunId, decode_slashes

_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_EVENTS_WITH_REFERENCES = frozenset(
    {"ResultStored", "StepCompleted", "StepSkipped", "LoopStarted", "LoopIterationDone"}
)
_ITERATION_STATUS = {
    "LoopIterationScheduled": "PENDING",
    "LoopIterationStarted": "RUNNING",
    "LoopIterationDone": "SUCCESS",
    "LoopIterationFailed": "FAILED",
}


@get(
    "/v1/runs/{runId:str}/events",
    operation_id="listEvents",
    tags=["events"],
    summary="List the events of a run",
    responses={304: ResponseSpec(None, description="Not modified."), **problem_responses(404)},
)
async def list_events(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803
    after_seq: Annotated[int, QueryParameter(name="afterSeq", ge=0, le=2**53)] = 0,
    event_type: Annotated[
        str | None,
        QueryParameter(name="eventType", max_length=256, description="Only the event of this type, step and attempt."),
    ] = None,
    step_id: Annotated[str | None, QueryParameter(name="stepId", max_length=512)] = None,
    attempt: Annotated[int, QueryParameter(ge=1, le=2**31)] = 1,
    event_id: Annotated[
        str | None,
        QueryParameter(
            name="eventId",
            max_length=512,
            description="Only the event with this id, which may be an id of another engine.",
        ),
    ] = None,
    types: Annotated[
        str | None,
        QueryParameter(max_length=2000, description="Only these types, separated by commas; dotted names are allowed."),
    ] = None,
    entity: Annotated[
        str | None, QueryParameter(max_length=512, description="Only events of this step, its iterations and tasks.")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1000,
    format: FromQuery[Literal["runevents", "noetl"]] = "runevents",  # noqa: A002
    if_none_match: IfNoneMatch = None,
) -> Response[EventPage]:
    run_id = decode_slashes(runId)
    row = await request_context.authorize_run(Action.READ, run_id)
    log = request_context.service.log
    if event_type is not None or event_id is not None:
        if event_id is not None:
            found = await log.find_by_id(run_id, event_id)
        else:
            found = await _find_event(log, run_id, event_type or "", step_id, attempt)
        return _event_page([] if found is None else [found], row.last_seq, None, format)
    if types is not None or entity is not None:
        event_filter = EventFilter(None if types is None else parse_event_types(types), entity)
        records = await log.select(run_id, event_filter, after_seq, limit)
        next_after = records[-1].run_seq if is_full_page(records, limit) else None
        return _event_page(records, row.last_seq, next_after, format)
    is_full = after_seq + limit < row.last_seq  # A full page never changes, unless a payload is redacted (`edition`).
    version = f"{run_id}|{after_seq}|{limit}|{row.last_seq * (not is_full)}|{row.edition}|{format}"
    etag = check_etag(if_none_match, version, immutable=False)
    if etag.not_modified is not None:
        return etag.not_modified
    records = await log.read(run_id, after_seq, limit)
    last = records[-1].run_seq if records else 0
    head = max(row.last_seq, last)
    next_after = last if records and last < head else None
    return _event_page(records, head, next_after, format, etag.headers)


async def _find_event(
    log: RunLog, run_id: str, event_type: str, step_id: str | None, attempt: int
) -> RunEventRecord | None:
    found = [await log.find_event(run_id, name, step_id, attempt) for name in parse_event_types(event_type)]
    return next((record for record in found if record is not None), None)


def _event_page(
    records: list[RunEventRecord],
    last_seq: int,
    next_after: int | None,
    event_format: str,
    headers: dict[str, str] | None = None,
) -> Response[Any]:
    events = [_convert(record, event_format) for record in records]
    document = {"events": events, "lastEventSeq": last_seq, "nextAfterSeq": next_after}
    return json_response(document, headers=headers)


@get(
    "/v1/log",
    operation_id="searchEvents",
    tags=["events"],
    summary="Search events of all runs by type and time",
    description="A page may be shorter than the limit, or empty. Continue with its cursor until that stays the same.",
    responses=problem_responses(400),
)
async def search_events(
    request_context: InjectedContext,
    types: Annotated[
        str, QueryParameter(min_length=1, max_length=2000, description="Event types, separated by commas.")
    ],
    since: Annotated[str, QueryParameter(max_length=64, description="Time, RFC 3339 in UTC.")],
    cursor: Annotated[str | None, QueryParameter(max_length=400)] = None,
    tenant_id: Annotated[str | None, QueryParameter(name="tenantId", max_length=512)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1000,
    format: FromQuery[Literal["runevents", "noetl"]] = "runevents",  # noqa: A002
) -> Response[FoundEvents]:
    request_context.authorize(Action.READ)
    if not is_utc(since):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "since must be an RFC 3339 time in UTC.")
    own_tenant = request_context.actor.tenant_id
    if own_tenant is not None and tenant_id not in (None, own_tenant):
        return json_response({"events": [], "cursor": cursor or ""})
    page = await request_context.service.log.search(
        parse_event_types(types),
        since,
        cursor=cursor,
        limit=limit,
        tenant_id=tenant_id if own_tenant is None else own_tenant,
    )
    return json_response({"events": [_convert(record, format) for record in page.records], "cursor": page.cursor})


def _convert(record: RunEventRecord, event_format: str) -> Any:
    return noetl_event(record) if event_format == "noetl" else record


@get(
    "/v1/runs/{runId:str}/entities",
    operation_id="listEntities",
    tags=["runs"],
    summary="List the steps of a run, also pending ones; or the iterations of a step",
    responses=problem_responses(404),
)
async def list_entities(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803
    step_id: Annotated[
        str | None, QueryParameter(name="stepId", description="List the iterations of this step.")
    ] = None,
    cursor: Annotated[str | None, QueryParameter(max_length=20)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 100,
) -> Response[EntityPage]:
    run_id = decode_slashes(runId)
    row = await request_context.authorize_run(Action.READ, run_id)
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal()):
        raise RunwrightError(
            ErrorCode.INVALID_CURSOR, "Invalid cursor: pass the cursor returned with the previous page."
        )
    start = 0 if cursor is None else int(cursor)
    if step_id is None:
        entities = await _step_entities(request_context, row)
    else:
        entities = await _iteration_entities(request_context, run_id, step_id)
    has_more = len(entities) > start + limit
    return json_response(
        {"entities": entities[start : start + limit], "cursor": str(start + limit) if has_more else None}
    )


async def _step_entities(context: RequestContext, row: RunRow) -> list[Entity]:
    snapshot = await context.service.log.snapshot(row.identity.run_id)
    try:
        graph = await context.service.operations.engine.services.run_plans.graph_of(row.identity)
    except RunwrightError as error:
        if error.code != ErrorCode.PLAN_NOT_FOUND:
            raise
        return [_step_entity(step, None) for step in snapshot.steps]
    return [_step_entity(step, graph) for step in with_pending(snapshot, graph)]


def _step_entity(step: StepSnapshot, graph: PlanGraph | None) -> Entity:
    address = None if graph is None else graph.find(step.step_id)
    node = None if address is None else address.node
    return Entity(
        path=step.step_id,
        kind="step",
        status=step.status,
        logical_attempt_id=step.logical_attempt_id,
        tool=None if node is None else node.step.kind,
        started_at=step.started_at,
        completed_at=step.completed_at,
        error=None if step.error is None else msgspec.to_builtins(step.error),
        depends_on=[] if node is None else list(node.step.depends_on),
    )


async def _iteration_entities(context: RequestContext, run_id: str, step_id: str) -> list[Entity]:
    found: dict[str, Entity] = {}
    async for record in context.service.log.events(run_id):
        status = _ITERATION_STATUS.get(record.event_type)
        if status is None or record.step_id is None:
            continue
        path = parse_path(record.step_id)
        if path is None or path.step != step_id:
            continue
        previous = found.get(record.step_id)
        started_at = None if previous is None else previous.started_at
        found[record.step_id] = Entity(
            path=record.step_id,
            kind="iteration",
            status=status,
            logical_attempt_id=record.logical_attempt_id,
            started_at=record.emitted_at if status == "RUNNING" else started_at,
            completed_at=record.emitted_at if status in ("SUCCESS", "FAILED") else None,
            error=(record.payload or {}).get("error") if status == "FAILED" else None,
        )
    return list(found.values())


@get(
    "/v1/runs/{runId:str}/plan",
    operation_id="getPlan",
    tags=["runs"],
    summary="Get the plan of a run",
    responses={304: ResponseSpec(None, description="Not modified."), **problem_responses(404)},
)
async def get_plan(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803
    format: FromQuery[Literal["json", "yaml"]] = "json",  # noqa: A002
    if_none_match: IfNoneMatch = None,
) -> Response[dict[str, Any]]:
    row = await request_context.authorize_run(Action.READ, decode_slashes(runId))
    engine = request_context.service.operations.engine
    plan = (await engine.services.run_plans.graph_of(row.identity)).plan
    body = await asyncio.to_thread(plan_body, plan)
    etag = check_etag(if_none_match, f"{content_hash(body)}|{format}", immutable=True)
    if etag.not_modified is not None:
        return etag.not_modified
    headers = {**etag.headers, "x-plan-sha256": content_hash(body)}
    if format == "yaml":
        text = await asyncio.to_thread(plan_yaml, plan, engine.services.tools)
        return Response(text.encode(), media_type="application/yaml", headers=headers)  # pyright: ignore[reportReturnType]
    return json_response(body, headers=headers)


@get(
    "/v1/runs/{runId:str}/artifacts",
    operation_id="listArtifacts",
    tags=["runs"],
    summary="List the artifacts of a run",
    responses=problem_responses(404),
)
async def list_artifacts(request_context: InjectedContext, runId: RunId) -> Response[ArtifactList]:  # noqa: N803
    row = await request_context.authorize_run(Action.READ, decode_slashes(runId))
    found = await artifacts_of(request_context.service.log, row.identity.run_id)
    return json_response({"artifacts": [{"stepId": step_id, "artifact": ref} for step_id, ref in found]})


@get(
    "/v1/runs/{runId:str}/artifacts/{sha256:str}",
    operation_id="getArtifact",
    tags=["runs"],
    summary="Download an artifact by its hash",
    media_type="application/octet-stream",
    responses={304: ResponseSpec(None, description="Not modified."), **problem_responses(404)},
)
async def get_artifact(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803
    sha256: FromPath[str],
    if_none_match: IfNoneMatch = None,
) -> Response[bytes]:
    row = await request_context.authorize_run(Action.READ, decode_slashes(runId))
    refs = [
        ref for _, ref in await artifacts_of(request_context.service.log, row.identity.run_id) if ref.sha256 == sha256
    ]
    store = request_context.service.operations.engine.services.artifacts
    if not refs or store is None:
        raise RunwrightError(
            ErrorCode.REFERENCE_NOT_AVAILABLE, "Artifact not found: no step of this run created one with this hash."
        )
    etag = check_etag(if_none_match, sha256, immutable=True)
    if etag.not_modified is not None:
        return etag.not_modified
    file = await asyncio.to_thread(store.for_tenant(row.identity.tenant_id).open, refs[0])
    return file_response(request_context, file, "application/octet-stream", etag.headers)


@get(
    ["/v1/runs/{runId:str}/results", "/v1/runs/{runId:str}/results/{ref:str}"],
    operation_id=None,
    tags=["runs"],
    summary="Get the result of a run, a step or a task",
    description="`ref` is the id of a step, the address of a task's result, or the sha256 of a reference in an event.",
    responses=problem_responses(404, 409),
)
async def get_result(request_context: InjectedContext, runId: RunId, ref: FromPath[str | None] = None) -> Response[Any]:  # noqa: N803
    row = await request_context.authorize_run(Action.READ, decode_slashes(runId))
    run_id, operations, no_store = row.identity.run_id, request_context.operations, {"cache-control": "no-store"}
    if ref is None:
        return body_response(request_context, partial(operations.run_result_body, run_id), no_store)
    name = decode_slashes(ref)
    digest = _SHA256.fullmatch(name)
    if digest is None:
        return body_response(request_context, partial(operations.result_body, run_id, name), no_store)
    reference = await _find_reference(request_context, run_id, digest[1])
    load = partial(operations.engine.services.results.get, row.identity, reference)
    return body_response(request_context, load, {"cache-control": IMMUTABLE})


async def _find_reference(context: RequestContext, run_id: str, digest: str) -> dict[str, Any]:
    """Find the reference with this hash in the events of a run.

    Only fields that the engine writes count. A hash alone gives no access to a value, and neither does a reference
    that a caller or a step wrote into a payload.
    """
    async for record in context.service.log.events(run_id):
        if record.event_type in _EVENTS_WITH_REFERENCES and digest.encode() in bytes(record.raw_payload):
            for name in ("resultRef", "itemsRef", "result_ref"):
                found: Any = (record.payload or {}).get(name)
                if isinstance(found, dict) and ref_digest(found) == digest:  # pyright: ignore[reportUnknownArgumentType]
                    return found  # pyright: ignore[reportUnknownVariableType]
    raise RunwrightError(
        ErrorCode.REFERENCE_NOT_AVAILABLE, "Value not found: no event of this run refers to this hash."
    )


@get(
    ["/v1/runs/{runId:str}/logs", "/v1/runs/{runId:str}/logs/{entity:str}"],
    operation_id=None,
    tags=["runs"],
    summary="Get the output of a run, or of one step",
    responses=problem_responses(404),
)
async def get_logs(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803
    entity: FromPath[str | None] = None,
    attempt: Annotated[int | None, QueryParameter(ge=1, le=2**31)] = None,
    after: Annotated[str | None, QueryParameter(description="Only lines later than this time.", max_length=64)] = None,
    tail: Annotated[int, QueryParameter(ge=1, le=100_000)] = 10_000,
) -> Response[LogPage]:
    row = await request_context.authorize_run(Action.READ, decode_slashes(runId))
    if after is not None and not is_utc(after):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "after must be an RFC 3339 time in UTC.")
    name = None if entity is None else decode_slashes(entity)
    lines, truncated = await asyncio.to_thread(
        _read_logs, request_context, row.identity.run_id, name, attempt, after, tail
    )
    return json_response({"lines": lines, "truncated": truncated})


def _read_logs(
    context: RequestContext, run_id: str, entity: str | None, attempt: int | None, after: str | None, tail: int
) -> tuple[list[Any], bool]:
    """Return the last lines, at most `tail`, and whether there were more."""
    lines = context.service.operations.engine.step_logs.read(run_id, entity, attempt=attempt)
    last: deque[Any] = deque(maxlen=tail + 1)
    last.extend(line for line in lines if after is None or line.time > after)
    return list(last)[-tail:], len(last) > tail


ROUTES = [list_events, search_events, list_entities, get_plan, list_artifacts, get_artifact, get_result, get_logs]
