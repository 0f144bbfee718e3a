"""Postgres is killed, restarted, locked, and restored from a dump: the guarantees of the log hold.

These tests start their own server, because they kill it.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager

import asyncpg
import pytest

import runwright as rw
from runwright.log.postgres.writer import shard_of
from support import processes
from support.components import Postgres, free_port, have_or_skip
from support.events import History
from support.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    started = have_or_skip("postgres", Postgres)
    assert isinstance(started, Postgres)
    yield started
    started.stop()


_numbers = itertools.count(1)


@pytest.fixture
def database(server: Postgres) -> Iterator[str]:
    name = f"faults_{next(_numbers)}"
    server.create_database(name)
    yield name
    server.drop_database(name)


@pytest.fixture
def url(server: Postgres, database: str) -> str:
    return server.url(database)


def run_in_shard(shard: int, name: str = "run") -> str:
    """Return the id of a run that belongs to this shard."""
    return next(run_id for n in itertools.count() if shard_of(run_id := f"{name}-{n}") == shard)


async def stored_keys(log: rw.RunLog, run_id: str) -> list[str]:
    try:
        return [record.idempotency_key for record in await log.read(run_id)]
    except rw.RunwrightError as error:
        if error.code != "RUN_NOT_FOUND":
            raise
        return []


# Producers under load


class Producer:
    """Appends batches to its runs, one after another, and records receipts and errors."""

    def __init__(self, name: str, width: int) -> None:
        self.histories = [History(f"{name}-{n}") for n in range(width)]
        self.acknowledged: dict[str, list[rw.Receipt]] = {history.run.run_id: [] for history in self.histories}
        self.batches = itertools.count()
        self.open_batch: list[rw.RunEventWrite] = []
        self.error: rw.RunwrightError | None = None

    def next_batch(self) -> list[rw.RunEventWrite]:
        number = next(self.batches)
        if number == 0:
            return [event for history in self.histories for event in history.started()]
        return [
            event
            for history in self.histories
            for step in (f"a{number}", f"b{number}")
            for event in (history("StepStarted", step), history("StepCompleted", step, result=number))
        ]

    async def work(self, log: rw.RunLog, batches: int | None = None) -> None:
        """Append until an error. A batch that was not acknowledged is repeated first."""
        self.error = None
        for _ in itertools.count() if batches is None else range(batches):
            self.open_batch = self.open_batch or self.next_batch()
            try:
                receipts = await log.append(self.open_batch)
            except rw.RunwrightError as error:
                self.error = error
                return
            for event, receipt in zip(self.open_batch, receipts, strict=True):
                self.acknowledged[event.run_id].append(receipt)
            self.open_batch = []

    async def check(self, log: rw.RunLog) -> None:
        """Check that acknowledged events are stored, and the open batch completely or not at all in each run."""
        absent: set[bool] = set()
        for run_id, receipts in self.acknowledged.items():
            records = await log.read(run_id) if receipts or await stored_keys(log, run_id) else []
            assert [record.run_seq for record in records] == list(range(1, len(records) + 1))
            acknowledged = [(receipt.run_seq, receipt.event_id) for receipt in receipts]
            assert [(record.run_seq, record.event_id) for record in records[: len(acknowledged)]] == acknowledged
            rest = [record.idempotency_key for record in records[len(acknowledged) :]]
            assert rest in ([], [event.idempotency_key for event in self.open_batch if event.run_id == run_id])
            absent.add(not rest)
        if self.error is not None:
            assert self.error.code in ("STORE_UNAVAILABLE", "STORE_WRITE_BUDGET_EXCEEDED")
            assert self.error.facts["outcome"] in ("unknown", "withdrawn")
            if self.error.facts["outcome"] == "withdrawn":
                assert absent == {True}, "a withdrawn append was stored"


class Follower:
    """Tails every run, and continues from its cursor when the server is available again."""

    def __init__(self, log: rw.RunLog) -> None:
        self.seen: list[rw.RunEventRecord] = []
        self._log = log
        self._cursor: str | None = None

    async def __aenter__(self) -> Follower:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._log.tail(self._cursor)) as pages:
                    async for page in pages:
                        self.seen += page.records
                        self._cursor = page.cursor
            except rw.RunwrightError as error:
                if error.code != "STORE_UNAVAILABLE":
                    raise
                await asyncio.sleep(0.05)

    async def wait_for_count(self, count: int) -> None:
        """Wait until this number of events was received."""

        def is_reached() -> bool:
            if self._task.done():
                self._task.result()  # the task ends only by an error, which is raised here
            return len(self.seen) >= count

        await until(is_reached)

    def assert_complete(self, events: dict[str, int]) -> None:
        for run_id, count in events.items():
            seqs = [record.run_seq for record in self.seen if record.run_id == run_id]
            assert seqs == list(range(1, count + 1))


async def cause_faults_under_load(
    url: str, faults: int, cause_fault: Callable[[], Awaitable[object]], repair: Callable[[], object]
) -> None:
    chance = processes.random_from_seed()
    producers = [Producer(f"p{n}", width=3 if n % 4 == 0 else 1) for n in range(12)]
    loop_errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(str(context)))
    async with rw.open_log(url, write_budget=20) as log, Follower(log) as follower:
        for _ in range(faults):
            running = [asyncio.create_task(producer.work(log)) for producer in producers]
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            await cause_fault()
            await asyncio.gather(*running)
            repair()
            async with rw.open_log(url) as fresh:
                for producer in producers:
                    await producer.check(fresh)
            await resume_producers(log, producers)
        for producer in producers:
            assert not producer.open_batch
            await producer.check(log)
        events = {run_id: len(acks) for producer in producers for run_id, acks in producer.acknowledged.items()}
        assert sum(events.values()) > 200
        await follower.wait_for_count(sum(events.values()))
        follower.assert_complete(events)
        assert [finding async for finding in log.verify()] == []
        assert (await log.rebuild(check=True)).different == []
    gc.collect()
    assert [loop_error for loop_error in loop_errors if "runwright" in loop_error] == [], (
        "there was an unhandled error in the event loop"
    )


async def resume_producers(log: rw.RunLog, producers: list[Producer]) -> None:
    """Append with the same log, which may need some time to notice that its connections are lost."""
    async with asyncio.timeout(30):
        waiting = producers
        while waiting:
            await asyncio.gather(*(producer.work(log, 3) for producer in waiting))
            waiting = [producer for producer in waiting if producer.error is not None]


async def test_killed_server_loses_no_acknowledged_event(server: Postgres, url: str) -> None:
    await cause_faults_under_load(url, 3, lambda: asyncio.to_thread(server.kill), server.start)


async def test_lost_connections_lose_no_acknowledged_event(server: Postgres, url: str, database: str) -> None:
    """Each producer stops at its first error; repeated cuts stop those whose connection survived."""

    async def cut() -> None:
        admin = await asyncpg.connect(server.url())
        for _ in range(3):
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND backend_type = $2",
                database,
                "client backend",
            )
            await asyncio.sleep(0.02)
        await admin.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database)
        await admin.close()

    await cause_faults_under_load(
        url, 4, cut, lambda: server.sql(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true')
    )


async def test_partly_stored_append_is_not_reported_as_withdrawn(server: Postgres, url: str, database: str) -> None:
    """One run has a connection and the other cannot get one: an append that is half stored was not withdrawn."""
    up, down = History(run_in_shard(0)), History(run_in_shard(1))
    async with rw.open_log(url) as log:
        await log.append(up.started())
        server.sql(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
        with pytest.raises(rw.RunwrightError) as caught:
            await log.append([*down.started(), up("StepStarted", "a")])
        server.sql(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true')
        assert caught.value.code == "STORE_UNAVAILABLE"
        written = len(await log.read(up.run.run_id)) == 3
        assert caught.value.facts["outcome"] == "unknown" or not written
        receipts = await log.append([*down.started(), up("StepStarted", "a")])
        assert [receipt.run_seq for receipt in receipts] == [1, 2, 3]


# Connecting


SECRET = "s3cr3t-w0rd"


async def open_error(url: str) -> rw.RunwrightError:
    with pytest.raises(rw.RunwrightError) as caught:
        async with rw.open_log(url):
            pass
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(
        caught.value.facts
    )
    return caught.value


@pytest.mark.parametrize(
    "table",
    [
        "run (id int)",
        "event (id int)",
        "alert (id int)",
        "value (id int)",
        "meta (id int)",
        "meta (name text, value text)",
        "meta (name int, value int)",
    ],
)
async def test_foreign_database_is_refused_and_gets_no_tables(url: str, table: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE TABLE {table}")
        with pytest.raises(rw.RunwrightError) as caught:
            async with rw.open_log(url):
                pass
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    finally:
        await connection.close()
    assert caught.value.code == "STORE_FOREIGN"
    assert [name for (name,) in tables] == [table.partition(" ")[0]]


async def test_closed_port_error_hides_the_password(server: Postgres) -> None:
    error = await open_error(f"postgresql://postgres:{SECRET}@127.0.0.1:{free_port()}/postgres")
    assert error.code == "STORE_UNAVAILABLE"


async def test_unknown_host_error_hides_the_password() -> None:
    error = await open_error(f"postgresql://postgres:{SECRET}@no-such-host.invalid/postgres")
    assert error.code == "STORE_UNAVAILABLE"


async def test_unknown_database_error_hides_the_password(server: Postgres) -> None:
    error = await open_error(f"postgresql://postgres:{SECRET}@127.0.0.1:{server.port}/no_such_database")
    assert error.code == "STORE_UNAVAILABLE"
    assert "no_such_database" in error.detail


async def test_wrong_password_error_hides_the_password(server: Postgres) -> None:
    rules = server.data / "pg_hba.conf"
    rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    server.sql("CREATE USER guarded PASSWORD 'the right one'")
    server.sql("CREATE DATABASE guarded OWNER guarded")
    server.sql("SELECT pg_reload_conf()")
    location = f"127.0.0.1:{server.port}/guarded"
    error = await open_error(f"postgresql://guarded:{SECRET}@{location}")
    assert error.code == "STORE_UNAVAILABLE"
    assert "password" in error.detail
    assert (await open_error(f"postgresql://guarded@{location}")).code == "STORE_UNAVAILABLE"
    async with rw.open_log(f"postgresql://guarded:the%20right%20one@{location}") as log:
        await log.append(History().started())


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://postgres:{SECRET}@127.0.0.1:port/postgres",
        f"postgresql://postgres:{SECRET}/x@127.0.0.1:1/postgres",
        f"postgresql://postgres:{SECRET}#x@127.0.0.1:1/postgres",
        f"postgresql://postgres:{SECRET}@[::1/postgres",
        f"postgresql://postgres:{SECRET}@127.0.0.1:99999/postgres",
        f"postgresql://postgres@127.0.0.1:1/postgres?password={SECRET}&sslmode=nonsense",
    ],
)
async def test_invalid_url_error_hides_the_password(address: str) -> None:
    error = await open_error(address)
    assert error.code in ("STORE_URL_INVALID", "STORE_UNAVAILABLE")


# Tailing


@asynccontextmanager
async def open_transaction(url: str, *statements: str) -> AsyncIterator[None]:
    """Hold a transaction open in another connection."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    for statement in statements:
        await connection.execute(statement)
    try:
        yield
    finally:
        await transaction.commit()
        await connection.close()


@pytest.mark.parametrize("by", ["a lock on its shard", "a lock on its run"])
async def test_a_tail_loses_nothing_while_an_insert_is_held_open(url: str, by: str) -> None:
    """With its run locked, an append has a position in the log but is not committed: no other may overtake it."""
    slow = History(run_in_shard(5, "slow"))
    same_shard = [History(run_in_shard(5, f"beside-{n}")) for n in range(3)]
    others = [History(run_in_shard(shard, "other")) for shard in (0, 2, 4, 6, 8, 10, 12)]  # on the free connection
    async with (
        rw.open_log(url, write_budget=30) as one,
        rw.open_log(url, write_budget=30) as two,
        rw.open_log(url) as reader,
        Follower(reader) as follower,
    ):
        await one.append(slow.started())
        await follower.wait_for_count(2)
        lock = (
            "UPDATE shard SET pos = pos WHERE shard = 5"
            if by == "a lock on its shard"
            else f"SELECT FROM run WHERE run_id = '{slow.run.run_id}' FOR UPDATE"
        )
        async with open_transaction(url, lock):
            waiting = [asyncio.create_task(one.append([slow("StepStarted", "a"), slow("StepCompleted", "a")]))]
            await wait_until_blocked(url, 1)
            waiting += [asyncio.create_task(two.append(history.started())) for history in same_shard]
            for history in others:
                for events in (history.started(), [history("StepStarted", "a")], [history("RunCancelled")]):
                    await two.append(events)
            await wait_until_blocked(url, 2)
            await follower.wait_for_count(2 + 4 * len(others))
            assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting)
        await follower.wait_for_count(2 + 4 * len(others) + 2 + 2 * len(same_shard))
        follower.assert_complete(
            {slow.run.run_id: 4, **{h.run.run_id: 4 for h in others}, **{h.run.run_id: 2 for h in same_shard}}
        )
        whole = (await reader.read_all(limit=10_000)).records
        assert {record.event_id for record in whole} == {record.event_id for record in follower.seen}


async def wait_until_blocked(url: str, count: int) -> None:
    """Wait until this number of statements waits for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(30):
        while await connection.fetchval(waiting) < count:  # noqa: ASYNC110 - no event signals a lock in Postgres
            await asyncio.sleep(0.02)
    await connection.close()


async def test_tail_ignores_open_transactions_in_another_database(server: Postgres, url: str, event: History) -> None:
    async with (
        rw.open_log(url) as log,
        Follower(log) as follower,
        open_transaction(server.url(), "SELECT txid_current()"),
    ):
        await log.append(event.started())
        await follower.wait_for_count(2)
        follower.assert_complete({"run-1": 2})


async def test_tail_ignores_open_transactions_in_its_own_database(url: str, event: History) -> None:
    async with (
        rw.open_log(url) as log,
        Follower(log) as follower,
        open_transaction(url, "CREATE TABLE elsewhere (n integer)"),
    ):
        await log.append(event.started())
        await follower.wait_for_count(2)
        follower.assert_complete({"run-1": 2})


async def test_cursor_stays_valid_after_dump_and_restore(server: Postgres, url: str, database: str) -> None:
    histories = [History(f"run-{n}") for n in range(20)]
    async with rw.open_log(url) as log:
        for history in histories:
            await log.append(history.started())
        before = await log.read_all(limit=23)
        for history in histories:
            await log.append([history("StepStarted", "a"), history("StepCompleted", "a")])
    connection_options = ("-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres")
    dump = server.run("pg_dump", *connection_options, database)
    restored = f"{database}_restored"
    restored_url = server.create_database(restored)
    server.run("psql", *connection_options, "-q", "-v", "ON_ERROR_STOP=1", "-d", restored, stdin=dump)
    try:
        async with rw.open_log(restored_url) as log:
            for history in histories:
                await log.append([history("RunCompleted")])
            for n in range(20, 25):
                await log.append(History(f"run-{n}").started())
            after = await log.read_all(before.cursor, limit=10_000)
            records = [*before.records, *after.records]
            assert len(before.records) == 23
            for n in range(25):
                seqs = [record.run_seq for record in records if record.run_id == f"run-{n}"]
                assert seqs == list(range(1, 6 if n < 20 else 3))
            assert (await log.read_all(after.cursor)).records == []
            assert [finding async for finding in log.verify()] == []
            assert (await log.rebuild(check=True)).different == []
    finally:
        server.drop_database(restored)


# The write budget


async def test_append_beyond_its_budget_can_be_repeated(url: str) -> None:
    """The first append is with the server: unknown. The second is still queued: withdrawn."""
    first, second = History(run_in_shard(3, "first")), History(run_in_shard(3, "second"))
    async with rw.open_log(url, write_budget=1.0) as log:
        await log.append(first.started())
        async with open_transaction(url, "UPDATE shard SET pos = pos WHERE shard = 3"):
            attempts = [asyncio.create_task(log.append([first("StepStarted", "a"), first("StepCompleted", "a")]))]
            await wait_until_blocked(url, 1)
            attempts.append(asyncio.create_task(log.append(second.started())))
            errors = await asyncio.gather(*attempts, return_exceptions=True)
            for error, outcome in zip(errors, ("unknown", "withdrawn"), strict=True):
                assert isinstance(error, rw.RunwrightError)
                assert error.code == "STORE_WRITE_BUDGET_EXCEEDED"
                assert error.facts == {"outcome": outcome, "retryable": True}
            assert len(await log.read(first.run.run_id)) == 2  # reads do not wait for the lock
        again = await log.append([first("StepStarted", "a"), first("StepCompleted", "a")])
        assert [receipt.run_seq for receipt in again] == [3, 4]
        assert {receipt.status for receipt in again} in ({"duplicate"}, {"appended"})
        assert await stored_keys(log, second.run.run_id) == []
        assert [receipt.status for receipt in await log.append(second.started())] == ["appended", "appended"]
        (more,) = await log.append([first("StepStarted", "b")])
        assert more.run_seq == 5
        assert [finding async for finding in log.verify()] == []
        assert (await log.rebuild(check=True)).different == []


async def test_cancelled_append_does_not_affect_others(url: str) -> None:
    histories = [History(run_in_shard(3, f"run-{n}")) for n in range(9)]
    async with rw.open_log(url, write_budget=30) as log:
        async with open_transaction(url, "UPDATE shard SET pos = pos WHERE shard = 3"):
            tasks = [asyncio.create_task(log.append(histories[0].started()))]
            await wait_until_blocked(url, 1)
            tasks += [asyncio.create_task(log.append(history.started())) for history in histories[1:]]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            await asyncio.wait(tasks[::3])
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for n, (history, result) in enumerate(zip(histories, results, strict=True)):
            if n % 3 == 0:
                assert isinstance(result, asyncio.CancelledError)
                assert len(await stored_keys(log, history.run.run_id)) in ((0, 2) if n == 0 else (0,))
            else:
                assert not isinstance(result, BaseException)
                assert [receipt.run_seq for receipt in result] == [1, 2]
        assert [receipt.run_seq for receipt in await log.append(histories[0].started())] == [1, 2]
        assert [finding async for finding in log.verify()] == []


async def test_closing_the_log_ends_waiting_appends(url: str) -> None:
    """One append is with the server, the others are queued; each caller gets an answer."""
    histories = [History(run_in_shard(3, f"run-{n}")) for n in range(3)]
    log = rw.open_log(url, write_budget=60)
    await log.open()
    async with open_transaction(url, "UPDATE shard SET pos = pos WHERE shard = 3"):
        waiting = [asyncio.create_task(log.append(histories[0].started()))]
        await wait_until_blocked(url, 1)
        waiting += [asyncio.create_task(log.append(history.started())) for history in histories[1:]]
        await asyncio.sleep(0)
        await asyncio.wait_for(log.close(), 20)
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
    for result in results:
        assert isinstance(result, rw.RunwrightError)
        assert result.code in ("STORE_CLOSED", "STORE_UNAVAILABLE")
    async with rw.open_log(url) as log:
        for history in histories:
            assert len(await log.append(history.started())) == 2
        assert [finding async for finding in log.verify()] == []


async def test_calls_on_a_closed_log_raise_store_closed(url: str, event: History) -> None:
    async with rw.open_log(url) as log:
        await log.append(event.started())
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: log.append([event("StepStarted", "a")]),
        lambda: log.read("run-1"),
        lambda: log.read_all(),
        lambda: log.leases.acquire("me"),
    ]
    for call in calls:
        with pytest.raises(rw.RunwrightError) as caught:
            await call()
        assert caught.value.code == "STORE_CLOSED"
