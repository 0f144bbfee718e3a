"""The envelope of RunEvents v2.0.1: every rule of its sections 2 to 5, from the side of a producer.

Each event is sent to the log as the JSON line of a producer in any language. It is valid except for the one
property that the test is about; its key is computed from its fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest

import runwright as rw
from runwright.contract.catalog import CATALOG
from runwright.contract.envelope import MAX_ID_CHARS, MAX_PAYLOAD_BYTES, MAX_STEP_CHARS

RUN = rw.new_run("run-1", "orders", "3", tenant_id="acme", project_id="shop", environment_id="prod")
KEY_FIELDS = ("runId", "stepId", "logicalAttemptId", "eventType", "planId", "planVersion")
REQUIRED = [
    "eventId", "eventType", "runId", "tenantId", "projectId", "environmentId", "planId", "planVersion",
    "engineAttemptId", "logicalAttemptId", "idempotencyKey", "emittedAt",
]  # fmt: skip
REQUIRED_TEXT = [name for name in REQUIRED if not name.endswith("AttemptId")]
OPTIONAL_TEXT = ["stepId", "emittedBy", "foreignEventId", "traceparent"]
FREE_TEXT = [
    "eventType", "runId", "tenantId", "projectId", "environmentId", "planId", "planVersion",
    "stepId", "emittedBy", "foreignEventId", "traceparent",
]  # fmt: skip


def document(event_type: str = "SomethingNew", step_id: str | None = "load", **changes: Any) -> dict[str, Any]:
    """Create an event as JSON data with changed fields; None removes a field. The key is computed from the rest."""
    event = rw.new_event(event_type, RUN, step_id=step_id, emitted_at="2026-01-31T08:00:00Z")
    content: dict[str, Any] = {**json.loads(msgspec.json.encode(event)), **changes}
    content = {name: value for name, value in content.items() if value is not None}
    if "idempotencyKey" not in changes:
        parts = [content.get(name) for name in KEY_FIELDS]
        if all(isinstance(part, str) for part in (parts[0], *parts[3:])):
            content["idempotencyKey"] = _key(parts)
    return content


def _key(parts: list[Any]) -> str:
    try:
        return rw.idempotency_key(*parts)
    except UnicodeEncodeError:
        return "0" * 64


def line(content: dict[str, Any], payload: str | None = None) -> bytes:
    text = json.dumps(content)
    return (text if payload is None else f'{text[:-1]}, "payload": {payload}}}').encode()


async def offer(data: bytes | rw.RunEventWrite, **options: Any) -> rw.Receipt | rw.Refusal:
    """Send one event to a new log. A refused event must not have written anything."""
    async with rw.open_log("memory://", **options) as log:
        (outcome,) = await log.ingest([data])
        written = (await log.read_all()).records
        runs = (await log.list_runs()).runs
        assert (len(written), len(runs)) == ((1, 1) if isinstance(outcome, rw.Receipt) else (0, 0))
    return outcome


async def accept(data: bytes | rw.RunEventWrite) -> rw.RunEventRecord:
    """Send one event that must be accepted, and read it back."""
    async with rw.open_log("memory://") as log:
        (outcome,) = await log.ingest([data])
        assert isinstance(outcome, rw.Receipt), outcome
        (record,) = (await log.read_all()).records
    return record


async def refuse(
    data: bytes | rw.RunEventWrite, field: str | None = None, code: str = "SCHEMA_VALIDATION_FAILED", **options: Any
) -> rw.Refusal:
    """Send one event that must be refused, with this code and a message that names the field."""
    outcome = await offer(data, **options)
    assert isinstance(outcome, rw.Refusal), outcome
    assert (outcome.status, outcome.code) == ("refused", code)
    if field is not None:
        assert field in outcome.detail
    again = await offer(data, **options)
    assert again == outcome  # The refusal is deterministic.
    return outcome


async def test_a_complete_event_is_accepted_and_read_as_sent() -> None:
    sent = document(
        "StepStarted",
        emittedBy="worker-7",
        foreignEventId="x:1",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        schemaVersion=1,
    )
    run = rw.new_event("RunStarted", RUN)
    async with rw.open_log("memory://") as log:
        outcomes = await log.ingest([run, line(sent, '{"forcedBy": null, "more": 1}')])
        assert [outcome.status for outcome in outcomes] == ["appended", "appended"]
        record = (await log.read("run-1"))[1]
    got = json.loads(msgspec.json.encode(record))
    assert {name: got[name] for name in sent} == sent
    assert got["payload"] == {"forcedBy": None, "more": 1}
    assert got.keys() - sent.keys() == {"payload", "runSeq", "persistedAt", "hash"}


# Section 2.1: required fields


@pytest.mark.parametrize("name", REQUIRED)
async def test_an_event_that_lacks_a_required_field_is_refused(name: str) -> None:
    content = document()
    del content[name]
    await refuse(line(content), name)


@pytest.mark.parametrize("name", REQUIRED)
async def test_null_in_a_required_field_is_refused(name: str) -> None:
    await refuse(line({**document(), name: None}), name)


@pytest.mark.parametrize("name", [*REQUIRED_TEXT, *OPTIONAL_TEXT])
async def test_empty_text_in_the_envelope_is_refused(name: str) -> None:
    await refuse(line(document(**{name: ""})), name)


@pytest.mark.parametrize("name", [*REQUIRED_TEXT, *OPTIONAL_TEXT])
@pytest.mark.parametrize("value", [1, 1.5, True, ["x"], {"x": "y"}])
async def test_other_types_in_text_fields_are_refused(name: str, value: Any) -> None:
    await refuse(line({**document(), name: value}), name)


@pytest.mark.parametrize("name", OPTIONAL_TEXT)
async def test_an_optional_field_may_be_null(name: str) -> None:
    record = await accept(line(document(**{name: None}) | {name: None}))
    assert getattr(record, "".join(f"_{c.lower()}" if c.isupper() else c for c in name)) is None


# Section 2.1: the event id is a UUID v4


@pytest.mark.parametrize(
    "event_id",
    [
        "5f2b6c1e-8a34-1b0f-9c7d-1e2f3a4b5c6d",  # v1
        "5f2b6c1e-8a34-3b0f-9c7d-1e2f3a4b5c6d",  # v3
        "5f2b6c1e-8a34-5b0f-9c7d-1e2f3a4b5c6d",  # v5
        "018f3c4e-8a34-7b0f-9c7d-1e2f3a4b5c6d",  # v7
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "5f2b6c1e-8a34-4b0f-1c7d-1e2f3a4b5c6d",  # another variant
        "5f2b6c1e-8a34-4b0f-cc7d-1e2f3a4b5c6d",
        "5f2b6c1e8a344b0f9c7d1e2f3a4b5c6d",
        "{5f2b6c1e-8a34-4b0f-9c7d-1e2f3a4b5c6d}",
        "urn:uuid:5f2b6c1e-8a34-4b0f-9c7d-1e2f3a4b5c6d",
        " 5f2b6c1e-8a34-4b0f-9c7d-1e2f3a4b5c6d",
        "5f2b6c1e-8a34-4b0f-9c7d-1e2f3a4b5c6d\n",
        "5f2b6c1e-8a34-4b0f-9c7d-1e2f3a4b5c6",
        "5f2b6c1g-8a34-4b0f-9c7d-1e2f3a4b5c6d",
        "５f2b6c1e-8a34-4b0f-9c7d-1e2f3a4b5c6d",
        "01234567-89ab-cdef-0123-456789abcdef",  # from the example of the original contract
        "event-1",
    ],
)
async def test_an_event_id_that_is_no_uuid_v4_is_refused(event_id: str) -> None:
    refusal = await refuse(line(document(eventId=event_id)), "eventId")
    assert refusal.facts == {"field": "eventId"}


async def test_event_ids_are_compared_in_lower_case() -> None:
    event_id = "5F2B6C1E-8A34-4B0F-9C7D-1E2F3A4B5C6D"
    upper = line(document("RunQueued", None, eventId=event_id))
    async with rw.open_log("memory://") as log:
        (receipt,) = await log.ingest([upper])
        assert isinstance(receipt, rw.Receipt)
        (record,) = await log.read("run-1")
        assert receipt.event_id == record.event_id == event_id.lower()
        (reused,) = await log.ingest([line(document("RunStarted", None, eventId=event_id.lower()))])
        assert isinstance(reused, rw.Refusal)
        assert reused.code == "EVENT_ID_REUSED"


# Section 2.1: emittedAt is RFC 3339 in UTC (test_timestamps.py has the long list)


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T08:00:00Z",
        "2026-01-31T08:00:00.123456789Z",
        "2026-01-31T08:00:00+00:00",
        "2026-01-31t08:00:00z",
        "2024-02-29T23:59:59Z",
        "2016-12-31T23:59:60Z",
    ],
)
async def test_a_time_in_utc_is_accepted_and_stored_as_written(text: str) -> None:
    assert (await accept(line(document(emittedAt=text)))).emitted_at == text


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T08:00:00",  # naive
        "2026-01-31T08:00:00+01:00",
        "2026-01-31T08:00:00-00:00",
        "2025-02-29T08:00:00Z",
        "2026-02-30T08:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:00:60Z",  # no leap second at noon
        "2026-01-31 08:00:00Z",
        "2026-01-31",
        "20260131T080000Z",
        "Sat, 31 Jan 2026 08:00:00 GMT",
        "1769846400",
    ],
)
async def test_any_other_time_is_refused(text: str) -> None:
    refusal = await refuse(line(document(emittedAt=text)), "emittedAt")
    assert refusal.facts == {"field": "emittedAt"}


# Section 2.2: stepId by level


@pytest.mark.parametrize("name", [name for name, kind in CATALOG.items() if kind.level == "run"])
async def test_a_run_level_event_with_a_step_id_is_refused(name: str) -> None:
    assert (await refuse(line(document(name, "load")), "stepId")).facts == {"field": "stepId"}
    outcome = await offer(line(document(name, None)))
    assert isinstance(outcome, rw.Receipt) or outcome.code == "INVALID_TRANSITION"


@pytest.mark.parametrize("name", [name for name, kind in CATALOG.items() if kind.level == "step"])
async def test_a_step_level_event_without_a_step_id_is_refused(name: str) -> None:
    assert (await refuse(line(document(name, None)), "stepId")).facts == {"field": "stepId"}
    await refuse(line(document(name, stepId="")), "stepId")
    outcome = await offer(line(document(name, "load")))
    assert isinstance(outcome, rw.Receipt) or outcome.code == "INVALID_TRANSITION"


@pytest.mark.parametrize("name", ["SomethingNew", *(name for name, kind in CATALOG.items() if kind.level == "entity")])
async def test_any_other_event_may_name_an_entity(name: str) -> None:
    path = "load@2~3[4][0]/fetch@2"
    assert (await accept(line(document(name, path)))).step_id == path
    assert (await accept(line(document(name, None)))).step_id is None


# Section 2.4: attempts


@pytest.mark.parametrize("name", ["logicalAttemptId", "engineAttemptId"])
@pytest.mark.parametrize("value", ["0", "-1", "2147483648", "9" * 30, "9" * 6000, "1.0", "1.5", "1e0", "true", '"1"'])
async def test_an_attempt_that_is_no_positive_integer_is_refused(name: str, value: str) -> None:
    text = json.dumps(document(**{name: 424242})).replace("424242", value)
    await refuse(text.encode(), name)


@pytest.mark.parametrize("name", ["logicalAttemptId", "engineAttemptId"])
@pytest.mark.parametrize("value", [1, 10, 2**31 - 1])
async def test_attempts_from_1_to_the_maximum_are_accepted(name: str, value: int) -> None:
    record = await accept(line(document(**{name: value})))
    assert value in (record.logical_attempt_id, record.engine_attempt_id)


@pytest.mark.parametrize("value", [True, 1.0, "1"])
@pytest.mark.parametrize("name", ["attempt", "engine_attempt"])
async def test_python_attempts_that_are_no_integers_are_refused(name: str, value: Any) -> None:
    """`True` would be hashed as "True" and stored as 1: the key in the log would belong to no event."""
    async with rw.open_log("memory://") as log:
        with pytest.raises(rw.RunwrightError) as caught:
            await log.append([rw.new_event("RunQueued", RUN, **{name: value})])
        assert caught.value.code == "SCHEMA_VALIDATION_FAILED"
        assert (await log.read_all()).records == []


# Section 3.1: the separator |


@pytest.mark.parametrize("name", ["runId", "eventType", "planId", "planVersion", "stepId"])
@pytest.mark.parametrize("value", ["|", "a|b", "|a", "a|"])
async def test_the_separator_is_refused_in_key_fields(name: str, value: str) -> None:
    refusal = await refuse(line(document(**{name: value})), name)
    assert refusal.facts == {"field": name}


@pytest.mark.parametrize("name", ["tenantId", "projectId", "environmentId", "emittedBy", "foreignEventId"])
async def test_the_separator_is_accepted_in_other_fields(name: str) -> None:
    await accept(line(document(**{name: "a|b"})))


# Section 3.1: the key


async def test_a_wrong_key_is_refused_with_the_expected_key() -> None:
    right = document()["idempotencyKey"]
    other = rw.idempotency_key("run-1", "load", 2, "SomethingNew", "orders", "3")
    changed = ("0" if right[0] != "0" else "1") + right[1:]
    for wrong in (other, changed, right.upper(), right[:-1], right + "0", f" {right}", "x" * 64):
        refusal = await refuse(line(document(idempotencyKey=wrong)), right)
        assert refusal.facts == {"field": "idempotencyKey"}
        assert "run-1|load|1|SomethingNew|orders|3" in refusal.detail


@pytest.mark.parametrize("name", ["tenantId", "projectId", "environmentId", "engineAttemptId"])
async def test_a_key_over_more_than_six_fields_is_refused(name: str) -> None:
    content = document()
    values = [str(content[field]) for field in (*KEY_FIELDS, name)]
    await refuse(line(document(idempotencyKey=sha256("|".join(values).encode()).hexdigest())), "idempotencyKey")


# Section 4: two shapes, and a closed envelope


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("runSeq", 1),
        ("persistedAt", "2026-01-31T08:00:00Z"),
        ("hash", "0" * 64),
        ("redacted", False),
        ("engineRunRef", "temporal://a/b/c/d"),
        ("status", "RUNNING"),
        ("event_id", "5f2b6c1e-8a34-4b0f-9c7d-1e2f3a4b5c6d"),
        ("raw_payload", {}),
        ("rawPayload", {}),
        ("EventId", "5f2b6c1e-8a34-4b0f-9c7d-1e2f3a4b5c6d"),
        ("", 1),
        ("x", None),
    ],
)
async def test_an_unknown_envelope_field_is_refused(name: str, value: Any) -> None:
    await refuse(line({**document(), name: value}), name)


# Text that some stores cannot represent


@pytest.mark.parametrize("name", FREE_TEXT)
async def test_nul_is_refused_in_every_text(name: str) -> None:
    for value in ("\0", "a\0b", "é\0"):
        assert (await refuse(line(document(**{name: value})), name)).facts == {"field": name}


@pytest.mark.parametrize("name", FREE_TEXT)
@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", "\udc00\ud800"])
async def test_lone_surrogates_are_refused_in_every_text(name: str, value: str) -> None:
    await refuse(line(document(**{name: value})))


@pytest.mark.parametrize("name", ["run_id", "plan_id", "tenant_id", "step_id", "emitted_by"])
async def test_lone_surrogates_in_python_events_are_refused(name: str) -> None:
    good = rw.new_event("SomethingNew", RUN, step_id="load", emitted_by="me")
    await refuse(msgspec.structs.replace(good, **{name: "a\ud800b"}), "surrogate")


@pytest.mark.parametrize("name", FREE_TEXT)
async def test_other_unusual_text_is_stored_unchanged(name: str) -> None:
    odd = " é e\u0301 \u00a0 \u200b \U00020bb7 \t\r\n \x01 \x7f \\ \" ' % ; -- "
    record = await accept(line(document(**{name: odd})))
    assert json.loads(msgspec.json.encode(record))[name] == odd


@pytest.mark.parametrize(
    ("name", "longest"), [*((name, MAX_ID_CHARS) for name in FREE_TEXT if name != "stepId"), ("stepId", MAX_STEP_CHARS)]
)
async def test_text_above_the_length_limit_is_refused(name: str, longest: int) -> None:
    await accept(line(document(**{name: "é" * longest})))
    assert (await refuse(line(document(**{name: "é" * (longest + 1)})), name)).facts == {"field": name}


async def test_a_time_above_the_length_limit_is_refused() -> None:
    """Times are limited because the start and end of a run are stored on its row, which must stay small."""
    await accept(line(document(emittedAt=f"2026-01-31T08:00:00.{'1' * 12}Z")))
    await refuse(line(document(emittedAt=f"2026-01-31T08:00:00.{'1' * MAX_ID_CHARS}Z")), "emittedAt")


# Input that is not an event


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"\n",
        b"null",
        b"true",
        b"1",
        b'"event"',
        b"[]",
        b"{}",
        b"{",
        b"}",
        b"\xff\xfe{\x00}\x00",
        b"\x00",
        b"\x80",
        b"not json",
        b"{'runId': 'x'}",
        b"<event/>",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 100_000,
        b'"' + b"x" * 100_000,
    ],
    ids=lambda data: repr(data[:12]),
)
async def test_input_that_is_no_json_object_is_refused(data: bytes) -> None:
    await refuse(data)


async def test_a_line_that_is_not_exactly_one_event_is_refused() -> None:
    good = line(document())
    await refuse(good + good)
    await refuse(good + b"x")
    await refuse(b"[" + good + b"]")
    await refuse(good[:-1])
    await refuse(b"\xef\xbb\xbf" + good)  # a byte order mark
    await refuse(good.replace(b"orders", b"or\xffers"))
    await accept(b" \t\r\n" + good + b"\r\n")


# Section 2.6: the payload


@pytest.mark.parametrize("payload", ["[]", "[{}]", '"text"', "1", "1.5", "true", "false"])
async def test_a_payload_that_is_no_object_is_refused(payload: str) -> None:
    for name in ("SomethingNew", "StepDelayed"):
        assert (await refuse(line(document(name), payload), "payload")).facts == {"field": "payload"}


async def test_a_payload_may_be_omitted_empty_or_null() -> None:
    assert (await accept(line(document()))).payload is None
    assert (await accept(line(document(), "null"))).payload is None
    assert (await accept(line(document(), "{}"))).payload == {}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-", "01", "+1", ".5", "0x1"])
async def test_invalid_and_infinite_payload_numbers_are_refused(number: str) -> None:
    await refuse(line(document(), f'{{"n": {number}}}'))
    await refuse(line(document(), f'{{"n": [{{"m": {number}}}]}}'))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
async def test_python_numbers_that_are_not_finite_are_refused(value: float) -> None:
    for payload in ({"n": value}, {"n": [{"m": value}]}):
        with pytest.raises(rw.RunwrightError) as caught:
            rw.new_event("SomethingNew", RUN, payload=payload)
        assert caught.value.code == "SCHEMA_VALIDATION_FAILED"


@pytest.mark.parametrize("payload", [{"n": object()}, {"n": {1j}}, {"n": "\ud800"}, {"n": 2**70}])
async def test_a_python_payload_is_stored_or_refused_with_a_code(payload: dict[str, Any]) -> None:
    try:
        event = rw.new_event("SomethingNew", RUN, payload=payload)
    except rw.RunwrightError as error:
        assert error.code == "SCHEMA_VALIDATION_FAILED"
    else:
        assert (await accept(event)).payload == payload


@pytest.mark.parametrize(
    "payload",
    [
        r'{"a": "\u0000"}',
        r'{"a": "x\u0000y"}',
        r'{"\u0000": 1}',
        r'{"a": [{"b": ["\u0000"]}]}',
        r'{"a": "\ud800"}',
        r'{"a": "\udc00\ud800"}',
        r'{"\ud800": 1}',
        r'{"a": [{"b": "\ud83d"}]}',
        '{"a": "\0"}',
        '{"a": "\n"}',
    ],
)
@pytest.mark.parametrize("name", ["SomethingNew", "StepDelayed"])
async def test_invalid_text_in_a_payload_is_refused(name: str, payload: str) -> None:
    await refuse(line(document(name), payload))


async def test_an_escaped_backslash_before_u0000_is_accepted() -> None:
    record = await accept(line(document(), r'{"path": "C:\\u0000"}'))
    assert record.payload == {"path": r"C:\u0000"}


@pytest.mark.parametrize("inner", ["1", '"x"', r'"\u0000"', r'"\ud800"'])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("depth", [60, 200, 400, 490, 600, 900, 990, 5_000, 100_000])
async def test_payloads_of_any_depth_are_accepted_or_refused(
    depth: int, opening: str, closing: str, inner: str
) -> None:
    data = line(document(), f'{{"deep": {opening * depth}{inner}{closing * depth}}}')
    outcome = await offer(data)
    if isinstance(outcome, rw.Refusal):
        assert outcome.code == "SCHEMA_VALIDATION_FAILED"
    else:
        assert "\\u" not in inner
    if depth == 60 and "\\u" not in inner:
        assert isinstance(outcome, rw.Receipt)


@pytest.mark.parametrize("depth", [60, 200, 400, 600, 900, 960, 990, 1_500])
async def test_the_depth_limit_does_not_depend_on_the_callers_stack(depth: int) -> None:
    """A refusal depends on the log and the event, not on the stack depth of the caller."""
    data = line(document(), f'{{"deep": {"[" * depth}{"]" * depth}}}')
    assert await offer_code(data) == await call_with_deep_stack(400, lambda: offer_code(data))


async def offer_code(data: bytes) -> str:
    outcome = await offer(data)
    return outcome.code if isinstance(outcome, rw.Refusal) else "appended"


async def call_with_deep_stack(frames: int, call: Callable[[], Any]) -> Any:
    return await call_with_deep_stack(frames - 1, call) if frames else await call()


async def test_large_integers_are_stored_exactly() -> None:
    record = await accept(line(document(), f'{{"n": {"9" * 300}, "m": -{"9" * 40}}}'))
    assert record.payload == {"n": int("9" * 300), "m": -int("9" * 40)}
    outcome = await offer(line(document(), f'{{"n": {"9" * 100_000}}}'))
    assert isinstance(outcome, rw.Receipt) or outcome.code == "SCHEMA_VALIDATION_FAILED"


async def test_a_payload_above_one_mebibyte_is_refused() -> None:
    largest = f'{{"a": "{"x" * (MAX_PAYLOAD_BYTES - 9)}"}}'
    assert len(largest) == MAX_PAYLOAD_BYTES == 2**20
    assert len((await accept(line(document(), largest))).raw_payload) == 2**20
    for more in (" " + largest[:-1] + " }", largest.replace("xx", "xxx", 1), largest.replace("x", "é", 1)):
        refusal = await refuse(line(document(), more.strip()), "payload", code="PAYLOAD_TOO_LARGE")
        assert "1,048,577" in refusal.detail
        assert refusal.facts == {"field": "payload"}


async def test_the_payload_limit_can_be_configured() -> None:
    await refuse(line(document(), '{"a": "0123456789"}'), "payload", code="PAYLOAD_TOO_LARGE", payload_limit=18)
    assert isinstance(await offer(line(document(), '{"a": "0123456789"}'), payload_limit=19), rw.Receipt)


@pytest.mark.parametrize(
    ("event_type", "payload", "field"),
    [
        ("RunQueued", {"approvalRequired": "yes"}, "approvalRequired"),
        ("RunQueued", {"queuePosition": 1.5}, "queuePosition"),
        ("RunQueued", {"params": []}, "params"),
        ("RunQueued", {"originRunId": 7}, "originRunId"),
        ("RunApproved", {"approvedBy": {"name": "x"}}, "approvedBy"),
        ("RunStarted", {"engineRunRef": 1}, "engineRunRef"),
        ("RunStarted", {"engineRunRef": "x" * 1025}, "engineRunRef"),
        ("RunStarted", {"engineRun": {"provider": "temporal"}}, "engineRun"),
        ("RunStarted", {"engineRun": {"provider": "t", "workflowId": "w", "runId": "x" * 1025}}, "engineRun"),
        ("RunStarted", {"planRef": {"uri": "s3://x"}}, "planRef"),
        ("RunStarted", {"context": {"tenantId": 1}}, "context"),
        ("RunStarted", {"degraded": 1}, "degraded"),
        ("StepStarted", {"forcedBy": 1}, "forcedBy"),
        ("StepCompleted", {"artifactRefs": {"uri": "x", "kind": "y"}}, "artifactRefs"),
        ("StepCompleted", {"artifactRefs": [{"uri": "x"}]}, "artifactRefs"),
        ("StepCompleted", {"artifactRefs": [{"uri": "x", "kind": "y", "sizeBytes": "3"}]}, "artifactRefs"),
        ("StepCompleted", {"durationMs": "3"}, "durationMs"),
        ("StepFailed", {"error": "it broke"}, "error"),
        ("StepFailed", {"error": {"code": 500}}, "error.code"),
        ("StepFailed", {"error": {"retryable": "no"}}, "error.retryable"),
        ("StepSkipped", {"reasonCode": 3}, "reasonCode"),
        ("StepRetryScheduled", {"attempt": "2"}, "attempt"),
        ("PolicyAdmitEvaluated", {"allow": 1}, "allow"),
        ("NextEvaluated", {"matched": {}}, "matched"),
        ("LoopDone", {"done": "all"}, "done"),
        ("SignalAccepted", {"signalId": 1}, "signalId"),
        ("RunPaused", {"reason": ["x"]}, "reason"),
        ("RunFailed", {"rootCause": "x"}, "rootCause"),
        ("RunFailed", {"rootCause": {"stepId": 1}}, "rootCause"),
        ("RunCompleted", {"artifactRefs": [1]}, "artifactRefs"),
        ("RunArchived", {"uri": 1}, "uri"),
    ],
)
async def test_a_known_payload_field_of_the_wrong_type_is_refused(
    event_type: str, payload: dict[str, Any], field: str
) -> None:
    step_id = None if CATALOG[event_type].level == "run" else "load"
    refusal = await refuse(line(document(event_type, step_id), json.dumps(payload)), f"payload.{field}")
    assert event_type in refusal.detail
    assert refusal.facts == {"field": "payload"}


async def test_the_payload_of_a_duplicate_is_not_validated() -> None:
    """A retry of an event that is in the log must succeed, even with another payload."""
    async with rw.open_log("memory://") as log:
        await log.ingest([line(document("RunQueued", None))])
        (again,) = await log.ingest([line(document("RunQueued", None), '{"approvalRequired": "yes"}')])
        assert again.status == "duplicate"
        (again,) = await log.ingest([line(document("RunQueued", None), f'{{"a": "{"x" * 2**20}"}}')])
        assert again.status == "duplicate"


async def test_a_python_event_with_an_invalid_raw_payload_is_refused() -> None:
    good = rw.new_event("SomethingNew", RUN)
    for raw in (b"{", b"[]", b"{}{}", b"\xff", b'{"a": NaN}', b"x", b" "):
        await refuse(msgspec.structs.replace(good, raw_payload=msgspec.Raw(raw)), "payload")


# Versions of payloads


@pytest.mark.parametrize(("event_type", "version"), [("RunStarted", 3), ("RunQueued", 2), ("RunQueued", 2**40)])
async def test_a_newer_schema_version_is_refused(event_type: str, version: int) -> None:
    content = document(event_type, None, schemaVersion=version)
    refusal = await refuse(
        line(content), f"schemaVersion {CATALOG[event_type].schema_version}", "SCHEMA_VERSION_UNKNOWN"
    )
    assert refusal.facts == {"field": "schemaVersion"}


@pytest.mark.parametrize("version", ["0", "-1", "9" * 30])
async def test_an_impossible_schema_version_is_refused(version: str) -> None:
    for event_type in ("RunQueued", "SomethingNew"):
        text = json.dumps(document(event_type, None, schemaVersion=424242)).replace("424242", version)
        await refuse(text.encode(), "schemaVersion", "SCHEMA_VERSION_UNKNOWN")


@pytest.mark.parametrize("version", ["1.0", "true", '"1"', "[]"])
async def test_a_schema_version_that_is_no_integer_is_refused(version: str) -> None:
    text = json.dumps(document(schemaVersion=424242)).replace("424242", version)
    await refuse(text.encode(), "schemaVersion")


async def test_an_event_without_a_version_has_the_newest() -> None:
    assert (await accept(line(document("RunStarted", None)))).schema_version == 2
    assert (await accept(line(document("RunQueued", None)))).schema_version == 1
    assert (await accept(line(document("SomethingNew")))).schema_version == 1
    assert (await accept(line(document("RunStarted", None, schemaVersion=1)))).schema_version == 1


async def test_unknown_types_may_have_any_schema_version() -> None:
    assert (await accept(line(document("SomethingNew", schemaVersion=17)))).schema_version == 17
