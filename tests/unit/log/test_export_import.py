"""Import of foreign and old events: they are normalised, and old logs fold to the same snapshots."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import runwright as rw
from runwright.log.export_import import Importer, export_run
from support.events import History
from support.paths import CORPUS


async def import_documents(log: rw.RunLog, *documents: dict[str, object]) -> list[str]:
    outcomes = await Importer(log).import_lines([msgspec.json.encode(document) for document in documents])
    return [outcome.status for outcome in outcomes]


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.jsonl")), ids=lambda path: path.stem)
async def test_corpus_logs_fold_to_their_recorded_snapshots(path: Path) -> None:
    """Never change a file of the corpus: a failure here means that the fold of old logs has changed."""
    async with rw.open_log("memory://") as log:
        outcomes = await Importer(log).import_lines(path.read_bytes().splitlines())
        assert {outcome.status for outcome in outcomes} == {"appended"}
        (row,) = (await log.list_runs()).runs
        snapshot = (await log.snapshot(row.identity.run_id)).to_json()
        assert json.loads(json.dumps(snapshot)) == json.loads(path.with_suffix(".snapshot.json").read_text())
        again = await Importer(log).import_lines(path.read_bytes().splitlines())
        assert {outcome.status for outcome in again} == {"duplicate"}


async def test_the_example_of_contract_v1_is_normalised() -> None:
    """Import an event whose id is no UUID v4, whose key is not ours, and whose payload is at the root."""
    old = json.loads((CORPUS / "v1-root-payload.jsonl").read_text().splitlines()[0])
    async with rw.open_log("memory://") as log:
        assert await import_documents(log, old) == ["appended"]
        (record,) = await log.read(old["runId"])
        assert record.foreign_event_id == old["eventId"] != record.event_id
        assert record.idempotency_key != old["idempotencyKey"]
        assert (record.tenant_id, record.plan_id, record.plan_version) == ("tenant_acme", "plan_xyz", "1.2")
        assert record.payload is not None
        assert record.payload["engineRun"] == {
            "provider": "temporal", "namespace": "default", "workflowId": "run_2026-02-11_abc123", "runId": "f47ac10b",
        }  # fmt: skip
        assert (await log.snapshot(old["runId"])).started_at == old["startedAt"]


async def test_an_old_event_without_scope_is_refused_with_the_field() -> None:
    async with rw.open_log("memory://") as log:
        (outcome,) = await Importer(log).import_lines(
            [b'{"eventType":"STEP_STARTED","runId":"r","stepId":"a","emittedAt":"2026-01-01T00:00:00Z","eventId":"1"}']
        )
        assert outcome.status == "refused"
        assert "tenantId" in outcome.detail
        assert (await log.list_runs()).runs == []


async def test_imported_payloads_are_stored_byte_for_byte(event: History) -> None:
    odd = b'{ "x" : 1.50 }'
    write = msgspec.structs.replace(event("RunQueued"), raw_payload=msgspec.Raw(odd))
    async with rw.open_log("memory://") as source, rw.open_log("memory://") as target:
        await source.append([write])
        lines = [line async for line in export_run(source, "run-1")]
        await Importer(target).import_lines(lines)
        assert bytes((await target.read("run-1"))[0].raw_payload) == odd


async def test_a_refused_line_stops_only_later_lines_of_its_run(event: History) -> None:
    async with rw.open_log("memory://") as log:
        good, bad = msgspec.json.encode(event("RunQueued")), b'{"runId":"run-1","tenantId":"t","planId":"p"}'
        other = msgspec.json.encode(History("run-2")("RunQueued"))
        outcomes = await Importer(log).import_lines(
            [good, bad, msgspec.json.encode(event("RunStarted")), b"[", other, bad]
        )
        assert [outcome.status for outcome in outcomes] == [
            "appended", "refused", "not_attempted", "refused", "appended", "not_attempted",
        ]  # fmt: skip


async def test_a_refused_first_line_creates_no_run(event: History) -> None:
    wrong = msgspec.structs.replace(event("RunQueued"), idempotency_key="0" * 64)
    async with rw.open_log("memory://") as log:
        (outcome,) = await Importer(log).import_lines([msgspec.json.encode(wrong)])
        assert outcome.status == "refused"
        assert (await log.list_runs()).runs == []


async def test_repeated_pauses_of_an_old_stream_are_distinct_events() -> None:
    base = {"tenantId": "t", "projectId": "p", "environmentId": "e", "planId": "old", "planVersion": "1"}
    stream = [
        {"eventType": name, "eventId": str(number), "runId": "r", "emittedAt": "2026-01-05T08:00:00Z", "context": base}
        for number, name in enumerate(["RUN_STARTED", "RUN_PAUSED", "RUN_RESUMED", "RUN_PAUSED", "RUN_RESUMED"])
    ]
    async with rw.open_log("memory://") as log:
        assert await import_documents(log, *stream) == ["appended"] * 5
        assert (await log.snapshot("r")).pauses == 2
        assert await import_documents(log, *stream) == ["duplicate"] * 5
