"""Changes of a store without the log: `verify` names run and event, `rebuild` finds wrong summaries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import apsw
import asyncpg
import pytest

import runwright as rw
from support.events import History

RUN = "(SELECT run_key FROM run WHERE run_id = 'orders-1')"


async def tamper(url: str, *statements: str, values: tuple[Any, ...] = ()) -> None:
    """Execute statements with values as $1, $2, ...; each must work in Postgres and SQLite and change a row."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        for statement in statements:
            connection.execute(statement.replace("$", "?"), values)
            assert connection.changes() > 0
        connection.close()
        return
    server = await asyncpg.connect(url)
    try:
        for statement in statements:
            assert not (await server.execute(statement, *values)).endswith(" 0")
    finally:
        await server.close()


async def create_runs(url: str, *more: str) -> None:
    """Create three completed runs, and more by name; most tests change the second."""
    async with rw.open_log(url) as log:
        for name in ("orders-0", "orders-1", "orders-2", *more):
            event = History(name)
            engine_run = {"provider": "temporal", "workflowId": "orders", "runId": name}
            await log.append([event("RunQueued"), event("RunStarted", engineRun=engine_run)])
            for step in ("fetch", "pack", "send"):
                await log.append([event("StepStarted", step), event("StepCompleted", step, result={"step": step})])
            await log.append([event("RunCompleted")])


async def findings(url: str) -> list[rw.Finding]:
    async with rw.open_log(url) as log:
        found = [finding async for finding in log.verify()]
        one_run = [finding async for finding in log.verify("orders-1")]
        assert one_run == [finding for finding in found if finding.run_id == "orders-1"]
        return found


def brief(found: list[rw.Finding]) -> list[tuple[str, str, int | None]]:
    return [(finding.run_id, finding.kind, finding.run_seq) for finding in found]


async def test_an_untouched_store_gives_no_findings(durable_url: str) -> None:
    await create_runs(durable_url)
    assert await findings(durable_url) == []
    async with rw.open_log(durable_url) as log:
        assert (await log.rebuild(check=True)).different == []


CHANGES: dict[str, tuple[str, Any]] = {
    "payload": ("payload = $1", b'{"result":{"step":"forged"}}'),
    "payload, emptied": ("payload = $1", b""),
    "payload, removed": ("payload = $1", None),
    "step_id": ("step_id = $1", "forged"),
    "step_id, removed": ("step_id = $1", None),
    "event_type": ("event_type = $1", "StepFailed"),
    "event_id": ("event_id = $1", bytes(16)),
    "event_id, shortened": ("event_id = $1", b"\x00"),
    "idempotency_key": ("idempotency_key = $1", bytes(32)),
    "emitted_at": ("emitted_at = $1", "2020-01-01T00:00:00Z"),
    "persisted_at": ("persisted_at = persisted_at + $1", 1),
    "persisted_at, beyond all calendars": ("persisted_at = $1", 2**62),
    "logical_attempt_id": ("logical_attempt_id = $1", 2),
    "engine_attempt_id": ("engine_attempt_id = $1", 2),
    "schema_version": ("schema_version = $1", 7),
    "emitted_by": ("emitted_by = $1", "somebody"),
    "traceparent": ("traceparent = $1", "00-1-1-00"),
    "foreign_event_id": ("foreign_event_id = $1", "x"),
    "hash": ("hash = $1", bytes(32)),
    "payload_digest": ("payload_digest = $1", b"\x01" * 32),
}
AT_THE_END = ("payload", "event_type", "idempotency_key", "emitted_at", "hash", "payload_digest")


@pytest.mark.parametrize(("seq", "names"), [(6, tuple(CHANGES)), (9, AT_THE_END)], ids=["in the middle", "at the end"])
async def test_a_changed_event_is_found_and_named(durable_url: str, seq: int, names: tuple[str, ...]) -> None:
    """Each change is in a separate run, and its finding must name that run and that event."""
    await create_runs(durable_url, *names)
    for name in names:
        change, value = CHANGES[name]
        run = RUN.replace("orders-1", name)
        await tamper(
            durable_url, f"UPDATE event SET {change} WHERE run_key = {run} AND run_seq = {seq}", values=(value,)
        )
    found = brief(await findings(durable_url))
    for name in names:
        assert (name, "CHANGED", seq) in found
    assert {run_id for run_id, _, _ in found} == set(names)
    assert {position for _, _, position in found} <= {seq, seq + 1}  # a changed hash also breaks the link to the next


async def test_changed_payload_marked_as_redacted_is_found(durable_url: str) -> None:
    await create_runs(durable_url)
    await tamper(
        durable_url,
        f"UPDATE event SET payload = NULL, payload_digest = $1 WHERE run_key = {RUN} AND run_seq = 6",
        values=(b"\x01" * 32,),
    )
    assert brief(await findings(durable_url)) == [("orders-1", "CHANGED", 6)]


async def test_a_removed_event_is_found_and_named(durable_url: str) -> None:
    await create_runs(durable_url)
    await tamper(durable_url, f"DELETE FROM event WHERE run_key = {RUN} AND run_seq = 4")
    assert brief(await findings(durable_url)) == [("orders-1", "MISSING", 4)]


async def test_removed_event_is_found_after_renumbering(durable_url: str) -> None:
    await create_runs(durable_url)
    await tamper(
        durable_url,
        f"DELETE FROM event WHERE run_key = {RUN} AND run_seq = 4",
        f"UPDATE event SET run_seq = -run_seq WHERE run_key = {RUN} AND run_seq > 4",
        f"UPDATE event SET run_seq = -run_seq - 1 WHERE run_key = {RUN} AND run_seq < 0",
        f"UPDATE run SET last_seq = 8 WHERE run_key = {RUN}",
    )
    assert brief(await findings(durable_url))[0] == ("orders-1", "CHANGED", 4)


async def test_a_removed_first_event_is_found_and_named(durable_url: str) -> None:
    await create_runs(durable_url)
    await tamper(durable_url, f"DELETE FROM event WHERE run_key = {RUN} AND run_seq = 1")
    assert brief(await findings(durable_url)) == [("orders-1", "MISSING", 1)]


async def test_a_removed_end_is_found_and_named(durable_url: str) -> None:
    await create_runs(durable_url)
    await tamper(durable_url, f"DELETE FROM event WHERE run_key = {RUN} AND run_seq >= 8")
    assert brief(await findings(durable_url)) == [("orders-1", "MISSING", 8)]


async def test_removed_end_is_found_when_the_last_seq_matches(durable_url: str) -> None:
    """The run row still has the hash of the removed event."""
    await create_runs(durable_url)
    await tamper(
        durable_url,
        f"DELETE FROM event WHERE run_key = {RUN} AND run_seq = 9",
        f"UPDATE run SET last_seq = 8 WHERE run_key = {RUN}",
    )
    assert brief(await findings(durable_url)) == [("orders-1", "CHANGED", 8)]


async def test_removed_history_is_found(durable_url: str) -> None:
    await create_runs(durable_url)
    await tamper(durable_url, f"DELETE FROM event WHERE run_key = {RUN}")
    assert brief(await findings(durable_url)) == [("orders-1", "MISSING", 1)]


async def test_removed_run_row_is_found(durable_url: str) -> None:
    await create_runs(durable_url)
    await tamper(durable_url, "DELETE FROM run WHERE run_id = 'orders-1'")
    async with rw.open_log(durable_url) as log:
        (finding,) = [finding async for finding in log.verify()]
        assert finding.kind == "MISSING"


COPIED = (
    "event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id,"
    " emitted_at, persisted_at, payload, hash"
)


async def insert_copy(url: str, seq: int) -> None:
    """Insert a copy of event 6 with a new id and key, as event `seq`."""
    shard, position = ("", "") if url.startswith("sqlite") else ("shard, pos, ", "shard, 1000000, ")
    await tamper(
        url,
        f"INSERT INTO event (run_key, run_seq, {shard}event_id, idempotency_key, {COPIED})"
        f" SELECT run_key, {seq}, {position}$1, $2, {COPIED} FROM event WHERE run_key = {RUN} AND run_seq = 6",
        values=(b"\x07" * 16, b"\x07" * 32),
    )


async def test_an_event_inserted_at_the_end_is_found_and_named(durable_url: str) -> None:
    await create_runs(durable_url)
    await insert_copy(durable_url, 10)
    assert ("orders-1", "INSERTED", 10) in brief(await findings(durable_url))


async def test_an_event_inserted_before_the_first_is_found_and_named(durable_url: str) -> None:
    """A tail would return it."""
    await create_runs(durable_url)
    await insert_copy(durable_url, 0)
    assert ("orders-1", "INSERTED", 0) in brief(await findings(durable_url))


async def test_an_event_inserted_in_the_middle_is_found_and_named(durable_url: str) -> None:
    await create_runs(durable_url)
    await insert_copy(durable_url, 100)
    await tamper(
        durable_url,
        f"UPDATE event SET run_seq = -run_seq WHERE run_key = {RUN} AND run_seq BETWEEN 5 AND 9",
        f"UPDATE event SET run_seq = 1 - run_seq WHERE run_key = {RUN} AND run_seq < 0",
        f"UPDATE event SET run_seq = 5 WHERE run_key = {RUN} AND run_seq = 100",
        f"UPDATE run SET last_seq = 10 WHERE run_key = {RUN}",
    )
    assert brief(await findings(durable_url))[0] == ("orders-1", "CHANGED", 5)


async def test_two_swapped_events_are_found_and_named(durable_url: str) -> None:
    await create_runs(durable_url)
    await tamper(
        durable_url,
        f"UPDATE event SET run_seq = 100 WHERE run_key = {RUN} AND run_seq = 5",
        f"UPDATE event SET run_seq = 5 WHERE run_key = {RUN} AND run_seq = 7",
        f"UPDATE event SET run_seq = 7 WHERE run_key = {RUN} AND run_seq = 100",
    )
    found = brief(await findings(durable_url))
    assert {("orders-1", "CHANGED", 5), ("orders-1", "CHANGED", 7)} <= set(found)
    assert {run_id for run_id, _, _ in found} == {"orders-1"}


async def test_events_swapped_between_two_runs_are_found_in_both(durable_url: str) -> None:
    await create_runs(durable_url)
    other = RUN.replace("orders-1", "orders-2")
    await tamper(
        durable_url,
        f"UPDATE event SET run_key = -1 WHERE run_key = {RUN} AND run_seq = 6",
        f"UPDATE event SET run_key = {RUN} WHERE run_key = {other} AND run_seq = 6",
        f"UPDATE event SET run_key = {other} WHERE run_key = -1",
    )
    found = brief(await findings(durable_url))
    assert {("orders-1", "CHANGED", 6), ("orders-2", "CHANGED", 6)} <= set(found)


async def test_changed_context_of_a_run_is_found(durable_url: str) -> None:
    columns = ("tenant_id", "project_id", "environment_id", "plan_id", "plan_version")
    await create_runs(durable_url, *columns)
    for column in columns:
        await tamper(durable_url, f"UPDATE run SET {column} = 'forged' WHERE run_id = '{column}'")
    found = brief(await findings(durable_url))
    for column in columns:
        assert (column, "CHANGED", 1) in found
    assert {run_id for run_id, _, _ in found} == set(columns)


async def test_renamed_run_is_found(durable_url: str) -> None:
    await create_runs(durable_url)
    await tamper(durable_url, "UPDATE run SET run_id = 'orders-9' WHERE run_id = 'orders-1'")
    async with rw.open_log(durable_url) as log:
        assert ("orders-9", "CHANGED", 1) in brief([finding async for finding in log.verify()])


@pytest.mark.parametrize("value", ['{"result":{"step":"forged"}}', 7, 1.5, "not JSON"])
async def test_payload_of_the_wrong_type_is_one_finding(tmp_path: Any, value: object) -> None:
    """SQLite accepts any type in any column; a manual edit in its shell would write text."""
    url = f"sqlite:///{tmp_path}/runs.db"
    await create_runs(url)
    await tamper(url, f"UPDATE event SET payload = $1 WHERE run_key = {RUN} AND run_seq = 6", values=(value,))
    assert brief(await findings(url)) == [("orders-1", "CHANGED", 6)]
    async with rw.open_log(url) as log:
        assert (await log.snapshot("orders-0")).status == "COMPLETED"


@pytest.mark.parametrize(
    "change",
    [
        "step_id = CAST(x'ff' AS TEXT)",
        "step_id = x'00'",
        "event_type = 7",
        "emitted_at = x'00'",
        "event_id = 'text'",
        "idempotency_key = 'text'",
        "persisted_at = 'soon'",
        "logical_attempt_id = 'one'",
        "hash = 'text'",
    ],
)
async def test_values_of_the_wrong_type_are_findings_or_error_codes(tmp_path: Any, change: str) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    await create_runs(url)
    await tamper(url, f"UPDATE event SET {change} WHERE run_key = {RUN} AND run_seq = 6")
    async with rw.open_log(url) as log:
        found = await result_or_code(all_findings(log))
        assert found == "STORE_CORRUPT" or ("orders-1", "CHANGED", 6) in brief(found)
        await result_or_code(log.read("orders-1"))
        await result_or_code(log.read_all())
        await result_or_code(log.snapshot("orders-1"))
        await result_or_code(log.rebuild(check=True))
        assert (await log.snapshot("orders-0")).status == "COMPLETED"


async def all_findings(log: rw.RunLog) -> list[rw.Finding]:
    return [finding async for finding in log.verify()]


async def result_or_code(call: Awaitable[Any]) -> Any:
    """Return the result of a call or the code of its error; other exceptions propagate and fail the test."""
    try:
        return await call
    except rw.RunwrightError as error:
        return error.code


@pytest.mark.parametrize(
    "change", ["status = 'NONSENSE'", "enforcement = 'lax'", "summary = 'not JSON'", "summary = '{}'", "last_seq = 99"]
)
async def test_invalid_run_row_raises_only_errors_with_codes(durable_url: str, change: str) -> None:
    async with rw.open_log(durable_url) as log:
        await log.append(History("orders-1").started())
    await tamper(durable_url, f"UPDATE run SET {change} WHERE run_id = 'orders-1'")
    async with rw.open_log(durable_url) as log:
        await result_or_code(log.find_run("orders-1"))
        await result_or_code(log.list_runs())
        await result_or_code(log.read("orders-1"))
        await result_or_code(log.snapshot("orders-1"))
        await result_or_code(all_findings(log))
        await result_or_code(log.rebuild(check=True))
        await result_or_code(log.append([History("orders-1")("StepStarted", "a")]))
        await log.append(History("orders-2").started())  # other runs are not affected


# Redaction


async def test_event_without_payload_cannot_be_redacted(durable_url: str) -> None:
    await create_runs(durable_url)
    async with rw.open_log(durable_url) as log:
        with pytest.raises(rw.RunwrightError, match="Event 9 has no payload"):
            await log.redact("orders-1", 9)
        assert [finding async for finding in log.verify()] == []


@pytest.mark.parametrize("seq", [2, 6])
async def test_redacted_payload_is_one_finding_and_the_state_stays(durable_url: str, seq: int) -> None:
    await create_runs(durable_url)
    async with rw.open_log(durable_url) as log:
        await log.redact("orders-1", seq)
        (finding,) = [finding async for finding in log.verify()]
        assert (finding.run_id, finding.kind, finding.run_seq) == ("orders-1", "REDACTED", seq)
        assert not finding.is_damage
        record = (await log.read("orders-1"))[seq - 1]
        assert (record.redacted, record.payload) == (True, None)
        snapshot = await log.snapshot("orders-1")
        assert (snapshot.status, snapshot.completed_steps, snapshot.last_event_seq) == ("COMPLETED", 3, 9)
        assert (await log.rebuild(check=True)).different == []
        (receipt,) = await log.append([History("orders-1")("RunProcessed")])
        assert receipt.run_seq == 10
        await log.redact("orders-1", seq)  # again: nothing changes
    assert brief(await findings(durable_url)) == [("orders-1", "REDACTED", seq)]
    async with rw.open_log(durable_url) as log:
        assert (await log.rebuild(check=True)).different == []


async def test_redacted_payload_is_gone_from_the_store(durable_url: str) -> None:
    event = History("orders-1")
    async with rw.open_log(durable_url) as log:
        engine_run = {"provider": "temporal", "workflowId": "private-name", "runId": "1"}
        await log.append([event("RunQueued"), event("RunStarted", engineRun=engine_run)])
        await log.redact("orders-1", 2)
        row = await log.find_run("orders-1")
        assert "private-name" not in row.summary_text
        assert row.workflow_id is None
        assert all(record.payload is None for record in await log.read("orders-1"))


async def test_redaction_during_appends_is_permanent(durable_url: str) -> None:
    event = History("orders-1")

    async def append_steps() -> None:
        for number in range(20):
            await log.append([event("StepStarted", f"step-{number}")])

    async with rw.open_log(durable_url) as log:
        engine_run = {"provider": "temporal", "workflowId": "private-name", "runId": "1"}
        await log.append([event("RunQueued"), event("RunStarted", engineRun=engine_run)])
        await asyncio.gather(log.redact("orders-1", 2), append_steps())
        assert "private-name" not in (await log.find_run("orders-1")).summary_text
        assert (await log.rebuild(check=True)).different == []
        assert brief([finding async for finding in log.verify()]) == [("orders-1", "REDACTED", 2)]


async def test_restored_redacted_payload_is_found(durable_url: str) -> None:
    await create_runs(durable_url)
    async with rw.open_log(durable_url) as log:
        await log.redact("orders-1", 6)
    await tamper(
        durable_url, f"UPDATE event SET payload = $1 WHERE run_key = {RUN} AND run_seq = 6", values=(b'{"n":1}',)
    )
    assert brief(await findings(durable_url)) == [("orders-1", "CHANGED", 6)]


async def test_missing_event_cannot_be_redacted(durable_url: str) -> None:
    await create_runs(durable_url)
    async with rw.open_log(durable_url) as log:
        for seq in (0, -1, 10):
            with pytest.raises(rw.RunwrightError) as caught:
                await log.redact("orders-1", seq)
            assert caught.value.code == "INVALID_ARGUMENT"
        assert [finding async for finding in log.verify()] == []


# The summary


async def test_changed_summary_is_found_and_repaired(durable_url: str) -> None:
    changes = {
        "another status": "summary = replace(summary, '\"COMPLETED\"', '\"FAILED\"')",
        "another count": "summary = replace(summary, ':3', ':4')",
        "other bytes": "summary = summary || ' '",
        "the status of its own": "status = 'FAILED'",
        "provider": "provider = 'forged'",
        "workflow": "workflow_id = 'forged'",
        "no workflow": "workflow_id = NULL",
        "provider's run": "provider_run_id = 'forged'",
    }
    await create_runs(durable_url, *changes)
    async with rw.open_log(durable_url) as log:
        before = [run.to_json() for run in (await log.list_runs()).runs]
    for name, change in changes.items():
        await tamper(durable_url, f"UPDATE run SET {change} WHERE run_id = $1", values=(name,))
    assert await findings(durable_url) == []  # the histories are unchanged
    async with rw.open_log(durable_url) as log:
        for _ in range(2):  # a check repairs nothing
            assert set((await log.rebuild(check=True)).different) == set(changes)
        report = await log.rebuild()
        assert report.runs == 3 + len(changes)
        assert set(report.different) == set(changes)
        assert (await log.rebuild(check=True)).different == []
        assert [run.to_json() for run in (await log.list_runs()).runs] == before
        for name in changes:
            assert (await log.find_engine_run("temporal", "orders", name)).identity.run_id == name


@pytest.mark.parametrize(
    "edit",
    [
        f"UPDATE run SET enforcement = 'observe' WHERE run_key = {RUN}",
        f"UPDATE run SET persisted_at = persisted_at + 1 WHERE run_key = {RUN}",
        f"UPDATE run SET created_at = created_at + 99000000 WHERE run_key = {RUN}",
        f"UPDATE event SET pos = (SELECT max(pos) + 1 FROM event) WHERE run_key = {RUN} AND run_seq = 5",
    ],
)
async def test_edited_row_metadata_is_found(durable_url: str, edit: str) -> None:
    await create_runs(durable_url)
    await tamper(durable_url, edit)
    found = await findings(durable_url)
    assert found
    assert {finding.run_id for finding in found} == {"orders-1"}
