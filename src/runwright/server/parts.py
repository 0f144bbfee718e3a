"""What a run is made of: its events, entities, plan, artifacts, results, output."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import deque
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, QueryParameter

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.noetl import noetl_event, types_in
from runwright.contract.paths import parse_path
from runwright.contract.plan import content_hash, plan_body
from runwright.contract.resultref import digest_in
from runwright.contract.snapshot import StepSnapshot
from runwright.contract.timestamps import is_utc
from runwright.control.access import Act
from runwright.control.views import artifacts_of, with_pending
from runwright.core.net import Net
from runwright.log.model import EventFilter, RunRow
from runwright.plans.write import plan_yaml

from .answers import IMMUTABLE, answer, problems, tagged
from .call import Asking, Call
from .model import ArtifactList, Entity, EntityPage, EventPage, FoundEvents, LogPage
from .runs import Asked, RunId, real

_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_REFERRING = frozenset({"ResultStored", "StepCompleted", "StepSkipped", "LoopStarted", "LoopIterationDone"})
_ITERATIONS = {
    "LoopIterationScheduled": "PENDING",
    "LoopIterationStarted": "RUNNING",
    "LoopIterationDone": "SUCCESS",
    "LoopIterationFailed": "FAILED",
}


@get(
    "/v1/runs/{runId:str}/events",
    operation_id="listEvents",
    tags=["events"],
    summary="A run's events",
    responses={304: ResponseSpec(None, description="You have them already."), **problems(404)},
)
async def list_events(
    call: Asking,
    runId: RunId,  # noqa: N803
    after_seq: Annotated[int, QueryParameter(name="afterSeq", ge=0, le=2**53)] = 0,
    event_type: Annotated[
        str | None,
        QueryParameter(name="eventType", max_length=256, description="Only this one event, by what it is about."),
    ] = None,
    step_id: Annotated[str | None, QueryParameter(name="stepId", max_length=512)] = None,
    attempt: Annotated[int, QueryParameter(ge=1, le=2**31)] = 1,
    event_id: Annotated[
        str | None,
        QueryParameter(name="eventId", max_length=512, description="Only this one, by its id here or there."),
    ] = None,
    types: Annotated[
        str | None,
        QueryParameter(max_length=2000, description="Only these types, with commas between; dotted names will do."),
    ] = None,
    entity: Annotated[
        str | None, QueryParameter(max_length=512, description="Only what is about this step, or beneath it.")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1000,
    format: FromQuery[Literal["runevents", "noetl"]] = "runevents",  # noqa: A002
    asked: Asked = None,
) -> Response[EventPage]:
    run_id = real(runId)
    row = await call.look(Act.READ, run_id)
    log = call.service.log
    if event_type is not None or event_id is not None:
        if event_id is not None:
            found = await log.find_by_id(run_id, event_id)
        else:
            wanted = [await log.find_event(run_id, kind, step_id, attempt) for kind in types_in(event_type or "")]
            found = next((record for record in wanted if record is not None), None)
        only = [] if found is None else [_in_words(found, format)]
        return answer({"events": only, "lastEventSeq": row.last_seq, "nextAfterSeq": None})
    if types is not None or entity is not None:
        wanted = EventFilter(None if types is None else types_in(types), entity)
        chosen = await log.select(run_id, wanted, after_seq, limit)
        more = chosen[-1].run_seq if len(chosen) == limit else None
        shown = [_in_words(record, format) for record in chosen]
        return answer({"events": shown, "lastEventSeq": row.last_seq, "nextAfterSeq": more})
    full = after_seq + limit <= row.last_seq  # such a page never changes, unless a payload is erased
    headers, known = tagged(
        asked, f"{run_id}|{after_seq}|{limit}|{row.last_seq * (not full)}|{row.edition}|{format}", immutable=False
    )
    if known is not None:
        return known
    records = await log.read(run_id, after_seq, limit)
    last = records[-1].run_seq if records else 0
    head = max(row.last_seq, last)
    events = [_in_words(record, format) for record in records]
    document = {"events": events, "lastEventSeq": head, "nextAfterSeq": last if records and last < head else None}
    return answer(document, headers=headers)


@get(
    "/v1/log",
    operation_id="searchEvents",
    tags=["events"],
    summary="Events of some types in every run, since a time",
    description="A page may hold less than the limit, even nothing. Ask on with its cursor until that stays the same.",
    responses=problems(400),
)
async def search_events(
    call: Asking,
    types: Annotated[str, QueryParameter(min_length=1, max_length=2000, description="With commas between.")],
    since: Annotated[str, QueryParameter(max_length=64, description="A time, RFC 3339 in UTC.")],
    cursor: Annotated[str | None, QueryParameter(max_length=400)] = None,
    tenant_id: Annotated[str | None, QueryParameter(name="tenantId", max_length=512)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = 1000,
    format: FromQuery[Literal["runevents", "noetl"]] = "runevents",  # noqa: A002
) -> Response[FoundEvents]:
    call.glance(Act.READ)
    if not is_utc(since):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "since: give the time as RFC 3339 in UTC.")
    own = call.actor.tenant_id
    if own is not None and tenant_id not in (None, own):
        return answer({"events": [], "cursor": cursor or ""})
    page = await call.service.log.search(
        types_in(types), since, cursor=cursor, limit=limit, tenant_id=own if own is not None else tenant_id
    )
    return answer({"events": [_in_words(record, format) for record in page.records], "cursor": page.cursor})


def _in_words(record: RunEventRecord, words: str) -> Any:
    return noetl_event(record) if words == "noetl" else record


@get(
    "/v1/runs/{runId:str}/entities",
    operation_id="listEntities",
    tags=["runs"],
    summary="A run's steps, also those to come; or the iterations of one",
    responses=problems(404),
)
async def list_entities(
    call: Asking,
    runId: RunId,  # noqa: N803
    step_id: Annotated[str | None, QueryParameter(name="stepId", description="List this step's iterations.")] = None,
    cursor: Annotated[str | None, QueryParameter(max_length=20)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 100,
) -> Response[EntityPage]:
    run_id = real(runId)
    row = await call.look(Act.READ, run_id)
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal()):
        raise RunwrightError(ErrorCode.INVALID_CURSOR, "Hand back the cursor that the page before came with.")
    start = 0 if cursor is None else int(cursor)
    if step_id is None:
        entities = await _steps(call, row)
    else:
        entities = await _iterations(call, run_id, step_id)
    more = len(entities) > start + limit
    return answer({"entities": entities[start : start + limit], "cursor": str(start + limit) if more else None})


async def _steps(call: Call, row: RunRow) -> list[Entity]:
    snapshot = await call.service.log.snapshot(row.identity.run_id)
    try:
        net = await call.service.operations.engine.net_of(row.identity)
    except RunwrightError as error:
        if error.code != ErrorCode.PLAN_NOT_FOUND:
            raise
        return [_entity(step, None) for step in snapshot.steps]
    return [_entity(step, net) for step in with_pending(snapshot, net)]


def _entity(step: StepSnapshot, net: Net | None) -> Entity:
    declared = step.step_id if net is None or net.routes is None else step.step_id.partition("@")[0]
    node = None if net is None else net.node(declared)
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


def _began(record: RunEventRecord, status: str) -> str | None:
    """When, if this event says that it begins."""
    return record.emitted_at if status == "RUNNING" else None


async def _iterations(call: Call, run_id: str, step_id: str) -> list[Entity]:
    found: dict[str, Entity] = {}
    async for record in call.service.log.events(run_id):
        status = _ITERATIONS.get(record.event_type)
        place = None if status is None or record.step_id is None else parse_path(record.step_id)
        if place is None or place.step != step_id or record.step_id is None or status is None:
            continue
        before = found.get(record.step_id)
        done = status in ("SUCCESS", "FAILED")
        found[record.step_id] = Entity(
            path=record.step_id,
            kind="iteration",
            status=status,
            logical_attempt_id=record.logical_attempt_id,
            started_at=_began(record, status) or (None if before is None else before.started_at),
            completed_at=record.emitted_at if done else None,
            error=(record.payload or {}).get("error") if status == "FAILED" else None,
        )
    return list(found.values())


@get(
    "/v1/runs/{runId:str}/plan",
    operation_id="getPlan",
    tags=["runs"],
    summary="The plan that a run follows",
    responses={304: ResponseSpec(None, description="You have it already."), **problems(404)},
)
async def get_plan(
    call: Asking,
    runId: RunId,  # noqa: N803
    format: FromQuery[Literal["json", "yaml"]] = "json",  # noqa: A002
    asked: Asked = None,
) -> Response[dict[str, Any]]:
    row = await call.look(Act.READ, real(runId))
    engine = call.service.operations.engine
    plan = (await engine.net_of(row.identity)).plan
    body = plan_body(plan)
    headers, known = tagged(asked, f"{content_hash(body)}|{format}", immutable=True)
    if known is not None:
        return known
    headers["x-plan-sha256"] = content_hash(body)
    if format == "yaml":
        return Response(plan_yaml(plan, engine.tools).encode(), media_type="application/yaml", headers=headers)  # pyright: ignore[reportReturnType]
    return answer(body, headers=headers)


@get(
    "/v1/runs/{runId:str}/artifacts",
    operation_id="listArtifacts",
    tags=["runs"],
    summary="What a run's steps made",
    responses=problems(404),
)
async def list_artifacts(call: Asking, runId: RunId) -> Response[ArtifactList]:  # noqa: N803
    row = await call.look(Act.READ, real(runId))
    found = await artifacts_of(call.service.log, row.identity.run_id)
    return answer({"artifacts": [{"stepId": step_id, "artifact": ref} for step_id, ref in found]})


@get(
    "/v1/runs/{runId:str}/artifacts/{sha256:str}",
    operation_id="getArtifact",
    tags=["runs"],
    summary="An artifact's bytes, by their hash",
    media_type="application/octet-stream",
    responses={304: ResponseSpec(None, description="You have it already."), **problems(404)},
)
async def get_artifact(call: Asking, runId: RunId, sha256: FromPath[str], asked: Asked = None) -> Response[bytes]:  # noqa: N803
    row = await call.look(Act.READ, real(runId))
    refs = [ref for _, ref in await artifacts_of(call.service.log, row.identity.run_id) if ref.sha256 == sha256]
    store = call.service.operations.engine.artifacts
    if not refs or store is None:
        raise RunwrightError(ErrorCode.REFERENCE_NOT_AVAILABLE, "No step of this run made an artifact with that hash.")
    headers, known = tagged(asked, sha256, immutable=True)
    if known is not None:
        return known
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact"
        await asyncio.to_thread(store.of(row.identity.tenant_id).get, refs[0], file)
        body = await asyncio.to_thread(file.read_bytes)
    return Response(body, media_type="application/octet-stream", headers=headers)


@get(
    ["/v1/runs/{runId:str}/results", "/v1/runs/{runId:str}/results/{ref:str}"],
    operation_id=None,
    tags=["runs"],
    summary="What a step gave back, or the run as a whole",
    description="`ref` is a step's id, the address of a task's result, or the sha256 of a reference in an event.",
    responses=problems(404, 409),
)
async def get_result(call: Asking, runId: RunId, ref: FromPath[str | None] = None) -> Response[Any]:  # noqa: N803
    row = await call.look(Act.READ, real(runId))
    run_id = row.identity.run_id
    if ref is None:
        return answer(await call.operations.run_result(run_id))
    name = real(ref)
    digest = _SHA256.fullmatch(name)
    if digest is None:
        return answer(await call.operations.result(run_id, name))
    reference = await _reference(call, run_id, digest[1])
    body = await call.service.operations.engine.results.get(row.identity, reference)
    return answer(body, headers={"cache-control": IMMUTABLE})


async def _reference(call: Call, run_id: str, digest: str) -> dict[str, Any]:
    """The reference with this hash, where the engine put one: a hash alone opens nothing, nor does what a caller or a
    step wrote into a payload."""
    async for record in call.service.log.events(run_id):
        if record.event_type in _REFERRING and digest.encode() in bytes(record.raw_payload):
            for name in ("resultRef", "itemsRef", "result_ref"):
                found: Any = (record.payload or {}).get(name)
                if isinstance(found, dict) and digest_in(found) == digest:  # pyright: ignore[reportUnknownArgumentType]
                    return found  # pyright: ignore[reportUnknownVariableType]
    raise RunwrightError(ErrorCode.REFERENCE_NOT_AVAILABLE, "No event of this run refers to a value with that hash.")


@get(
    ["/v1/runs/{runId:str}/logs", "/v1/runs/{runId:str}/logs/{entity:str}"],
    operation_id=None,
    tags=["runs"],
    summary="What a run's steps wrote, or one of them",
    responses=problems(404),
)
async def get_logs(
    call: Asking,
    runId: RunId,  # noqa: N803
    entity: FromPath[str | None] = None,
    attempt: Annotated[int | None, QueryParameter(ge=1, le=2**31)] = None,
    after: Annotated[str | None, QueryParameter(description="Only lines later than this time.", max_length=64)] = None,
    tail: Annotated[int, QueryParameter(ge=1, le=100_000)] = 10_000,
) -> Response[LogPage]:
    row = await call.look(Act.READ, real(runId))
    if after is not None and not is_utc(after):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "after: give the time as RFC 3339 in UTC.")
    name = None if entity is None else real(entity)
    lines, truncated = await asyncio.to_thread(_read_logs, call, row.identity.run_id, name, attempt, after, tail)
    return answer({"lines": lines, "truncated": truncated})


def _read_logs(
    call: Call, run_id: str, entity: str | None, attempt: int | None, after: str | None, tail: int
) -> tuple[list[Any], bool]:
    found = call.service.operations.engine.step_logs.read(run_id, entity, attempt=attempt)
    kept: deque[Any] = deque(maxlen=tail + 1)
    kept.extend(line for line in found if after is None or line.time > after)
    return list(kept)[-tail:], len(kept) > tail


ROUTES = [list_events, search_events, list_entities, get_plan, list_artifacts, get_artifact, get_result, get_logs]
