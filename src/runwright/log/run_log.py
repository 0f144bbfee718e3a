"""RunLog: the public interface of the log, on any `Store`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

from runwright.contract.clock import Ids
from runwright.contract.envelope import MAX_PAYLOAD_BYTES, check_identity, decode_event
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal, RunEventRecord, RunEventWrite, RunIdentity
from runwright.contract.keys import key_bytes
from runwright.contract.plan import content_hash
from runwright.contract.refs import DEFAULT_TENANT, tenant_scoped_name
from runwright.contract.snapshot import Alert, RunSnapshot
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import Enforcement
from runwright.core.fold.run_state import freeze
from runwright.core.integrity.chain import StoredEvent
from runwright.core.integrity.verify import Finding
from runwright.log.append.authority import NOT_ATTEMPTED, Fence, RunAppend
from runwright.log.append.prepare import PreparedEvent, prepare, record, run_id_in

from .leases import LeaseService
from .maintenance import Maintenance
from .model import AppendResult, EngineIds, EventFilter, RebuildReport, RunFilter, RunPage, RunRow, TailPage
from .row_mapping import detect_corruption
from .store import PAGE, PAGE_BYTES, Store
from .system_clock import SystemIds
from .validation import check_number, expected_seq_for, is_valid_name, not_found, parse_time

CLOCK_SKEW_MICROS = 10_000_000  # tolerated difference between the clocks of processes
MAX_CACHED_RUNS = 1000  # runs whose key and identity are cached
_NO_RUNS: set[str] = set()


class AppendRefused(RunwrightError):
    """Part of an append was refused. `results` has a receipt or a refusal for each of its events."""

    def __init__(self, refusal: Refusal, results: Sequence[AppendResult]) -> None:
        super().__init__(ErrorCode(refusal.code), refusal.detail, **refusal.facts)
        self.results = results


MAX_ENGINE_RUNS = 100
"""Runs with the same ids in another engine that are compared."""


class RunLog:
    """The log of all runs: append, read, tail, search and verify events."""

    def __init__(self, store: Store, *, ids: Ids | None = None, payload_limit: int = MAX_PAYLOAD_BYTES) -> None:
        self.store = store
        self.clock = store.clock
        self.ids: Ids = ids or SystemIds()
        self.leases = LeaseService(store)
        self._maintenance = Maintenance(store)
        self._payload_limit = payload_limit
        self._run_keys: dict[str, tuple[int, RunIdentity]] = {}

    async def open(self) -> None:
        await self.store.open()

    async def close(self) -> None:
        await self.store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def health(self) -> dict[str, Any]:
        """Return facts about the store for `doctor`."""
        return await self.store.health()

    # Writing

    async def create_run(
        self,
        run: RunIdentity,
        first_events: Sequence[RunEventWrite | PreparedEvent] = (),
        *,
        enforcement: Enforcement = Enforcement.STRICT,
        fence: Fence | None = None,
    ) -> list[Receipt]:
        """Create a run and its first events in one transaction; raises RUN_ALREADY_EXISTS."""
        check_identity(run)
        prepared = [
            event if isinstance(event, PreparedEvent) else prepare(event, self._payload_limit) for event in first_events
        ]
        append = RunAppend(run.run_id, prepared, fence=fence, create=(run.context, Enforcement(enforcement)))
        await self.store.append_queue.submit([append])
        return _receipts_or_raise(append.results)

    async def append(
        self,
        events: Sequence[RunEventWrite],
        *,
        expected_seq: int | Mapping[str, int] | None = None,
        fence: Fence | None = None,
    ) -> list[Receipt]:
        """Append events of one or several runs; all or nothing for each run.

        Returns one receipt per event, in order, once they are durable. Raises AppendRefused if the events of a run
        were refused; those of the other runs are appended nevertheless (see its `results`). `expected_seq` makes the
        append conditional on the sequence number of the run's last event.
        """
        if len(events) == 1:
            _, prepared = self._validate(events[0], _NO_RUNS)
            if isinstance(prepared, Refusal):
                raise AppendRefused(prepared, [prepared])
            append = RunAppend(
                prepared.run.run_id, (prepared,), True, expected_seq_for(expected_seq, prepared.run.run_id), fence
            )
            await self.store.append_queue.submit((append,))
            return _receipts_or_raise(append.results)
        if isinstance(expected_seq, int) and len({event.run_id for event in events}) > 1:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT,
                "expected_seq must be a mapping {run id: seq} if the events belong to several runs.",
            )
        results = await self._append_many(events, atomic=True, expected_seq=expected_seq, fence=fence)
        return _receipts_or_raise(results)

    async def append_prepared(
        self, events: Sequence[PreparedEvent], *, expected_seq: int | None = None, fence: Fence | None = None
    ) -> list[Receipt]:
        """Append events prepared by our own engine, all of one run; otherwise like `append`."""
        append = RunAppend(events[0].run.run_id, events, True, expected_seq, fence)
        await self.store.append_queue.submit((append,))
        return _receipts_or_raise(append.results)

    async def append_independent(self, lines: Sequence[bytes]) -> list[AppendResult]:
        """Append independent events, given as JSON; return a receipt or a refusal for each."""
        prepared = [self._validate(line, _NO_RUNS)[1] for line in lines]
        appends = [RunAppend(each.run.run_id, (each,)) for each in prepared if not isinstance(each, Refusal)]
        if appends:
            await self.store.append_queue.submit(appends)
        submitted = iter(appends)
        return [each if isinstance(each, Refusal) else next(submitted).results[0] for each in prepared]

    async def ingest(
        self,
        events: Iterable[RunEventWrite | bytes],
        *,
        blocked: set[str] | None = None,
        atomic: bool = False,
        enforcement: Enforcement = Enforcement.STRICT,
    ) -> list[AppendResult]:
        """Append a stream of events (or their JSON lines), for each run up to the first refusal.

        Never raises for an event: each gets its receipt or refusal, in order. `blocked` passes the runs that had a
        refusal from one call of a stream to the next. With `atomic`, a refusal excludes all events of its run in this
        call. `enforcement` applies to runs that this call creates.
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
    ) -> list[AppendResult]:
        blocked = set() if blocked is None else blocked
        results: list[AppendResult | None] = [None] * len(events)
        refused_at: dict[str, int] = {}
        places: dict[str, list[int]] = {}
        accepted: dict[str, list[PreparedEvent]] = {}
        for place, item in enumerate(events):
            run_id, outcome = self._validate(item, blocked)
            if isinstance(outcome, PreparedEvent):
                places.setdefault(outcome.run.run_id, []).append(place)
                accepted.setdefault(outcome.run.run_id, []).append(outcome)
                continue
            results[place] = outcome
            if run_id is not None:
                blocked.add(run_id)
                refused_at[run_id] = place
        if atomic:
            for run_id in blocked & accepted.keys():
                del accepted[run_id]
        appends = [
            RunAppend(run_id, prepared, atomic, expected_seq_for(expected_seq, run_id), fence, enforcement=enforcement)
            for run_id, prepared in accepted.items()
        ]
        if appends:
            await self.store.append_queue.submit(appends)
        for append in appends:
            for place, result in zip(places[append.run_id], append.results, strict=True):
                results[place] = result
            if any(isinstance(result, Refusal) for result in append.results):
                blocked.add(append.run_id)
                if not atomic and append.run_id in refused_at:
                    results[refused_at[append.run_id]] = NOT_ATTEMPTED  # The store refused an earlier event.
        return [NOT_ATTEMPTED if result is None else result for result in results]

    def _validate(self, item: RunEventWrite | bytes, blocked: set[str]) -> tuple[str | None, PreparedEvent | Refusal]:
        """Validate one event of a stream; return its run id, and the prepared event or a refusal."""
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
            self.store.counters.refused += 1
            if run_id is None and isinstance(item, bytes):
                run_id = run_id_in(item)
            return run_id, Refusal("refused", error.code, error.detail, error.facts)

    # Reading

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> list[RunEventRecord]:
        """Return the events of a run with runSeq greater than `after`, in order.

        With a limit, a page: it can have fewer events even if there are more, because its size is limited too.
        """
        check_number("after", after, 0)
        if limit is not None:
            check_number("limit", limit, 1)
        run_key, run = await self._identity_of(run_id)
        return _records(run, await self.store.read_events(run_key, after, limit))

    async def events(self, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
        """Yield all current events of a run, read in pages."""
        check_number("after", after, 0)
        run_key, run = await self._identity_of(run_id)
        while rows := await self.store.read_events(run_key, after, PAGE):
            for item in _records(run, rows):
                yield item
            after = rows[-1].run_seq

    async def follow(self, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
        """Yield all events of a run, including future ones. Never ends by itself."""
        check_number("after", after, 0)
        run_key, run = await self._identity_of(run_id)
        while True:
            seen = self.store.notifier.count
            rows = await self.store.read_events(run_key, after, PAGE)
            for item in _records(run, rows):
                yield item
                after = item.run_seq
            if not rows:
                await self.store.notifier.wait(seen, 5.0)

    async def read_all(
        self, after: str | None = None, limit: int = PAGE, *, types: Sequence[str] | None = None
    ) -> TailPage:
        """Return the events of all runs after the cursor, optionally of some types.

        In order within each run, without gaps or duplicates.
        """
        check_number("limit", limit, 1)
        positions = self._parse_cursor(after)
        found = await self.store.read_tail(positions, limit, types)
        with detect_corruption("The log"):
            records = [record(tail_event.run, tail_event.event) for tail_event in found]
        places = [(tail_event.shard, tail_event.position) for tail_event in found]
        for shard, pos in places:
            positions[shard] = pos
        return TailPage(records, ".".join(map(str, positions)), places)

    async def tail(self, after: str | None = None) -> AsyncIterator[TailPage]:
        """Yield the events of all runs, including future ones, in pages. Store a page's cursor once it is processed."""
        while True:
            seen = self.store.notifier.count
            page = await self.read_all(after)
            after = page.cursor
            if page.records:
                yield page
            else:
                await self.store.notifier.wait(seen, 5.0)

    async def end_cursor(self) -> str:
        """Return the cursor of the current end of the log: later events come after it."""
        return ".".join(map(str, await self.store.end_positions()))

    async def runs_signalled_since(self, after: str) -> tuple[list[str], str]:
        """Return the runs for which signals were accepted since the cursor, and the next cursor."""
        run_ids, positions = await self.store.find_signalled_runs(self._parse_cursor(after))
        return run_ids, ".".join(map(str, positions))

    async def find_event(
        self, run_id: str, event_type: str, step_id: str | None = None, attempt: int = 1
    ) -> RunEventRecord | None:
        """Return one event by type, entity and attempt; None if the run has no such event."""
        run_key, run = await self._identity_of(run_id)
        key = key_bytes(run_id, step_id, attempt, event_type, run.plan_id, run.plan_version)
        seq = await self.store.find_seq_by_key(run_key, step_id or "", key)
        return None if seq is None else _records(run, await self.store.read_events(run_key, seq - 1, 1))[0]

    async def find_by_id(self, run_id: str, event_id: str) -> RunEventRecord | None:
        """Return one event by its id, or by the id of the system it was imported from."""
        run_key, run = await self._identity_of(run_id)
        seq = await self.store.find_seq_by_id(run_key, event_id) if is_valid_name(event_id) else None
        return None if seq is None else _records(run, await self.store.read_events(run_key, seq - 1, 1))[0]

    async def select(self, run_id: str, wanted: EventFilter, after: int = 0, limit: int = PAGE) -> list[RunEventRecord]:
        """Return the events of a run that match the filter and have runSeq greater than `after`, in order."""
        check_number("after", after, 0)
        check_number("limit", limit, 1)
        run_key, run = await self._identity_of(run_id)
        return _records(run, await self.store.select_events(run_key, after, limit, wanted))

    async def search(
        self,
        types: Sequence[str],
        since: str | datetime,
        *,
        cursor: str | None = None,
        limit: int = PAGE,
        tenant_id: str | None = None,
    ) -> TailPage:
        """Return events of some types persisted since a time, in all runs or all runs of a tenant.

        A page may have fewer events than the limit, even none; the last page returns the cursor it was called with.
        """
        after = cursor or await self._cursor_at(parse_time(since))
        page = await self.read_all(after, limit, types=types)
        found = [
            (record, position)
            for record, position in zip(page.records, page.places, strict=True)
            if record.persisted_at >= from_micros(parse_time(since)) and tenant_id in (None, record.tenant_id)
        ]
        return TailPage([record for record, _ in found], page.cursor, [position for _, position in found])

    async def _cursor_at(self, time: int) -> str:
        """Return the cursor of the log at a time, minus the tolerated clock skew. Binary search in every shard."""
        time -= CLOCK_SKEW_MICROS
        low, high = [0] * self.store.shards, [pos + 1 for pos in await self.store.end_positions()]
        while any(below < above for below, above in zip(low, high, strict=True)):
            middle = [(below + above) // 2 for below, above in zip(low, high, strict=True)]
            for shard, persisted in enumerate(await self.store.find_times_at(middle)):
                if low[shard] < high[shard]:
                    if persisted is None or persisted >= time:
                        high[shard] = middle[shard]
                    else:
                        low[shard] = middle[shard] + 1
        return ".".join(str(max(0, pos - 1)) for pos in low)

    async def store_plan(self, sha256: str, body: bytes, tenant_id: str = DEFAULT_TENANT) -> None:
        """Store the bytes of a tenant's plan under their content hash."""
        await self.store.store_plan(tenant_scoped_name(tenant_id, sha256), body)

    async def plan(self, sha256: str, tenant_id: str = DEFAULT_TENANT) -> bytes:
        """Return the bytes of a tenant's plan; raises if they do not match the hash."""
        body = await self.store.load_plan(tenant_scoped_name(tenant_id, sha256))
        if body is None:
            raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"Plan {sha256} not found in this store.")
        if content_hash(body) != sha256:
            raise RunwrightError(
                ErrorCode.PLAN_INTEGRITY_VALIDATION_FAILED,
                f"Plan {sha256} is corrupt: the hash of its bytes is {content_hash(body)}.",
            )
        return body

    async def wait_for_events(self, timeout: float | None = None) -> bool:
        """Wait until events were appended, by this process or another; False on timeout."""
        return await self.store.notifier.wait(self.store.notifier.count, timeout)

    async def find_run(self, run_id: str) -> RunRow:
        """Return a run by its id; raises RUN_NOT_FOUND."""
        row = await self.store.get_run(run_id)
        if len(self._run_keys) >= MAX_CACHED_RUNS:
            self._run_keys.clear()
        self._run_keys[run_id] = (row.run_key, row.identity)
        return row

    async def _identity_of(self, run_id: str) -> tuple[int, RunIdentity]:
        """Return a run's key and identity. They can be cached: they never change, and runs are never removed."""
        known = self._run_keys.get(run_id)
        if known is None:
            row = await self.find_run(run_id)
            known = (row.run_key, row.identity)
        return known

    async def resolve_run(self, name: str) -> RunRow:
        """Return a run by its id or by a unique prefix of it; `@last` is the newest run."""
        if not is_valid_name(name):
            raise not_found(name)
        if name == "@last":
            newest = await self.store.list_runs(RunFilter(), None, 1)
            if not newest:
                raise RunwrightError(ErrorCode.RUN_NOT_FOUND, "There are no runs yet.")
            return newest[0]
        row = await self.store.find_run(name)
        if row is not None:
            return row
        candidates = await self.store.find_runs_by_prefix(name, 2, None) if name else []
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise RunwrightError(ErrorCode.RUN_NOT_FOUND, f"Run id prefix {name!r} is ambiguous; use a longer prefix.")
        raise not_found(name)

    async def find_by_prefix(self, prefix: str, limit: int, *, tenant_id: str | None = None) -> list[RunRow]:
        """Return the runs whose id starts with a prefix, ordered by id."""
        return await self.store.find_runs_by_prefix(prefix, limit, tenant_id) if is_valid_name(prefix) else []

    async def find_engine_run(
        self,
        provider: str,
        workflow_id: str,
        provider_run_id: str,
        *,
        tenant_id: str | None = None,
        scope: str | None = None,
    ) -> RunRow:
        """Return the newest run with these ids of an external engine; raises RUN_NOT_FOUND.

        `scope` is the namespace of Temporal or the address of Conductor. Ids of an engine are not unique across
        tenants: INVALID_ARGUMENT if several tenants have such a run and `tenant_id` is None.
        """
        ids = EngineIds(provider, workflow_id, provider_run_id)
        rows = await self.store.find_engine_runs(ids, tenant_id, MAX_ENGINE_RUNS)
        rows = [row for row in rows if scope in (None, row.summary.provider_scope)]
        if not rows:
            raise not_found(f"{provider}://{workflow_id}/{provider_run_id}")
        if len({row.identity.tenant_id for row in rows}) > 1:
            message = "Runs of several tenants have these provider ids. Name the tenant."
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, message)
        return rows[0]

    async def list_runs(
        self, wanted: RunFilter | None = None, *, cursor: str | None = None, limit: int = 50
    ) -> RunPage:
        """Return one page of runs, newest first."""
        check_number("limit", limit, 1)
        if wanted is not None and wanted.since is not None:
            check_number("since", wanted.since, 0)
        before = None
        if cursor is not None:
            if not (cursor.isascii() and cursor.isdecimal()) or len(cursor) > 18:
                raise RunwrightError(
                    ErrorCode.INVALID_CURSOR, "Invalid cursor: pass the cursor returned with the previous page."
                )
            before = int(cursor)
        rows = await self.store.list_runs(wanted or RunFilter(), before, limit + 1)
        has_more = len(rows) > limit
        return RunPage(rows[:limit], str(rows[limit - 1].run_key) if has_more else None)

    async def snapshot(self, run_id: str, at: int | str | datetime | None = None) -> RunSnapshot:
        """Return the state of a run, now or at an event (a number) or a time (RFC 3339 UTC text or datetime)."""
        row = await self.find_run(run_id)
        until_seq: int | None = None
        until_time: int | None = None
        if isinstance(at, int):
            if not 0 <= at <= row.last_seq:
                raise RunwrightError(
                    ErrorCode.INVALID_ARGUMENT, f"Event {at} not found: the run has events 1 to {row.last_seq}."
                )
            until_seq = at
        elif at is not None:
            until_time = parse_time(at)
        with detect_corruption(f"Run {run_id!r}"):
            return freeze(row.identity, await self.store.fold(row, until_seq, until_time))

    async def owners(self) -> frozenset[tuple[str, int]]:
        """Return the live owners, each with its epoch."""
        return await self.leases.owners()

    # Alerts

    async def alerts(self, run_id: str | None = None, *, tenant_id: str | None = None) -> list[Alert]:
        """Return alerts, oldest first; optionally of one run, or of all runs of a tenant."""
        return await self.store.alerts(run_id, tenant_id)

    async def raise_alerts(self, alerts: Iterable[Alert]) -> None:
        """Store alerts; those already stored are not changed."""
        await self.store.raise_alerts(alerts)

    # Maintenance

    def verify(self, run_id: str | None = None) -> AsyncIterator[Finding]:
        """Report every difference from the appended events, in one run or in all runs."""
        return self._maintenance.verify(run_id)

    def heads(self) -> AsyncIterator[tuple[str, int, bytes]]:
        """Yield each run with the number and hash of its last event: the content of an anchor."""
        return self._maintenance.heads()

    async def hash_at(self, run_id: str, seq: int) -> bytes | None:
        """Return the stored hash of one event; None if there is no such run or event."""
        return await self._maintenance.hash_at(run_id, seq)

    async def rebuild(self, *, check: bool = False) -> RebuildReport:
        """Fold every run and compare its summary; store summaries that differ, unless `check` is set."""
        return await self._maintenance.rebuild(check=check)

    async def redact(self, run_id: str, run_seq: int) -> None:
        """Erase an event's payload permanently. Its digest stays, so the chain is valid and verify reports REDACTED.

        Refused while the run's state depends on that payload (a run that waits for the approval it requests).
        """
        await self._maintenance.redact(run_id, run_seq)

    def _parse_cursor(self, cursor: str | None) -> list[int]:
        if cursor is None:
            return [0] * self.store.shards
        parts = cursor.split(".")
        if len(parts) != self.store.shards or not all(
            part.isascii() and part.isdecimal() and len(part) < 19 for part in parts
        ):
            raise RunwrightError(
                ErrorCode.INVALID_CURSOR, "Invalid cursor: pass a cursor that read_all of this store returned."
            )
        return [int(part) for part in parts]


def is_full_page(records: Sequence[RunEventRecord], limit: int) -> bool:
    """Whether a page ended at its limit of events or bytes, so that there may be more."""
    return len(records) == limit or sum(len(bytes(record.raw_payload)) for record in records) >= PAGE_BYTES


def _records(run: RunIdentity, events: Iterable[StoredEvent]) -> list[RunEventRecord]:
    with detect_corruption(f"Run {run.run_id!r}"):
        return [record(run, event) for event in events]


def _receipts_or_raise(results: Sequence[AppendResult]) -> list[Receipt]:
    receipts = [result for result in results if isinstance(result, Receipt)]
    if len(receipts) == len(results):
        return receipts
    first = next(result for result in results if isinstance(result, Refusal) and result.status == "refused")
    raise AppendRefused(first, results)
