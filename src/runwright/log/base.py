"""The log as its users know it. What differs from store to store is in `Store`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Self

from runwright.contract.clock import Clock, Ids
from runwright.contract.envelope import MAX_PAYLOAD_BYTES, check_identity, decode_event
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal, RunEventRecord, RunEventWrite, RunIdentity
from runwright.contract.keys import key_bytes
from runwright.contract.plan import content_hash
from runwright.contract.refs import DEFAULT_TENANT, kept_name
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import Enforcement
from runwright.core.chain import StoredEvent
from runwright.core.state import RunState, freeze

from .arguments import can_be_a_name, check_number, expected_of, moment, not_found
from .checking import Checking
from .clock import SystemClock, SystemIds
from .folding import fold_rows
from .intake import Intake
from .judge import NOT_ATTEMPTED, Fence, Tally, Unit
from .model import EventFilter, Outcome, RunFilter, RunPage, RunRow, TailPage
from .news import News
from .prepare import Prepared, prepare, record, run_id_in
from .rows import guarded

PAGE = 1000
CLOCKS_MICROS = 10_000_000  # the clocks of several processes may be apart
RUNS_KNOWN = 1000  # of which key and identity are kept at hand
_NOTHING: set[str] = set()


class AppendRefused(RunwrightError):
    """Some of an append was refused. `results` has a receipt or a refusal for each of its events."""

    def __init__(self, refusal: Refusal, results: Sequence[Outcome]) -> None:
        super().__init__(ErrorCode(refusal.code), refusal.detail, **refusal.facts)
        self.results = results


class RunLog(Checking):
    """The Append Authority: the one way in, and every way out."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        write_budget: float = 3.0,
        payload_limit: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.ids: Ids = ids or SystemIds()
        self.tally = Tally()
        self._heard = []
        self._payload_limit = payload_limit
        self._runs_known: dict[str, tuple[int, RunIdentity]] = {}
        self._intake = Intake(write_budget, self.clock.monotonic)
        self._news = News(self.clock, self._changed_elsewhere)

    @property
    def write_budget(self) -> float:
        """Seconds that an append may take before its caller is told that it took too long."""
        return self._intake.budget

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Writing

    async def create_run(
        self,
        run: RunIdentity,
        first_events: Sequence[RunEventWrite | Prepared] = (),
        *,
        enforcement: Enforcement = Enforcement.STRICT,
        fence: Fence | None = None,
    ) -> list[Receipt]:
        """Make a run and its first events in one transaction; RUN_ALREADY_EXISTS if there is one."""
        check_identity(run)
        prepared = [
            event if isinstance(event, Prepared) else prepare(event, self._payload_limit) for event in first_events
        ]
        unit = Unit(run.run_id, prepared, fence=fence, create=(run.context, Enforcement(enforcement)))
        await self._intake.submit([unit], self._enqueue)
        return _receipts_or_raise(unit.results)

    async def append(
        self,
        events: Sequence[RunEventWrite],
        *,
        expected_seq: int | Mapping[str, int] | None = None,
        fence: Fence | None = None,
    ) -> list[Receipt]:
        """Append events, of one run or several; all or nothing for each run.

        Gives a receipt per event, in order, once they are durable. Raises AppendRefused if any run's
        events were refused (those of other runs are in all the same; see its `results`).
        `expected_seq` makes the append conditional on the run being at that event.
        """
        if len(events) == 1:
            _, prepared = self._look_at(events[0], _NOTHING)
            if isinstance(prepared, Refusal):
                raise AppendRefused(prepared, [prepared])
            unit = Unit(prepared.run[0], (prepared,), True, expected_of(expected_seq, prepared.run[0]), fence)
            await self._intake.submit((unit,), self._enqueue)
            return _receipts_or_raise(unit.results)
        if isinstance(expected_seq, int) and len({event.run_id for event in events}) > 1:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT, "With events of several runs, give expected_seq as {run id: seq}."
            )
        results = await self._append_many(events, atomic=True, expected_seq=expected_seq, fence=fence)
        return _receipts_or_raise(results)

    async def append_own(
        self, events: Sequence[Prepared], *, expected_seq: int | None = None, fence: Fence | None = None
    ) -> list[Receipt]:
        """Append what our own engine prepared, all of one run; for the rest as `append`."""
        unit = Unit(events[0].run[0], events, True, expected_seq, fence)
        await self._intake.submit((unit,), self._enqueue)
        return _receipts_or_raise(unit.results)

    async def take_each(self, lines: Sequence[bytes]) -> list[Outcome]:
        """Append events, as JSON, that have nothing to do with each other: a receipt or a refusal for each."""
        prepared = [self._look_at(line, _NOTHING)[1] for line in lines]
        units = [Unit(each.run[0], (each,)) for each in prepared if not isinstance(each, Refusal)]
        if units:
            await self._intake.submit(units, self._enqueue)
        taken = iter(units)
        return [each if isinstance(each, Refusal) else next(taken).results[0] for each in prepared]

    async def ingest(
        self,
        events: Iterable[RunEventWrite | bytes],
        *,
        blocked: set[str] | None = None,
        atomic: bool = False,
        enforcement: Enforcement = Enforcement.STRICT,
    ) -> list[Outcome]:
        """Append a stream of events (or their JSON lines); for each run up to the first that is refused.

        Never raises for an event: each gets its receipt or refusal, in order. `blocked` carries the
        runs that had a refusal from one call of a stream to the next. With `atomic`, a refusal keeps
        all of its run's events in this call out. `enforcement` is that of runs which this makes.
        """
        return await self._append_many(list(events), atomic=atomic, blocked=blocked, enforcement=enforcement)

    async def _append_many(
        self,
        events: Sequence[RunEventWrite | bytes],
        *,
        atomic: bool,
        expected_seq: int | Mapping[str, int] | None = None,
        fence: Fence | None = None,
        blocked: set[str] | None = None,
        enforcement: Enforcement = Enforcement.STRICT,
    ) -> list[Outcome]:
        blocked = set() if blocked is None else blocked
        results: list[Outcome | None] = [None] * len(events)
        refused_at: dict[str, int] = {}
        places: dict[str, list[int]] = {}
        accepted: dict[str, list[Prepared]] = {}
        for place, item in enumerate(events):
            run_id, outcome = self._look_at(item, blocked)
            if isinstance(outcome, Prepared):
                places.setdefault(outcome.run[0], []).append(place)
                accepted.setdefault(outcome.run[0], []).append(outcome)
                continue
            results[place] = outcome
            if run_id is not None:
                blocked.add(run_id)
                refused_at[run_id] = place
        if atomic:
            for run_id in blocked & accepted.keys():
                del accepted[run_id]
        units = [
            Unit(run_id, prepared, atomic, expected_of(expected_seq, run_id), fence, enforcement=enforcement)
            for run_id, prepared in accepted.items()
        ]
        if units:
            await self._intake.submit(units, self._enqueue)
        for unit in units:
            for place, result in zip(places[unit.run_id], unit.results, strict=True):
                results[place] = result
            if any(isinstance(result, Refusal) for result in unit.results):
                blocked.add(unit.run_id)
                if not atomic and unit.run_id in refused_at:
                    results[refused_at[unit.run_id]] = NOT_ATTEMPTED  # the store refused an earlier one
        return [NOT_ATTEMPTED if result is None else result for result in results]

    def _look_at(self, item: RunEventWrite | bytes, blocked: set[str]) -> tuple[str | None, Prepared | Refusal]:
        """Check one event of a stream: prepared, refused, or not to be tried."""
        run_id: str | None = None
        try:
            if isinstance(item, bytes):
                run_id = run_id_in(item) if blocked else None
                if run_id in blocked:
                    return None, NOT_ATTEMPTED
                run_id = None
                event = decode_event(item)
            else:
                event = item
            run_id = event.run_id
            if run_id in blocked:
                return None, NOT_ATTEMPTED
            return run_id, prepare(event, self._payload_limit)
        except RunwrightError as error:
            self.tally.refused += 1
            if run_id is None and isinstance(item, bytes):
                run_id = run_id_in(item)
            return run_id, Refusal("refused", error.code, error.detail, error.facts)

    # Reading

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> list[RunEventRecord]:
        """Events of a run with runSeq beyond `after`, in order."""
        check_number("after", after, 0)
        if limit is not None:
            check_number("limit", limit, 1)
        run_key, run = await self._known(run_id)
        return _records(run, await self._rows(run_key, after, limit))

    async def events(self, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
        """All events of a run so far, however many, a page at a time."""
        check_number("after", after, 0)
        run_key, run = await self._known(run_id)
        while rows := await self._rows(run_key, after, PAGE):
            for item in _records(run, rows):
                yield item
            after = rows[-1].run_seq

    async def follow(self, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
        """All events of a run, those to come included. Ends when you stop asking."""
        check_number("after", after, 0)
        run_key, run = await self._known(run_id)
        while True:
            seen = self._news.count
            rows = await self._rows(run_key, after, PAGE)
            for item in _records(run, rows):
                yield item
                after = item.run_seq
            if not rows:
                await self._news.wait(seen, 5.0)

    async def read_all(
        self, after: str | None = None, limit: int = PAGE, *, types: Sequence[str] | None = None
    ) -> TailPage:
        """Events of every run beyond the cursor: each run's in order, none lost, none twice; or those of some types."""
        check_number("limit", limit, 1)
        positions = self._parse_cursor(after)
        found = await self._tail(positions, limit, types)
        with guarded("The log"):
            records = [record(run, event) for run, event, _, _ in found]
        places = [(shard, pos) for _, _, shard, pos in found]
        for shard, pos in places:
            positions[shard] = pos
        return TailPage(records, ".".join(map(str, positions)), places)

    async def tail(self, after: str | None = None) -> AsyncIterator[TailPage]:
        """Events of every run, those to come included, in pages. Keep a page's cursor once you are done with it."""
        while True:
            seen = self._news.count
            page = await self.read_all(after)
            after = page.cursor
            if page.records:
                yield page
            else:
                await self._news.wait(seen, 5.0)

    async def end_cursor(self) -> str:
        """Where the log ends now: what is appended from here on comes after this cursor."""
        return ".".join(map(str, await self._end()))

    async def signalled(self, after: str) -> tuple[list[str], str]:
        """The runs for which signals were accepted since the cursor, and the cursor to go on from."""
        run_ids, positions = await self._signalled(self._parse_cursor(after))
        return run_ids, ".".join(map(str, positions))

    async def find_event(
        self, run_id: str, event_type: str, step_id: str | None = None, attempt: int = 1
    ) -> RunEventRecord | None:
        """One event by what it is about; None if the run has no such event."""
        run_key, run = await self._known(run_id)
        key = key_bytes(run_id, step_id, attempt, event_type, run.plan_id, run.plan_version)
        seq = await self._seq_of(run_key, step_id or "", key)
        return None if seq is None else _records(run, await self._rows(run_key, seq - 1, 1))[0]

    async def find_by_id(self, run_id: str, event_id: str) -> RunEventRecord | None:
        """One event by its id: ours, or the one that it had elsewhere."""
        run_key, run = await self._known(run_id)
        seq = await self._seq_of_id(run_key, event_id) if can_be_a_name(event_id) else None
        return None if seq is None else _records(run, await self._rows(run_key, seq - 1, 1))[0]

    async def select(self, run_id: str, wanted: EventFilter, after: int = 0, limit: int = PAGE) -> list[RunEventRecord]:
        """Those events of a run that are wanted, with runSeq beyond `after`, in order."""
        check_number("after", after, 0)
        check_number("limit", limit, 1)
        run_key, run = await self._known(run_id)
        return _records(run, await self._select(run_key, after, limit, wanted))

    async def search(
        self,
        types: Sequence[str],
        since: str | datetime,
        *,
        cursor: str | None = None,
        limit: int = PAGE,
        tenant_id: str | None = None,
    ) -> TailPage:
        """Events of some types in every run, or every run of a tenant, that were persisted since a time. A page may
        hold less than the limit, even nothing; the last one leaves the cursor where it was."""
        after = cursor or await self._cursor_at(moment(since))
        page = await self.read_all(after, limit, types=types)
        found = [
            (record, place)
            for record, place in zip(page.records, page.places, strict=True)
            if record.persisted_at >= from_micros(moment(since)) and tenant_id in (None, record.tenant_id)
        ]
        return TailPage([record for record, _ in found], page.cursor, [place for _, place in found])

    async def _cursor_at(self, time: int) -> str:
        """Where the log was at a time, or a little before: clocks may be apart."""
        time -= CLOCKS_MICROS
        low, high = [0] * self._shards, [pos + 1 for pos in await self._end()]
        while any(below < above for below, above in zip(low, high, strict=True)):
            middle = [(below + above) // 2 for below, above in zip(low, high, strict=True)]
            for shard, persisted in enumerate(await self._times_at(middle)):
                if low[shard] < high[shard]:
                    if persisted is None or persisted >= time:
                        high[shard] = middle[shard]
                    else:
                        low[shard] = middle[shard] + 1
        return ".".join(str(max(0, pos - 1)) for pos in low)

    async def keep_plan(self, sha256: str, body: bytes, tenant_id: str = DEFAULT_TENANT) -> None:
        """Keep a plan's bytes for a tenant, under the hash of their content."""
        await self._put_plan(kept_name(tenant_id, sha256), body)

    async def plan(self, sha256: str, tenant_id: str = DEFAULT_TENANT) -> bytes:
        """The bytes of a tenant's plan, proved to be what the hash says."""
        body = await self._get_plan(kept_name(tenant_id, sha256))
        if body is None:
            raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"The plan {sha256} is not in this store.")
        if content_hash(body) != sha256:
            raise RunwrightError(
                ErrorCode.PLAN_INTEGRITY_VALIDATION_FAILED,
                f"The plan {sha256} is damaged: its bytes have the hash {content_hash(body)}.",
            )
        return body

    async def wait_for_news(self, timeout: float | None = None) -> bool:
        """Wait until something was appended, by this process or another; False if nothing was in time."""
        return await self._news.wait(self._news.count, timeout)

    async def find_run(self, run_id: str) -> RunRow:
        row = await self._find(run_id) if can_be_a_name(run_id) else None
        if row is None:
            raise not_found(run_id)
        if len(self._runs_known) >= RUNS_KNOWN:
            self._runs_known.clear()
        self._runs_known[run_id] = (row.run_key, row.identity)
        return row

    async def _known(self, run_id: str) -> tuple[int, RunIdentity]:
        """A run's key and identity. They never change, and no run is ever removed: they are read once."""
        known = self._runs_known.get(run_id)
        if known is None:
            row = await self.find_run(run_id)
            known = (row.run_key, row.identity)
        return known

    async def resolve(self, name: str) -> RunRow:
        """A run by its exact id, else by a unique prefix of it, or `@last` for the newest."""
        if not can_be_a_name(name):
            raise not_found(name)
        if name == "@last":
            newest = await self._list(RunFilter(), None, 1)
            if not newest:
                raise RunwrightError(ErrorCode.RUN_NOT_FOUND, "There are no runs yet.")
            return newest[0]
        row = await self._find(name)
        if row is not None:
            return row
        candidates = await self._find_prefix(name, 2, None) if name else []
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise RunwrightError(
                ErrorCode.RUN_NOT_FOUND, f"{name!r} is the beginning of several run ids; give more of it."
            )
        raise not_found(name)

    async def find_by_prefix(self, prefix: str, limit: int, *, tenant_id: str | None = None) -> list[RunRow]:
        """Runs whose id begins so, in the order of their ids."""
        return await self._find_prefix(prefix, limit, tenant_id) if can_be_a_name(prefix) else []

    async def find_engine_run(self, provider: str, workflow_id: str, provider_run_id: str) -> RunRow:
        """The run that another engine knows under these ids."""
        row = await self._find_engine_run(provider, workflow_id, provider_run_id)
        if row is None:
            raise not_found(f"{provider}://{workflow_id}/{provider_run_id}")
        return row

    async def list_runs(
        self, wanted: RunFilter | None = None, *, cursor: str | None = None, limit: int = 50
    ) -> RunPage:
        """Runs, newest first, a page at a time."""
        check_number("limit", limit, 1)
        if wanted is not None and wanted.since is not None:
            check_number("since", wanted.since, 0)
        before = None
        if cursor is not None:
            if not (cursor.isascii() and cursor.isdecimal()) or len(cursor) > 18:
                raise RunwrightError(ErrorCode.INVALID_CURSOR, "Hand back the cursor that the page before came with.")
            before = int(cursor)
        rows = await self._list(wanted or RunFilter(), before, limit + 1)
        more = len(rows) > limit
        return RunPage(rows[:limit], str(rows[limit - 1].run_key) if more else None)

    async def snapshot(self, run_id: str, at: int | str | datetime | None = None) -> RunSnapshot:
        """The run as it is, or as it was at an event (a number) or a time (RFC 3339 UTC text or datetime)."""
        row = await self.find_run(run_id)
        until_seq: int | None = None
        until_time: int | None = None
        if isinstance(at, int):
            if not 0 <= at <= row.last_seq:
                raise RunwrightError(
                    ErrorCode.INVALID_ARGUMENT, f"The run has events 1 to {row.last_seq}; there is no {at}."
                )
            until_seq = at
        elif at is not None:
            until_time = moment(at)
        with guarded(f"Run {run_id!r}"):
            return freeze(row.identity, await self._fold(row, until_seq, until_time))

    async def _fold(self, row: RunRow, until_seq: int | None, until_time: int | None) -> RunState:
        state = RunState(detailed=True)
        after = 0
        while rows := await self._rows(row.run_key, after, PAGE):
            if not fold_rows(state, rows, until_seq, until_time):
                break
            after = rows[-1].run_seq
        return state

    def _parse_cursor(self, cursor: str | None) -> list[int]:
        if cursor is None:
            return [0] * self._shards
        parts = cursor.split(".")
        if len(parts) != self._shards or not all(
            part.isascii() and part.isdecimal() and len(part) < 19 for part in parts
        ):
            raise RunwrightError(ErrorCode.INVALID_CURSOR, "Hand back the cursor that read_all gave, from this store.")
        return [int(part) for part in parts]


def _records(run: RunIdentity, events: Iterable[StoredEvent]) -> list[RunEventRecord]:
    with guarded(f"Run {run.run_id!r}"):
        return [record(run, event) for event in events]


def _receipts_or_raise(results: Sequence[Outcome]) -> list[Receipt]:
    receipts = [result for result in results if isinstance(result, Receipt)]
    if len(receipts) == len(results):
        return receipts
    first = next(result for result in results if isinstance(result, Refusal) and result.status == "refused")
    raise AppendRefused(first, results)
