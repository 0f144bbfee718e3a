"""The writer thread of a SQLite store: validates the queued appends and commits them together.

Its connection holds the write lock from before the first read until the commit, so the data that it validates against
cannot change. Other processes may have written between two commits: SQLite's data version reveals it, and then the
cached aggregates are compared with their rows again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import apsw
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.snapshot import Alert, RunSummary
from runwright.contract.transitions import ENDED, Enforcement
from runwright.core.integrity.chain import StoredEvent
from runwright.log.append.aggregate import INDEX_LIMIT, AggregateCache, RunAggregate, StoredKey, encode_summary
from runwright.log.append.authority import AppendBatch, AppendCounters
from runwright.log.append.queue import AppendRequest
from runwright.log.lease_liveness import is_live
from runwright.log.model import LeaseRow, RunRow
from runwright.log.notifier import LoopWaker
from runwright.log.replay import fold_rows
from runwright.log.row_mapping import CORRUPTION_ERRORS, alert_row, lease_row, run_row, store_corrupt
from runwright.log.sql_files import load_queries
from runwright.log.system_clock import SystemClock

from .connection import Cursor, connect, cursor_of, file_identity, store_replaced, translate

logger = logging.getLogger("runwright.log")

MAX_BATCH = 2000  # appends per commit: more would only increase the latency
CHECKPOINT_PAGES = 4000

T = TypeVar("T")


ROWS_PER_STATEMENT = (64, 16, 4)
"""Numbers of rows inserted by one statement; the remaining rows are written one by one."""


class WriterCall(Generic[T]):
    """An action other than an append, executed by the writer in its own transaction."""

    __slots__ = ("action", "error", "future", "result")

    def __init__(
        self, action: Callable[[SqliteWriter], T], future: asyncio.Future[T] | concurrent.futures.Future[T]
    ) -> None:
        self.action = action
        self.future = future
        self.result: T | None = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        """Set the future. Runs on the caller's loop, or on the writer's thread if the caller is another thread."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # pyright: ignore[reportArgumentType]


Job = AppendRequest | WriterCall[Any]


class SqliteWriter:
    """The writer thread of a store."""

    def __init__(
        self,
        path: Path,
        clock: Any,
        counters: AppendCounters,
        loop: asyncio.AbstractEventLoop,
        on_commit: Callable[[], None],
    ) -> None:
        self.clock = clock
        self._path = path
        self._counters = counters
        self._waker = LoopWaker(loop)
        self._on_loop = self._waker.call_soon
        self._on_commit = on_commit
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._closing = False
        self._sql = load_queries("sqlite")
        self._multi_row_sql: dict[tuple[str, int], str] = {}
        self._aggregates = AggregateCache()
        self._generation = 0  # incremented when another process has written
        self._verified: dict[str, int] = {}
        self._data_version = -1
        self._last_run_key = 0
        self._checkpointed_at = 0
        self._pause = SystemClock().pause
        self._connection = connect(path, writer=True)
        self._connection.wal_autocheckpoint(0)  # see _checkpoint_if_due
        self._cursor = cursor_of(self._connection)
        self._file = file_identity(path)
        self.is_replaced = False
        self._thread = threading.Thread(target=self._run, name=f"runwright-writer {path.name}", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._queue.put(job)

    async def close(self) -> None:
        self._closing = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._waker.close()

    # On the thread

    def _run(self) -> None:
        try:
            while (job := self._queue.get()) is not None:
                try:
                    if isinstance(job, WriterCall):
                        self._run_call(job)
                    else:
                        self._write(job)
                    self._checkpoint_if_due()
                except Exception as error:
                    logger.exception("The writer has failed; open the log again")
                    self._fail_remaining(job, _internal_error(error))
                    return
        finally:
            self._connection.close()

    def _fail_remaining(self, job: Job | None, error: RunwrightError) -> None:
        """Fail this job and all later ones: nothing can be written any more."""
        while job is not None:
            if isinstance(job, WriterCall):
                job.error = error
                self._resolve_call(job)
            else:
                self._fail([job], error)
            job = self._queue.get()

    def _write(self, first: AppendRequest) -> None:
        """Commit this request together with those queued after it."""
        requests = [first]
        later: Job | None = None
        try:
            self._begin()
            later = self._drain_queue(requests)
            started = [request for request in requests if request.start()]
            self._commit_batch(started)
        except apsw.Error as error:
            self._roll_back()
            self._fail(requests, translate(error, self._path))
        except RunwrightError as error:
            self._roll_back()
            self._fail(requests, error)
        except Exception as error:
            logger.exception("The writer failed; the appends of this batch were rolled back")
            self._roll_back()
            self._fail(
                requests,
                store_corrupt(str(self._path)) if isinstance(error, CORRUPTION_ERRORS) else _internal_error(error),
            )
        if later is not None:
            self._run_call(later)

    def _drain_queue(self, requests: list[AppendRequest]) -> WriterCall[Any] | None:
        """Add the queued requests; a queued call ends the batch and is returned, to be executed after it."""
        appends = len(requests[0].appends)
        while appends < MAX_BATCH and not self._queue.empty():
            job = self._queue.get()
            if job is None:
                self._queue.put(None)
                return None
            if isinstance(job, WriterCall):
                return job
            requests.append(job)
            appends += len(job.appends)
        return None

    def _begin(self) -> None:
        """Acquire the write lock, retrying after a short random delay while another process holds it."""
        self._check_file()
        while True:
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
                break
            except apsw.BusyError:
                if self._closing:
                    raise
                self._pause(random.uniform(0.001, 0.003))  # noqa: S311 - not a secret
        version = self._connection.data_version()
        if version != self._data_version:
            self._data_version = version
            self._generation += 1
            self._verified.clear()
            self._last_run_key = next(self._cursor.execute(self._sql["last_run_key"]))[0]

    def _check_file(self) -> None:
        """Raise STORE_REPLACED if the file was moved or deleted: what is written into it would be lost."""
        self.is_replaced = file_identity(self._path) != self._file
        if self.is_replaced:
            raise store_replaced(self._path)

    def _commit_batch(self, requests: list[AppendRequest]) -> None:
        batch = AppendBatch([append for request in requests for append in request.appends], self._counters)
        try:
            for run_id in batch.run_ids():
                run = self._open(run_id)
                if run is not None:
                    batch.add_run(run)
            self._load_lookups(batch)
            now = self.clock.now()
            changed = batch.validate(now)
            if not changed:
                self._cursor.execute("ROLLBACK")
                self._on_loop(self._resolve, requests, False)
                return
            self._store(changed, now)
            self.save_alerts(batch.alerts)
            self._commit()
        except BaseException:
            for run_id in batch.run_ids():
                self._aggregates.drop(run_id)
            raise
        for run in changed:
            self._aggregates.on_committed(run)
            self._verified[run.run_id] = self._generation
        self._on_loop(
            self._resolve, requests, True
        )  # Last, because the woken loop competes with this thread for the GIL.

    def _commit(self) -> None:
        self._cursor.execute("COMMIT")
        self._data_version = self._connection.data_version()  # Our own commit increments it, too.

    def _open(self, run_id: str) -> RunAggregate | None:
        run = self._aggregates.get(run_id)
        if run is not None and self._verified.get(run_id) == self._generation:
            return run
        row = self.find_run(run_id)
        if row is None:
            return None
        if run is None or (run.stored_seq, run.edition) != (row.last_seq, row.edition):
            run = self._load(row)
            self._aggregates.add(run)
        run.owner, run.epoch = row.owner, row.epoch
        if len(self._verified) > 10_000:
            self._verified.clear()
        self._verified[run_id] = self._generation
        return run

    def _load(self, row: RunRow) -> RunAggregate:
        run = RunAggregate(row.identity.context, row.enforcement)
        run.restore(row)
        if row.enforcement is Enforcement.OBSERVE:
            run.state.summary = RunSummary()
            fold_rows(run.state, self.read_all(row.run_key), None, None)
            run.is_complete = True
        if row.last_seq <= INDEX_LIMIT:
            run.index(self._cursor.execute(self._sql["run_index"], (row.run_key,)))
        else:
            run.early_ids = {ids[0] for ids in self._cursor.execute(self._sql["early_ids"], (row.run_key,))}
        return run

    def read_all(self, run_key: int) -> list[StoredEvent]:
        return [StoredEvent(*row) for row in self._cursor.execute(self._sql["read_run"], (run_key, 0, -1))]

    def _load_lookups(self, batch: AppendBatch) -> None:
        for lookup in batch.key_lookups():
            for row in self._cursor.execute(self._sql["find_key"], (lookup.run_key, lookup.entity, lookup.key)):
                batch.add_key(lookup.run_key, lookup.key, StoredKey(*row))
        for lookup in batch.id_lookups():
            if self._cursor.execute(self._sql["find_event_id"], (lookup.run_key, lookup.key)).fetchone():
                batch.add_id(lookup.run_key, lookup.key)
        batch.set_liveness(self.is_live)

    def _store(self, changed: list[RunAggregate], now: int) -> None:
        events: list[tuple[Any, ...]] = []
        created: list[tuple[Any, ...]] = []
        advanced: list[tuple[Any, ...]] = []
        status_changes: list[tuple[Any, ...]] = []
        for run in changed:
            summary = run.state.summary
            text = encode_summary(summary)
            if not run.exists:
                self._last_run_key += 1
                run.run_key = self._last_run_key
                fold = (run.seq, run.head, run.persisted_at, summary.status, text)
                engine = (summary.provider, summary.workflow_id, summary.provider_run_id)
                created_at = run.persisted_at or now
                owner = (None, None) if summary.status in ENDED else (run.owner, run.epoch)
                created.append((run.run_key, *run.context, run.enforcement, created_at, *fold, *engine, *owner))
            elif summary.status == run.stored_status:
                advanced.append((run.seq, run.head, run.persisted_at, text, run.run_key))
            else:
                engine = (summary.provider, summary.workflow_id, summary.provider_run_id)
                ended = summary.status in ENDED
                status_changes.append(
                    (run.seq, run.head, run.persisted_at, text, summary.status, *engine, ended, run.run_key)
                )
            events.extend((run.run_key, *msgspec.structs.astuple(event)) for event in run.uncommitted.values())
        if created:
            self._cursor.executemany(self._sql["insert_run"], created)
        self._execute_many("insert_event", "insert_event", events)
        if advanced:
            self._execute_many("advance_run", "advance_runs", advanced)
        if status_changes:
            self._cursor.executemany(self._sql["update_run_status"], status_changes)

    def _execute_many(self, single: str, multiple: str, rows: list[tuple[Any, ...]]) -> None:
        """Write rows in as few statements as possible: each releases the GIL and has to wait for it again."""
        start = 0
        for size in ROWS_PER_STATEMENT:
            while len(rows) - start >= size:
                values = [value for row in rows[start : start + size] for value in row]
                self._cursor.execute(self._multi_row_statement(multiple, size), values)
                start += size
        if start < len(rows):
            self._cursor.executemany(self._sql[single], rows[start:] if start else rows)

    def _multi_row_statement(self, name: str, size: int) -> str:
        sql = self._multi_row_sql.get((name, size))
        if sql is None:
            before, _, row = self._sql[name].partition("VALUES ")
            row, _, after = row.partition(")")
            sql = self._multi_row_sql[name, size] = f"{before}VALUES {', '.join([f'{row})'] * size)}{after}"
        return sql

    def _resolve(self, requests: list[AppendRequest], has_written: bool) -> None:
        for request in requests:
            request.resolve()
        if has_written:
            self._on_commit()

    def _fail(self, requests: list[AppendRequest], error: RunwrightError) -> None:
        for request in requests:
            request.start()
            request.error = RunwrightError(error.code, error.detail, **error.facts)
        self._on_loop(self._resolve, requests, False)

    def _run_call(self, call: WriterCall[Any]) -> None:
        if call.future.cancelled():
            return  # The caller was cancelled.
        try:
            self._begin()
            if call.future.cancelled():  # The caller was cancelled while the writer waited for the lock.
                self._roll_back()
                return
            call.result = call.action(self)
            self._commit()
        except apsw.Error as error:
            self._roll_back()
            call.error = translate(error, self._path)
        except Exception as error:
            self._roll_back()
            call.error = store_corrupt(str(self._path)) if isinstance(error, CORRUPTION_ERRORS) else error
        self._resolve_call(call)

    def _resolve_call(self, call: WriterCall[Any]) -> None:
        if isinstance(call.future, asyncio.Future):
            self._on_loop(call.resolve)
        else:
            call.resolve()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._cursor.execute("ROLLBACK")
        self._aggregates.clear()
        self._verified.clear()
        self._data_version = -1

    def _checkpoint_if_due(self) -> None:
        """Checkpoint the write-ahead log when it has grown, after the callers have their results.

        SQLite's counter of written pages is used, because a WAL hook would be called in every commit.
        """
        written = self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]
        if written - self._checkpointed_at < CHECKPOINT_PAGES:
            return
        self._checkpointed_at = written
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            logger.warning("Checkpoint of the write-ahead log failed, will be retried: %s", error)

    # For calls: these run on the writer thread, inside its transaction

    def execute(self, name: str, bindings: Any = ()) -> Cursor:
        return self._cursor.execute(self._sql[name], bindings)

    def statement(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Execute a statement once per row of values; return all rows that it returns."""
        return [row for values in rows for row in self._cursor.execute(sql, values).fetchall()]

    def find_run(self, run_id: str) -> RunRow | None:
        row = self._cursor.execute(self._sql["find_run"], (run_id,)).fetchone()
        return None if row is None else run_row(row)

    def save_alerts(self, alerts: list[Alert]) -> None:
        for alert in alerts:
            self.execute("insert_alert", alert_row(alert, self.clock.now()))

    def find_lease(self, owner: str) -> LeaseRow | None:
        row = self.execute("find_lease", (owner,)).fetchone()
        return None if row is None else lease_row(row)

    def is_live(self, owner: str, epoch: int) -> bool:
        return is_live(self.find_lease(owner), epoch, self.clock.now())

    def set_owner(self, row_key: int, run_id: str, owner: str | None, epoch: int | None, wake_at: int | None) -> None:
        self.execute("set_run_owner", (owner, epoch, wake_at, row_key))
        run = self._aggregates.get(run_id)
        if run is not None:
            run.owner, run.epoch = owner, epoch

    def evict(self, run_id: str) -> None:
        self._aggregates.drop(run_id)


def _internal_error(error: Exception) -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_UNAVAILABLE, f"The append failed with an internal error: {error!r}.")
