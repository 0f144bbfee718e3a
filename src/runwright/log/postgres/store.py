"""PostgresStore: the log in a Postgres database."""

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
from runwright.core.integrity.chain import StoredEvent
from runwright.log.append.aggregate import encode_summary
from runwright.log.append.authority import Fence
from runwright.log.append.queue import AppendRequest, store_closed
from runwright.log.lease_liveness import (
    LEASE_RETENTION_MICROS,
    is_live,
    lease_lost,
    live_epoch,
    live_owners,
    run_owned,
    stale_fence,
)
from runwright.log.model import EngineIds, EventFilter, Holder, Lease, LeaseRow, RunFilter, RunRow
from runwright.log.replay import erase_payload
from runwright.log.row_mapping import alert_from_row, alert_row, lease_row, run_identity, run_row
from runwright.log.side_tables import SideTables
from runwright.log.sql_files import load_queries, with_conditions
from runwright.log.store import PAGE_BYTES, LeaseRenewer, Store, TailEvent, cut_page

from .connection import CONNECTION_ERRORS, Connection, coded_errors, connect, prepare_store, server_name
from .lease_renewer import PostgresLeaseRenewer
from .server_clock import ServerClock
from .writer import SHARDS, ShardWriter, shard_of

logger = logging.getLogger("runwright.log")

WRITERS = 2  # One validates while the other commits; more would only reduce the size of batches.
NOTIFY_SECONDS = 0.05
POLLS_PER_CHECK = 40  # polls of the notifier per wake-up without a notification
CHANNEL = "runwright_log"
SIDE_TABLES_CHANNEL = "runwright_desk"


class PostgresStore(Store):
    """The log in a Postgres database."""

    shards = SHARDS

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(**options)
        self._url = url
        self._sql = load_queries("postgres")
        self._pool: Any = None
        self._writers: list[ShardWriter] = []
        self._server_clock = ServerClock(self.clock)
        if options.get("clock") is None:  # else a test or a simulation has replaced it
            self.clock = self._server_clock
        self._listener: Connection | None = None
        self._notify_task: asyncio.Task[None] | None = None
        self._polls = 0
        self._has_unannounced_commit = False  # since the last notification
        self._listen_task: asyncio.Task[None] | None = None
        self._side_tables = SideTables("postgres", self._read_sql, self._write_sql)

    async def open(self) -> None:
        with coded_errors(self._url):
            connection = await connect(self._url)
            try:
                await prepare_store(connection, self._url)
                await self._server_clock.sync(connection, self._sql["clock"])
            finally:
                await connection.close()
            self._pool = await asyncpg.create_pool(self._url, min_size=0, max_size=4, timeout=10)  # pyright: ignore[reportUnknownMemberType]
        self._writers = [
            ShardWriter(self._url, self._server_clock, self.counters, self._on_commit, self.append_queue.budget + 1)
            for _ in range(WRITERS)
        ]
        self.append_queue.open(self._submit)

    async def close(self) -> None:
        self.append_queue.close()
        await self.notifier.close()
        await asyncio.gather(*(writer.close() for writer in self._writers))
        self._writers = []
        if self._notify_task is not None:
            await asyncio.gather(self._notify_task, return_exceptions=True)
        if self._listen_task is not None:
            self._listen_task.cancel()
            await asyncio.gather(self._listen_task, return_exceptions=True)
            self._listen_task = None
        if self._listener is not None:
            self._listener.terminate()
            self._listener = None
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    def _writer_for(self, run_id: str) -> ShardWriter:
        if not self._writers:
            raise store_closed()
        return self._writers[shard_of(run_id) % WRITERS]

    def _submit(self, request: AppendRequest) -> None:
        for append in request.appends:
            self._writer_for(append.run_id).submit(append, request)

    def subscribe(self, callback: Callable[[], None]) -> None:
        super().subscribe(callback)
        if self._listen_task is None:
            self._listen_task = asyncio.create_task(self._listen_for_side_tables())

    async def notify(self) -> None:
        await super().notify()
        await self._fetch_value("SELECT pg_notify($1, '')", SIDE_TABLES_CHANNEL)

    async def _listen_for_side_tables(self) -> None:
        """Listen to notifications of other processes. Waiters also poll, so that a lost one is only a delay."""
        while True:
            try:
                listener = await connect(self._url)
                try:
                    await listener.add_listener(SIDE_TABLES_CHANNEL, self._on_side_tables_notification)
                    while not listener.is_closed():
                        await self.clock.sleep(1.0)
                finally:
                    listener.terminate()
            except (asyncpg.PostgresError, *CONNECTION_ERRORS) as error:
                logger.debug("Listening to side table notifications failed, retrying: %r", error)
                await self.clock.sleep(1.0)

    def _on_side_tables_notification(self, *_: object) -> None:
        for call in self._listeners:
            call()

    # Notifications

    def _on_commit(self) -> None:
        """Notify waiters of this process at once, and other processes once for all commits within 50 ms."""
        self.notifier.notify()
        self._has_unannounced_commit = True
        if self._notify_task is None or self._notify_task.done():
            self._notify_task = asyncio.create_task(self._announce_commits())

    async def _announce_commits(self) -> None:
        while self._has_unannounced_commit:
            await self.clock.sleep(NOTIFY_SECONDS)
            self._has_unannounced_commit = False  # Later commits need another notification.
            try:
                await self._fetch_value("SELECT pg_notify($1, '')", CHANNEL)
            except RunwrightError:
                return  # Other processes find the events when they poll.

    async def changed_elsewhere(self) -> bool:
        if self._listener is None or self._listener.is_closed():
            try:
                listener = self._listener = await connect(self._url)
                await listener.add_listener(CHANNEL, self._on_log_notification)
            except (asyncpg.PostgresError, *CONNECTION_ERRORS) as error:
                logger.debug("Listening to notifications failed, polling instead: %r", error)
        self._polls += 1
        return self._polls % POLLS_PER_CHECK == 0

    def _on_log_notification(self, *_: object) -> None:
        self.notifier.notify()

    # Reading

    async def _fetch(self, name: str, *arguments: Any) -> list[Any]:
        with coded_errors(self._url):
            return await self._require_pool().fetch(self._sql[name], *arguments)

    async def _fetch_value(self, statement: str, *arguments: Any) -> Any:
        with coded_errors(self._url):
            return await self._require_pool().fetchval(statement, *arguments)

    def _require_pool(self) -> Any:
        if self._pool is None:
            raise RunwrightError(ErrorCode.STORE_CLOSED, "The log is not open. Use `async with rw.open_log(...)`.")
        return self._pool

    async def list_run_ids(self, before: int, limit: int) -> list[tuple[int, str]]:
        return [(row["run_key"], row["run_id"]) for row in await self._fetch("run_ids", before, limit)]

    async def find_run(self, run_id: str) -> RunRow | None:
        rows = await self._fetch("find_runs", [run_id])
        return run_row(rows[0]) if rows else None

    async def find_runs_by_prefix(self, prefix: str, limit: int, tenant_id: str | None) -> list[RunRow]:
        return [run_row(row) for row in await self._fetch("find_runs_by_prefix", prefix, limit, tenant_id)]

    async def find_engine_runs(self, ids: EngineIds, tenant_id: str | None, limit: int) -> list[RunRow]:
        return [run_row(row) for row in await self._fetch("find_engine_runs", *ids, tenant_id, limit)]

    async def list_runs(self, wanted: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        sql, values = with_conditions(self._sql["list_runs"], "$", wanted.conditions(before), limit)
        return [run_row(row) for row in await self._read_sql(sql, values)]

    async def read_events(self, run_key: int, after: int, limit: int | None) -> list[StoredEvent]:
        if limit is None or limit == 1:
            rows = await self._fetch("read_run", run_key, after, limit)
        else:
            rows = await self._fetch("read_run_page", run_key, after, limit, PAGE_BYTES)
        return [StoredEvent(*row) for row in rows]

    async def select_events(self, run_key: int, after: int, limit: int, wanted: EventFilter) -> list[StoredEvent]:
        types = None if wanted.types is None else list(wanted.types)
        rows = await self._fetch("select_run", run_key, after, limit, types, wanted.entity, PAGE_BYTES)
        return [StoredEvent(*row) for row in rows]

    async def find_seq_by_id(self, run_key: int, event_id: str) -> int | None:
        own = uuid4_bytes(event_id)
        if own is None:
            return await self._fetch_value(self._sql["find_foreign_id"], run_key, event_id)
        return await self._fetch_value(self._sql["find_own_id"], run_key, own)

    async def find_times_at(self, positions: list[int]) -> list[int | None]:
        return [row[0] for row in await self._fetch("times_at", list(range(SHARDS)), positions)]

    async def read_tail(self, positions: list[int], limit: int, types: Sequence[str] | None = None) -> list[TailEvent]:
        arguments = (list(range(SHARDS)), positions, limit, PAGE_BYTES)
        if types is None:
            rows = await self._fetch("read_tail", *arguments)
        else:
            rows = await self._fetch("select_tail", *arguments, list(types))
        ordered: list[tuple[int, int, int, Any]] = []
        latest = [0] * SHARDS
        for row in rows:  # by time, but in order of position within a shard
            shard, persisted_at = int(row["shard"]), int(row["persisted_at"])
            latest[shard] = max(latest[shard], persisted_at)
            ordered.append((latest[shard], shard, int(row["pos"]), row))
        ordered.sort(key=lambda item: item[:3])
        found: list[TailEvent] = []
        for _, shard, pos, row in ordered[:limit]:
            fields = tuple(row)
            found.append(TailEvent(run_identity(fields[18:]), StoredEvent(*fields[:16]), shard, pos))
        return list(cut_page(found, lambda tail_event: tail_event.event.raw_payload))

    async def find_misplaced_events(self, run_key: int) -> list[int]:
        return [row["run_seq"] for row in await self._fetch("misplaced_events", run_key)]

    async def find_orphaned_runs(self) -> list[int]:
        return [row["run_key"] for row in await self._fetch("orphaned_runs")]

    # Maintenance and alerts

    async def save_summary(self, row: RunRow, summary: RunSummary) -> bool:
        saved = await self._fetch("save_summary", *_summary_columns(summary), row.run_key, row.last_seq)
        self._writer_for(row.identity.run_id).evict(row.identity.run_id)
        return bool(saved)

    async def erase_payload(self, row: RunRow, run_seq: int) -> None:
        with coded_errors(self._url, outcome="unknown"):
            async with self._require_pool().acquire() as connection, connection.transaction():
                last_seq = await connection.fetchval(self._sql["lock_run"], row.run_key)
                rows = await connection.fetch(self._sql["read_run"], row.run_key, 0, last_seq)
                events = [StoredEvent(*event) for event in rows]
                state = erase_payload(events, run_seq)
                digest = events[run_seq - 1].payload_digest
                await connection.execute(self._sql["erase_payload"], digest, row.run_key, run_seq)
                columns = _summary_columns(state.summary)
                await connection.execute(self._sql["save_summary"], *columns, row.run_key, last_seq)
        self._writer_for(row.identity.run_id).evict(row.identity.run_id)

    async def alerts(self, run_id: str | None, tenant_id: str | None) -> list[Alert]:
        return [alert_from_row(row) for row in await self._fetch("list_alerts", run_id, tenant_id)]

    async def raise_alerts(self, alerts: Iterable[Alert]) -> None:
        for alert in alerts:
            await self._fetch("insert_alert", *alert_row(alert, self._server_clock.now()))

    # Leases

    async def acquire_lease(self, owner: str, ttl: float, holder: Holder | None) -> Lease:
        process = (None, None, None) if holder is None else (holder.host, holder.pid, holder.started)
        await self._fetch("delete_old_leases", self._server_clock.now() - LEASE_RETENTION_MICROS)
        epoch, expires_at = (await self._fetch("store_lease", owner, int(ttl * 1e6), *process))[0]
        return Lease(owner, epoch, expires_at, ttl)

    async def renew_lease(self, lease: Lease) -> Lease:
        rows = await self._fetch("extend_lease", lease.owner, lease.epoch, int(lease.ttl * 1e6))
        if not rows:
            raise lease_lost()
        return msgspec.structs.replace(lease, expires_at=rows[0]["expires_at"])

    def lease_renewer(self) -> LeaseRenewer:
        return PostgresLeaseRenewer(self._url, self._sql["extend_lease"])

    async def release_lease(self, lease: Lease) -> None:
        await self._fetch("end_lease", lease.owner, lease.epoch)

    async def owned_runs(self, lease: Lease) -> set[str]:
        return {row["run_id"] for row in await self._fetch("owned_runs", lease.owner, lease.epoch)}

    async def _leases(self, owners: Iterable[str]) -> tuple[dict[str, LeaseRow], int]:
        """Return the leases of some owners, and the server's time to compare them with."""
        rows = await self._fetch("find_leases", list(owners))
        return {row["owner"]: lease_row(row) for row in rows}, await self._fetch_value(self._sql["clock"])

    async def _check_lease(self, lease: Lease) -> None:
        leases, now = await self._leases([lease.owner])
        row = leases.get(lease.owner)
        if row is None or row.epoch != lease.epoch or row.expires_at <= now:
            raise lease_lost()

    async def owners(self) -> frozenset[tuple[str, int]]:
        rows, now = await self._fetch("list_leases"), await self._fetch_value(self._sql["clock"])
        return live_owners(map(lease_row, rows), now)

    async def claim_run(self, run_id: str, lease: Lease) -> Fence:
        while True:
            await self._check_lease(lease)
            row = await self.get_run(run_id)
            if (row.owner, row.epoch) == (lease.owner, lease.epoch):
                return Fence(lease.owner, lease.epoch)
            expired: LeaseRow | None = None
            if row.owner is not None and row.epoch is not None:
                leases, now = await self._leases([row.owner])
                expired = leases.get(row.owner)
                if is_live(expired, row.epoch, now):
                    raise run_owned()
            if await self._claim(lease, run_id, row.owner, row.epoch, expired):
                return Fence(lease.owner, lease.epoch)

    async def _claim(
        self, lease: Lease, run_id: str, owner: str | None, epoch: int | None, expired: LeaseRow | None
    ) -> bool:
        """Claim a run whose owner was found to have an expired lease, or none. False if that has changed."""
        expired_at = expired.expires_at if expired is not None and expired.epoch == epoch else None
        rows = await self._fetch("claim_run", lease.owner, lease.epoch, run_id, owner, epoch, expired_at)
        self._writer_for(run_id).evict(run_id)
        return bool(rows)

    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None) -> None:
        await self.get_run(run_id)
        rows = await self._fetch("release_run", run_id, wake_at, fence.owner, fence.epoch)
        self._writer_for(run_id).evict(run_id)
        if not rows:
            raise stale_fence()

    async def claim_due(self, lease: Lease, limit: int) -> list[str]:
        await self._check_lease(lease)
        due = await self._fetch("due_runs", limit)
        rows = await self._fetch("list_leases")
        leases, now = {row["owner"]: lease_row(row) for row in rows}, await self._fetch_value(self._sql["clock"])
        for row in await self._fetch("run_owners"):
            due += await self._fetch("abandoned_runs", row["owner"], live_epoch(leases.get(row["owner"]), now), limit)
        claimed: list[str] = []
        for run_id, owner, epoch in due[:limit]:
            if await self._claim(lease, run_id, owner, epoch, leases.get(owner)):
                claimed.append(run_id)
        return claimed

    # For drivers

    async def end_positions(self) -> list[int]:
        return [row["pos"] for row in await self._fetch("end_positions")]

    async def find_signalled_runs(self, positions: list[int]) -> tuple[list[str], list[int]]:
        reached, runs = list(positions), list[str]()
        for shard, pos, run_id in await self._fetch("runs_signalled", list(range(SHARDS)), positions):
            reached[shard] = pos
            runs.append(run_id)
        return runs, reached

    async def find_seq_by_key(self, run_key: int, entity: str, key: bytes) -> int | None:
        return await self._fetch_value(self._sql["find_seq"], run_key, entity, key)

    async def store_plan(self, name: str, body: bytes) -> None:
        await self._fetch("insert_plan", name, body)

    async def load_plan(self, name: str) -> bytes | None:
        return await self._fetch_value(self._sql["load_plan"], name)

    async def store_value(self, name: str, body: bytes) -> None:
        await self._fetch("insert_value", name, body)

    async def load_value(self, name: str) -> bytes | None:
        return await self._fetch_value(self._sql["load_value"], name)

    @property
    def side_tables(self) -> SideTables:
        return self._side_tables

    async def _read_sql(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with coded_errors(self._url):
            return await self._require_pool().fetch(sql, *values)

    async def _write_sql(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Any]:
        if len(rows) == 1:
            return await self._read_sql(sql, rows[0])
        with coded_errors(self._url):
            await self._require_pool().executemany(sql, rows)
        return []

    async def health(self) -> dict[str, Any]:
        runs, events, version = (await self._fetch("totals"))[0]
        return {
            "store": "postgres",
            "server": server_name(self._url),
            "version": version,
            "runs": runs,
            "events": events,
        }


def _summary_columns(summary: RunSummary) -> tuple[str | None, ...]:
    engine = (summary.provider, summary.workflow_id, summary.provider_run_id)
    return (encode_summary(summary), summary.status, *engine)
