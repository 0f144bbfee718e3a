"""Checks on an event before anything is looked up: the envelope, the key, the payload's shape."""

from __future__ import annotations

import re
from typing import Any, TypeVar, overload

import msgspec

from .catalog import CATALOG, Level
from .errors import ErrorCode, RunwrightError
from .events import RunEventWrite, RunIdentity
from .keys import key_bytes, preimage
from .timestamps import is_utc
from .upcasts import upcast

LEGACY = re.compile(r"(tool|retry|sink|case)\.[a-z0-9_.]+")
"""Names of event models before this one."""

MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_ID_CHARS = 512
MAX_STEP_CHARS = 2048
MAX_DEPTH = 256
"""How deep a payload may be nested. Python's own limit would depend on who calls."""

_WRAPPED = 8  # levels that an event may put around a value
_MAX_ATTEMPT = 2**31 - 1
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DECODER = msgspec.json.Decoder(RunEventWrite)
_DECODE_ANY = msgspec.json.Decoder()
_PAYLOAD_DECODERS = {name: msgspec.json.Decoder(kind.payload) for name, kind in CATALOG.items()}


def refused(detail: str, code: ErrorCode = ErrorCode.SCHEMA_VALIDATION_FAILED, **facts: Any) -> RunwrightError:
    return RunwrightError(code, detail, **facts)


E = TypeVar("E", bound=RunEventWrite)


@overload
def decode_event(line: bytes) -> RunEventWrite: ...
@overload
def decode_event(line: bytes, shape: type[E]) -> E: ...
def decode_event(line: bytes, shape: type[RunEventWrite] = RunEventWrite) -> RunEventWrite:
    """One event from its JSON text. Whatever the bytes are, the only error is a coded one."""
    try:
        return _DECODER.decode(line) if shape is RunEventWrite else msgspec.json.decode(line, type=shape)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refused(f"This is not an event: {_first_words(error)}. Send one JSON object per event.") from None


def _first_words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not valid UTF-8"
    return str(error).rstrip(".")


def check_envelope(event: RunEventWrite) -> bytes:
    """Raise unless the envelope holds; give back the idempotency key, recomputed, as 32 bytes.

    The run's constants have a check of their own, `check_identity`: they are the same for every event of it.
    """
    _check_text("eventType", event.event_type, MAX_ID_CHARS, piped=True)
    _check_optional(event)
    if uuid4_bytes(event.event_id) is None:
        raise refused("eventId must be a UUID v4, such as uuid4() gives.", field="eventId")
    if not is_utc(event.emitted_at):
        raise refused("emittedAt must be an RFC 3339 time in UTC, such as 2026-01-31T08:00:00.000Z.", field="emittedAt")
    if type(event.logical_attempt_id) is not int or not 1 <= event.logical_attempt_id <= _MAX_ATTEMPT:
        raise refused(f"logicalAttemptId counts from 1 to {_MAX_ATTEMPT:,}.", field="logicalAttemptId")
    if type(event.engine_attempt_id) is not int or not 1 <= event.engine_attempt_id <= _MAX_ATTEMPT:
        raise refused(
            "engineAttemptId counts from 1; send 1 where the engine tells no attempts.", field="engineAttemptId"
        )
    return _check_key(event)


def uuid4_bytes(text: str) -> bytes | None:
    """The sixteen bytes of a UUID v4 in its usual form, or None where this is not one."""
    if len(text) != 36 or not text[8] == text[13] == text[18] == text[23] == "-":
        return None
    try:
        raw = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    return raw if len(raw) == 16 and raw[6] >> 4 == 4 and raw[8] >> 6 == 2 else None


def check_identity(run: RunIdentity | RunEventWrite) -> None:
    """Raise unless these can be a run's constants."""
    _check_text("runId", run.run_id, MAX_ID_CHARS, piped=True)
    _check_text("planId", run.plan_id, MAX_ID_CHARS, piped=True)
    _check_text("planVersion", run.plan_version, MAX_ID_CHARS, piped=True)
    _check_text("tenantId", run.tenant_id, MAX_ID_CHARS)
    _check_text("projectId", run.project_id, MAX_ID_CHARS)
    _check_text("environmentId", run.environment_id, MAX_ID_CHARS)


def _check_optional(event: RunEventWrite) -> None:
    kind = CATALOG.get(event.event_type)
    if kind is None and LEGACY.fullmatch(event.event_type):
        raise refused(
            f"{event.event_type} is a name of an earlier model. Send the name of today; logs in the old words are "
            "taken in with the format noetl.",
            field="eventType",
        )
    if event.step_id is not None:
        _check_text("stepId", event.step_id, MAX_STEP_CHARS, piped=True)
        if kind is not None and kind.level is Level.RUN:
            raise refused(f"{event.event_type} is about the whole run: leave stepId out.", field="stepId")
    elif kind is not None and kind.level is Level.STEP:
        raise refused(f"{event.event_type} needs a stepId.", field="stepId")
    if event.emitted_by is not None:
        _check_text("emittedBy", event.emitted_by, MAX_ID_CHARS)
    if event.foreign_event_id is not None:
        _check_text("foreignEventId", event.foreign_event_id, MAX_ID_CHARS)
    if event.traceparent is not None:
        _check_text("traceparent", event.traceparent, MAX_ID_CHARS)
    if event.schema_version is not None:
        newest = 1 if kind is None else kind.schema_version
        if event.schema_version < 1 or (kind is not None and event.schema_version > newest):
            raise refused(
                f"{event.event_type} is known up to schemaVersion {newest}; this is {event.schema_version}. "
                "Upgrade Runwright, or write the older version.",
                ErrorCode.SCHEMA_VERSION_UNKNOWN,
                field="schemaVersion",
            )
        if event.schema_version > _MAX_ATTEMPT:
            raise refused("schemaVersion is too large.", ErrorCode.SCHEMA_VERSION_UNKNOWN, field="schemaVersion")


def _check_text(field: str, value: str, longest: int, *, piped: bool = False) -> None:
    if not value:
        raise refused(f"{field} must not be empty.", field=field)
    if len(value) > longest:
        raise refused(f"{field} is longer than {longest} characters.", field=field)
    if piped and "|" in value:
        raise refused(f"{field} must not contain '|': it separates the parts of the idempotency key.", field=field)
    if value.isascii():
        if "\0" in value:
            raise refused(f"{field} must not contain NUL.", field=field)
        return
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise refused(f"{field} must be Unicode text without NUL and lone surrogates.", field=field)


def _check_key(event: RunEventWrite) -> bytes:
    key = key_bytes(
        event.run_id, event.step_id, event.logical_attempt_id, event.event_type, event.plan_id, event.plan_version
    )
    if key.hex() != event.idempotency_key:
        text = preimage(
            event.run_id, event.step_id, event.logical_attempt_id, event.event_type, event.plan_id, event.plan_version
        )
        raise refused(
            f"idempotencyKey must be the SHA-256 of {text!r} in lower-case hex, which is {key.hex()}.",
            field="idempotencyKey",
        )
    return key


def check_payload(
    event_type: str, version: int | None, payload: bytes, limit: int = MAX_PAYLOAD_BYTES
) -> msgspec.Struct | None:
    """Raise unless these bytes may be this event's payload; give back its known fields, typed.

    None for a type from elsewhere: of those only the envelope is checked.
    """
    if len(payload) > limit:
        raise refused(
            f"The payload has {len(payload):,} bytes; the limit is {limit:,}. Store it elsewhere and send a reference.",
            ErrorCode.PAYLOAD_TOO_LARGE,
            field="payload",
        )
    if _is_too_deep(payload):
        raise refused(f"The payload is nested more than {MAX_DEPTH} deep.", field="payload")
    try:
        content = _DECODE_ANY.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refused(f"The payload cannot be read: {_first_words(error)}.", field="payload") from None
    if not isinstance(content, dict):
        raise refused("The payload must be a JSON object.", field="payload")
    if b"\\u0000" in payload and _holds_nul(content):
        raise refused("The payload must not contain NUL characters.", field="payload")
    return typed_payload(event_type, version, payload)


def value_trouble(body: bytes) -> str | None:
    """Why a value, as JSON, cannot stand in an event; None if it can. Its size is another matter."""
    if _is_too_deep(body, MAX_DEPTH - _WRAPPED):
        return f"is nested more than {MAX_DEPTH - _WRAPPED} deep"
    if b"\\u0000" in body and _holds_nul(_DECODE_ANY.decode(body)):
        return "holds a NUL character"
    return None


def check_own_payload(event_type: str, payload: bytes, limit: int = MAX_PAYLOAD_BYTES) -> None:
    """As `check_payload`, for one that was encoded from its typed fields: only values of users can be wrong in it."""
    if len(payload) > limit or b"\\u0000" in payload or payload.count(b"[") + payload.count(b"{") > MAX_DEPTH:
        check_payload(event_type, None, payload, limit)


def typed_payload(event_type: str, version: int | None, payload: bytes) -> msgspec.Struct | None:
    """The known fields of a payload of the newest version, or None for a type from elsewhere."""
    kind = CATALOG.get(event_type)
    if kind is None:
        return None
    try:
        if version is not None and version < kind.schema_version:
            return msgspec.convert(upcast(event_type, version, _DECODE_ANY.decode(payload)), kind.payload)
        return _PAYLOAD_DECODERS[event_type].decode(payload)
    except msgspec.ValidationError as error:
        where = str(error).replace("`$.", "`payload.").replace("`$`", "`payload`")
        raise refused(f"The payload does not fit {event_type}: {where}.", field="payload") from None


def _is_too_deep(payload: bytes, most: int = MAX_DEPTH) -> bool:
    if payload.count(b"[") + payload.count(b"{") <= most:
        return False
    depth = 0
    for bracket in _TEXTS.sub(b"", payload).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > most:
            return True
    return False


def _holds_nul(content: Any) -> bool:
    waiting: list[Any] = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if "\0" in value:
                return True
        elif isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        elif isinstance(value, list):
            waiting += value
    return False
