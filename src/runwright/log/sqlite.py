"""The log on SQLite: the default. One file, one writer thread, readers of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from runwright.contract.envelope import uuid4_bytes
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.snapshot import Alert, RunSummary
from runwright.core.chain import StoredEvent
from runwright.core.state import RunState

from .arguments import can_be_a_name
from .base import RunLog
from .desk import Desk
from .folding import FoldRow, erase, fold_rows
from .intake import Request
from .judge import Fence
from .leases import FORGET_AFTER, lease_lost, living, living_epoch, run_owned, stale_fence
from .model import EventFilter, Holder, Lease, RunFilter, RunRow
from .openrun import encode_summary
from .queries import load_queries, with_conditions
from .rows import alert_from, damaged, lease_row, run_identity, run_row
from .sqlite_connect import Cursor, coded_errors, connect, prepare_store, read_one
from .sqlite_readers import SqliteReaders
from .sqlite_writer import Call, SqliteWriter
from .store import Placed

T = TypeVar("T")


class SqliteLog(RunLog):
    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(**options)
        self.path = path.absolute()  # whatever folder somebody changes to
        self._sql = load_queries("sqlite")
        self._writer: SqliteWriter | None = None
        self._readers: SqliteReaders | None = None
        self._watch: apsw.Connection | None = None
        self._watched_version: Any = None
        self._identities: dict[int, RunIdentity] = {}
        self._desk = Desk("sqlite", self._desk_read, self._desk_write)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(prepare_store, self.path)
        with coded_errors(self.path):
            self._writer = SqliteWriter(self.path, self.clock, self.tally, loop, self._news.tell)
        self._readers = SqliteReaders(self.path, loop)

    async def close(self) -> None:
        self._intake.close()
        await self._news.close()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await writer.close()
        if self._readers is not None:
            readers, self._readers = self._readers, None
            await readers.close()
        if self._watch is not None:
            watch, self._watch = self._watch, None
            watch.close()

    def _enqueue(self, request: Request) -> None:
        self._live_writer().put(request)

    def _live_writer(self) -> SqliteWriter:
        if self._writer is None:
            raise _closed()
        return self._writer

    async def _call(self, work: Callable[[SqliteWriter], T]) -> T:
        """Have the writer do something in a transaction of its own."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._live_writer().put(Call(work, future))
        return await self._intake.in_time(future)

    # Reading

    async def _read(self, work: Callable[[Cursor], T]) -> T:
        if self._readers is None:
            raise _closed()
        return await self._readers.read(work)

    async def _changed_elsewhere(self) -> bool:
        return await self._read(self._look_for_changes)

    def _look_for_changes(self, _: Cursor) -> bool:
        if self._watch is None:
            self._watch = connect(self.path, writer=False)
        version = read_one(self._watch, "PRAGMA data_version")
        changed = version != self._watched_version
        self._watched_version = version
        return changed

    async def _names(self, before: int, limit: int) -> list[tuple[int, str]]:
        def read(cursor: Cursor) -> list[tuple[int, str]]:
            rows = cursor.execute(self._sql["run_names"], (before, limit))
            return [(run_key, name.decode(errors="surrogateescape")) for run_key, name in rows]

        return await self._read(read)

    async def _find(self, run_id: str) -> RunRow | None:
        if not can_be_a_name(run_id):
            raise damaged(f"The row of run {run_id!r}")  # such a name can only have been read from a damaged file
        rows = await self._run_rows("find_run", (run_id,))
        return rows[0] if rows else None

    async def _find_prefix(self, prefix: str, limit: int, tenant_id: str | None) -> list[RunRow]:
        return await self._run_rows("find_runs_by_prefix", {"prefix": prefix, "limit": limit, "tenant_id": tenant_id})

    async def _find_engine_run(self, provider: str, workflow_id: str, provider_run_id: str) -> RunRow | None:
        rows = await self._run_rows("find_engine_run", (provider, workflow_id, provider_run_id))
        return rows[0] if rows else None

    async def _list(self, wanted: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        sql, values = with_conditions(self._sql["list_runs"], "?", wanted.conditions(before), limit)
        return [run_row(row) for row in await self._desk_read(sql, values)]

    async def _run_rows(self, name: str, bindings: Any) -> list[RunRow]:
        return await self._read(lambda cursor: [run_row(row) for row in cursor.execute(self._sql[name], bindings)])

    async def _rows(self, run_key: int, after: int, limit: int | None) -> list[StoredEvent]:
        bindings = (run_key, after, -1 if limit is None else limit)

        def read(cursor: Cursor) -> list[StoredEvent]:
            try:
                return [StoredEvent(*row) for row in cursor.execute(self._sql["read_run"], bindings)]
            except UnicodeDecodeError:
                rows = cursor.execute(self._sql["read_run_damaged"], bindings).fetchall()
                return [_damaged_event(row) for row in rows]

        return await self._read(read)

    async def _fold(self, row: RunRow, until_seq: int | None, until_time: int | None) -> RunState:
        def fold(cursor: Cursor) -> RunState:
            state = RunState(detailed=True)
            rows = starmap(FoldRow, cursor.execute(self._sql["read_fold"], (row.run_key,)))
            fold_rows(state, rows, until_seq, until_time)
            return state

        return await self._read(fold)

    async def _select(self, run_key: int, after: int, limit: int, wanted: EventFilter) -> list[StoredEvent]:
        bindings = (run_key, after, limit, _listed(wanted.types), wanted.entity)
        sql = self._sql["select_run"]
        return await self._read(lambda cursor: [StoredEvent(*row) for row in cursor.execute(sql, bindings)])

    async def _seq_of_id(self, run_key: int, event_id: str) -> int | None:
        own = uuid4_bytes(event_id)
        sql, value = (self._sql["find_foreign_id"], event_id) if own is None else (self._sql["find_own_id"], own)
        row: Any = await self._read(lambda cursor: cursor.execute(sql, (run_key, value)).fetchone())
        return None if row is None else row[0]

    async def _times_at(self, positions: list[int]) -> list[int | None]:
        sql = self._sql["time_at"]
        row: Any = await self._read(lambda cursor: cursor.execute(sql, (positions[0],)).fetchone())
        return [None if row is None else row[0]]

    async def _tail(self, positions: list[int], limit: int, types: Sequence[str] | None = None) -> list[Placed]:
        name = "read_tail" if types is None else "select_tail"
        bindings = (positions[0], limit) if types is None else (positions[0], _listed(types), limit)

        def read(cursor: Cursor) -> list[Placed]:
            rows: list[Any] = cursor.execute(self._sql[name], bindings).fetchall()
            return [(self._identity(cursor, run_key), StoredEvent(*fields), 0, pos) for *fields, pos, run_key in rows]

        return await self._read(read)

    def _identity(self, cursor: Cursor, run_key: int) -> RunIdentity:
        known = self._identities.get(run_key)
        if known is None:
            row: Any = cursor.execute(self._sql["run_identity"], (run_key,)).fetchone()
            if row is None:
                raise RunwrightError(
                    ErrorCode.STORE_CORRUPT,
                    f"Events of run #{run_key} are there, but its row is gone. Run `runwright verify`.",
                )
            known = run_identity(row)
            if len(self._identities) > 10_000:
                self._identities.clear()
            self._identities[run_key] = known
        return known

    async def _misplaced(self, run_key: int) -> list[int]:
        sql = self._sql["misplaced"]
        return await self._read(lambda cursor: [row[0] for row in cursor.execute(sql, (run_key,))])

    async def _orphans(self) -> list[int]:
        return await self._read(lambda cursor: [row[0] for row in cursor.execute(self._sql["orphans"])])

    # Mending

    async def _save_summary(self, row: RunRow, summary: RunSummary) -> bool:
        return await self._call(lambda writer: _save(writer, row, summary))

    async def _erase(self, row: RunRow, run_seq: int) -> None:
        def erase_it(writer: SqliteWriter) -> None:
            now = writer.find_run(row.identity.run_id)
            assert now is not None, "runs are never removed"
            events = writer.read_all(row.run_key)
            state = erase(events, run_seq)
            writer.execute("erase_payload", (events[run_seq - 1].payload_digest, row.run_key, run_seq))
            _save(writer, now, state.summary)

        await self._call(erase_it)

    async def alerts(self, run_id: str | None = None, *, tenant_id: str | None = None) -> list[Alert]:
        return [alert_from(row) for row in await self._desk_read(self._sql["list_alerts"], (run_id, tenant_id))]

    async def raise_alerts(self, alerts: Iterable[Alert]) -> None:
        stored = list(alerts)
        await self._call(lambda writer: writer.save_alerts(stored))

    # Leases

    async def acquire_lease(self, owner: str, ttl: float = 5.0, holder: Holder | None = None) -> Lease:
        def acquire(writer: SqliteWriter) -> Lease:
            earlier = writer.find_lease(owner)
            epoch = 1 if earlier is None else earlier.epoch + 1
            expires_at = writer.clock.now() + int(ttl * 1e6)
            process = (None, None, None) if holder is None else (holder.host, holder.pid, holder.started)
            writer.execute("put_lease", (owner, epoch, expires_at, *process))
            writer.execute("forget_leases", (writer.clock.now() - FORGET_AFTER,))
            return Lease(owner, epoch, expires_at, ttl)

        return await self._call(acquire)

    async def renew_lease(self, lease: Lease) -> Lease:
        def renew(writer: SqliteWriter) -> Lease:
            _check_lease(writer, lease)
            expires_at = writer.clock.now() + int(lease.ttl * 1e6)
            writer.execute("extend_lease", (expires_at, lease.owner, lease.epoch))
            return msgspec.structs.replace(lease, expires_at=expires_at)

        return await self._call(renew)

    async def release_lease(self, lease: Lease) -> None:
        await self._call(lambda writer: writer.execute("extend_lease", (0, lease.owner, lease.epoch)))

    async def owners(self) -> frozenset[tuple[str, int]]:
        rows = await self._read(lambda cursor: cursor.execute(self._sql["leases"]).fetchall())
        return living(map(lease_row, rows), self.clock.now())

    async def claim_run(self, run_id: str, lease: Lease) -> Fence:
        await self.find_run(run_id)

        def claim(writer: SqliteWriter) -> Fence:
            _check_lease(writer, lease)
            row = writer.find_run(run_id)
            assert row is not None, "runs are never removed"
            mine = (row.owner, row.epoch) == (lease.owner, lease.epoch)
            if not mine and row.owner is not None and row.epoch is not None and writer.lives(row.owner, row.epoch):
                raise run_owned()
            writer.own(row.run_key, run_id, lease.owner, lease.epoch, None)
            return Fence(lease.owner, lease.epoch)

        return await self._call(claim)

    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None = None) -> None:
        await self.find_run(run_id)

        def release(writer: SqliteWriter) -> None:
            row = writer.find_run(run_id)
            if row is None or (row.owner, row.epoch) != (fence.owner, fence.epoch):
                raise stale_fence()
            writer.own(row.run_key, run_id, None, None, wake_at)

        await self._call(release)

    async def claim_due(self, lease: Lease, limit: int = 100) -> list[str]:
        def claim(writer: SqliteWriter) -> list[str]:
            _check_lease(writer, lease)
            now = writer.clock.now()
            due: list[Any] = writer.execute("due_runs", (now, limit)).fetchall()
            leases = {row[0]: lease_row(row) for row in writer.execute("leases").fetchall()}
            for (owner,) in writer.execute("owners").fetchall():
                wanted = {"owner": owner, "living": living_epoch(leases.get(owner), now), "limit": limit}
                due += writer.execute("runs_of", wanted).fetchall()
            for run_key, run_id in due[:limit]:
                writer.own(run_key, run_id, lease.owner, lease.epoch, None)
            return [run_id for _, run_id in due[:limit]]

        return await self._call(claim)

    # For drivers

    async def _end(self) -> list[int]:
        return [await self._read(lambda cursor: next(cursor.execute(self._sql["end_position"]))[0])]

    async def _signalled(self, positions: list[int]) -> tuple[list[str], list[int]]:
        sql = self._sql["signalled"]
        rows = await self._read(lambda cursor: cursor.execute(sql, (positions[0],)).fetchall())
        return [run_id for _, run_id in rows], [rows[-1][0]] if rows else positions

    async def _seq_of(self, run_key: int, entity: str, key: bytes) -> int | None:
        sql = self._sql["find_key"]
        row = await self._read(lambda cursor: cursor.execute(sql, (run_key, entity, key)).fetchone())
        return None if row is None else row[0]

    async def _put_plan(self, name: str, body: bytes) -> None:
        await self._call(lambda writer: writer.execute("put_plan", (name, body)))

    async def _get_plan(self, name: str) -> bytes | None:
        row = await self._read(lambda cursor: cursor.execute(self._sql["get_plan"], (name,)).fetchone())
        return None if row is None else row[0]

    @property
    def desk(self) -> Desk:
        return self._desk

    async def _desk_read(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return await self._read(lambda cursor: cursor.execute(sql, values).fetchall())

    async def _desk_write(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._call(lambda writer: writer.statement(sql, rows))

    async def health(self) -> dict[str, Any]:
        runs, events = await self._read(lambda cursor: next(cursor.execute(self._sql["counts"])))
        return {
            "store": "sqlite",
            "path": str(self.path),
            "sqliteVersion": apsw.sqlite_lib_version(),
            "runs": runs,
            "events": events,
            "bytes": self.path.stat().st_size,
        }


def _closed() -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_CLOSED, "This log is not open. Use `async with rw.open_log(...)`.")


def _damaged_event(row: Any) -> StoredEvent:
    """An event whose text may be broken, so that verify can name it: what is broken will not fit its hash."""
    fields: list[Any] = list(row)
    for place in (2, 4, 8, 10, 11, 12):  # the columns of text
        if fields[place] is not None:
            fields[place] = fields[place].decode(errors="surrogateescape")
    return StoredEvent(*fields)


def _save(writer: SqliteWriter, row: RunRow, summary: RunSummary) -> bool:
    promoted = (summary.status, summary.provider, summary.workflow_id, summary.provider_run_id)
    saved = writer.execute("save_summary", (encode_summary(summary), *promoted, row.run_key, row.last_seq)).fetchall()
    writer.forget(row.identity.run_id)
    return bool(saved)


def _check_lease(writer: SqliteWriter, lease: Lease) -> None:
    row = writer.find_lease(lease.owner)
    if row is None or row.epoch != lease.epoch or row.expires_at <= writer.clock.now():
        raise lease_lost()


def _listed(names: Sequence[str] | None) -> str | None:
    return None if names is None else msgspec.json.encode(list(names)).decode()
