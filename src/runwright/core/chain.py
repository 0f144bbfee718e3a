"""The hash chain that makes edits show.

    hash(n) = SHA-256( hash(n-1) ‖ run ‖ event ‖ payload digest )        hash(0) = 32 zero bytes

`run` and `event` are their fields in the order below, each as a 4-byte big-endian length and that many
bytes of UTF-8 (numbers in decimal, event id and key as raw bytes); a field that is absent has the
length FF FF FF FF and no bytes. The payload digest is SHA-256 of the payload's bytes, or 32 zero bytes
where there is no payload. Because only the digest is chained, a payload can be erased later and the
chain still holds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import sha256

import msgspec

from runwright.contract.events import RunIdentity

GENESIS = bytes(32)
NO_DIGEST = bytes(32)
_ABSENT = b"\xff\xff\xff\xff"


class StoredEvent(msgspec.Struct, gc=False):
    """An event as the stores keep it: the run's constants apart, ids and hashes as bytes."""

    run_seq: int
    event_id: bytes
    event_type: str
    schema_version: int
    step_id: str | None
    engine_attempt_id: int
    logical_attempt_id: int
    idempotency_key: bytes
    emitted_at: str
    persisted_at: int
    emitted_by: str | None
    foreign_event_id: str | None
    traceparent: str | None
    raw_payload: bytes | None
    payload_digest: bytes | None  # kept only where the payload was erased
    hash: bytes


def pack(fields: Iterable[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for field in fields:
        if field is None:
            parts.append(_ABSENT)
        else:
            parts.append(len(field).to_bytes(4, "big"))
            parts.append(field)
    return b"".join(parts)


def run_part(run: RunIdentity) -> bytes:
    """The run's share of every link; computed once per run."""
    return pack(
        text.encode()
        for text in (run.run_id, run.tenant_id, run.project_id, run.environment_id, run.plan_id, run.plan_version)
    )


def payload_digest(payload: bytes | None) -> bytes:
    return NO_DIGEST if payload is None else sha256(payload).digest()


def link(previous: bytes, run: bytes, event: StoredEvent) -> bytes:
    """The hash of this event, given the hash before it and the run's part."""
    digest = event.payload_digest
    if digest is None:
        digest = NO_DIGEST if event.raw_payload is None else sha256(event.raw_payload).digest()
    numbers = b"%d,%d,%d,%d,%d" % (
        event.run_seq,
        event.schema_version,
        event.engine_attempt_id,
        event.logical_attempt_id,
        event.persisted_at,
    )
    event_type, emitted_at = event.event_type.encode(), event.emitted_at.encode()
    if event.step_id is None:
        step_id, step_length = b"", _ABSENT_LENGTH
    else:
        step_id = event.step_id.encode()
        step_length = len(step_id)
    if event.emitted_by is event.foreign_event_id is event.traceparent is None:
        rare = _THREE_ABSENT
    else:
        rare = pack(
            None if t is None else t.encode() for t in (event.emitted_by, event.foreign_event_id, event.traceparent)
        )
    return sha256(
        b"%b%b%b%b%b%b%b%b%b%b%b%b%b"
        % (
            previous,
            run,
            _LENGTH(len(numbers)),
            numbers,
            _ID_LENGTH,
            event.event_id,
            _LENGTH(len(event_type)),
            event_type,
            _LENGTH(step_length),
            step_id,
            _KEY_LENGTH,
            event.idempotency_key,
            b"%b%b%b%b" % (_LENGTH(len(emitted_at)), emitted_at, rare, digest),
        )
    ).digest()


_LENGTH = struct.Struct(">I").pack
_ABSENT_LENGTH = 0xFFFFFFFF
_ID_LENGTH, _KEY_LENGTH = _LENGTH(16), _LENGTH(32)
_THREE_ABSENT = _ABSENT * 3
