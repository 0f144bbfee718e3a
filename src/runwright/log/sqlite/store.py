"""SqliteStore: the log in a SQLite file."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from runwright.contract.envelope import uuid4_bytes
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.snapshot import Alert, RunSummary
from runwright.core.fold.run_state import RunState
from runwright.core.integrity.chain import StoredEvent
from runwright.log.append.aggregate import encode_summary
from runwright.log.append.authority import Fence
from runwright.log.append.queue import store_closed
from runwright.log.lease_liveness import (
    LEASE_RETENTION_MICROS,
    RELEASED,
    lease_lost,
    live_epoch,
    live_owners,
    run_owned,
    stale_fence,
)
from runwright.log.model import EngineIds, EventFilter, Holder, Lease, RunFilter, RunRow
from runwright.log.replay import FoldRow, erase_payload, fold_rows
from runwright.log.row_mapping import alert_from_row, lease_row, run_identity, run_row, store_corrupt
from runwright.log.side_tables import SideTables
from runwright.log.sql_files import load_queries, with_conditions
from runwright.log.store import LeaseRenewer, Store, TailEvent, cut_page
from runwright.log.validation import is_valid_name

from .connection import Cursor, coded_errors, connect, prepare_store, read_one, store_replaced
from .readers import SqliteReaders
from .writer import SqliteWriter, WriterCall

T = TypeVar("T")

_PAYLOAD = 13  # its column in the queries that read events


class SqliteStore(Store):
    """The log in a SQLite file."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(**options)
        self.path = path.absolute()  # Independent of later changes of the working directory.
        self._sql = load_queries("sqlite")
        self._writer: SqliteWriter | None = None
        self._readers: SqliteReaders | None = None
        self._watch_connection: apsw.Connection | None = None
        self._watched_version: Any = None
        self._identities: dict[int, RunIdentity] = {}
        self._side_tables = SideTables("sqlite", self._read_sql, self._write_sql)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(prepare_store, self.path)
        with coded_errors(self.path):
            self._writer = SqliteWriter(self.path, self.clock, self.counters, loop, self.notifier.notify)
        self._readers = SqliteReaders(self.path, loop)
        self.append_queue.open(self._writer.submit)

    async def close(self) -> None:
        self.append_queue.close()
        await self.notifier.close()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await writer.close()
        if self._readers is not None:
            readers, self._readers = self._readers, None
            await readers.close()
        if self._watch_connection is not None:
            watch, self._watch_connection = self._watch_connection, None
            watch.close()

    async def _write(self, action: Callable[[SqliteWriter], T]) -> T:
        """Execute an action on the writer thread, in its own transaction."""
        if self._writer is None:
            raise store_closed()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writer.submit(WriterCall(action, future))
        return await self.append_queue.within_budget(future)

    # Reading

    async def _read(self, action: Callable[[Cursor], T]) -> T:
        if self._readers is None:
            raise store_closed()
        if self.is_replaced:
            raise store_replaced(self.path)
        return await self._readers.read(action)

    @property
    def is_replaced(self) -> bool:
        return self._writer is not None and self._writer.is_replaced

    async def changed_elsewhere(self) -> bool:
        return await self._read(self._check_data_version)

    def _check_data_version(self, _: Cursor) -> bool:
        if self._watch_connection is None:
            self._watch_connection = connect(self.path, writer=False)
        version = read_one(self._watch_connection, "PRAGMA data_version")
        changed = version != self._watched_version
        self._watched_version = version
        return changed

    async def list_run_ids(self, before: int, limit: int) -> list[tuple[int, str]]:
        def read(cursor: Cursor) -> list[tuple[int, str]]:
            rows = cursor.execute(self._sql["run_ids"], (before, limit))
            return [(run_key, name.decode(errors="surrogateescape")) for run_key, name in rows]

        return await self._read(read)

    async def find_run(self, run_id: str) -> RunRow | None:
        if not is_valid_name(run_id):
            raise store_corrupt(f"The row of run {run_id!r}")  # Only a corrupt file contains such an id.
        rows = await self._run_rows("find_run", (run_id,))
        return rows[0] if rows else None

    async def find_runs_by_prefix(self, prefix: str, limit: int, tenant_id: str | None) -> list[RunRow]:
        return await self._run_rows("find_runs_by_prefix", {"prefix": prefix, "limit": limit, "tenant_id": tenant_id})

    async def find_engine_runs(self, ids: EngineIds, tenant_id: str | None, limit: int) -> list[RunRow]:
        return await self._run_rows("find_engine_runs", (*ids, tenant_id, limit))

    async def list_runs(self, wanted: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        sql, values = with_conditions(self._sql["list_runs"], "?", wanted.conditions(before), limit)
        return [run_row(row) for row in await self._read_sql(sql, values)]

    async def _run_rows(self, name: str, bindings: Any) -> list[RunRow]:
        return await self._read(lambda cursor: [run_row(row) for row in cursor.execute(self._sql[name], bindings)])

    async def read_events(self, run_key: int, after: int, limit: int | None) -> list[StoredEvent]:
        bindings = (run_key, after, -1 if limit is None else limit)

        def read(cursor: Cursor) -> list[StoredEvent]:
            try:
                events = (StoredEvent(*row) for row in cursor.execute(self._sql["read_run"], bindings))
                return list(events) if limit is None else list(cut_page(events, lambda event: event.raw_payload))
            except UnicodeDecodeError:
                rows = cursor.execute(self._sql["read_run_damaged"], bindings).fetchall()
                return [_damaged_event(row) for row in rows]

        return await self._read(read)

    async def fold(self, row: RunRow, until_seq: int | None = None, until_time: int | None = None) -> RunState:
        def fold(cursor: Cursor) -> RunState:
            state = RunState(detailed=True)
            rows = starmap(FoldRow, cursor.execute(self._sql["read_fold"], (row.run_key,)))
            fold_rows(state, rows, until_seq, until_time)
            return state

        return await self._read(fold)

    async def select_events(self, run_key: int, after: int, limit: int, wanted: EventFilter) -> list[StoredEvent]:
        bindings = (run_key, after, limit, _json_list(wanted.types), wanted.entity)
        sql = self._sql["select_run"]

        def read(cursor: Cursor) -> list[StoredEvent]:
            events = (StoredEvent(*row) for row in cursor.execute(sql, bindings))
            return list(cut_page(events, lambda event: event.raw_payload))

        return await self._read(read)

    async def find_seq_by_id(self, run_key: int, event_id: str) -> int | None:
        own = uuid4_bytes(event_id)
        sql, value = (self._sql["find_foreign_id"], event_id) if own is None else (self._sql["find_own_id"], own)
        row: Any = await self._read(lambda cursor: cursor.execute(sql, (run_key, value)).fetchone())
        return None if row is None else row[0]

    async def find_times_at(self, positions: list[int]) -> list[int | None]:
        sql = self._sql["time_at"]
        row: Any = await self._read(lambda cursor: cursor.execute(sql, (positions[0],)).fetchone())
        return [None if row is None else row[0]]

    async def read_tail(self, positions: list[int], limit: int, types: Sequence[str] | None = None) -> list[TailEvent]:
        name = "read_tail" if types is None else "select_tail"
        bindings = (positions[0], limit) if types is None else (positions[0], _json_list(types), limit)

        def read(cursor: Cursor) -> list[TailEvent]:
            rows = list(cut_page(cursor.execute(self._sql[name], bindings), lambda row: row[_PAYLOAD]))
            return [
                TailEvent(self._identity(cursor, run_key), StoredEvent(*fields), 0, pos)
                for *fields, pos, run_key in rows
            ]

        return await self._read(read)

    def _identity(self, cursor: Cursor, run_key: int) -> RunIdentity:
        known = self._identities.get(run_key)
        if known is None:
            row: Any = cursor.execute(self._sql["run_identity"], (run_key,)).fetchone()
            if row is None:
                raise RunwrightError(
                    ErrorCode.STORE_CORRUPT,
                    f"The row of run #{run_key} is missing, but it has events. Run `runwright verify`.",
                )
            known = run_identity(row)
            if len(self._identities) > 10_000:
                self._identities.clear()
            self._identities[run_key] = known
        return known

    async def find_misplaced_events(self, run_key: int) -> list[int]:
        sql = self._sql["misplaced_events"]
        return await self._read(lambda cursor: [row[0] for row in cursor.execute(sql, (run_key,))])

    async def find_orphaned_runs(self) -> list[int]:
        return await self._read(lambda cursor: [row[0] for row in cursor.execute(self._sql["orphaned_runs"])])

    # Maintenance and alerts

    async def save_summary(self, row: RunRow, summary: RunSummary) -> bool:
        return await self._write(lambda writer: _write_summary(writer, row, summary))

    async def erase_payload(self, row: RunRow, run_seq: int) -> None:
        def erase(writer: SqliteWriter) -> None:
            now = writer.find_run(row.identity.run_id)
            assert now is not None, "runs are never removed"
            events = writer.read_all(row.run_key)
            state = erase_payload(events, run_seq)
            writer.execute("erase_payload", (events[run_seq - 1].payload_digest, row.run_key, run_seq))
            _write_summary(writer, now, state.summary)

        await self._write(erase)

    async def alerts(self, run_id: str | None, tenant_id: str | None) -> list[Alert]:
        return [alert_from_row(row) for row in await self._read_sql(self._sql["list_alerts"], (run_id, tenant_id))]

    async def raise_alerts(self, alerts: Iterable[Alert]) -> None:
        stored = list(alerts)
        await self._write(lambda writer: writer.save_alerts(stored))

    # Leases

    async def acquire_lease(self, owner: str, ttl: float, holder: Holder | None) -> Lease:
        def acquire(writer: SqliteWriter) -> Lease:
            earlier = writer.find_lease(owner)
            epoch = 1 if earlier is None else earlier.epoch + 1
            expires_at = writer.clock.now() + int(ttl * 1e6)
            process = (None, None, None) if holder is None else (holder.host, holder.pid, holder.started)
            writer.execute("store_lease", (owner, epoch, expires_at, *process))
            writer.execute("delete_old_leases", (writer.clock.now() - LEASE_RETENTION_MICROS,))
            return Lease(owner, epoch, expires_at, ttl)

        return await self._write(acquire)

    async def renew_lease(self, lease: Lease) -> Lease:
        return await self._write(partial(_renew_lease, lease))

    def lease_renewer(self) -> LeaseRenewer:
        if self._writer is None:
            raise store_closed()
        return _SqliteLeaseRenewer(self._writer)

    async def release_lease(self, lease: Lease) -> None:
        await self._write(lambda writer: writer.execute("extend_lease", (RELEASED, lease.owner, lease.epoch)))

    async def owned_runs(self, lease: Lease) -> set[str]:
        owner = (lease.owner, lease.epoch)
        rows = await self._read(lambda cursor: cursor.execute(self._sql["owned_runs"], owner).fetchall())
        return {row[0] for row in rows}

    async def owners(self) -> frozenset[tuple[str, int]]:
        rows = await self._read(lambda cursor: cursor.execute(self._sql["list_leases"]).fetchall())
        return live_owners(map(lease_row, rows), self.clock.now())

    async def claim_run(self, run_id: str, lease: Lease) -> Fence:
        await self.get_run(run_id)

        def claim(writer: SqliteWriter) -> Fence:
            _check_lease(writer, lease)
            row = writer.find_run(run_id)
            assert row is not None, "runs are never removed"
            is_own = (row.owner, row.epoch) == (lease.owner, lease.epoch)
            if not is_own and row.owner is not None and row.epoch is not None and writer.is_live(row.owner, row.epoch):
                raise run_owned()
            writer.set_owner(row.run_key, run_id, lease.owner, lease.epoch, None)
            return Fence(lease.owner, lease.epoch)

        return await self._write(claim)

    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None) -> None:
        await self.get_run(run_id)

        def release(writer: SqliteWriter) -> None:
            row = writer.find_run(run_id)
            if row is None or (row.owner, row.epoch) != (fence.owner, fence.epoch):
                raise stale_fence()
            writer.set_owner(row.run_key, run_id, None, None, wake_at)

        await self._write(release)

    async def claim_due(self, lease: Lease, limit: int) -> list[str]:
        def claim(writer: SqliteWriter) -> list[str]:
            _check_lease(writer, lease)
            now = writer.clock.now()
            due: list[Any] = writer.execute("due_runs", (now, limit)).fetchall()
            leases = {row[0]: lease_row(row) for row in writer.execute("list_leases").fetchall()}
            for (owner,) in writer.execute("run_owners").fetchall():
                wanted = {"owner": owner, "living": live_epoch(leases.get(owner), now), "limit": limit}
                due += writer.execute("abandoned_runs", wanted).fetchall()
            for run_key, run_id in due[:limit]:
                writer.set_owner(run_key, run_id, lease.owner, lease.epoch, None)
            return [run_id for _, run_id in due[:limit]]

        return await self._write(claim)

    # For drivers

    async def end_positions(self) -> list[int]:
        return [await self._read(lambda cursor: next(cursor.execute(self._sql["end_position"]))[0])]

    async def find_signalled_runs(self, positions: list[int]) -> tuple[list[str], list[int]]:
        sql = self._sql["runs_signalled"]
        rows = await self._read(lambda cursor: cursor.execute(sql, (positions[0],)).fetchall())
        return [run_id for _, run_id in rows], [rows[-1][0]] if rows else positions

    async def find_seq_by_key(self, run_key: int, entity: str, key: bytes) -> int | None:
        sql = self._sql["find_key"]
        row = await self._read(lambda cursor: cursor.execute(sql, (run_key, entity, key)).fetchone())
        return None if row is None else row[0]

    async def store_plan(self, name: str, body: bytes) -> None:
        await self._write(lambda writer: writer.execute("insert_plan", (name, body)))

    async def load_plan(self, name: str) -> bytes | None:
        row = await self._read(lambda cursor: cursor.execute(self._sql["load_plan"], (name,)).fetchone())
        return None if row is None else row[0]

    @property
    def side_tables(self) -> SideTables:
        return self._side_tables

    async def _read_sql(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return await self._read(lambda cursor: cursor.execute(sql, values).fetchall())

    async def _write_sql(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._write(lambda writer: writer.statement(sql, rows))

    async def health(self) -> dict[str, Any]:
        runs, events = await self._read(lambda cursor: next(cursor.execute(self._sql["totals"])))
        return {
            "store": "sqlite",
            "path": str(self.path),
            "sqliteVersion": apsw.sqlite_lib_version(),
            "runs": runs,
            "events": events,
            "bytes": self.path.stat().st_size,
        }


def _damaged_event(row: Any) -> StoredEvent:
    """Return an event whose text may be invalid, so that verify can report it: its hash will not match."""
    fields: list[Any] = list(row)
    for column in (2, 4, 8, 10, 11, 12):  # the text columns
        if fields[column] is not None:
            fields[column] = fields[column].decode(errors="surrogateescape")
    return StoredEvent(*fields)


def _write_summary(writer: SqliteWriter, row: RunRow, summary: RunSummary) -> bool:
    promoted = (summary.status, summary.provider, summary.workflow_id, summary.provider_run_id)
    saved = writer.execute("save_summary", (encode_summary(summary), *promoted, row.run_key, row.last_seq)).fetchall()
    writer.evict(row.identity.run_id)
    return bool(saved)


class _SqliteLeaseRenewer:
    """Renews leases on the writer's thread, whose connection does not depend on the event loop."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer

    def renew(self, lease: Lease) -> Lease:
        future: concurrent.futures.Future[Lease] = concurrent.futures.Future()
        self._writer.submit(WriterCall(partial(_renew_lease, lease), future))
        try:
            return future.result(lease.ttl)
        except TimeoutError:
            future.cancel()
            message = "The write lock of the store was not available within the lease."
            raise RunwrightError(ErrorCode.STORE_UNAVAILABLE, message) from None

    def close(self) -> None: ...


def _renew_lease(lease: Lease, writer: SqliteWriter) -> Lease:
    row = writer.find_lease(lease.owner)
    if row is None or row.epoch != lease.epoch or row.expires_at == RELEASED:
        raise lease_lost()
    expires_at = writer.clock.now() + int(lease.ttl * 1e6)
    writer.execute("extend_lease", (expires_at, lease.owner, lease.epoch))
    return msgspec.structs.replace(lease, expires_at=expires_at)


def _check_lease(writer: SqliteWriter, lease: Lease) -> None:
    row = writer.find_lease(lease.owner)
    if row is None or row.epoch != lease.epoch or row.expires_at <= writer.clock.now():
        raise lease_lost()


def _json_list(names: Sequence[str] | None) -> str | None:
    return None if names is None else msgspec.json.encode(list(names)).decode()
