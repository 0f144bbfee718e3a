"""Postgres goes away, comes back, holds locks, and is restored from a dump: the log keeps its promises.

These tests have a server of their own, because they kill it.
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
    """An id for a run that belongs to this shard."""
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
    """Appends batches to its runs, one after another, and keeps account of what it was told."""

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
        """Append until something goes wrong. The batch that was not acknowledged comes first, if there is one."""
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
        """All that was acknowledged is there; the open batch wholly or not at all in each run, as was said of it."""
        absent: set[bool] = set()
        for run_id, receipts in self.acknowledged.items():
            records = await log.read(run_id) if receipts or await stored_keys(log, run_id) else []
            assert [record.run_seq for record in records] == list(range(1, len(records) + 1))
            said = [(receipt.run_seq, receipt.event_id) for receipt in receipts]
            assert [(record.run_seq, record.event_id) for record in records[: len(said)]] == said
            rest = [record.idempotency_key for record in records[len(said) :]]
            assert rest in ([], [event.idempotency_key for event in self.open_batch if event.run_id == run_id])
            absent.add(not rest)
        if self.error is not None:
            assert self.error.code in ("STORE_UNAVAILABLE", "STORE_WRITE_BUDGET_EXCEEDED")
            assert self.error.facts["outcome"] in ("unknown", "withdrawn")
            if self.error.facts["outcome"] == "withdrawn":
                assert absent == {True}, "what was withdrawn is not there"


class Follower:
    """Tails every run, and goes on from its cursor when the server is back."""

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

    async def reached(self, count: int) -> None:
        """Wait until so many events were seen."""

        def has() -> bool:
            if self._task.done():
                self._task.result()  # it never ends but by an error: raise that
            return len(self.seen) >= count

        await until(has)

    def assert_complete(self, events: dict[str, int]) -> None:
        for run_id, count in events.items():
            seqs = [record.run_seq for record in self.seen if record.run_id == run_id]
            assert seqs == list(range(1, count + 1))


async def break_under_load(
    url: str, breaks: int, do_break: Callable[[], Awaitable[object]], mend: Callable[[], object]
) -> None:
    chance = processes.random_from_seed()
    producers = [Producer(f"p{n}", width=3 if n % 4 == 0 else 1) for n in range(12)]
    strays: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strays.append(str(context)))
    async with rw.open_log(url, write_budget=20) as log, Follower(log) as follower:
        for _ in range(breaks):
            at_work = [asyncio.create_task(producer.work(log)) for producer in producers]
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            await do_break()
            await asyncio.gather(*at_work)
            mend()
            async with rw.open_log(url) as fresh:
                for producer in producers:
                    await producer.check(fresh)
            await work_again(log, producers)
        for producer in producers:
            assert not producer.open_batch
            await producer.check(log)
        events = {run_id: len(acks) for producer in producers for run_id, acks in producer.acknowledged.items()}
        assert sum(events.values()) > 200
        await follower.reached(sum(events.values()))
        follower.assert_complete(events)
        assert [finding async for finding in log.verify()] == []
        assert (await log.rebuild(check=True)).different == []
    gc.collect()
    assert [stray for stray in strays if "runwright" in stray] == [], "nothing goes wrong behind the scenes"


async def work_again(log: rw.RunLog, producers: list[Producer]) -> None:
    """The log needs no reopening. It may take it a moment to see that its old connections are gone."""
    async with asyncio.timeout(30):
        waiting = producers
        while waiting:
            await asyncio.gather(*(producer.work(log, 3) for producer in waiting))
            waiting = [producer for producer in waiting if producer.error is not None]


async def test_a_server_killed_in_mid_append_loses_nothing_that_was_acknowledged(server: Postgres, url: str) -> None:
    await break_under_load(url, 3, lambda: asyncio.to_thread(server.kill), server.start)


async def test_connections_lost_in_mid_append_lose_nothing_that_was_acknowledged(
    server: Postgres, url: str, database: str
) -> None:
    """Each producer stops at its first error; those whose connection survived are stopped by the next blow."""

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

    await break_under_load(url, 4, cut, lambda: server.sql(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true'))


async def test_what_is_said_of_an_append_to_several_runs_holds_for_all_of_them(
    server: Postgres, url: str, database: str
) -> None:
    """One run's connection is up, the other's cannot be made: half of the append goes in, so it was not withdrawn."""
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


# Reaching it at all


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
async def test_tables_of_another_program_are_left_alone(url: str, table: str) -> None:
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


async def test_a_closed_port_is_an_error_with_a_code_that_keeps_the_password(server: Postgres) -> None:
    error = await open_error(f"postgresql://postgres:{SECRET}@127.0.0.1:{free_port()}/postgres")
    assert error.code == "STORE_UNAVAILABLE"


async def test_an_unknown_host_is_an_error_with_a_code_that_keeps_the_password() -> None:
    error = await open_error(f"postgresql://postgres:{SECRET}@no-such-host.invalid/postgres")
    assert error.code == "STORE_UNAVAILABLE"


async def test_an_unknown_database_is_an_error_with_a_code_that_keeps_the_password(server: Postgres) -> None:
    error = await open_error(f"postgresql://postgres:{SECRET}@127.0.0.1:{server.port}/no_such_database")
    assert error.code == "STORE_UNAVAILABLE"
    assert "no_such_database" in error.detail


async def test_a_wrong_password_is_an_error_with_a_code_that_keeps_it(server: Postgres) -> None:
    rules = server.data / "pg_hba.conf"
    rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    server.sql("CREATE USER guarded PASSWORD 'the right one'")
    server.sql("CREATE DATABASE guarded OWNER guarded")
    server.sql("SELECT pg_reload_conf()")
    where = f"127.0.0.1:{server.port}/guarded"
    error = await open_error(f"postgresql://guarded:{SECRET}@{where}")
    assert error.code == "STORE_UNAVAILABLE"
    assert "password" in error.detail
    assert (await open_error(f"postgresql://guarded@{where}")).code == "STORE_UNAVAILABLE"
    async with rw.open_log(f"postgresql://guarded:the%20right%20one@{where}") as log:
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
async def test_an_address_that_cannot_be_read_is_an_error_with_a_code_that_keeps_the_password(address: str) -> None:
    error = await open_error(address)
    assert error.code in ("STORE_URL_INVALID", "STORE_UNAVAILABLE")


# Tailing


@asynccontextmanager
async def held(url: str, *statements: str) -> AsyncIterator[None]:
    """A transaction of somebody else that stays open for a while."""
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
    """With its run locked, the append has taken its place in the log, but is not in it yet: others must not overtake."""
    slow = History(run_in_shard(5, "slow"))
    beside = [History(run_in_shard(5, f"beside-{n}")) for n in range(3)]
    others = [History(run_in_shard(shard, "other")) for shard in (0, 2, 4, 6, 8, 10, 12)]  # on the lane that is free
    async with (
        rw.open_log(url, write_budget=30) as one,
        rw.open_log(url, write_budget=30) as two,
        rw.open_log(url) as reader,
        Follower(reader) as follower,
    ):
        await one.append(slow.started())
        await follower.reached(2)
        lock = (
            "UPDATE shard SET pos = pos WHERE shard = 5"
            if by == "a lock on its shard"
            else f"SELECT FROM run WHERE run_id = '{slow.run.run_id}' FOR UPDATE"
        )
        async with held(url, lock):
            waiting = [asyncio.create_task(one.append([slow("StepStarted", "a"), slow("StepCompleted", "a")]))]
            await until_blocked(url, 1)
            waiting += [asyncio.create_task(two.append(history.started())) for history in beside]
            for history in others:
                for events in (history.started(), [history("StepStarted", "a")], [history("RunCancelled")]):
                    await two.append(events)
            await until_blocked(url, 2)
            await follower.reached(2 + 4 * len(others))
            assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting)
        await follower.reached(2 + 4 * len(others) + 2 + 2 * len(beside))
        follower.assert_complete(
            {slow.run.run_id: 4, **{h.run.run_id: 4 for h in others}, **{h.run.run_id: 2 for h in beside}}
        )
        whole = (await reader.read_all(limit=10_000)).records
        assert {record.event_id for record in whole} == {record.event_id for record in follower.seen}


async def until_blocked(url: str, count: int) -> None:
    """Until that many statements wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(30):
        while await connection.fetchval(waiting) < count:  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.02)
    await connection.close()


async def test_a_tail_waits_for_no_transaction_in_another_database(server: Postgres, url: str, event: History) -> None:
    async with rw.open_log(url) as log, Follower(log) as follower, held(server.url(), "SELECT txid_current()"):
        await log.append(event.started())
        await follower.reached(2)
        follower.assert_complete({"run-1": 2})


async def test_a_tail_waits_for_no_other_transaction_in_its_own_database(url: str, event: History) -> None:
    async with rw.open_log(url) as log, Follower(log) as follower, held(url, "CREATE TABLE elsewhere (n integer)"):
        await log.append(event.started())
        await follower.reached(2)
        follower.assert_complete({"run-1": 2})


async def test_a_cursor_goes_on_after_dump_and_restore(server: Postgres, url: str, database: str) -> None:
    histories = [History(f"run-{n}") for n in range(20)]
    async with rw.open_log(url) as log:
        for history in histories:
            await log.append(history.started())
        before = await log.read_all(limit=23)
        for history in histories:
            await log.append([history("StepStarted", "a"), history("StepCompleted", "a")])
    place = ("-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres")
    dump = server.run("pg_dump", *place, database)
    restored = f"{database}_restored"
    restored_url = server.create_database(restored)
    server.run("psql", *place, "-q", "-v", "ON_ERROR_STOP=1", "-d", restored, stdin=dump)
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


async def test_an_append_that_outlasts_its_budget_is_settled_by_appending_it_again(url: str) -> None:
    """The first was handed to the server: nobody knows. The second still waited its turn: it was withdrawn."""
    first, second = History(run_in_shard(3, "first")), History(run_in_shard(3, "second"))
    async with rw.open_log(url, write_budget=1.0) as log:
        await log.append(first.started())
        async with held(url, "UPDATE shard SET pos = pos WHERE shard = 3"):
            attempts = [asyncio.create_task(log.append([first("StepStarted", "a"), first("StepCompleted", "a")]))]
            await until_blocked(url, 1)
            attempts.append(asyncio.create_task(log.append(second.started())))
            errors = await asyncio.gather(*attempts, return_exceptions=True)
            for error, outcome in zip(errors, ("unknown", "withdrawn"), strict=True):
                assert isinstance(error, rw.RunwrightError)
                assert error.code == "STORE_WRITE_BUDGET_EXCEEDED"
                assert error.facts == {"outcome": outcome, "retryable": True}
            assert len(await log.read(first.run.run_id)) == 2  # reading goes on meanwhile
        again = await log.append([first("StepStarted", "a"), first("StepCompleted", "a")])
        assert [receipt.run_seq for receipt in again] == [3, 4]
        assert {receipt.status for receipt in again} in ({"duplicate"}, {"appended"})
        assert await stored_keys(log, second.run.run_id) == []
        assert [receipt.status for receipt in await log.append(second.started())] == ["appended", "appended"]
        (more,) = await log.append([first("StepStarted", "b")])
        assert more.run_seq == 5
        assert [finding async for finding in log.verify()] == []
        assert (await log.rebuild(check=True)).different == []


async def test_cancelling_a_waiting_append_hurts_no_other(url: str) -> None:
    histories = [History(run_in_shard(3, f"run-{n}")) for n in range(9)]
    async with rw.open_log(url, write_budget=30) as log:
        async with held(url, "UPDATE shard SET pos = pos WHERE shard = 3"):
            tasks = [asyncio.create_task(log.append(histories[0].started()))]
            await until_blocked(url, 1)
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


async def test_closing_the_log_ends_appends_that_wait(url: str) -> None:
    """One is with the server, the others wait behind it; each caller gets an answer."""
    histories = [History(run_in_shard(3, f"run-{n}")) for n in range(3)]
    log = rw.open_log(url, write_budget=60)
    await log.open()
    async with held(url, "UPDATE shard SET pos = pos WHERE shard = 3"):
        waiting = [asyncio.create_task(log.append(histories[0].started()))]
        await until_blocked(url, 1)
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


async def test_after_closing_every_call_says_so(url: str, event: History) -> None:
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
