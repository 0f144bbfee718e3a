"""The hash chain of a run, which makes any later edit of an event detectable.

    hash(n) = SHA-256( hash(n-1) ‖ run ‖ event ‖ payload digest )        hash(0) = 32 zero bytes

`run` and `event` are sequences of fields, each written as a 4-byte big-endian length and that many bytes;
a field that is absent has the length FF FF FF FF and no bytes. Text is UTF-8.

    run:    runId, tenantId, projectId, environmentId, planId, planVersion, enforcement (strict or observe)
    event:  numbers, eventId (16 bytes), eventType, stepId, idempotencyKey (32 bytes), emittedAt,
            emittedBy, foreignEventId, traceparent

`numbers` is one field of text: runSeq, schemaVersion, engineAttemptId, logicalAttemptId and persistedAt
(microseconds since 1970), in decimal, with commas between them. The payload digest is the SHA-256 of the
payload's bytes, or 32 zero bytes if there is no payload; it is not preceded by a length. Because only the
digest is chained, a payload can be erased later and the chain stays valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

import msgspec

from runwright.contract.events import RunIdentity

GENESIS = bytes(32)
NO_DIGEST = bytes(32)
_ABSENT = b"\xff\xff\xff\xff"


class StoredEvent(msgspec.Struct, gc=False):
    """An event as the stores hold it: without the constants of its run, with ids and hashes as bytes."""

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
    payload_digest: bytes | None  # stored only if the payload was erased
    hash: bytes


def pack(fields: Iterable[bytes]) -> bytes:
    """Encode fields, each as a 4-byte length and its bytes."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def encode_run_fields(run: RunIdentity, enforcement: str) -> bytes:
    """Return the fields of the run that every link hashes; computed once per run."""
    return pack(text.encode() for text in (*run.context, enforcement))


def payload_digest(payload: bytes | None) -> bytes:
    return NO_DIGEST if payload is None else sha256(payload).digest()


def link(previous: bytes, run: bytes, event: StoredEvent) -> bytes:
    """Return the hash of this event, from the hash of the event before it and the part of the run."""
    digest = event.payload_digest
    if digest is None:
        digest = NO_DIGEST if event.raw_payload is None else sha256(event.raw_payload).digest()
    numbers = (
        f"{event.run_seq},{event.schema_version},{event.engine_attempt_id},"
        f"{event.logical_attempt_id},{event.persisted_at}"
    )
    emitted_at = event.emitted_at.encode()
    return sha256(
        b"".join(
            (
                previous,
                run,
                _LENGTHS[len(numbers)],
                numbers.encode(),
                _LENGTHS[16],
                event.event_id,
                _encode_field(event.event_type),
                _encode_field_uncached(event.step_id),
                _LENGTHS[32],
                event.idempotency_key,
                len(emitted_at).to_bytes(4, "big"),
                emitted_at,
                _encode_field(event.emitted_by),
                _encode_field(event.foreign_event_id),
                _encode_field_uncached(event.traceparent),
                digest,
            )
        )
    ).digest()


_LENGTHS = [length.to_bytes(4, "big") for length in range(128)]


def _encode_field_uncached(text: str | None) -> bytes:
    if text is None:
        return _ABSENT
    field = text.encode()
    return len(field).to_bytes(4, "big") + field


_encode_field = lru_cache(maxsize=1024)(_encode_field_uncached)
"""Cached encoding, for fields with few distinct values."""
