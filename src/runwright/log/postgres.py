"""The log on Postgres: for many processes, on one machine or several."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import asyncpg
import msgspec

from runwright.contract.envelope import uuid4_bytes
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.snapshot import Alert, RunSummary
from runwright.core.chain import StoredEvent

from .base import RunLog
from .desk import Desk
from .folding import erase
from .intake import Request
from .judge import Fence
from .leases import FORGET_AFTER, lease_lost, lives, living, living_epoch, run_owned, stale_fence
from .model import EventFilter, Holder, Lease, LeaseRow, RunFilter, RunRow
from .openrun import encode_summary
from .postgres_connect import LOST, Connection, coded_errors, connect, place, prepare_store
from .postgres_writer import SHARDS, Lane, ServerClock, shard_of
from .queries import load_queries, with_conditions
from .rows import alert_from, alert_row, lease_row, run_identity, run_row
from .store import Placed

logger = logging.getLogger("runwright.log")

LANES = 2  # one thinks while the other commits; more would only make their groups smaller
NOTIFY_SECONDS = 0.05
LOOK_EVERY = 40  # polls of the news, between two looks that need no notification
CHANNEL = "runwright_log"
DESK_CHANNEL = "runwright_desk"


class PostgresLog(RunLog):
    _shards = SHARDS

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(**options)
        self._url = url
        self._sql = load_queries("postgres")
        self._pool: Any = None
        self._lanes: list[Lane] = []
        self._server_clock = ServerClock(self.clock)
        self._listener: Connection | None = None
        self._notifier: asyncio.Task[None] | None = None
        self._polls = 0
        self._untold = False  # something was committed since the last notification
        self._bells: asyncio.Task[None] | None = None
        self._desk = Desk("postgres", self._desk_read, self._desk_write)

    async def open(self) -> None:
        with coded_errors(self._url):
            connection = await connect(self._url)
            try:
                await prepare_store(connection, self._url)
                await self._server_clock.sync(connection, self._sql["clock"])
            finally:
                await connection.close()
            self._pool = await asyncpg.create_pool(self._url, min_size=0, max_size=4, timeout=10)  # pyright: ignore[reportUnknownMemberType]
        self._lanes = [
            Lane(self._url, self._server_clock, self.tally, self._wrote, self._intake.budget + 1) for _ in range(LANES)
        ]

    async def close(self) -> None:
        self._intake.close()
        await self._news.close()
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        self._lanes = []
        if self._notifier is not None:
            await asyncio.gather(self._notifier, return_exceptions=True)
        if self._bells is not None:
            self._bells.cancel()
            await asyncio.gather(self._bells, return_exceptions=True)
            self._bells = None
        if self._listener is not None:
            self._listener.terminate()
            self._listener = None
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    def _lane(self, run_id: str) -> Lane:
        if not self._lanes:
            raise RunwrightError(ErrorCode.STORE_CLOSED, "This log is not open. Use `async with rw.open_log(...)`.")
        return self._lanes[shard_of(run_id) % LANES]

    def _enqueue(self, request: Request) -> None:
        for unit in request.units:
            self._lane(unit.run_id).put(unit, request)

    def store_time(self) -> int:
        return self._server_clock.now()

    def on_ring(self, call: Callable[[], None]) -> None:
        super().on_ring(call)
        if self._bells is None:
            self._bells = asyncio.create_task(self._listen_for_bells())

    async def ring(self) -> None:
        await super().ring()
        await self._fetch_value("SELECT pg_notify($1, '')", DESK_CHANNEL)

    async def _listen_for_bells(self) -> None:
        """Hear other processes ring. Whoever waits looks now and then all the same."""
        while True:
            try:
                listener = await connect(self._url)
                try:
                    await listener.add_listener(DESK_CHANNEL, self._rung)
                    while not listener.is_closed():
                        await self.clock.sleep(1.0)
                finally:
                    listener.terminate()
            except (asyncpg.PostgresError, *LOST) as error:
                logger.debug("no bells for now: %r", error)
                await self.clock.sleep(1.0)

    def _rung(self, *_: object) -> None:
        for call in self._heard:
            call()

    # News

    def _wrote(self) -> None:
        """Tell waiters here at once, and other processes soon: one notification for all that comes in 50 ms."""
        self._news.tell()
        self._untold = True
        if self._notifier is None or self._notifier.done():
            self._notifier = asyncio.create_task(self._notify())

    async def _notify(self) -> None:
        while self._untold:
            await self.clock.sleep(NOTIFY_SECONDS)
            self._untold = False  # what is committed from here on needs another notification
            try:
                await self._fetch_value("SELECT pg_notify($1, '')", CHANNEL)
            except RunwrightError:
                return  # others find the news at their next look

    async def _changed_elsewhere(self) -> bool:
        if self._listener is None or self._listener.is_closed():
            try:
                listener = self._listener = await connect(self._url)
                await listener.add_listener(CHANNEL, self._hear)
            except (asyncpg.PostgresError, *LOST) as error:
                logger.debug("no notifications for now: %r", error)  # we look now and then all the same
        self._polls += 1
        return self._polls % LOOK_EVERY == 0

    def _hear(self, *_: object) -> None:
        self._news.tell()

    # Reading

    async def _fetch(self, name: str, *arguments: Any) -> list[Any]:
        with coded_errors(self._url):
            return await self._live_pool().fetch(self._sql[name], *arguments)

    async def _fetch_value(self, statement: str, *arguments: Any) -> Any:
        with coded_errors(self._url):
            return await self._live_pool().fetchval(statement, *arguments)

    def _live_pool(self) -> Any:
        if self._pool is None:
            raise RunwrightError(ErrorCode.STORE_CLOSED, "This log is not open. Use `async with rw.open_log(...)`.")
        return self._pool

    async def _names(self, before: int, limit: int) -> list[tuple[int, str]]:
        return [(row["run_key"], row["run_id"]) for row in await self._fetch("run_names", before, limit)]

    async def _find(self, run_id: str) -> RunRow | None:
        rows = await self._fetch("find_runs", [run_id])
        return run_row(rows[0]) if rows else None

    async def _find_prefix(self, prefix: str, limit: int, tenant_id: str | None) -> list[RunRow]:
        return [run_row(row) for row in await self._fetch("find_runs_by_prefix", prefix, limit, tenant_id)]

    async def _find_engine_run(self, provider: str, workflow_id: str, provider_run_id: str) -> RunRow | None:
        rows = await self._fetch("find_engine_run", provider, workflow_id, provider_run_id)
        return run_row(rows[0]) if rows else None

    async def _list(self, wanted: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        sql, values = with_conditions(self._sql["list_runs"], "$", wanted.conditions(before), limit)
        return [run_row(row) for row in await self._desk_read(sql, values)]

    async def _rows(self, run_key: int, after: int, limit: int | None) -> list[StoredEvent]:
        return [StoredEvent(*row) for row in await self._fetch("read_run", run_key, after, limit)]

    async def _select(self, run_key: int, after: int, limit: int, wanted: EventFilter) -> list[StoredEvent]:
        types = None if wanted.types is None else list(wanted.types)
        rows = await self._fetch("select_run", run_key, after, limit, types, wanted.entity)
        return [StoredEvent(*row) for row in rows]

    async def _seq_of_id(self, run_key: int, event_id: str) -> int | None:
        own = uuid4_bytes(event_id)
        if own is None:
            return await self._fetch_value(self._sql["find_foreign_id"], run_key, event_id)
        return await self._fetch_value(self._sql["find_own_id"], run_key, own)

    async def _times_at(self, positions: list[int]) -> list[int | None]:
        return [row[0] for row in await self._fetch("times_at", list(range(SHARDS)), positions)]

    async def _tail(self, positions: list[int], limit: int, types: Sequence[str] | None = None) -> list[Placed]:
        arguments = (list(range(SHARDS)), positions, limit)
        if types is None:
            rows = await self._fetch("read_tail", *arguments)
        else:
            rows = await self._fetch("select_tail", *arguments, list(types))
        ordered: list[tuple[int, int, int, Any]] = []
        latest = [0] * SHARDS
        for row in rows:  # by time, but never one event of a shard before an earlier one of it
            shard, persisted_at = int(row["shard"]), int(row["persisted_at"])
            latest[shard] = max(latest[shard], persisted_at)
            ordered.append((latest[shard], shard, int(row["pos"]), row))
        ordered.sort(key=lambda item: item[:3])
        found: list[Placed] = []
        for _, shard, pos, row in ordered[:limit]:
            fields = tuple(row)
            found.append((run_identity(fields[18:]), StoredEvent(*fields[:16]), shard, pos))
        return found

    async def _misplaced(self, run_key: int) -> list[int]:
        return [row["run_seq"] for row in await self._fetch("misplaced", run_key)]

    async def _orphans(self) -> list[int]:
        return [row["run_key"] for row in await self._fetch("orphans")]

    # Mending

    async def _save_summary(self, row: RunRow, summary: RunSummary) -> bool:
        saved = await self._fetch("save_summary", *_summary_columns(summary), row.run_key, row.last_seq)
        self._lane(row.identity.run_id).forget(row.identity.run_id)
        return bool(saved)

    async def _erase(self, row: RunRow, run_seq: int) -> None:
        with coded_errors(self._url, outcome="unknown"):
            async with self._live_pool().acquire() as connection, connection.transaction():
                last_seq = await connection.fetchval(self._sql["lock_run"], row.run_key)
                rows = await connection.fetch(self._sql["read_run"], row.run_key, 0, last_seq)
                events = [StoredEvent(*event) for event in rows]
                state = erase(events, run_seq)
                digest = events[run_seq - 1].payload_digest
                await connection.execute(self._sql["erase_payload"], digest, row.run_key, run_seq)
                columns = _summary_columns(state.summary)
                await connection.execute(self._sql["save_summary"], *columns, row.run_key, last_seq)
        self._lane(row.identity.run_id).forget(row.identity.run_id)

    async def alerts(self, run_id: str | None = None, *, tenant_id: str | None = None) -> list[Alert]:
        return [alert_from(row) for row in await self._fetch("list_alerts", run_id, tenant_id)]

    async def raise_alerts(self, alerts: Iterable[Alert]) -> None:
        for alert in alerts:
            await self._fetch("insert_alert", *alert_row(alert, self._server_clock.now()))

    # Leases

    async def acquire_lease(self, owner: str, ttl: float = 5.0, holder: Holder | None = None) -> Lease:
        process = (None, None, None) if holder is None else (holder.host, holder.pid, holder.started)
        await self._fetch("forget_leases", self._server_clock.now() - FORGET_AFTER)
        epoch, expires_at = (await self._fetch("put_lease", owner, int(ttl * 1e6), *process))[0]
        return Lease(owner, epoch, expires_at, ttl)

    async def renew_lease(self, lease: Lease) -> Lease:
        rows = await self._fetch("extend_lease", lease.owner, lease.epoch, int(lease.ttl * 1e6))
        if not rows:
            raise lease_lost()
        return msgspec.structs.replace(lease, expires_at=rows[0]["expires_at"])

    async def release_lease(self, lease: Lease) -> None:
        await self._fetch("end_lease", lease.owner, lease.epoch)

    async def _leases(self, owners: Iterable[str]) -> tuple[dict[str, LeaseRow], int]:
        """The leases of some owners, and the server's time to hold them against."""
        rows = await self._fetch("find_leases", list(owners))
        return {row["owner"]: lease_row(row) for row in rows}, await self._fetch_value(self._sql["clock"])

    async def _check_lease(self, lease: Lease) -> None:
        leases, now = await self._leases([lease.owner])
        row = leases.get(lease.owner)
        if row is None or row.epoch != lease.epoch or row.expires_at <= now:
            raise lease_lost()

    async def owners(self) -> frozenset[tuple[str, int]]:
        rows, now = await self._fetch("leases"), await self._fetch_value(self._sql["clock"])
        return living(map(lease_row, rows), now)

    async def claim_run(self, run_id: str, lease: Lease) -> Fence:
        await self._check_lease(lease)
        while True:
            row = await self.find_run(run_id)
            if (row.owner, row.epoch) == (lease.owner, lease.epoch):
                return Fence(lease.owner, lease.epoch)
            if row.owner is not None and row.epoch is not None:
                leases, now = await self._leases([row.owner])
                if lives(leases.get(row.owner), row.epoch, now):
                    raise run_owned()
            if await self._own(run_id, (lease.owner, lease.epoch), (row.owner, row.epoch), None):
                return Fence(lease.owner, lease.epoch)

    async def _own(
        self, run_id: str, owner: tuple[str | None, int | None], was: tuple[str | None, int | None], wake_at: int | None
    ) -> bool:
        taken = bool(await self._fetch("own_run", *owner, wake_at, run_id, *was))
        self._lane(run_id).forget(run_id)
        return taken

    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None = None) -> None:
        await self.find_run(run_id)
        if not await self._own(run_id, (None, None), (fence.owner, fence.epoch), wake_at):
            raise stale_fence()

    async def claim_due(self, lease: Lease, limit: int = 100) -> list[str]:
        await self._check_lease(lease)
        due = await self._fetch("due_runs", limit)
        rows = await self._fetch("leases")
        leases, now = {row["owner"]: lease_row(row) for row in rows}, await self._fetch_value(self._sql["clock"])
        for row in await self._fetch("owners"):
            due += await self._fetch("runs_of", row["owner"], living_epoch(leases.get(row["owner"]), now), limit)
        claimed: list[str] = []
        for run_id, owner, epoch in due[:limit]:
            if await self._own(run_id, (lease.owner, lease.epoch), (owner, epoch), None):
                claimed.append(run_id)
        return claimed

    # For drivers

    async def _end(self) -> list[int]:
        return [row["pos"] for row in await self._fetch("end_positions")]

    async def _signalled(self, positions: list[int]) -> tuple[list[str], list[int]]:
        reached, runs = list(positions), list[str]()
        for shard, pos, run_id in await self._fetch("signalled", list(range(SHARDS)), positions):
            reached[shard] = pos
            runs.append(run_id)
        return runs, reached

    async def _seq_of(self, run_key: int, entity: str, key: bytes) -> int | None:
        return await self._fetch_value(self._sql["find_seq"], run_key, entity, key)

    async def _put_plan(self, name: str, body: bytes) -> None:
        await self._fetch("put_plan", name, body)

    async def _get_plan(self, name: str) -> bytes | None:
        return await self._fetch_value(self._sql["get_plan"], name)

    async def keep_value(self, name: str, body: bytes) -> None:
        await self._fetch("put_value", name, body)

    async def value(self, name: str) -> bytes | None:
        return await self._fetch_value(self._sql["get_value"], name)

    @property
    def desk(self) -> Desk:
        return self._desk

    async def _desk_read(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with coded_errors(self._url):
            return await self._live_pool().fetch(sql, *values)

    async def _desk_write(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Any]:
        if len(rows) == 1:
            return await self._desk_read(sql, rows[0])
        with coded_errors(self._url):
            await self._live_pool().executemany(sql, rows)
        return []

    async def health(self) -> dict[str, Any]:
        runs, events, version = (await self._fetch("counts"))[0]
        return {"store": "postgres", "server": place(self._url), "version": version, "runs": runs, "events": events}


def _summary_columns(summary: RunSummary) -> tuple[str | None, ...]:
    engine = (summary.provider, summary.workflow_id, summary.provider_run_id)
    return (encode_summary(summary), summary.status, *engine)
