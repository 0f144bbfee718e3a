"""`POST /v1/events`: events from another engine, one or many, as fast as the log takes them.

A body is one event, a list of events, `{"events": [...]}`, or lines of JSON. Each event gets its receipt or its
refusal, in the order of the request; for each run, events go in up to the first that is refused.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import msgspec

from runwright.contract.catalog import CATALOG, Role
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal, RunEventWrite
from runwright.contract.transitions import Enforcement
from runwright.control.access import Act
from runwright.log.judge import NOT_ATTEMPTED
from runwright.log.model import Outcome
from runwright.log.noetl_import import Home, NoetlImporter

from .call import Call, call_of

MOST_EVENTS = 50_000


class _Head(msgspec.Struct):
    """As much of an event as must be known before it is let in."""

    tenant_id: Any = msgspec.field(default=None, name="tenantId")
    event_type: Any = msgspec.field(default=None, name="eventType")
    run_id: Any = msgspec.field(default=None, name="runId")


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    events: list[msgspec.Raw]


_IS_BATCH = re.compile(rb'\s*\{\s*"events"\s*:')
_heads = msgspec.json.Decoder(_Head)
_batches = msgspec.json.Decoder(_Batch)
_lists = msgspec.json.Decoder(list[msgspec.Raw])
_encoder = msgspec.json.Encoder()


class IngestAnswer(msgspec.Struct, rename="camel"):
    results: list[Any]
    appended: list[str]
    deduped: list[str]


async def post_events(scope: Any, receive: Any, send: Any) -> None:
    call = call_of(scope)
    if scope["method"] != "POST":
        raise RunwrightError(ErrorCode.METHOD_NOT_ALLOWED, "Events are sent with POST.", allow="POST")
    role = call.permit(Act.APPEND)
    body = await read_body(receive)
    single, events = split(body, _header(scope, b"content-type"))
    wishes = _wishes(scope["query_string"])
    if single and wishes is _PLAIN and role == "events:server" and call.actor.tenant_id is None:
        outcome = await call.service.gathering.take(body)
        call.service.audit.looked(call.actor, Act.APPEND, tenant_id=None)
        await _say(send, *_answer_one(outcome))
        return
    outcomes = await (_append if wishes.home is None else _import)(call, events, role, wishes)
    tenant = call.actor.tenant_id
    call.service.audit.looked(call.actor, Act.APPEND, tenant_id=tenant)
    if single and isinstance(refused := outcomes[0], Refusal):
        raise RunwrightError(ErrorCode(refused.code), refused.detail)
    status, answer = _answer(outcomes, single, wishes.blocked)
    await _say(send, status, answer)


async def _say(send: Any, status: int, answer: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def _answer_one(outcome: Outcome) -> tuple[int, bytes]:
    """The same as for many, for the one event that most requests have."""
    if isinstance(outcome, Refusal):
        raise RunwrightError(ErrorCode(outcome.code), outcome.detail)
    receipt, name = _encoder.encode(outcome), outcome.event_id.encode()
    if outcome.idempotent:
        return 200, b'{"results":[%b],"appended":[],"deduped":["%b"]}' % (receipt, name)
    return 201, b'{"results":[%b],"appended":["%b"],"deduped":[]}' % (receipt, name)


async def read_body(receive: Any) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    parts = [body]
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RunwrightError(ErrorCode.REQUEST_TIMEOUT, "The caller left before all was sent.")
        parts.append(message.get("body", b""))
    return b"".join(parts)


def split(body: bytes, content_type: bytes) -> tuple[bool, list[bytes]]:
    """The events in a body, and whether it is one alone."""
    if content_type.startswith(b"application/x-ndjson"):
        events = [line for line in body.split(b"\n") if line.strip()]
        return False, _checked(events)
    first = body.lstrip()[:1]
    try:
        if first == b"[":
            return False, _checked([bytes(each) for each in _lists.decode(body)])
        if first == b"{" and _IS_BATCH.match(body):
            return False, _checked([bytes(each) for each in _batches.decode(body).events])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise RunwrightError(
            ErrorCode.SCHEMA_VALIDATION_FAILED, f"The body is not a list of events: {error}."
        ) from None
    return True, [body]


def _checked(events: list[bytes]) -> list[bytes]:
    if len(events) > MOST_EVENTS:
        raise RunwrightError(ErrorCode.PAYLOAD_TOO_LARGE, f"A request has at most {MOST_EVENTS:,} events.")
    return events


class _Wishes(msgspec.Struct):
    """How a batch is to be taken: all or nothing for each run, by which rules, and which runs had a refusal before."""

    atomic: bool = False
    enforcement: Enforcement = Enforcement.STRICT
    blocked: set[str] = set()
    home: Home | None = None  # they are in NoETL's words, and belong there


_PLAIN = _Wishes()


def _wishes(query: bytes) -> _Wishes:
    if not query:
        return _PLAIN
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    for name in given:
        if name not in ("atomic", "enforcement", "blocked", "format", *_HOME):
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"This address takes no {name!r}.")
    try:
        return _Wishes(
            {"true": True, "false": False}[given.get("atomic", ["false"])[0]],
            Enforcement(given.get("enforcement", [Enforcement.STRICT])[0]),
            set(msgspec.json.decode(given.get("blocked", ["[]"])[0], type=list[str])),
            _home(given),
        )
    except (KeyError, ValueError, msgspec.MsgspecError):
        sentence = (
            "atomic is true or false, enforcement strict or observe, blocked a JSON list of run ids, "
            "format runevents or noetl."
        )
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, sentence) from None


_HOME = {"tenant": "tenant_id", "project": "project_id", "environment": "environment_id", "plan": "plan_id"}


def _home(given: dict[str, list[str]]) -> Home | None:
    """Where runs in NoETL's words belong; None for events in ours, which say so themselves."""
    named = {_HOME[name]: values[0] for name, values in given.items() if name in _HOME}
    shape = given.get("format", ["runevents"])[0]
    if shape == "noetl" and given.keys().isdisjoint({"atomic", "enforcement"}):
        return Home(**named)
    if shape != "runevents" or named:
        raise ValueError(shape)
    return None


async def _import(call: Call, events: list[bytes], role: str, wishes: _Wishes) -> list[Outcome]:
    """Events in NoETL's words: brought to ours, and then held to the same rules."""
    assert wishes.home is not None
    tenant_id = call.actor.tenant_id
    home = wishes.home if tenant_id is None else msgspec.structs.replace(wishes.home, tenant_id=tenant_id)
    if tenant_id is not None and wishes.home.tenant_id not in (tenant_id, Home().tenant_id):
        raise RunwrightError(ErrorCode.AUTHZ_TENANT_FORBIDDEN, f"You act for the tenant {tenant_id!r} alone.")

    def may(event: RunEventWrite) -> Refusal | None:
        return _forbidden_of(call, event.tenant_id, event.event_type, event.run_id, role)

    importer = NoetlImporter(call.service.log, home, may=may, blocked=wishes.blocked)
    return await importer.take(events)


async def _append(call: Call, events: list[bytes], role: str, wishes: _Wishes) -> list[Outcome]:
    """Only what the caller may say goes on to the log; the rest is refused in its place."""
    take = partial(
        call.service.log.ingest,
        atomic=wishes.atomic,
        enforcement=wishes.enforcement,
        blocked=None if wishes is _PLAIN else wishes.blocked,
    )
    if call.actor.tenant_id is None and role == "events:server":
        return await take(events)
    allowed: list[bytes] = []
    outcomes: list[Outcome | None] = []
    blocked = set(wishes.blocked)
    for event in events:
        refusal = _forbidden(call, event, role, blocked)
        outcomes.append(refusal)
        if refusal is None:
            allowed.append(event)
    taken = iter(await take(allowed) if allowed else [])
    return [next(taken) if outcome is None else outcome for outcome in outcomes]


def _forbidden(call: Call, event: bytes, role: str, blocked: set[str]) -> Refusal | None:
    try:
        head = _heads.decode(event)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None  # the log says what is wrong with it
    tenant_id, event_type, run_id = head.tenant_id, head.event_type, head.run_id
    if isinstance(run_id, str) and run_id in blocked:
        return NOT_ATTEMPTED
    refusal = _forbidden_of(call, tenant_id, event_type, run_id, role)
    if refusal is not None and isinstance(run_id, str):
        blocked.add(run_id)
    return refusal


def _forbidden_of(call: Call, tenant_id: Any, event_type: Any, run_id: Any, role: str) -> Refusal | None:
    refusal = None
    if isinstance(tenant_id, str) and not call.actor.sees(tenant_id):
        refusal = Refusal(
            "refused", ErrorCode.AUTHZ_TENANT_FORBIDDEN, f"You act for the tenant {call.actor.tenant_id!r} alone."
        )
    elif role == "events:worker" and isinstance(event_type, str):
        known = CATALOG.get(event_type)
        if known is not None and known.role is Role.SERVER:
            refusal = Refusal("refused", ErrorCode.AUTHZ_DENIED, f"A worker does not say {event_type}; a server does.")
    if refusal is not None:
        name = run_id[:512] if isinstance(run_id, str) else None
        call.service.audit.denied(call.actor, Act.APPEND, refusal.code, run_id=name, requestId=call.request_id)
    return refusal


def _answer(outcomes: list[Outcome], single: bool, blocked: set[str]) -> tuple[int, bytes]:
    appended = [each.event_id for each in outcomes if isinstance(each, Receipt) and not each.idempotent]
    deduped = [each.event_id for each in outcomes if isinstance(each, Receipt) and each.idempotent]
    refused = len(outcomes) - len(appended) - len(deduped)
    status = 207 if refused else 201 if single and appended else 200
    answer: dict[str, Any] = {"results": outcomes, "appended": appended, "deduped": deduped}
    if blocked:
        answer["blocked"] = sorted(blocked)  # to be handed back with the next part of a stream
    return status, _encoder.encode(answer)


def _header(scope: Any, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")
