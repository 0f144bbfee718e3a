"""`POST /v1/events`: append one or many events of another engine.

A body is one event, a list of events, `{"events": [...]}`, or lines of JSON. Each event gets its receipt or its
refusal, in the order of the request; for each run, events are appended up to the first that is refused. The handler is
plain ASGI: the framework would cost more than the append.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import msgspec

from runwright.auth.audit import AuditedRun
from runwright.auth.roles import Action
from runwright.contract.catalog import CATALOG, Role
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal, RunEventWrite
from runwright.contract.transitions import Enforcement
from runwright.log.append.authority import NOT_ATTEMPTED
from runwright.log.model import AppendResult
from runwright.log.noetl_importer import ImportTarget, NoetlImporter
from runwright.server.request_context import RequestContext, get_request_context

MAX_EVENTS = 50_000


class _Head(msgspec.Struct):
    """The fields of an event that decide whether the caller may append it."""

    tenant_id: Any = msgspec.field(default=None, name="tenantId")
    event_type: Any = msgspec.field(default=None, name="eventType")
    run_id: Any = msgspec.field(default=None, name="runId")
    step_id: Any = msgspec.field(default=None, name="stepId")
    attempt: Any = msgspec.field(default=1, name="logicalAttemptId")


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    events: list[msgspec.Raw]


_IS_BATCH = re.compile(rb'\s*\{\s*"events"\s*:')
_head_decoder = msgspec.json.Decoder(_Head)
_batch_decoder = msgspec.json.Decoder(_Batch)
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_encoder = msgspec.json.Encoder()


async def post_events(scope: Any, receive: Any, send: Any) -> None:
    context = get_request_context(scope)
    if scope["method"] != "POST":
        raise RunwrightError(ErrorCode.METHOD_NOT_ALLOWED, "Method not allowed; use POST.", allow="POST")
    role = context.permit(Action.APPEND)
    body = await read_body(receive)
    is_single, events = split_events(body, _header(scope, b"content-type"))
    options = _parse_options(scope["query_string"])
    if is_single and options is _DEFAULT_OPTIONS and role == "events:server" and context.actor.tenant_id is None:
        outcome = await context.service.append_batcher.append(body)
        context.service.audit.count_read(context.actor, Action.APPEND, tenant_id=None)
        await _send_json(send, *_encode_single_outcome(outcome))
        return
    outcomes = await (_append if options.home is None else _import_noetl)(context, events, role, options)
    context.service.audit.count_read(context.actor, Action.APPEND, tenant_id=context.actor.tenant_id)
    if is_single and isinstance(refused := outcomes[0], Refusal):
        raise RunwrightError(ErrorCode(refused.code), refused.detail)
    await _send_json(send, *_encode_outcomes(outcomes, is_single, options.blocked))


async def _send_json(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _encode_single_outcome(outcome: AppendResult) -> tuple[int, bytes]:
    """Return status and body like `_encode_outcomes`, faster, for the single event that most requests have."""
    if isinstance(outcome, Refusal):
        raise RunwrightError(ErrorCode(outcome.code), outcome.detail)
    receipt, event_id = _encoder.encode(outcome), outcome.event_id.encode()
    if outcome.idempotent:
        return 200, b'{"results":[%b],"appended":[],"deduped":["%b"]}' % (receipt, event_id)
    return 201, b'{"results":[%b],"appended":["%b"],"deduped":[]}' % (receipt, event_id)


async def read_body(receive: Any) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    parts = [body]
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RunwrightError(ErrorCode.REQUEST_TIMEOUT, "The caller disconnected before the whole body was sent.")
        parts.append(message.get("body", b""))
    return b"".join(parts)


def split_events(body: bytes, content_type: bytes) -> tuple[bool, list[bytes]]:
    """Return whether the body is a single event, and the events in it."""
    if content_type.startswith(b"application/x-ndjson"):
        events = [line for line in body.split(b"\n") if line.strip()]
        return False, _check_count(events)
    first = body.lstrip()[:1]
    try:
        if first == b"[":
            return False, _check_count([bytes(event) for event in _list_decoder.decode(body)])
        if first == b"{" and _IS_BATCH.match(body):
            return False, _check_count([bytes(event) for event in _batch_decoder.decode(body).events])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, f"Invalid list of events: {error}.") from None
    return True, [body]


def _check_count(events: list[bytes]) -> list[bytes]:
    if len(events) > MAX_EVENTS:
        message = f"Too many events: at most {MAX_EVENTS:,} are allowed in a request."
        raise RunwrightError(ErrorCode.PAYLOAD_TOO_LARGE, message)
    return events


class _AppendOptions(msgspec.Struct):
    """Query parameters of a request.

    `atomic`: all or nothing for each run; `enforcement`: rules for new runs; `blocked`: runs of which an event was
    refused earlier in the same stream; `home`: scope of NoETL events, None for events in Runwright's own model.
    """

    atomic: bool = False
    enforcement: Enforcement = Enforcement.STRICT
    blocked: set[str] = set()
    home: ImportTarget | None = None


_DEFAULT_OPTIONS = _AppendOptions()


def _parse_options(query: bytes) -> _AppendOptions:
    if not query:
        return _DEFAULT_OPTIONS
    params = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    for name in params:
        if name not in _PARAMETERS:
            allowed = ", ".join(sorted(_PARAMETERS))
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Unknown query parameter {name!r}. Allowed: {allowed}.")
    try:
        return _AppendOptions(
            {"true": True, "false": False}[params.get("atomic", ["false"])[0]],
            Enforcement(params.get("enforcement", [Enforcement.STRICT])[0]),
            set(msgspec.json.decode(params.get("blocked", ["[]"])[0], type=list[str])),
            _parse_home(params),
        )
    except (KeyError, ValueError, msgspec.MsgspecError):
        message = (
            "Invalid query: atomic must be true or false, enforcement strict or observe, blocked a JSON list of run "
            "ids, format runevents or noetl. tenant, project, environment and plan require format noetl; atomic and "
            "enforcement exclude it."
        )
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, message) from None


_HOME_FIELDS = {"tenant": "tenant_id", "project": "project_id", "environment": "environment_id", "plan": "plan_id"}
_PARAMETERS = frozenset({"atomic", "enforcement", "blocked", "format", *_HOME_FIELDS})


def _parse_home(params: dict[str, list[str]]) -> ImportTarget | None:
    """Return the scope of NoETL events, which do not contain it; None for `runevents`, which do."""
    fields = {_HOME_FIELDS[name]: values[0] for name, values in params.items() if name in _HOME_FIELDS}
    event_format = params.get("format", ["runevents"])[0]
    if event_format == "noetl" and params.keys().isdisjoint({"atomic", "enforcement"}):
        return ImportTarget(**fields)
    if event_format != "runevents" or fields:
        raise ValueError(event_format)
    return None


async def _import_noetl(
    context: RequestContext, events: list[bytes], role: str, options: _AppendOptions
) -> list[AppendResult]:
    """Convert NoETL events and append them under the same authorization as other events."""
    assert options.home is not None
    tenant_id = context.actor.tenant_id
    home = options.home if tenant_id is None else msgspec.structs.replace(options.home, tenant_id=tenant_id)
    if tenant_id is not None and options.home.tenant_id not in (tenant_id, ImportTarget().tenant_id):
        raise RunwrightError(ErrorCode.AUTHZ_TENANT_FORBIDDEN, _tenant_message(tenant_id))

    async def authorize(event: RunEventWrite) -> Refusal | None:
        head = _Head(event.tenant_id, event.event_type, event.run_id, event.step_id, event.logical_attempt_id)
        return await _refuse_unauthorized(context, head, role)

    importer = NoetlImporter(context.service.log, home, authorize=authorize, blocked=options.blocked)
    return await importer.import_lines(events)


async def _append(
    context: RequestContext, events: list[bytes], role: str, options: _AppendOptions
) -> list[AppendResult]:
    """Append the events that the caller may append. The others get a refusal at their position in the result."""
    ingest = partial(
        context.service.log.ingest,
        atomic=options.atomic,
        enforcement=options.enforcement,
        blocked=None if options is _DEFAULT_OPTIONS else options.blocked,
    )
    if context.actor.tenant_id is None and role == "events:server":
        return await ingest(events)
    allowed: list[bytes] = []
    refusals: list[Refusal | None] = []
    blocked = set(options.blocked)
    for event in events:
        refusal = await _check_event(context, event, role, blocked)
        refusals.append(refusal)
        if refusal is None:
            allowed.append(event)
    outcomes = iter(await ingest(allowed) if allowed else [])
    return [next(outcomes) if refusal is None else refusal for refusal in refusals]


async def _check_event(context: RequestContext, event: bytes, role: str, blocked: set[str]) -> Refusal | None:
    """Return the refusal of an event that the caller may not append, and block the later events of its run."""
    try:
        head = _head_decoder.decode(event)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None  # The log refuses it, with the reason.
    if isinstance(head.run_id, str) and head.run_id in blocked:
        return NOT_ATTEMPTED
    refusal = await _refuse_unauthorized(context, head, role)
    if refusal is not None and isinstance(head.run_id, str):
        blocked.add(head.run_id)
    return refusal


def _tenant_message(tenant_id: str | None) -> str:
    return f"This token is restricted to tenant {tenant_id!r}."


async def _refuse_unauthorized(context: RequestContext, head: _Head, role: str) -> Refusal | None:
    refusal = None
    if isinstance(head.tenant_id, str) and not context.actor.can_access_tenant(head.tenant_id):
        message = _tenant_message(context.actor.tenant_id)
        refusal = Refusal("refused", ErrorCode.AUTHZ_TENANT_FORBIDDEN, message)
    elif role == "events:worker" and isinstance(head.event_type, str):
        definition = CATALOG.get(head.event_type)
        if definition is not None and definition.role is Role.SERVER:
            message = f"{head.event_type} requires the scope events:server."
            refusal = Refusal("refused", ErrorCode.AUTHZ_DENIED, message)
        elif head.event_type in _SCHEDULED_BY and not await _was_scheduled(context, head):
            message = f"Workers cannot start steps: no server has scheduled attempt {head.attempt} of this one."
            refusal = Refusal("refused", ErrorCode.AUTHZ_DENIED, message)
    if refusal is not None:
        name = head.run_id[:512] if isinstance(head.run_id, str) else None
        context.service.audit.count_denial(
            context.actor, Action.APPEND, refusal.code, run=AuditedRun(name), requestId=context.request_id
        )
    return refusal


_STEP_EVENTS = ("StepScheduled", "StepStarted")
_ITERATION_EVENTS = ("LoopIterationScheduled", "LoopIterationStarted")
_SCHEDULED_BY = {
    "StepStarted": _STEP_EVENTS,
    "StepCompleted": _STEP_EVENTS,
    "StepFailed": _STEP_EVENTS,
    "LoopIterationStarted": _ITERATION_EVENTS,
    "LoopIterationDone": _ITERATION_EVENTS,
    "LoopIterationFailed": _ITERATION_EVENTS,
}
"""Events of workers, and those that must be in the log before: a server has scheduled or started the attempt."""


async def _was_scheduled(context: RequestContext, head: _Head) -> bool:
    log, run_id, step_id, attempt = context.service.log, head.run_id, head.step_id, head.attempt
    if not (isinstance(run_id, str) and isinstance(step_id, str) and isinstance(attempt, int) and attempt > 0):
        return True  # The log refuses it, with the reason.
    wanted = [(name, attempt) for name in _SCHEDULED_BY[head.event_type]]
    if attempt > 1:
        wanted.append(("StepRetryScheduled", attempt - 1))
    try:
        if (await log.find_run(run_id)).identity.tenant_id != head.tenant_id:
            return False  # the same answer as for a run that does not exist
        found = [await log.find_event(run_id, name, step_id, number) for name, number in wanted]
    except RunwrightError as error:
        if error.code != ErrorCode.RUN_NOT_FOUND:
            raise
        return False
    return any(record is not None for record in found)


def _encode_outcomes(outcomes: list[AppendResult], is_single: bool, blocked: set[str]) -> tuple[int, bytes]:
    """Return status and body of the response."""
    receipts = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    appended = [receipt.event_id for receipt in receipts if not receipt.idempotent]
    deduped = [receipt.event_id for receipt in receipts if receipt.idempotent]
    status = 207 if len(receipts) < len(outcomes) else 201 if is_single and appended else 200
    document: dict[str, Any] = {"results": outcomes, "appended": appended, "deduped": deduped}
    if blocked:
        document["blocked"] = sorted(blocked)  # The caller sends it back with the next part of a stream.
    return status, _encoder.encode(document)


def _header(scope: Any, header: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == header), b"")
