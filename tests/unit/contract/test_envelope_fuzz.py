"""Fuzzing of events: any bytes get a receipt or a coded refusal, never a traceback or a partial write."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import runwright as rw
from runwright.contract.catalog import CATALOG

MANY = settings.default.max_examples
"""The number of examples of the profile. The profile `full` (500) gives more than ten thousand cases here."""

RUN = rw.new_run("run-1", "orders")
OTHER = rw.new_run("run-2", "orders")
IDS = [f"5f2b6c1e-8a34-4b0f-9c7d-00000000000{number}" for number in range(3)]
FIRST_EVENTS = [
    rw.new_event("RunQueued", RUN, event_id=IDS[0]),
    rw.new_event("RunStarted", RUN, event_id=IDS[1]),
    rw.new_event("StepStarted", RUN, step_id="a", event_id=IDS[2]),
]
CODES = frozenset(rw.ErrorCode)
KEY_FIELDS = ("runId", "stepId", "logicalAttemptId", "eventType", "planId", "planVersion")


async def ingest_lines(lines: Sequence[bytes]) -> list[rw.Receipt | rw.Refusal]:
    """Send lines to a log with one running run, and check the invariants that hold for any lines."""
    async with rw.open_log("memory://") as log:
        await log.append(FIRST_EVENTS)
        before = (await log.read_all()).records
        outcomes = await log.ingest(lines)
        records = (await log.read_all(limit=10_000)).records
        assert len(outcomes) == len(lines)
        appended = [outcome for outcome in outcomes if outcome.status == "appended"]
        assert list(records[: len(before)]) == list(before)
        new = records[len(before) :]
        assert {(record.event_id, record.persisted_at) for record in new} == {
            (receipt.event_id, receipt.persisted_at) for receipt in appended
        }
        assert len(new) == len(appended)
        for outcome in outcomes:
            if isinstance(outcome, rw.Refusal):
                assert outcome.status in ("refused", "not_attempted")
                assert outcome.code in CODES
                assert outcome.detail.endswith(".")
                msgspec.json.encode(outcome)  # A refusal can be encoded even if it quotes invalid text.
        for record in new:
            assert record.payload is None or isinstance(record.payload, dict)
            msgspec.json.encode(record)
        if new:
            assert [finding async for finding in log.verify()] == []
        assert (await log.rebuild(check=True)).different == []
        return outcomes


def send(*lines: bytes) -> list[rw.Receipt | rw.Refusal]:
    return asyncio.run(ingest_lines(lines))


# Events that are almost valid

names = st.sampled_from(["RunQueued", "RunCompleted", "RunPaused", "StepCompleted", "StepFailed", "StepStarted"])
types = names | st.sampled_from(sorted(CATALOG)) | st.just("SomethingNew")
edge_cases = st.sampled_from(
    ["", "|", "\0", "a|b", "RUN", "\ud800", "e\u0301", "x" * 600, "x" * 3000, "null", "2026-01-31T08:00:00", " ", "é"]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | edge_cases
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | edge_cases, inner, max_size=3),
)


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    """A valid event as JSON data."""
    event_type = draw(types)
    kind = CATALOG.get(event_type)
    step_id = None
    if kind is not None and kind.level != "run":
        step_id = draw(st.sampled_from(["a", "b", "signal/s1"]))
    run = draw(st.sampled_from([RUN, OTHER]))
    event = rw.new_event(
        event_type,
        run,
        step_id=step_id,
        attempt=draw(st.sampled_from([1, 1, 1, 2])),
        event_id=draw(st.sampled_from(IDS) | st.uuids(version=4).map(str)),
        emitted_at="2026-01-31T08:00:00Z",
    )
    return json.loads(msgspec.json.encode(event))


@st.composite
def payloads(draw: st.DrawFn) -> dict[str, Any]:
    """A payload with known field names and mostly wrong types."""
    kind = draw(st.sampled_from(sorted(CATALOG)))
    known = [field.encode_name for field in msgspec.structs.fields(CATALOG[kind].payload)]
    keys = st.sampled_from(known) | st.text(max_size=4) | edge_cases if known else st.text(max_size=4) | edge_cases
    return draw(st.dictionaries(keys, values, max_size=4))


def to_json(content: Any) -> bytes:
    """Encode as JSON like Python, including NaN, Infinity and lone surrogates."""
    return json.dumps(content).encode()


def with_key(content: dict[str, Any]) -> dict[str, Any]:
    """Add the key for the fields of an event, if one can be computed."""
    parts = [content.get(name) for name in KEY_FIELDS]
    try:
        return {**content, "idempotencyKey": rw.idempotency_key(*parts)}  # type: ignore[arg-type]
    except UnicodeEncodeError:
        return content


@st.composite
def changed_events(draw: st.DrawFn) -> bytes:
    """A valid event with fields changed, removed or added; its key may be right or wrong."""
    content = draw(events())
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*sorted(content), "payload", "stepId", "schemaVersion", "emittedBy", "x"]))
        if draw(st.booleans()):
            content.pop(name, None)
        else:
            content[name] = draw(values)
    return to_json(with_key(content) if draw(st.booleans()) else content)


def _valid_lines() -> list[bytes]:
    """Create a valid line for every type, some with a payload of many JSON types."""
    payload = {"reason": "é", "n": [1, -2.5e3, True, None], "error": {"code": "X", "retryable": False}, "result": {}}
    lines: list[bytes] = []
    for number, name in enumerate([*CATALOG, "SomethingNew", "RunCompleted", "StepCompleted"]):
        step_id = None if name in CATALOG and CATALOG[name].level == "run" else "a"
        event = rw.new_event(
            name,
            RUN,
            step_id=step_id,
            payload=payload if number % 2 else None,
            attempt=1 + number % 3,
            event_id=f"5f2b6c1e-8a34-4b0f-9c7d-0000000001{number:02d}",
            emitted_at="2026-01-31T08:00:00Z",
        )
        lines.append(msgspec.json.encode(event))
    return lines


PIECES = [b"\\u0000", b"\\ud800", b"[[", b"]}", b"1e999", b"null", b'"', b"\\", b"|", b"\xff", b"\0", b",", b'"x":1,']
edits = st.tuples(
    st.floats(0, 1),  # position, as a fraction of the line
    st.integers(0, 12),  # number of bytes
    st.sampled_from(["change", "cut", "double", "end"]),
    st.sampled_from(PIECES) | st.binary(max_size=6),
)


def damage(line: bytes, changes: list[tuple[float, int, str, bytes]]) -> bytes:
    """Change, remove, duplicate or insert bytes of a line."""
    data = bytearray(line)
    for fraction, length, action, piece in changes:
        start = int(fraction * len(data))
        end = start + length
        if action == "change":
            data[start:end] = piece
        elif action == "cut":
            del data[start:end]
        elif action == "double":
            data[start:start] = data[start:end]
        else:
            del data[start:]
    return bytes(data)


damaged_lines = st.builds(damage, st.sampled_from(_valid_lines()), st.lists(edits, min_size=1, max_size=3))


@pytest.mark.slow
@settings(max_examples=max(3000, MANY * 10))
@given(damaged_lines)
@example(b"")
@example(b"[" * 100_000)
@example(b'{"runId":' * 100_000)
@example(b"-" + b"9" * 10_000)
def test_damaged_events_get_a_receipt_or_a_coded_refusal(data: bytes) -> None:
    send(data)


@settings(max_examples=MANY * 5)
@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_get_a_coded_refusal(data: bytes) -> None:
    (outcome,) = send(data)
    assert isinstance(outcome, rw.Refusal)


@settings(max_examples=MANY * 2)
@given(changed_events())
def test_changed_fields_get_a_receipt_or_a_coded_refusal(data: bytes) -> None:
    send(data)


@settings(max_examples=MANY * 2)
@given(events(), payloads())
def test_any_payload_gets_a_receipt_or_a_coded_refusal(content: dict[str, Any], payload: Any) -> None:
    (outcome,) = send(to_json({**content, "payload": payload}))
    if isinstance(outcome, rw.Receipt) and outcome.status == "appended":
        assert not _contains(payload, lambda item: isinstance(item, float) and not math.isfinite(item))
        assert not _contains(payload, lambda item: isinstance(item, str) and ("\0" in item or "\ud800" in item))


def _contains(value: Any, wrong: Any) -> bool:
    if isinstance(value, dict):
        return any(_contains(item, wrong) for pair in value.items() for item in pair)
    return any(_contains(item, wrong) for item in value) if isinstance(value, list) else wrong(value)


@settings(max_examples=MANY * 2)
@given(
    st.lists(
        events().map(to_json) | events().map(to_json) | changed_events() | damaged_lines | st.binary(max_size=9),
        max_size=8,
    )
)
def test_each_run_of_a_stream_stops_at_its_first_refusal(lines: list[bytes]) -> None:
    refused: set[str] = set()
    for line, outcome in zip(lines, send(*lines), strict=True):
        run_id = _run_id_of(line)
        if run_id in refused:
            assert outcome.status == "not_attempted"
        elif isinstance(outcome, rw.Refusal):
            assert outcome.status == "refused"
            if run_id is not None:
                refused.add(run_id)


def _run_id_of(line: bytes) -> str | None:
    try:
        content = msgspec.json.decode(line.decode(errors="replace"), type=dict[str, msgspec.Raw])
        run_id = msgspec.json.decode(content.get("runId", msgspec.Raw(b"null")))
    except (msgspec.DecodeError, UnicodeError):  # Only runId is decoded: other fields may be invalid.
        return None
    return run_id if isinstance(run_id, str) else None


def test_a_line_with_an_invalid_number_still_stops_its_run() -> None:
    run = rw.new_run("run-1", "p", "1")
    first, last = (msgspec.json.encode(rw.new_event(name, run)) for name in ("RunQueued", "RunStarted"))
    broken = first.replace(b'"RunQueued"', b'"RunQueued","payload":{"n":1e9999}')
    assert [outcome.status for outcome in send(broken, last)] == ["refused", "not_attempted"]
