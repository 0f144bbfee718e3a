"""Validate an event without access to the log: envelope, idempotency key, shape of the payload."""

from __future__ import annotations

import re
from typing import Any, TypeVar, overload

import msgspec

from .catalog import CATALOG, EventType, Level
from .errors import ErrorCode, RunwrightError
from .events import RunEventWrite, RunIdentity
from .keys import key_bytes, preimage
from .timestamps import is_utc
from .upcasts import upcast

LEGACY_NAME = re.compile(r"(tool|retry|sink|case)\.[a-z0-9_.]+")
"""Event names of models before RunEvents v2."""

MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_ID_CHARS = 512
MAX_STEP_CHARS = 2048
MAX_ATTEMPT = 2**31 - 1
MAX_DEPTH = 256
"""Maximum nesting of a payload. Python's recursion limit cannot serve: it depends on the depth of the caller."""

_MAX_WRAPPER_DEPTH = 8  # levels of nesting that an event adds around a value
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DECODER = msgspec.json.Decoder(RunEventWrite)
_DECODE_ANY = msgspec.json.Decoder()
_PAYLOAD_DECODERS = {name: msgspec.json.Decoder(kind.payload) for name, kind in CATALOG.items()}


def validation_error(detail: str, code: ErrorCode = ErrorCode.SCHEMA_VALIDATION_FAILED, **facts: Any) -> RunwrightError:
    return RunwrightError(code, detail, **facts)


E = TypeVar("E", bound=RunEventWrite)


@overload
def decode_event(line: bytes) -> RunEventWrite: ...
@overload
def decode_event(line: bytes, shape: type[E]) -> E: ...
def decode_event(line: bytes, shape: type[RunEventWrite] = RunEventWrite) -> RunEventWrite:
    """Decode one event from JSON. Raises RunwrightError for any invalid input, and no other error."""
    try:
        return _DECODER.decode(line) if shape is RunEventWrite else msgspec.json.decode(line, type=shape)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise validation_error(f"Invalid event: {_decode_reason(error)}. Send one JSON object per event.") from None


def _decode_reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not valid UTF-8"
    return str(error).rstrip(".")


def check_envelope(event: RunEventWrite) -> bytes:
    """Validate the envelope; return the recomputed idempotency key, 32 bytes.

    The constants of the run are the same for all of its events, so `check_identity` validates them separately.
    """
    _check_text("eventType", event.event_type, MAX_ID_CHARS, forbid_pipe=True)
    _check_optional_fields(event)
    if uuid4_bytes(event.event_id) is None:
        raise validation_error("eventId must be a UUID v4, as uuid4() returns.", field="eventId")
    if not is_utc(event.emitted_at):
        raise validation_error(
            "emittedAt must be an RFC 3339 time in UTC, such as 2026-01-31T08:00:00.000Z.", field="emittedAt"
        )
    if type(event.logical_attempt_id) is not int or not 1 <= event.logical_attempt_id <= MAX_ATTEMPT:
        raise validation_error(
            f"logicalAttemptId must be an integer from 1 to {MAX_ATTEMPT:,}.", field="logicalAttemptId"
        )
    if type(event.engine_attempt_id) is not int or not 1 <= event.engine_attempt_id <= MAX_ATTEMPT:
        raise validation_error(
            f"engineAttemptId must be an integer from 1 to {MAX_ATTEMPT:,}; send 1 if the engine has no attempts.",
            field="engineAttemptId",
        )
    return _check_key(event)


def uuid4_bytes(text: str) -> bytes | None:
    """Return the sixteen bytes of a UUID v4 in its canonical text form; None if the text is not one."""
    if len(text) != 36 or not text[8] == text[13] == text[18] == text[23] == "-":
        return None
    try:
        raw = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    return raw if len(raw) == 16 and raw[6] >> 4 == 4 and raw[8] >> 6 == 2 else None


def check_identity(run: RunIdentity | RunEventWrite) -> None:
    """Validate the constants of a run."""
    _check_text("runId", run.run_id, MAX_ID_CHARS, forbid_pipe=True)
    if run.run_id in (".", ".."):
        raise validation_error("runId must not be `.` or `..`, which paths cannot address.", field="runId")
    _check_text("planId", run.plan_id, MAX_ID_CHARS, forbid_pipe=True)
    _check_text("planVersion", run.plan_version, MAX_ID_CHARS, forbid_pipe=True)
    _check_text("tenantId", run.tenant_id, MAX_ID_CHARS)
    _check_text("projectId", run.project_id, MAX_ID_CHARS)
    _check_text("environmentId", run.environment_id, MAX_ID_CHARS)


def _check_optional_fields(event: RunEventWrite) -> None:
    kind = CATALOG.get(event.event_type)
    if kind is None and LEGACY_NAME.fullmatch(event.event_type):
        raise validation_error(
            f"{event.event_type} is an event name of an earlier model. Send the current name, or import old logs with "
            "the format noetl.",
            field="eventType",
        )
    if event.step_id is not None:
        _check_text("stepId", event.step_id, MAX_STEP_CHARS, forbid_pipe=True)
        if kind is not None and kind.level is Level.RUN:
            raise validation_error(f"{event.event_type} is a run event: omit stepId.", field="stepId")
    elif kind is not None and kind.level is Level.STEP:
        raise validation_error(f"{event.event_type} is a step event: stepId is required.", field="stepId")
    if event.emitted_by is not None:
        _check_text("emittedBy", event.emitted_by, MAX_ID_CHARS)
    if event.foreign_event_id is not None:
        _check_text("foreignEventId", event.foreign_event_id, MAX_ID_CHARS)
    if event.traceparent is not None:
        _check_text("traceparent", event.traceparent, MAX_ID_CHARS)
    if event.schema_version is not None:
        _check_schema_version(event.event_type, event.schema_version, kind)


def _check_schema_version(event_type: str, version: int, kind: EventType | None) -> None:
    newest = 1 if kind is None else kind.schema_version
    if version < 1 or (kind is not None and version > newest):
        raise validation_error(
            f"Unknown schema version {version} of {event_type}: the newest known is schemaVersion {newest}. "
            "Upgrade Runwright, or send the older version.",
            ErrorCode.SCHEMA_VERSION_UNKNOWN,
            field="schemaVersion",
        )
    if version > MAX_ATTEMPT:
        raise validation_error(
            f"schemaVersion must be at most {MAX_ATTEMPT:,}.", ErrorCode.SCHEMA_VERSION_UNKNOWN, field="schemaVersion"
        )


def _check_text(field: str, value: str, max_chars: int, *, forbid_pipe: bool = False) -> None:
    if not value:
        raise validation_error(f"{field} must not be empty.", field=field)
    if len(value) > max_chars:
        raise validation_error(f"{field} must have at most {max_chars} characters.", field=field)
    if forbid_pipe and "|" in value:
        raise validation_error(
            f"{field} must not contain '|': it separates the parts of the idempotency key.", field=field
        )
    if value.isascii():
        if "\0" in value:
            raise validation_error(f"{field} must not contain NUL.", field=field)
        return
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise validation_error(f"{field} must be Unicode text without NUL and lone surrogates.", field=field)


def _check_key(event: RunEventWrite) -> bytes:
    key = key_bytes(
        event.run_id, event.step_id, event.logical_attempt_id, event.event_type, event.plan_id, event.plan_version
    )
    if key.hex() != event.idempotency_key:
        text = preimage(
            event.run_id, event.step_id, event.logical_attempt_id, event.event_type, event.plan_id, event.plan_version
        )
        raise validation_error(
            f"idempotencyKey must be the SHA-256 of {text!r} in lower-case hex, which is {key.hex()}.",
            field="idempotencyKey",
        )
    return key


def check_payload(
    event_type: str, version: int | None, payload: bytes, limit: int = MAX_PAYLOAD_BYTES
) -> msgspec.Struct | None:
    """Validate the bytes of a payload; return its known fields, typed.

    Returns None for a type that is not in the catalogue: such a payload must only be a JSON object within the limits.
    """
    if len(payload) > limit:
        raise validation_error(
            f"The payload has {len(payload):,} bytes; the limit is {limit:,}. Store it elsewhere and send a reference.",
            ErrorCode.PAYLOAD_TOO_LARGE,
            field="payload",
        )
    if _is_too_deep(payload):
        raise validation_error(f"The payload must not be nested more than {MAX_DEPTH} levels deep.", field="payload")
    try:
        content = _DECODE_ANY.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise validation_error(f"Invalid payload: {_decode_reason(error)}.", field="payload") from None
    if not isinstance(content, dict):
        raise validation_error("The payload must be a JSON object.", field="payload")
    if b"\\u0000" in payload and _contains_nul(content):
        raise validation_error("The payload must not contain NUL characters.", field="payload")
    return typed_payload(event_type, version, payload)


def value_problem(body: bytes) -> str | None:
    """Return why a JSON value cannot be part of an event, as a predicate; None if it can. Its size is not checked."""
    if _is_too_deep(body, MAX_DEPTH - _MAX_WRAPPER_DEPTH):
        return f"is nested more than {MAX_DEPTH - _MAX_WRAPPER_DEPTH} levels deep"
    if b"\\u0000" in body and _contains_nul(_DECODE_ANY.decode(body)):
        return "contains a NUL character"
    return None


def typed_payload(event_type: str, version: int | None, payload: bytes) -> msgspec.Struct | None:
    """Return the known fields of a payload, upcast to the newest version; None for a type outside of the catalogue."""
    kind = CATALOG.get(event_type)
    if kind is None:
        return None
    try:
        if version is not None and version < kind.schema_version:
            return msgspec.convert(upcast(event_type, version, _DECODE_ANY.decode(payload)), kind.payload)
        return _PAYLOAD_DECODERS[event_type].decode(payload)
    except msgspec.ValidationError as error:
        message = str(error).replace("`$.", "`payload.").replace("`$`", "`payload`")
        raise validation_error(f"Invalid payload of {event_type}: {message}.", field="payload") from None


def _is_too_deep(payload: bytes, limit: int = MAX_DEPTH) -> bool:
    if payload.count(b"[") + payload.count(b"{") <= limit:
        return False
    depth = 0
    for bracket in _STRINGS.sub(b"", payload).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > limit:
            return True
    return False


def _contains_nul(content: Any) -> bool:
    pending: list[Any] = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            if "\0" in value:
                return True
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        elif isinstance(value, list):
            pending += value
    return False
