"""A lane: one connection to Postgres over which the appends of its share of the runs are committed.

A lane judges a group on what it knows of its runs, and hands the whole group to the server as one
statement that holds only for runs which are still as judged. Runs that another process moved on in the
meantime are left out by that statement; they are read again and judged again. Nothing is locked while
this process thinks.
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
from runwright.core.chain import StoredEvent

from .folding import fold_rows
from .intake import Request
from .judge import Group, Tally, Unit
from .leases import lives
from .model import LeaseRow, RunRow
from .openrun import INDEX_LIMIT, Found, OpenRun, OpenRuns, encode_summary
from .postgres_connect import LOST, Connection, connect, is_conflict, translate
from .queries import load_queries
from .rows import alert_row, lease_row, run_row

logger = logging.getLogger("runwright.log")

SHARDS = 16
MAX_GROUP = 1000
CLOCK_SYNC_SECONDS = 30.0

LEASES_MICROS = 500_000
"""For how long a lease that was seen alive is taken to be. Whoever makes a run on one that has just ended makes a
run that others take up."""


def shard_of(run_id: str) -> int:
    return zlib.crc32(run_id.encode()) % SHARDS


class ServerClock:
    """The database's clock, kept beside the local one: several processes must agree on persistedAt."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._offset = 0
        self._due = 0.0

    def now(self) -> int:
        return self._clock.now() + self._offset

    async def sync(self, connection: Connection, sql: str) -> None:
        if self._clock.monotonic() < self._due:
            return
        before = self._clock.now()
        server: int = await connection.fetchval(sql)
        self._offset = server - (before + self._clock.now()) // 2
        self._due = self._clock.monotonic() + CLOCK_SYNC_SECONDS


class Lane:
    def __init__(self, url: str, clock: ServerClock, tally: Tally, told: Callable[[], None], patience: float) -> None:
        self._url = url
        self._patience = patience  # a statement that takes longer has lost its connection, or its callers
        self._closing = False
        self._clock = clock
        self._tally = tally
        self._told = told
        self._sql = load_queries("postgres")
        self._queue: deque[tuple[Unit, Request]] = deque()
        self._wake = asyncio.Event()
        self._open_runs = OpenRuns()
        self._connection: Connection | None = None
        self._append_step: Any = None  # a statement of that connection's
        self._leases: dict[str, LeaseRow] = {}
        self._leases_until = 0
        self._under_way: list[tuple[Unit, Request]] = []
        self._task = asyncio.create_task(self._run())

    def put(self, unit: Unit, request: Request) -> None:
        self._queue.append((unit, request))
        self._wake.set()

    def forget(self, run_id: str) -> None:
        self._open_runs.drop(run_id)

    async def close(self) -> None:
        """Finish what is queued, if that takes no longer than people wait for a program to end."""
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._task], timeout=min(self._patience, 4.0))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.terminate()
        self._fail(self._under_way, _closed("Whether this was written is unknown.", "unknown"))
        self._fail(list(self._queue), _closed("This was not written.", "withdrawn"))
        self._queue.clear()

    async def _run(self) -> None:
        while not self._closing:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_GROUP))]
                self._under_way = [(unit, request) for unit, request in batch if request.begin()]
                await self._write()

    async def _write(self) -> None:
        """Commit what is under way. Whatever goes wrong is told to those who wait for it."""
        outcome = "withdrawn"
        try:
            overtaken: set[str] = set()
            while self._under_way:
                if self._connection is None or self._connection.is_closed():
                    connection = self._connection = await connect(self._url, self._patience)
                    await connection.execute(self._sql["prepare_lane"])
                    self._append_step = await connection.prepare(self._sql["append_step"])
                await self._clock.sync(self._connection, self._sql["clock"])
                outcome = "unknown"
                overtaken = await self._commit_group([unit for unit, _ in self._under_way], overtaken)
                done = [item for item in self._under_way if item[0].run_id not in overtaken]
                self._under_way = [item for item in self._under_way if item[0].run_id in overtaken]
                for _, request in done:
                    request.unit_done()
        except Exception as error:
            self._open_runs.clear()
            if self._connection is not None and isinstance(error, LOST):
                self._connection.terminate()
            if not isinstance(error, RunwrightError):
                logger.warning("An append group failed: %r", error)
                error = translate(error, self._url, outcome)
            await self._fail_or_split(error)

    async def _fail_or_split(self, error: RunwrightError) -> None:
        """Tell those under way; but if one of them may have spoiled it for the others, try each by itself."""
        items, self._under_way = self._under_way, []
        connected = self._connection is not None and not self._connection.is_closed()
        if len(items) == 1 or not connected or error.code != ErrorCode.STORE_UNAVAILABLE:
            self._fail(items, error)
            return
        for item in items:
            self._under_way = [item]
            await self._write()

    def _fail(self, items: list[tuple[Unit, Request]], error: RunwrightError) -> None:
        for _, request in items:
            request.unit_done(error)

    async def _commit_group(self, units: list[Unit], overtaken: set[str]) -> set[str]:
        """Judge and commit; gives back the runs that were overtaken and must be judged again.

        What goes in is confirmed by the commit. A refusal on what is only remembered is not final either:
        another process may have written since, so those runs are read and judged again.
        """
        group = Group(units, self._tally)
        remembered = await self._open_all(group, overtaken)
        await self._answer(group)
        now = self._clock.now()
        changed = group.judge(now)
        lost = {unit.run_id for unit in units if unit.run_id in remembered and _is_refused(unit)}
        for run_id in lost:
            self._open_runs.drop(run_id)
        changed = [run for run in changed if run.run_id not in lost]
        if not changed:
            return lost
        try:
            won = await self._store(group, changed, now)
        except Exception as error:
            for run in changed:
                self._open_runs.drop(run.run_id)
            if is_conflict(error) or isinstance(error, _Overtaken):
                return lost | {run.run_id for run in changed}
            raise
        for number, run in enumerate(changed):
            if number in won:
                run.run_key = won[number]
                self._open_runs.settle(run)
            else:
                lost.add(run.run_id)
                self._open_runs.drop(run.run_id)
        if won:
            self._told()
        return lost

    async def _open_all(self, group: Group, overtaken: set[str]) -> set[str]:
        """Open the group's runs; gives back those that were open before.

        A run that is to be made is taken to be new: should there be one already, the commit leaves ours out, and
        the second time it is looked up.
        """
        remembered: set[str] = set()
        missing: list[str] = []
        new = {unit.run_id for unit in group.units if unit.create is not None} - overtaken
        for run_id in group.run_ids():
            run = self._open_runs.get(run_id)
            if run is not None:
                remembered.add(run_id)
                group.open(run)
            elif run_id not in new:
                missing.append(run_id)
        if not missing:
            return remembered
        assert self._connection is not None
        rows = [run_row(row) for row in await self._connection.fetch(self._sql["find_runs"], missing)]
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
            self._open_runs.put(run)
            group.open(run)
        return remembered

    async def _load(self, row: RunRow) -> OpenRun:
        run = OpenRun(row.identity.context, row.enforcement)
        run.restore(row)
        if row.enforcement is Enforcement.OBSERVE:
            assert self._connection is not None
            run.state.summary = RunSummary()
            rows = await self._connection.fetch(self._sql["read_run"], row.run_key, 0, row.last_seq)
            fold_rows(run.state, (StoredEvent(*event) for event in rows), row.last_seq, None)
            run.whole = True
        return run

    async def _answer(self, group: Group) -> None:
        assert self._connection is not None
        if keys := group.key_questions():
            questions = (
                [question.run_key for question in keys],
                [question.entity for question in keys],
                [question.key for question in keys],
            )
            for run_key, key, *found in await self._connection.fetch(self._sql["find_keys"], *questions):
                group.answer_key(run_key, key, Found(*found))
        if ids := group.id_questions():
            questions = ([question.run_key for question in ids], [question.key for question in ids])
            for run_key, event_id in await self._connection.fetch(self._sql["find_event_ids"], *questions):
                group.answer_id(run_key, event_id)
        if owners := group.owners_in_question():
            now = self._clock.now()
            if not self._are_known_to_live(owners, group, now):
                rows = await self._connection.fetch(self._sql["find_leases"], [owner for owner, _ in owners])
                self._leases = {row["owner"]: lease_row(row) for row in rows}
                self._leases_until = now + LEASES_MICROS
            group.answer_live(lambda owner, epoch: lives(self._leases.get(owner), epoch, now))

    def _are_known_to_live(self, owners: set[tuple[str, int]], group: Group, now: int) -> bool:
        """Only for those who make runs: nobody is refused for what was true a moment ago."""
        makers = {(unit.fence.owner, unit.fence.epoch) for unit in group.units if unit.fence is not None}
        known = owners <= makers and now <= self._leases_until
        return known and all(lives(self._leases.get(owner), epoch, now) for owner, epoch in owners)

    async def _store(self, group: Group, changed: list[OpenRun], now: int) -> dict[int, int]:
        """Send the group; gives back the runs that won, by their place in `changed`, with their keys."""
        assert self._connection is not None
        if len(changed) == 1 and not group.alerts and _is_step(changed[0]):
            return await self._store_step(changed[0])
        known, fresh, events = _Known(), list[tuple[Any, ...]](), _Events()
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
            place = counts.get(shard, 0)
            for event in run.fresh.values():
                place += 1
                events.add(number, place, event)
            counts[shard] = place
        made = [list(column) for column in zip(*fresh, strict=True)] or [[]] * 20
        arguments = [list(counts), list(counts.values()), *known.columns(), *made, *events.columns()]
        stored = {run.run_id for run in changed}
        alerts = [alert_row(alert, now) for alert in group.alerts if alert.run_id in stored]
        if not alerts:
            rows = await self._connection.fetch(self._sql["append"], *arguments)
        else:
            async with self._connection.transaction():
                rows = await self._connection.fetch(self._sql["append"], *arguments)
                if len(rows) < len(changed):
                    raise _Overtaken
                await self._connection.executemany(self._sql["insert_alert"], alerts)
        return {row["n"]: row["run_key"] for row in rows}

    async def _store_step(self, run: OpenRun) -> dict[int, int]:
        first, second = run.fresh.values()
        rows = await self._append_step.fetch(
            *(shard_of(run.run_id), run.run_key, run.stored_seq, run.edition, run.owner, run.epoch),
            *(run.seq, run.head, run.persisted_at, encode_summary(run.state.summary)),
            *msgspec.structs.astuple(first),
            *msgspec.structs.astuple(second),
        )
        return {0: run.run_key} if rows else {}


def _is_step(run: OpenRun) -> bool:
    """Whether a run only goes from one step to the next."""
    return run.exists and len(run.fresh) == 2 and run.state.summary.status == run.stored_status


def _closed(sentence: str, outcome: str) -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_CLOSED, f"The log was closed. {sentence}", outcome=outcome)


def _is_refused(unit: Unit) -> bool:
    return any(isinstance(result, Refusal) for result in unit.results)


class _Overtaken(Exception):
    """Part of a group with alerts lost its race: judge all of it again, so that no alert is for nothing."""


class _Known:
    """The runs of a group that exist, as the append statement takes them."""

    def __init__(self) -> None:
        self._numbers: list[tuple[Any, ...]] = []
        self._heads: list[bytes] = []
        self._texts: list[tuple[str | None, ...]] = []

    def add(self, number: int, shard: int, run: OpenRun) -> None:
        summary = run.state.summary
        epoch = "" if run.epoch is None else run.epoch
        seqs = (run.seq, run.persisted_at)
        self._numbers.append((number, shard, run.run_key, run.stored_seq, epoch, run.edition, *seqs))
        self._heads.append(run.head)
        engine = (summary.provider, summary.workflow_id, summary.provider_run_id)
        self._texts.append((run.owner, summary.status, encode_summary(summary), *engine))

    def columns(self) -> list[Any]:
        return [*_joined(self._numbers, 8), b"".join(self._heads), *_arrays(self._texts, 6)]


class _Events:
    """The events of a group, as the append statement takes them."""

    def __init__(self) -> None:
        self._numbers: list[tuple[int, ...]] = []
        self._ids: list[bytes] = []
        self._keys: list[bytes] = []
        self._hashes: list[bytes] = []
        self._others: list[tuple[str | bytes | None, ...]] = []

    def add(self, number: int, place: int, event: StoredEvent) -> None:
        attempts = (event.engine_attempt_id, event.logical_attempt_id)
        self._numbers.append((number, place, event.run_seq, event.schema_version, *attempts, event.persisted_at))
        self._ids.append(event.event_id)
        self._keys.append(event.idempotency_key)
        self._hashes.append(event.hash)
        rare = (event.emitted_by, event.foreign_event_id, event.traceparent)
        self._others.append((event.event_type, event.step_id, event.emitted_at, *rare, event.raw_payload))

    def columns(self) -> list[Any]:
        fixed = [b"".join(self._ids), b"".join(self._keys), b"".join(self._hashes)]
        return [*_joined(self._numbers, 7), *fixed, *_arrays(self._others, 7)]


def _joined(rows: list[tuple[Any, ...]], width: int) -> list[str]:
    """Each column of numbers as one text."""
    return [",".join(map(str, column)) for column in zip(*rows, strict=True)] or [""] * width


def _arrays(rows: list[tuple[Any, ...]], width: int) -> list[list[Any] | None]:
    """Each column as an array, or as null where it holds nothing."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * width
    return [column if any(value is not None for value in column) else None for column in columns]
