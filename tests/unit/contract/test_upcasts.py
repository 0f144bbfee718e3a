"""Old payloads are converted to the newest version on read; stored payloads never change."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest

import runwright as rw
from runwright.contract.catalog import CATALOG
from runwright.contract.refs import EngineRun, format_engine_run_ref, parse_engine_run_ref
from runwright.contract.upcasts import run_started_upcast_v1_v2, upcast

RUN = rw.new_run("run-1", "orders")
TEMPORAL = "temporal://default/interpreter-workflow/run_2026-02-11_abc123/f47ac10b"


def started(version: int | None, payload: dict[str, Any] | None) -> rw.RunEventWrite:
    event = rw.new_event("RunStarted", RUN, payload=payload)
    return msgspec.structs.replace(event, schema_version=version)


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        (TEMPORAL, EngineRun("temporal", "run_2026-02-11_abc123", "f47ac10b", namespace="default")),
        ("conductor://flow-1/exec-2", EngineRun("conductor", "flow-1", "exec-2")),
        ("embedded://w/r", EngineRun("embedded", "w", "r")),
    ],
)
def test_a_reference_as_text_is_parsed_into_its_parts(uri: str, parts: EngineRun) -> None:
    assert parse_engine_run_ref(uri) == parts
    assert run_started_upcast_v1_v2({"engineRunRef": uri}) == {
        "engineRunRef": uri,
        "engineRun": msgspec.to_builtins(parts),
    }


@pytest.mark.parametrize(
    "uri",
    [
        "", "run-7", "://a/b", "temporal://a/b", "temporal://a/b/c", "temporal://a/b/c/d/e", "conductor://a",
        "conductor://a/b/c", "conductor://a/", "conductor:///b", "temporal://a//c/d", "conductor://a/" + "x" * 1025,
    ],
)  # fmt: skip
def test_an_incomplete_reference_is_not_changed(uri: str) -> None:
    assert parse_engine_run_ref(uri) is None
    payload = {"engineRunRef": uri}
    assert upcast("RunStarted", 1, payload) == payload


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"status": "RUNNING"},
        {"engineRunRef": None},
        {"engineRunRef": 7},
        {"engineRunRef": TEMPORAL, "engineRun": {"provider": "p", "workflowId": "w", "runId": "r"}},
        {"engineRunRef": TEMPORAL, "engineRun": None},
    ],
)
def test_payloads_that_need_no_upcast_are_not_changed(payload: dict[str, Any]) -> None:
    assert upcast("RunStarted", 1, payload) == payload


def test_an_upcast_copies_its_input_and_preserves_other_keys() -> None:
    payload = {"engineRunRef": TEMPORAL, "mine": {"a": [1]}}
    before = copy.deepcopy(payload)
    after = upcast("RunStarted", 1, payload)
    assert payload == before
    assert after["mine"] == {"a": [1]}
    assert upcast("RunStarted", 2, after) == upcast("RunStarted", 1, after) == after


def test_every_version_of_every_type_can_be_upcast() -> None:
    for name, kind in CATALOG.items():
        for version in range(1, kind.schema_version + 1):
            assert upcast(name, version, {"x": 1})["x"] == 1
    assert upcast("SomethingNew", 1, {"x": 1}) == upcast("SomethingNew", 9, {"x": 1}) == {"x": 1}


async def test_version_1_is_stored_as_sent_and_read_as_the_newest() -> None:
    raw = json.dumps({"engineRunRef": TEMPORAL, "status": "RUNNING"}).encode()
    event = msgspec.structs.replace(started(1, None), raw_payload=msgspec.Raw(raw))
    async with rw.open_log("memory://") as log:
        await log.append([event])
        (record,) = await log.read("run-1")
        assert bytes(record.raw_payload) == raw
        assert record.schema_version == 1
        assert record.payload is not None
        assert record.payload["engineRun"]["workflowId"] == "run_2026-02-11_abc123"
        assert [finding async for finding in log.verify()] == []


async def test_a_run_of_version_1_is_found_by_its_engine_ids() -> None:
    async with rw.open_log("memory://") as log:
        await log.append([started(1, {"engineRunRef": TEMPORAL})])
        row = await log.find_engine_run("temporal", "run_2026-02-11_abc123", "f47ac10b")
        assert row.identity.run_id == "run-1"
        assert (await log.snapshot("run-1")).engine_run_ref == TEMPORAL


async def test_the_newest_version_is_not_upcast() -> None:
    async with rw.open_log("memory://") as log:
        await log.append([started(None, {"engineRunRef": TEMPORAL})])
        (record,) = await log.read("run-1")
        assert record.payload == {"engineRunRef": TEMPORAL}


@pytest.mark.parametrize(
    "run", [EngineRun("temporal", "a/b", "c d", namespace="n"), EngineRun("conductor", "é", "r%2F")]
)
def test_a_reference_in_text_form_has_the_same_parts(run: EngineRun) -> None:
    assert parse_engine_run_ref(format_engine_run_ref(run)) == run


async def test_an_old_payload_is_validated_after_its_upcast() -> None:
    async with rw.open_log("memory://") as log:
        with pytest.raises(rw.AppendRefused) as caught:
            await log.append([started(1, {"engineRunRef": 7})])
        assert caught.value.code == "SCHEMA_VALIDATION_FAILED"
        assert "engineRunRef" in caught.value.detail
