"""ShardWriter: commits the appends of its shards over one connection.

A writer validates a batch against its cached aggregates and sends it to the server as one statement, which applies only
to runs that are unchanged since. It skips runs that another process changed in the meantime; these are read and
validated again. Nothing is locked while this process validates.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Refusal
from runwright.contract.snapshot import RunSummary
from runwright.contract.transitions import ENDED, Enforcement
from runwright.core.integrity.chain import StoredEvent
from runwright.log.append.aggregate import INDEX_LIMIT, AggregateCache, RunAggregate, StoredKey, encode_summary
from runwright.log.append.authority import AppendBatch, AppendCounters, RunAppend
from runwright.log.append.queue import AppendRequest
from runwright.log.lease_liveness import is_live
from runwright.log.model import LeaseRow, RunRow
from runwright.log.replay import fold_rows
from runwright.log.row_mapping import alert_row, lease_row, run_row
from runwright.log.sql_files import load_queries

from .connection import CONNECTION_ERRORS, Connection, connect, is_conflict, translate
from .server_clock import ServerClock

logger = logging.getLogger("runwright.log")

SHARDS = 16
MAX_BATCH = 1000

LEASE_CACHE_MICROS = 500_000
"""Time for which a lease that was read as live is considered live. A run created under a lease that has just expired
is claimed by another process."""


def shard_of(run_id: str) -> int:
    return zlib.crc32(run_id.encode()) % SHARDS


class ShardWriter:
    """Commits the appends of its shards over one connection."""

    def __init__(
        self, url: str, clock: ServerClock, counters: AppendCounters, on_commit: Callable[[], None], timeout: float
    ) -> None:
        self._url = url
        self._timeout = timeout  # Beyond it the connection is lost, or the callers have timed out.
        self._closing = False
        self._clock = clock
        self._counters = counters
        self._on_commit = on_commit
        self._sql = load_queries("postgres")
        self._queue: deque[tuple[RunAppend, AppendRequest]] = deque()
        self._has_work = asyncio.Event()
        self._aggregates = AggregateCache()
        self._connection: Connection | None = None
        self._append_step: Any = None  # prepared statement of the connection
        self._leases: dict[str, LeaseRow] = {}
        self._leases_cached_until = 0
        self._in_flight: list[tuple[RunAppend, AppendRequest]] = []
        self._task = asyncio.create_task(self._run())

    def submit(self, append: RunAppend, request: AppendRequest) -> None:
        self._queue.append((append, request))
        self._has_work.set()

    def evict(self, run_id: str) -> None:
        self._aggregates.drop(run_id)

    async def close(self) -> None:
        """Commit the queued appends, but wait at most 4 s, so that programs end promptly; then fail the rest."""
        self._closing = True
        self._has_work.set()
        await asyncio.wait([self._task], timeout=min(self._timeout, 4.0))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.terminate()
        self._fail(self._in_flight, _closed("Whether this was written is unknown.", "unknown"))
        self._fail(list(self._queue), _closed("This was not written.", "withdrawn"))
        self._queue.clear()

    async def _run(self) -> None:
        while not self._closing:
            await self._has_work.wait()
            self._has_work.clear()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
                self._in_flight = [(append, request) for append, request in batch if request.start()]
                await self._write()

    async def _write(self) -> None:
        """Commit the appends in flight. Errors are raised to their callers."""
        outcome = "withdrawn"
        try:
            conflicting: set[str] = set()
            while self._in_flight:
                if self._connection is None or self._connection.is_closed():
                    connection = self._connection = await connect(self._url, self._timeout)
                    await connection.execute(self._sql["configure_writer"])
                    self._append_step = await connection.prepare(self._sql["append_step"])
                await self._clock.sync(self._connection, self._sql["clock"])
                outcome = "unknown"
                conflicting = await self._commit_batch([append for append, _ in self._in_flight], conflicting)
                done = [item for item in self._in_flight if item[0].run_id not in conflicting]
                self._in_flight = [item for item in self._in_flight if item[0].run_id in conflicting]
                for _, request in done:
                    request.finish_append()
        except Exception as error:
            self._aggregates.clear()
            if self._connection is not None and isinstance(error, CONNECTION_ERRORS):
                self._connection.terminate()
            if not isinstance(error, RunwrightError):
                logger.warning("Committing a batch of appends failed: %r", error)
                error = translate(error, self._url, outcome)
            await self._fail_or_split(error)

    async def _fail_or_split(self, error: RunwrightError) -> None:
        """Fail the appends in flight; but if one of them may have caused the error, retry each separately."""
        items, self._in_flight = self._in_flight, []
        connected = self._connection is not None and not self._connection.is_closed()
        if len(items) == 1 or not connected or error.code != ErrorCode.STORE_UNAVAILABLE:
            self._fail(items, error)
            return
        for item in items:
            self._in_flight = [item]
            await self._write()

    def _fail(self, items: list[tuple[RunAppend, AppendRequest]], error: RunwrightError) -> None:
        for _, request in items:
            request.finish_append(error)

    async def _commit_batch(self, appends: list[RunAppend], conflicting: set[str]) -> set[str]:
        """Validate and commit; return the runs that were changed by another process and must be validated again.

        The commit detects such changes. A refusal that is based on a cached aggregate is not final either: another
        process may have written since, so those runs are read and validated again.
        """
        batch = AppendBatch(appends, self._counters)
        cached = await self._open_all(batch, conflicting)
        await self._load_lookups(batch)
        now = self._clock.now()
        changed = batch.validate(now)
        conflicts = {append.run_id for append in appends if append.run_id in cached and _is_refused(append)}
        for run_id in conflicts:
            self._aggregates.drop(run_id)
        changed = [run for run in changed if run.run_id not in conflicts]
        if not changed:
            return conflicts
        try:
            committed = await self._store(batch, changed, now)
        except Exception as error:
            for run in changed:
                self._aggregates.drop(run.run_id)
            if is_conflict(error) or isinstance(error, _Conflict):
                return conflicts | {run.run_id for run in changed}
            raise
        for number, run in enumerate(changed):
            if number in committed:
                run.run_key = committed[number]
                self._aggregates.on_committed(run)
            else:
                conflicts.add(run.run_id)
                self._aggregates.drop(run.run_id)
        if committed:
            self._on_commit()
        return conflicts

    async def _open_all(self, batch: AppendBatch, conflicting: set[str]) -> set[str]:
        """Add the aggregates of the batch's runs; return the ids of those that were cached.

        A run to be created is assumed not to exist: if it does, the commit skips it, and it is looked up at the
        second attempt.
        """
        cached: set[str] = set()
        missing: list[str] = []
        new = {append.run_id for append in batch.appends if append.create is not None} - conflicting
        for run_id in batch.run_ids():
            run = self._aggregates.get(run_id)
            if run is not None:
                cached.add(run_id)
                batch.add_run(run)
            elif run_id not in new:
                missing.append(run_id)
        if missing:
            await self._load_runs(batch, missing)
        return cached

    async def _load_runs(self, batch: AppendBatch, run_ids: list[str]) -> None:
        """Load runs that are not cached, with their keys or, if they are long, the ids of their first events."""
        assert self._connection is not None
        rows = [run_row(row) for row in await self._connection.fetch(self._sql["find_runs"], run_ids)]
        runs = {row.run_key: await self._load(row) for row in rows}
        small = [row.run_key for row in rows if row.last_seq <= INDEX_LIMIT]
        if small:
            indexes: dict[int, list[tuple[bytes, int, bytes]]] = {run_key: [] for run_key in small}
            for run_key, key, seq, event_id in await self._connection.fetch(self._sql["run_index"], small):
                indexes[run_key].append((key, seq, event_id))
            for run_key, index in indexes.items():
                runs[run_key].index(index)
        large = [row.run_key for row in rows if row.last_seq > INDEX_LIMIT]
        if large:
            for run_key, event_id in await self._connection.fetch(self._sql["early_ids"], large):
                runs[run_key].early_ids.add(event_id)
        for run in runs.values():
            self._aggregates.add(run)
            batch.add_run(run)

    async def _load(self, row: RunRow) -> RunAggregate:
        run = RunAggregate(row.identity.context, row.enforcement)
        run.restore(row)
        if row.enforcement is Enforcement.OBSERVE:
            assert self._connection is not None
            run.state.summary = RunSummary()
            rows = await self._connection.fetch(self._sql["read_run"], row.run_key, 0, row.last_seq)
            fold_rows(run.state, (StoredEvent(*event) for event in rows), row.last_seq, None)
            run.is_complete = True
        return run

    async def _load_lookups(self, batch: AppendBatch) -> None:
        assert self._connection is not None
        if keys := batch.key_lookups():
            lookups = (
                [lookup.run_key for lookup in keys],
                [lookup.entity for lookup in keys],
                [lookup.key for lookup in keys],
            )
            for run_key, key, *found in await self._connection.fetch(self._sql["find_keys"], *lookups):
                batch.add_key(run_key, key, StoredKey(*found))
        if ids := batch.id_lookups():
            lookups = ([lookup.run_key for lookup in ids], [lookup.key for lookup in ids])
            for run_key, event_id in await self._connection.fetch(self._sql["find_event_ids"], *lookups):
                batch.add_id(run_key, event_id)
        if owners := batch.owners_to_check():
            now = self._clock.now()
            if not self._are_cached_leases_live(owners, batch, now):
                rows = await self._connection.fetch(self._sql["find_leases"], [owner for owner, _ in owners])
                self._leases = {row["owner"]: lease_row(row) for row in rows}
                self._leases_cached_until = now + LEASE_CACHE_MICROS
            batch.set_liveness(lambda owner, epoch: is_live(self._leases.get(owner), epoch, now))

    def _are_cached_leases_live(self, owners: set[tuple[str, int]], batch: AppendBatch, now: int) -> bool:
        """Whether the cached leases suffice: all are live, and all belong to writers that create runs.

        Appends are never refused because of cached leases.
        """
        creators = {(append.fence.owner, append.fence.epoch) for append in batch.appends if append.fence is not None}
        known = owners <= creators and now <= self._leases_cached_until
        return known and all(is_live(self._leases.get(owner), epoch, now) for owner, epoch in owners)

    async def _store(self, batch: AppendBatch, changed: list[RunAggregate], now: int) -> dict[int, int]:
        """Send the batch; return the keys of the runs that were committed, by their index in `changed`."""
        assert self._connection is not None
        if len(changed) == 1 and not batch.alerts and _is_step_transition(changed[0]):
            return await self._store_step_transition(changed[0])
        known, fresh, events = _ExistingRuns(), list[tuple[Any, ...]](), _NewEvents()
        counts: dict[int, int] = {}
        for number, run in enumerate(changed):
            summary, shard = run.state.summary, shard_of(run.run_id)
            if run.exists:
                known.add(number, shard, run)
            else:
                run_id, *constants = run.context
                fold = (run.seq, run.head, run.persisted_at, summary.status, encode_summary(summary))
                engine = (summary.provider, summary.workflow_id, summary.provider_run_id)
                created_at = run.persisted_at or now
                owner = (None, None) if summary.status in ENDED else (run.owner, run.epoch)
                fresh.append((number, run_id, shard, *constants, run.enforcement, created_at, *fold, *engine, *owner))
            offset = counts.get(shard, 0)
            for event in run.uncommitted.values():
                offset += 1
                events.add(number, offset, event)
            counts[shard] = offset
        created = [list(column) for column in zip(*fresh, strict=True)] or [[]] * 20
        arguments = [list(counts), list(counts.values()), *known.columns(), *created, *events.columns()]
        stored = {run.run_id for run in changed}
        alerts = [alert_row(alert, now) for alert in batch.alerts if alert.run_id in stored]
        if not alerts:
            rows = await self._connection.fetch(self._sql["append"], *arguments)
        else:
            async with self._connection.transaction():
                rows = await self._connection.fetch(self._sql["append"], *arguments)
                if len(rows) < len(changed):
                    raise _Conflict
                await self._connection.executemany(self._sql["insert_alert"], alerts)
        return {row["n"]: row["run_key"] for row in rows}

    async def _store_step_transition(self, run: RunAggregate) -> dict[int, int]:
        first, second = run.uncommitted.values()
        rows = await self._append_step.fetch(
            *(shard_of(run.run_id), run.run_key, run.stored_seq, run.edition, run.owner, run.epoch),
            *(run.seq, run.head, run.persisted_at, encode_summary(run.state.summary)),
            *msgspec.structs.astuple(first),
            *msgspec.structs.astuple(second),
        )
        return {0: run.run_key} if rows else {}


def _is_step_transition(run: RunAggregate) -> bool:
    """Whether the events are the end of a step and the start of the next, without a change of status."""
    return run.exists and len(run.uncommitted) == 2 and run.state.summary.status == run.stored_status


def _closed(detail: str, outcome: str) -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_CLOSED, f"The log was closed. {detail}", outcome=outcome)


def _is_refused(append: RunAppend) -> bool:
    return any(isinstance(result, Refusal) for result in append.results)


class _Conflict(Exception):
    """Part of a batch with alerts was changed by another process: all of it is validated again, so that no alert is
    stored for an event that was not."""


class _ExistingRuns:
    """The existing runs of a batch, as parameters of the append statement."""

    def __init__(self) -> None:
        self._numbers: list[tuple[Any, ...]] = []
        self._heads: list[bytes] = []
        self._texts: list[tuple[str | None, ...]] = []

    def add(self, number: int, shard: int, run: RunAggregate) -> None:
        summary = run.state.summary
        epoch = "" if run.epoch is None else run.epoch
        seqs = (run.seq, run.persisted_at)
        self._numbers.append((number, shard, run.run_key, run.stored_seq, epoch, run.edition, *seqs))
        self._heads.append(run.head)
        engine = (summary.provider, summary.workflow_id, summary.provider_run_id)
        self._texts.append((run.owner, summary.status, encode_summary(summary), *engine))

    def columns(self) -> list[Any]:
        return [*_text_columns(self._numbers, 8), b"".join(self._heads), *_array_columns(self._texts, 6)]


class _NewEvents:
    """The events of a batch, as parameters of the append statement."""

    def __init__(self) -> None:
        self._numbers: list[tuple[int, ...]] = []
        self._ids: list[bytes] = []
        self._keys: list[bytes] = []
        self._hashes: list[bytes] = []
        self._others: list[tuple[str | bytes | None, ...]] = []

    def add(self, number: int, offset: int, event: StoredEvent) -> None:
        attempts = (event.engine_attempt_id, event.logical_attempt_id)
        self._numbers.append((number, offset, event.run_seq, event.schema_version, *attempts, event.persisted_at))
        self._ids.append(event.event_id)
        self._keys.append(event.idempotency_key)
        self._hashes.append(event.hash)
        rare = (event.emitted_by, event.foreign_event_id, event.traceparent)
        self._others.append((event.event_type, event.step_id, event.emitted_at, *rare, event.raw_payload))

    def columns(self) -> list[Any]:
        fixed = [b"".join(self._ids), b"".join(self._keys), b"".join(self._hashes)]
        return [*_text_columns(self._numbers, 7), *fixed, *_array_columns(self._others, 7)]


def _text_columns(rows: list[tuple[Any, ...]], width: int) -> list[str]:
    """Return each column of numbers as comma-separated text."""
    return [",".join(map(str, column)) for column in zip(*rows, strict=True)] or [""] * width


def _array_columns(rows: list[tuple[Any, ...]], width: int) -> list[list[Any] | None]:
    """Return each column as an array, or None if all its values are null."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * width
    return [column if any(value is not None for value in column) else None for column in columns]
