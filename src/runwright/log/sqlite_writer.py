"""The one thread that writes: it takes all that is queued, judges it, and commits it together.

Its connection holds the write lock from before the first look until the commit, so what it judges on
cannot change. Other processes may have written in between: SQLite's data version tells, and then the
open runs are compared with their rows again.
"""

from __future__ import annotations

import asyncio
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
from runwright.core.chain import StoredEvent

from .bell import Bell
from .clock import SystemClock
from .folding import fold_rows
from .intake import Request
from .judge import Group, Tally
from .leases import lives
from .model import LeaseRow, RunRow
from .openrun import INDEX_LIMIT, Found, OpenRun, OpenRuns, encode_summary
from .queries import load_queries
from .rows import DAMAGE, alert_row, damaged, lease_row, run_row
from .sqlite_connect import Cursor, connect, cursor_of, translate

logger = logging.getLogger("runwright.log")

MAX_GROUP = 2000  # units a commit: more would only make everybody wait longer
CHECKPOINT_PAGES = 4000

T = TypeVar("T")


SIZES = (64, 16, 4)
"""Rows that one statement takes; what is left over is written row by row."""


class Call(Generic[T]):
    """Something else than an append for the writer to do, in a transaction of its own."""

    __slots__ = ("error", "future", "result", "work")

    def __init__(self, work: Callable[[SqliteWriter], T], future: asyncio.Future[T]) -> None:
        self.work = work
        self.future = future
        self.result: T | None = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # pyright: ignore[reportArgumentType]


Job = Request | Call[Any]


class SqliteWriter:
    def __init__(
        self,
        path: Path,
        clock: Any,
        tally: Tally,
        loop: asyncio.AbstractEventLoop,
        told: Callable[[], None],
    ) -> None:
        self.clock = clock
        self._path = path
        self._tally = tally
        self._bell = Bell(loop)
        self._on_loop = self._bell.call
        self._told = told
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._closing = False
        self._sql = load_queries("sqlite")
        self._sized: dict[tuple[str, int], str] = {}
        self._open_runs = OpenRuns()
        self._generation = 0  # raised whenever another process wrote
        self._verified: dict[str, int] = {}
        self._data_version = -1
        self._last_run_key = 0
        self._checkpointed_at = 0
        self._pause = SystemClock().pause
        self._connection = connect(path, writer=True)
        self._connection.wal_autocheckpoint(0)  # see _checkpoint_if_due
        self._cursor = cursor_of(self._connection)
        self._thread = threading.Thread(target=self._run, name=f"runwright-writer {path.name}", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        self._inbox.put(job)

    async def close(self) -> None:
        self._closing = True
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        self._bell.close()

    # The thread

    def _run(self) -> None:
        try:
            while (job := self._inbox.get()) is not None:
                try:
                    if isinstance(job, Call):
                        self._carry_out(job)
                    else:
                        self._write(job)
                    self._checkpoint_if_due()
                except Exception as error:
                    logger.exception("The writer cannot go on; open the log again")
                    self._give_up(job, _bug(error))
                    return
        finally:
            self._connection.close()

    def _give_up(self, job: Job | None, error: RunwrightError) -> None:
        """Answer everybody who waits, and whoever still comes, with the error: nothing can be written any more."""
        while job is not None:
            if isinstance(job, Call):
                job.error = error
                self._on_loop(job.settle)
            else:
                self._fail([job], error)
            job = self._inbox.get()

    def _write(self, first: Request) -> None:
        """Commit this request and all that have queued up behind it."""
        requests = [first]
        later: Job | None = None
        try:
            self._begin()
            later = self._take_more(requests)
            taken = [request for request in requests if request.begin()]
            self._commit_group(taken)
        except apsw.Error as error:
            self._roll_back()
            self._fail(requests, translate(error, self._path))
        except RunwrightError as error:
            self._roll_back()
            self._fail(requests, error)
        except Exception as error:
            logger.exception("The writer failed; the appends of this group were rolled back")
            self._roll_back()
            self._fail(requests, damaged(str(self._path)) if isinstance(error, DAMAGE) else _bug(error))
        if later is not None:
            self._carry_out(later)

    def _take_more(self, requests: list[Request]) -> Call[Any] | None:
        """Take what has queued up; a call among it ends the group and is carried out after it."""
        units = len(requests[0].units)
        while units < MAX_GROUP and not self._inbox.empty():
            job = self._inbox.get()
            if job is None:
                self._inbox.put(None)
                return None
            if isinstance(job, Call):
                return job
            requests.append(job)
            units += len(job.units)
        return None

    def _begin(self) -> None:
        """Get the write lock. Another process may hold it: try again after a short, uneven while."""
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

    def _commit_group(self, requests: list[Request]) -> None:
        group = Group([unit for request in requests for unit in request.units], self._tally)
        try:
            for run_id in group.run_ids():
                run = self._open(run_id)
                if run is not None:
                    group.open(run)
            self._answer(group)
            now = self.clock.now()
            changed = group.judge(now)
            if not changed:
                self._cursor.execute("ROLLBACK")
                self._on_loop(self._wake, requests, False)
                return
            self._store(changed, now)
            self.save_alerts(group.alerts)
            self._commit()
        except BaseException:
            for run_id in group.run_ids():
                self._open_runs.drop(run_id)
            raise
        for run in changed:
            self._open_runs.settle(run)
            self._verified[run.run_id] = self._generation
        self._on_loop(self._wake, requests, True)  # last of all: they and we cannot both go on

    def _commit(self) -> None:
        self._cursor.execute("COMMIT")
        self._data_version = self._connection.data_version()  # raised by our own commit too

    def _open(self, run_id: str) -> OpenRun | None:
        run = self._open_runs.get(run_id)
        if run is not None and self._verified.get(run_id) == self._generation:
            return run
        row = self.find_run(run_id)
        if row is None:
            return None
        if run is None or (run.stored_seq, run.edition) != (row.last_seq, row.edition):
            run = self._load(row)
            self._open_runs.put(run)
        run.owner, run.epoch = row.owner, row.epoch
        if len(self._verified) > 10_000:
            self._verified.clear()
        self._verified[run_id] = self._generation
        return run

    def _load(self, row: RunRow) -> OpenRun:
        run = OpenRun(row.identity.context, row.enforcement)
        run.restore(row)
        if row.enforcement is Enforcement.OBSERVE:
            run.state.summary = RunSummary()
            fold_rows(run.state, self.read_all(row.run_key), None, None)
            run.whole = True
        if row.last_seq <= INDEX_LIMIT:
            run.index(self._cursor.execute(self._sql["run_index"], (row.run_key,)))
        else:
            run.early_ids = {ids[0] for ids in self._cursor.execute(self._sql["early_ids"], (row.run_key,))}
        return run

    def read_all(self, run_key: int) -> list[StoredEvent]:
        return [StoredEvent(*row) for row in self._cursor.execute(self._sql["read_run"], (run_key, 0, -1))]

    def _answer(self, group: Group) -> None:
        for question in group.key_questions():
            for row in self._cursor.execute(self._sql["find_key"], (question.run_key, question.entity, question.key)):
                group.answer_key(question.run_key, question.key, Found(*row))
        for question in group.id_questions():
            if self._cursor.execute(self._sql["find_event_id"], (question.run_key, question.key)).fetchone():
                group.answer_id(question.run_key, question.key)
        group.answer_live(self.lives)

    def _store(self, changed: list[OpenRun], now: int) -> None:
        events: list[tuple[Any, ...]] = []
        made: list[tuple[Any, ...]] = []
        advanced: list[tuple[Any, ...]] = []
        moved: list[tuple[Any, ...]] = []
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
                made.append((run.run_key, *run.context, run.enforcement, created_at, *fold, *engine, *owner))
            elif summary.status == run.stored_status:
                advanced.append((run.seq, run.head, run.persisted_at, text, run.run_key))
            else:
                engine = (summary.provider, summary.workflow_id, summary.provider_run_id)
                ended = summary.status in ENDED
                moved.append((run.seq, run.head, run.persisted_at, text, summary.status, *engine, ended, run.run_key))
            events.extend((run.run_key, *msgspec.structs.astuple(event)) for event in run.fresh.values())
        if made:
            self._cursor.executemany(self._sql["insert_run"], made)
        self._many("insert_event", "insert_event", events)
        if advanced:
            self._many("advance_run", "advance_runs", advanced)
        if moved:
            self._cursor.executemany(self._sql["move_run"], moved)

    def _many(self, for_one: str, for_many: str, rows: list[tuple[Any, ...]]) -> None:
        """As few statements as can be: each lets other threads run, and has to wait for its turn again."""
        place = 0
        for size in SIZES:
            while len(rows) - place >= size:
                values = [value for row in rows[place : place + size] for value in row]
                self._cursor.execute(self._of_size(for_many, size), values)
                place += size
        if place < len(rows):
            self._cursor.executemany(self._sql[for_one], rows[place:] if place else rows)

    def _of_size(self, name: str, size: int) -> str:
        sql = self._sized.get((name, size))
        if sql is None:
            before, _, row = self._sql[name].partition("VALUES ")
            row, _, after = row.partition(")")
            sql = self._sized[name, size] = f"{before}VALUES {', '.join([f'{row})'] * size)}{after}"
        return sql

    def _wake(self, requests: list[Request], wrote: bool) -> None:
        for request in requests:
            request.settle()
        if wrote:
            self._told()

    def _fail(self, requests: list[Request], error: RunwrightError) -> None:
        for request in requests:
            request.begin()
            request.error = RunwrightError(error.code, error.detail, **error.facts)
        self._on_loop(self._wake, requests, False)

    def _carry_out(self, call: Call[Any]) -> None:
        if call.future.cancelled():
            return  # nobody wants it any more
        try:
            self._begin()
            if call.future.cancelled():  # while we waited for the lock
                self._roll_back()
                return
            call.result = call.work(self)
            self._commit()
        except apsw.Error as error:
            self._roll_back()
            call.error = translate(error, self._path)
        except Exception as error:
            self._roll_back()
            call.error = damaged(str(self._path)) if isinstance(error, DAMAGE) else error
        self._on_loop(call.settle)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._cursor.execute("ROLLBACK")
        self._open_runs.clear()
        self._verified.clear()
        self._data_version = -1

    def _checkpoint_if_due(self) -> None:
        """Move the write-ahead log into the database when it has grown, after the callers were told.

        SQLite itself counts what this connection wrote: a hook would have to be called in every commit.
        """
        written = self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]
        if written - self._checkpointed_at < CHECKPOINT_PAGES:
            return
        self._checkpointed_at = written
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            logger.warning("The write-ahead log could not be moved into the database yet: %s", error)

    # For calls: these run on the writer's thread, inside its transaction

    def execute(self, name: str, bindings: Any = ()) -> Cursor:
        return self._cursor.execute(self._sql[name], bindings)

    def statement(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Execute a statement once for each row of values; all rows that it gives back."""
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

    def lives(self, owner: str, epoch: int) -> bool:
        return lives(self.find_lease(owner), epoch, self.clock.now())

    def own(self, row_key: int, run_id: str, owner: str | None, epoch: int | None, wake_at: int | None) -> None:
        self.execute("own_run", (owner, epoch, wake_at, row_key))
        run = self._open_runs.get(run_id)
        if run is not None:
            run.owner, run.epoch = owner, epoch

    def forget(self, run_id: str) -> None:
        self._open_runs.drop(run_id)


def _bug(error: Exception) -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_UNAVAILABLE, f"The append failed inside Runwright: {error!r}.")
