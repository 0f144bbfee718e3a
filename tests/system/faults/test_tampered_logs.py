"""Change a store behind the log's back: `verify` names run and event, `rebuild` finds a summary that lies."""

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
    """Statements with values as $1, $2, ...; each must do what it says in Postgres and SQLite alike."""
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


async def make(url: str, *more: str) -> None:
    """Three runs and more; most tests change the second."""
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
    await make(durable_url)
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
    """Each change in a run of its own: its finding must name that run and that event."""
    await make(durable_url, *names)
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
    assert {place for _, _, place in found} <= {seq, seq + 1}  # a changed hash also breaks the link to the next


async def test_a_payload_that_was_changed_and_marked_as_erased_is_found(durable_url: str) -> None:
    await make(durable_url)
    await tamper(
        durable_url,
        f"UPDATE event SET payload = NULL, payload_digest = $1 WHERE run_key = {RUN} AND run_seq = 6",
        values=(b"\x01" * 32,),
    )
    assert brief(await findings(durable_url)) == [("orders-1", "CHANGED", 6)]


async def test_a_removed_event_is_found_and_named(durable_url: str) -> None:
    await make(durable_url)
    await tamper(durable_url, f"DELETE FROM event WHERE run_key = {RUN} AND run_seq = 4")
    assert brief(await findings(durable_url)) == [("orders-1", "MISSING", 4)]


async def test_a_removed_event_is_found_though_the_others_were_numbered_anew(durable_url: str) -> None:
    await make(durable_url)
    await tamper(
        durable_url,
        f"DELETE FROM event WHERE run_key = {RUN} AND run_seq = 4",
        f"UPDATE event SET run_seq = -run_seq WHERE run_key = {RUN} AND run_seq > 4",
        f"UPDATE event SET run_seq = -run_seq - 1 WHERE run_key = {RUN} AND run_seq < 0",
        f"UPDATE run SET last_seq = 8 WHERE run_key = {RUN}",
    )
    assert brief(await findings(durable_url))[0] == ("orders-1", "CHANGED", 4)


async def test_a_removed_first_event_is_found_and_named(durable_url: str) -> None:
    await make(durable_url)
    await tamper(durable_url, f"DELETE FROM event WHERE run_key = {RUN} AND run_seq = 1")
    assert brief(await findings(durable_url)) == [("orders-1", "MISSING", 1)]


async def test_a_removed_end_is_found_and_named(durable_url: str) -> None:
    await make(durable_url)
    await tamper(durable_url, f"DELETE FROM event WHERE run_key = {RUN} AND run_seq >= 8")
    assert brief(await findings(durable_url)) == [("orders-1", "MISSING", 8)]


async def test_a_removed_end_is_found_though_the_runs_row_agrees_with_it(durable_url: str) -> None:
    """Its row still names the hash of the event that is gone."""
    await make(durable_url)
    await tamper(
        durable_url,
        f"DELETE FROM event WHERE run_key = {RUN} AND run_seq = 9",
        f"UPDATE run SET last_seq = 8 WHERE run_key = {RUN}",
    )
    assert brief(await findings(durable_url)) == [("orders-1", "CHANGED", 8)]


async def test_a_history_that_was_removed_whole_is_found(durable_url: str) -> None:
    await make(durable_url)
    await tamper(durable_url, f"DELETE FROM event WHERE run_key = {RUN}")
    assert brief(await findings(durable_url)) == [("orders-1", "MISSING", 1)]


async def test_a_removed_run_whose_events_were_left_is_found(durable_url: str) -> None:
    await make(durable_url)
    await tamper(durable_url, "DELETE FROM run WHERE run_id = 'orders-1'")
    async with rw.open_log(durable_url) as log:
        (finding,) = [finding async for finding in log.verify()]
        assert finding.kind == "MISSING"


COPIED = (
    "event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id,"
    " emitted_at, persisted_at, payload, hash"
)


async def insert(url: str, seq: int) -> None:
    """A copy of event 6, with an id and a key of its own, put in at some place."""
    shard, place = ("", "") if url.startswith("sqlite") else ("shard, pos, ", "shard, 1000000, ")
    await tamper(
        url,
        f"INSERT INTO event (run_key, run_seq, {shard}event_id, idempotency_key, {COPIED})"
        f" SELECT run_key, {seq}, {place}$1, $2, {COPIED} FROM event WHERE run_key = {RUN} AND run_seq = 6",
        values=(b"\x07" * 16, b"\x07" * 32),
    )


async def test_an_event_inserted_at_the_end_is_found_and_named(durable_url: str) -> None:
    await make(durable_url)
    await insert(durable_url, 10)
    assert ("orders-1", "INSERTED", 10) in brief(await findings(durable_url))


async def test_an_event_inserted_before_the_first_is_found_and_named(durable_url: str) -> None:
    """Whoever tails the log would be handed it."""
    await make(durable_url)
    await insert(durable_url, 0)
    assert ("orders-1", "INSERTED", 0) in brief(await findings(durable_url))


async def test_an_event_inserted_in_the_middle_is_found_and_named(durable_url: str) -> None:
    await make(durable_url)
    await insert(durable_url, 100)
    await tamper(
        durable_url,
        f"UPDATE event SET run_seq = -run_seq WHERE run_key = {RUN} AND run_seq BETWEEN 5 AND 9",
        f"UPDATE event SET run_seq = 1 - run_seq WHERE run_key = {RUN} AND run_seq < 0",
        f"UPDATE event SET run_seq = 5 WHERE run_key = {RUN} AND run_seq = 100",
        f"UPDATE run SET last_seq = 10 WHERE run_key = {RUN}",
    )
    assert brief(await findings(durable_url))[0] == ("orders-1", "CHANGED", 5)


async def test_two_swapped_events_are_found_and_named(durable_url: str) -> None:
    await make(durable_url)
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
    await make(durable_url)
    other = RUN.replace("orders-1", "orders-2")
    await tamper(
        durable_url,
        f"UPDATE event SET run_key = -1 WHERE run_key = {RUN} AND run_seq = 6",
        f"UPDATE event SET run_key = {RUN} WHERE run_key = {other} AND run_seq = 6",
        f"UPDATE event SET run_key = {other} WHERE run_key = -1",
    )
    found = brief(await findings(durable_url))
    assert {("orders-1", "CHANGED", 6), ("orders-2", "CHANGED", 6)} <= set(found)


async def test_a_changed_constant_of_a_run_is_found(durable_url: str) -> None:
    columns = ("tenant_id", "project_id", "environment_id", "plan_id", "plan_version")
    await make(durable_url, *columns)
    for column in columns:
        await tamper(durable_url, f"UPDATE run SET {column} = 'forged' WHERE run_id = '{column}'")
    found = brief(await findings(durable_url))
    for column in columns:
        assert (column, "CHANGED", 1) in found
    assert {run_id for run_id, _, _ in found} == set(columns)


async def test_a_run_under_another_name_is_found(durable_url: str) -> None:
    await make(durable_url)
    await tamper(durable_url, "UPDATE run SET run_id = 'orders-9' WHERE run_id = 'orders-1'")
    async with rw.open_log(durable_url) as log:
        assert ("orders-9", "CHANGED", 1) in brief([finding async for finding in log.verify()])


@pytest.mark.parametrize("value", ['{"result":{"step":"forged"}}', 7, 1.5, "not JSON"])
async def test_a_payload_of_another_kind_is_found_and_everything_else_goes_on(tmp_path: Any, value: object) -> None:
    """SQLite takes any kind of value in any column: text is what somebody with a shell would write."""
    url = f"sqlite:///{tmp_path}/runs.db"
    await make(url)
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
async def test_values_of_the_wrong_kind_are_a_finding_or_an_error_with_a_code(tmp_path: Any, change: str) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    await make(url)
    await tamper(url, f"UPDATE event SET {change} WHERE run_key = {RUN} AND run_seq = 6")
    async with rw.open_log(url) as log:
        found = await result_or_code(every_finding(log))
        assert found == "STORE_CORRUPT" or ("orders-1", "CHANGED", 6) in brief(found)
        await result_or_code(log.read("orders-1"))
        await result_or_code(log.read_all())
        await result_or_code(log.snapshot("orders-1"))
        await result_or_code(log.rebuild(check=True))
        assert (await log.snapshot("orders-0")).status == "COMPLETED"


async def every_finding(log: rw.RunLog) -> list[rw.Finding]:
    return [finding async for finding in log.verify()]


async def result_or_code(call: Awaitable[Any]) -> Any:
    """What a call gives, or the code of its error; anything else it raises is for pytest to show."""
    try:
        return await call
    except rw.RunwrightError as error:
        return error.code


@pytest.mark.parametrize(
    "change", ["status = 'NONSENSE'", "enforcement = 'lax'", "summary = 'not JSON'", "summary = '{}'", "last_seq = 99"]
)
async def test_a_runs_row_that_makes_no_sense_is_answered_with_codes(durable_url: str, change: str) -> None:
    async with rw.open_log(durable_url) as log:
        await log.append(History("orders-1").started())
    await tamper(durable_url, f"UPDATE run SET {change} WHERE run_id = 'orders-1'")
    async with rw.open_log(durable_url) as log:
        await result_or_code(log.find_run("orders-1"))
        await result_or_code(log.list_runs())
        await result_or_code(log.read("orders-1"))
        await result_or_code(log.snapshot("orders-1"))
        await result_or_code(every_finding(log))
        await result_or_code(log.rebuild(check=True))
        await result_or_code(log.append([History("orders-1")("StepStarted", "a")]))
        await log.append(History("orders-2").started())  # the other runs are as usable as ever


# Erased by law


async def test_there_is_nothing_to_erase_where_there_is_no_payload(durable_url: str) -> None:
    await make(durable_url)
    async with rw.open_log(durable_url) as log:
        with pytest.raises(rw.RunwrightError, match="Event 9 has no payload"):
            await log.redact("orders-1", 9)
        assert [finding async for finding in log.verify()] == []


@pytest.mark.parametrize("seq", [2, 6])
async def test_an_erased_payload_is_one_finding_and_all_else_holds(durable_url: str, seq: int) -> None:
    await make(durable_url)
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


async def test_an_erased_payload_is_gone_from_the_store(durable_url: str) -> None:
    event = History("orders-1")
    async with rw.open_log(durable_url) as log:
        engine_run = {"provider": "temporal", "workflowId": "private-name", "runId": "1"}
        await log.append([event("RunQueued"), event("RunStarted", engineRun=engine_run)])
        await log.redact("orders-1", 2)
        row = await log.find_run("orders-1")
        assert "private-name" not in row.summary_text
        assert row.workflow_id is None
        assert all(record.payload is None for record in await log.read("orders-1"))


async def test_a_payload_is_erased_for_good_from_a_run_that_goes_on_meanwhile(durable_url: str) -> None:
    event = History("orders-1")

    async def go_on() -> None:
        for number in range(20):
            await log.append([event("StepStarted", f"step-{number}")])

    async with rw.open_log(durable_url) as log:
        engine_run = {"provider": "temporal", "workflowId": "private-name", "runId": "1"}
        await log.append([event("RunQueued"), event("RunStarted", engineRun=engine_run)])
        await asyncio.gather(log.redact("orders-1", 2), go_on())
        assert "private-name" not in (await log.find_run("orders-1")).summary_text
        assert (await log.rebuild(check=True)).different == []
        assert brief([finding async for finding in log.verify()]) == [("orders-1", "REDACTED", 2)]


async def test_a_payload_that_was_filled_in_again_is_found(durable_url: str) -> None:
    await make(durable_url)
    async with rw.open_log(durable_url) as log:
        await log.redact("orders-1", 6)
    await tamper(
        durable_url, f"UPDATE event SET payload = $1 WHERE run_key = {RUN} AND run_seq = 6", values=(b'{"n":1}',)
    )
    assert brief(await findings(durable_url)) == [("orders-1", "CHANGED", 6)]


async def test_an_event_that_is_not_there_cannot_be_erased(durable_url: str) -> None:
    await make(durable_url)
    async with rw.open_log(durable_url) as log:
        for seq in (0, -1, 10):
            with pytest.raises(rw.RunwrightError) as caught:
                await log.redact("orders-1", seq)
            assert caught.value.code == "INVALID_ARGUMENT"
        assert [finding async for finding in log.verify()] == []


# The summary


async def test_a_changed_summary_is_found_and_mended(durable_url: str) -> None:
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
    await make(durable_url, *changes)
    async with rw.open_log(durable_url) as log:
        before = [run.to_json() for run in (await log.list_runs()).runs]
    for name, change in changes.items():
        await tamper(durable_url, f"UPDATE run SET {change} WHERE run_id = $1", values=(name,))
    assert await findings(durable_url) == []  # the histories themselves are as they were
    async with rw.open_log(durable_url) as log:
        for _ in range(2):  # checking mends nothing
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
async def test_what_only_the_rows_say_cannot_be_edited_either(durable_url: str, edit: str) -> None:
    await make(durable_url)
    await tamper(durable_url, edit)
    found = await findings(durable_url)
    assert found
    assert {finding.run_id for finding in found} == {"orders-1"}
