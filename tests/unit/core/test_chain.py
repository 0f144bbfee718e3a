"""The hash chain, compared with an independent implementation that uses only the records of the log."""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from runwright.core.integrity.chain import GENESIS, NO_DIGEST, StoredEvent, encode_run_fields, link, payload_digest

RUN = rw.new_run("run-1", "orders", "3", tenant_id="acme", project_id="shop", environment_id="prod")


# The chain as an auditor would implement it


def field(value: bytes | str | None) -> bytes:
    """Encode a field as its length in four bytes and its bytes, or as four bytes of ones if it is missing."""
    if value is None:
        return b"\xff\xff\xff\xff"
    data = value.encode("utf-8") if isinstance(value, str) else value
    return len(data).to_bytes(4, "big") + data


def microseconds(text: str) -> int:
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def auditor_hash(previous: bytes, record: rw.RunEventRecord) -> bytes:
    """Compute the hash of a record from the hash before it."""
    run = [
        *(record.run_id, record.tenant_id, record.project_id, record.environment_id),
        *(record.plan_id, record.plan_version, "strict"),
    ]
    numbers = [
        *(record.run_seq, record.schema_version, record.engine_attempt_id, record.logical_attempt_id),
        microseconds(record.persisted_at),
    ]
    event = [
        ",".join(str(number) for number in numbers),
        uuid.UUID(record.event_id).bytes,
        record.event_type,
        record.step_id,
        bytes.fromhex(record.idempotency_key),
        record.emitted_at,
        record.emitted_by,
        record.foreign_event_id,
        record.traceparent,
    ]
    raw = bytes(record.raw_payload)
    digest = hashlib.sha256(raw).digest() if raw else bytes(32)
    packed = b"".join(field(part) for part in (*run, *event))
    return hashlib.sha256(previous + packed + digest).digest()


async def test_an_auditor_computes_the_hashes_of_a_log() -> None:
    written = [
        rw.new_event("RunQueued", RUN),
        rw.new_event("RunStarted", RUN, payload={"engineRunRef": "temporal://n/t/w/r"}, emitted_by="engine"),
        rw.new_event("StepStarted", RUN, step_id="größe 𠮷", engine_attempt=3),
        rw.new_event("StepFailed", RUN, step_id="größe 𠮷", payload={}, traceparent="00-ab-cd-01"),
        msgspec.structs.replace(rw.new_event("SomethingNew", RUN), foreign_event_id="x", schema_version=7),
        rw.new_event("RunCompleted", RUN, payload={"reason": "x" * 1000}),
    ]
    async with rw.open_log("memory://") as log:
        await log.append(written)
        records = await log.read("run-1")
        head = (await log.find_run("run-1")).head
    previous = bytes(32)
    for record in records:
        previous = auditor_hash(previous, record)
        assert record.hash == previous.hex()
    assert head == previous


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
attempts = st.integers(1, 2**31 - 1)
stored_events = st.builds(
    StoredEvent,
    run_seq=st.integers(1, 2**50),
    event_id=st.binary(min_size=16, max_size=16),
    event_type=texts,
    schema_version=attempts,
    step_id=st.none() | texts,
    engine_attempt_id=attempts,
    logical_attempt_id=attempts,
    idempotency_key=st.binary(min_size=32, max_size=32),
    emitted_at=st.text(st.characters(codec="ascii"), min_size=1, max_size=200),
    persisted_at=st.integers(0, 2**55),
    emitted_by=st.none() | texts,
    foreign_event_id=st.none() | texts,
    traceparent=st.none() | texts,
    raw_payload=st.none() | st.binary(max_size=20),
    payload_digest=st.none(),
    hash=st.just(b""),
)
identities = st.builds(
    rw.RunIdentity,
    run_id=texts,
    tenant_id=texts,
    project_id=texts,
    environment_id=texts,
    plan_id=texts,
    plan_version=texts,
)
hashes = st.binary(min_size=32, max_size=32)


def as_record(run: rw.RunIdentity, event: StoredEvent) -> rw.RunEventRecord:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=event.persisted_at)
    return rw.RunEventRecord(
        **{name: getattr(run, name) for name in run.__struct_fields__},
        event_id=str(uuid.UUID(bytes=event.event_id)),
        event_type=event.event_type,
        engine_attempt_id=event.engine_attempt_id,
        logical_attempt_id=event.logical_attempt_id,
        idempotency_key=event.idempotency_key.hex(),
        emitted_at=event.emitted_at,
        step_id=event.step_id,
        schema_version=event.schema_version,
        emitted_by=event.emitted_by,
        foreign_event_id=event.foreign_event_id,
        traceparent=event.traceparent,
        raw_payload=msgspec.Raw(event.raw_payload or b""),
        run_seq=event.run_seq,
        persisted_at=moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        hash="",
    )


@given(hashes, identities, stored_events)
def test_the_auditor_computes_the_hash_of_any_event(previous: bytes, run: rw.RunIdentity, event: StoredEvent) -> None:
    if event.raw_payload == b"":
        event.raw_payload = None  # Readers see an empty payload as none.
    assert link(previous, encode_run_fields(run, "strict"), event) == auditor_hash(previous, as_record(run, event))


EVENT = StoredEvent(
    run_seq=7,
    event_id=bytes(range(16)),
    event_type="StepStarted",
    schema_version=1,
    step_id="load",
    engine_attempt_id=2,
    logical_attempt_id=3,
    idempotency_key=bytes(range(32)),
    emitted_at="2026-01-31T08:00:00Z",
    persisted_at=1_769_846_400_000_000,
    emitted_by="worker",
    foreign_event_id="x-1",
    traceparent="00-ab-cd-01",
    raw_payload=b'{"a":1}',
    payload_digest=None,
    hash=b"",
)


def hash_of(event: StoredEvent = EVENT, run: rw.RunIdentity = RUN, previous: bytes = GENESIS) -> bytes:
    return link(previous, encode_run_fields(run, "strict"), event)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run_seq", 8),
        ("event_id", bytes(16)),
        ("event_type", "StepStarteD"),
        ("schema_version", 2),
        ("step_id", "Load"),
        ("step_id", None),
        ("step_id", ""),
        ("engine_attempt_id", 3),
        ("logical_attempt_id", 4),
        ("idempotency_key", bytes(32)),
        ("emitted_at", "2026-01-31T08:00:00z"),
        ("persisted_at", 1_769_846_400_000_001),
        ("emitted_by", "worker "),
        ("emitted_by", None),
        ("foreign_event_id", "x-2"),
        ("foreign_event_id", None),
        ("traceparent", "00-ab-cd-00"),
        ("traceparent", None),
        ("raw_payload", b'{"a":2}'),
        ("raw_payload", b'{"a": 1}'),
        ("raw_payload", b""),
        ("raw_payload", None),
        ("payload_digest", bytes(32)),
    ],
)
def test_a_change_to_any_field_changes_the_hash(name: str, value: Any) -> None:
    assert hash_of(msgspec.structs.replace(EVENT, **{name: value})) != hash_of()


@pytest.mark.parametrize("name", RUN.__struct_fields__)
def test_a_change_to_any_field_of_the_run_changes_the_hash(name: str) -> None:
    assert hash_of(run=msgspec.structs.replace(RUN, **{name: "other"})) != hash_of()


def test_the_fields_of_a_stored_event_are_pinned() -> None:
    assert set(StoredEvent.__struct_fields__) == {
        *("run_seq", "event_id", "event_type", "schema_version", "step_id", "engine_attempt_id", "logical_attempt_id"),
        *("idempotency_key", "emitted_at", "persisted_at", "emitted_by", "foreign_event_id", "traceparent"),
        *("raw_payload", "payload_digest", "hash"),
    }


def test_a_hash_depends_on_the_previous_hash() -> None:
    assert bytes(32) == GENESIS
    assert hash_of(previous=hash_of()) != hash_of()


@given(stored_events, stored_events)
def test_different_events_have_different_hashes(one: StoredEvent, two: StoredEvent) -> None:
    same = msgspec.structs.astuple(one) == msgspec.structs.astuple(two)
    assert (hash_of(one) == hash_of(two)) == same


@given(texts, texts, st.integers(0, 12))
def test_moving_text_between_fields_changes_the_hash(first: str, second: str, cut: int) -> None:
    joined = first + second
    moved = msgspec.structs.replace(EVENT, emitted_by=joined[:cut], foreign_event_id=joined[cut:])
    original = msgspec.structs.replace(EVENT, emitted_by=first, foreign_event_id=second)
    assert (hash_of(moved) == hash_of(original)) == (joined[:cut] == first)
    runs = [
        msgspec.structs.replace(RUN, tenant_id=joined[:cut], project_id=joined[cut:]),
        msgspec.structs.replace(RUN, tenant_id=first, project_id=second),
    ]
    assert (hash_of(run=runs[0]) == hash_of(run=runs[1])) == (joined[:cut] == first)


@given(stored_events)
def test_redacting_a_payload_does_not_change_the_hash(event: StoredEvent) -> None:
    digest = payload_digest(event.raw_payload)
    erased = msgspec.structs.replace(event, raw_payload=None, payload_digest=digest)
    assert hash_of(erased) == hash_of(event)


def test_an_event_without_a_payload_has_a_digest_of_zeros() -> None:
    assert payload_digest(None) == NO_DIGEST == bytes(32)
    assert payload_digest(b"{}") == hashlib.sha256(b"{}").digest()
