"""Stateless validation of an incoming event, and its conversion to and from the stored form."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.catalog import CATALOG, schema_version_of
from runwright.contract.envelope import (
    MAX_DEPTH,
    MAX_PAYLOAD_BYTES,
    check_envelope,
    check_identity,
    check_payload,
)
from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunConstants, RunEventRecord, RunEventWrite, RunIdentity
from runwright.contract.keys import key_bytes
from runwright.contract.timestamps import from_micros
from runwright.core.integrity.chain import StoredEvent

_DRIVER_EVENT_TYPES = frozenset(name for name, kind in CATALOG.items() if not kind.from_anyone)


class PreparedEvent(msgspec.Struct, gc=False):
    """A validated event. The append authority sets the sequence number, time and hash of `stored`."""

    run: RunConstants
    event_id: str
    stored: StoredEvent
    drives: bool
    payload_problem: RunwrightError | None  # reported only if the event is not a duplicate


def prepare(event: RunEventWrite, payload_limit: int = MAX_PAYLOAD_BYTES) -> PreparedEvent:
    """Validate an event and convert it for storage.

    An invalid envelope raises. An invalid payload is recorded in `payload_problem`, because a duplicate gets its
    receipt regardless of its payload.
    """
    run = checked_context(event)
    key = check_envelope(event)
    payload: bytes | None = bytes(event.raw_payload)
    if not payload or payload == b"null":
        payload = None
    problem: RunwrightError | None = None
    if payload is not None:
        try:
            check_payload(event.event_type, event.schema_version, payload, payload_limit)
        except RunwrightError as error:
            problem = error
    event_id = event.event_id.lower()
    stored = StoredEvent(
        0,
        bytes.fromhex(event_id.replace("-", "")),
        event.event_type,
        event.schema_version or schema_version_of(event.event_type),
        event.step_id,
        event.engine_attempt_id,
        event.logical_attempt_id,
        key,
        event.emitted_at,
        0,
        event.emitted_by,
        event.foreign_event_id,
        event.traceparent,
        payload,
        None,
        b"",
    )
    return PreparedEvent(run, event_id, stored, event.event_type in _DRIVER_EVENT_TYPES, problem)


def prepare_own(
    run: RunConstants,
    event_id: str,
    event_type: str,
    step_id: str | None,
    attempts: tuple[int, int],
    emitted_at: str,
    emitted_by: str,
    payload: bytes | None,
    payload_limit: int = MAX_PAYLOAD_BYTES,
) -> PreparedEvent:
    """Convert an event of Runwright's own engine for storage.

    Its envelope is valid by construction, and so is its payload except for the values of users.
    """
    engine_attempt, attempt = attempts
    problem: RunwrightError | None = None
    if payload is not None and _is_suspect(payload, payload_limit):
        try:
            check_payload(event_type, None, payload, payload_limit)
        except RunwrightError as error:
            problem = error
    stored = StoredEvent(
        0,
        bytes.fromhex(event_id.replace("-", "")),
        event_type,
        CATALOG[event_type].schema_version,
        step_id,
        engine_attempt,
        attempt,
        key_bytes(run.run_id, step_id, attempt, event_type, run.plan_id, run.plan_version),
        emitted_at,
        0,
        emitted_by,
        None,
        None,
        payload,
        None,
        b"",
    )
    return PreparedEvent(run, event_id, stored, event_type in _DRIVER_EVENT_TYPES, problem)


def _is_suspect(payload: bytes, limit: int) -> bool:
    """Whether a payload that was encoded from its typed fields needs the full validation.

    Only values of users can be invalid in it, and a cheap test finds those that may be.
    """
    return len(payload) > limit or b"\\u0000" in payload or payload.count(b"[") + payload.count(b"{") > MAX_DEPTH


_contexts: dict[tuple[str, ...], RunConstants] = {}


def checked_context(event: RunEventWrite) -> RunConstants:
    """Return the validated constants of the event's run; the same object for a run seen recently."""
    fields = (
        event.run_id,
        event.tenant_id,
        event.project_id,
        event.environment_id,
        event.plan_id,
        event.plan_version,
    )
    cached = _contexts.get(fields)
    if cached is not None:
        return cached
    check_identity(event)
    if len(_contexts) > 4096:
        _contexts.clear()
    run = _contexts[fields] = RunConstants(*fields)
    return run


def run_identity_of(run: RunConstants) -> RunIdentity:
    return RunIdentity(**run._asdict())


def uuid_text(raw: bytes) -> str:
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def record(run: RunIdentity, event: StoredEvent) -> RunEventRecord:
    """Convert a stored event for readers. Raises one of CORRUPTION_ERRORS if Runwright did not write it."""
    fields = {} if event.raw_payload is None else {"raw_payload": msgspec.Raw(event.raw_payload)}
    return RunEventRecord(
        event_id=uuid_text(event.event_id),
        event_type=event.event_type,
        run_id=run.run_id,
        tenant_id=run.tenant_id,
        project_id=run.project_id,
        environment_id=run.environment_id,
        plan_id=run.plan_id,
        plan_version=run.plan_version,
        engine_attempt_id=event.engine_attempt_id,
        logical_attempt_id=event.logical_attempt_id,
        idempotency_key=event.idempotency_key.hex(),
        emitted_at=event.emitted_at,
        step_id=event.step_id,
        schema_version=event.schema_version,
        emitted_by=event.emitted_by,
        foreign_event_id=event.foreign_event_id,
        traceparent=event.traceparent,
        run_seq=event.run_seq,
        persisted_at=from_micros(event.persisted_at),
        hash=event.hash.hex(),
        redacted=event.payload_digest is not None,
        **fields,
    )


def run_id_in(line: bytes) -> str | None:
    """Return the run id of a refused line, or None if it cannot be read."""
    try:
        # Invalid text in other fields, or a number out of range, does not prevent reading the id.
        run_id = _RUN_ID_DECODER.decode(line.decode(errors="replace")).run_id
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return run_id if isinstance(run_id, str) else None


class _RunIdField(msgspec.Struct):
    run_id: Any = msgspec.field(default=None, name="runId")


_RUN_ID_DECODER = msgspec.json.Decoder(_RunIdField)
