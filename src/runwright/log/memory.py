"""In-memory backend: the same append authority, nothing durable. For tests, also of users, and simulation."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import apsw
import msgspec

from runwright.contract.envelope import uuid4_bytes
from runwright.contract.snapshot import Alert, RunSummary
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED, Enforcement
from runwright.core.integrity.chain import StoredEvent
from runwright.log.append.aggregate import INDEX_LIMIT, RunAggregate, StoredKey, encode_summary
from runwright.log.append.authority import AppendBatch, Fence
from runwright.log.append.prepare import run_identity_of
from runwright.log.append.queue import AppendRequest
from runwright.log.sqlite.connection import Cursor, cursor_of

from .lease_liveness import RELEASED, is_live, lease_lost, live_owners, run_owned, stale_fence
from .model import EngineIds, EventFilter, Holder, Lease, LeaseRow, RunFilter, RunRow
from .replay import erase_payload, fold_rows
from .side_tables import SideTables
from .sql_files import load_migrations
from .store import Store, TailEvent, cut_page


class _StoredRun:
    """The stored row and events of a run."""

    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.events: list[StoredEvent] = []
        self.by_key: dict[bytes, StoredEvent] = {}
        self.late_ids: set[bytes] = set()


class MemoryStore(Store):
    """The store in memory: lost when the process ends."""

    is_shared = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._runs: dict[str, _StoredRun] = {}
        self._by_key: list[_StoredRun] = []
        self._order: list[tuple[_StoredRun, StoredEvent]] = []
        self._alerts: dict[tuple[str, str, str], Alert] = {}
        self._leases: dict[str, LeaseRow] = {}
        self._plans: dict[str, bytes] = {}
        self._values: dict[str, bytes] = {}
        self._side_tables: SideTables | None = None

    async def open(self) -> None:
        self.append_queue.open(self._write)

    async def close(self) -> None:
        self.append_queue.close()
        await self.notifier.close()

    async def changed_elsewhere(self) -> bool:
        return False

    def _write(self, request: AppendRequest) -> None:
        if not request.start():
            return
        batch = AppendBatch(request.appends, self.counters)
        for run_id in batch.run_ids():
            if (run := self._runs.get(run_id)) is not None:
                batch.add_run(self._load_aggregate(run))
        for lookup in batch.key_lookups():
            found = self._by_key[lookup.run_key - 1].by_key.get(lookup.key)
            if found is not None:
                batch.add_key(
                    lookup.run_key,
                    lookup.key,
                    StoredKey(
                        found.run_seq, found.event_id, found.persisted_at, found.raw_payload, found.payload_digest
                    ),
                )
        for lookup in batch.id_lookups():
            if lookup.key in self._by_key[lookup.run_key - 1].late_ids:
                batch.add_id(lookup.run_key, lookup.key)
        batch.set_liveness(self._is_live)
        for aggregate in batch.validate(self.clock.now()):
            self._commit(aggregate)
        for alert in batch.alerts:
            self._store_alert(alert)
        request.resolve()
        self.notifier.notify()

    def _load_aggregate(self, run: _StoredRun) -> RunAggregate:
        row = run.row
        aggregate = RunAggregate(row.identity.context, row.enforcement)
        aggregate.restore(row)
        if row.enforcement is Enforcement.OBSERVE:
            aggregate.state.summary = RunSummary()
            fold_rows(aggregate.state, run.events, None, None)
            aggregate.is_complete = True
        if row.last_seq <= INDEX_LIMIT:
            aggregate.index((event.idempotency_key, event.run_seq, event.event_id) for event in run.events)
        else:
            aggregate.early_ids = {event.event_id for event in run.events[:INDEX_LIMIT]}
        return aggregate

    def _commit(self, aggregate: RunAggregate) -> None:
        run = self._runs.get(aggregate.run_id)
        summary = aggregate.state.summary
        if run is None:
            row = RunRow(
                len(self._by_key) + 1,
                run_identity_of(aggregate.context),
                aggregate.enforcement,
                aggregate.persisted_at or self.clock.now(),
                *(0, b"", 0, summary.status, "", summary, None, None, None, 0),
                aggregate.owner,
                aggregate.epoch,
                None,
            )
            run = self._runs[aggregate.run_id] = _StoredRun(row)
            self._by_key.append(run)
        for event in aggregate.uncommitted.values():
            run.events.append(event)
            run.by_key[event.idempotency_key] = event
            if event.run_seq > INDEX_LIMIT:
                run.late_ids.add(event.event_id)
            self._order.append((run, event))
        row = run.row
        row.last_seq, row.head, row.persisted_at = summary.last_event_seq, aggregate.head, aggregate.persisted_at
        if summary.status in ENDED:
            row.owner = row.epoch = row.wake_at = None  # A run that has ended has no owner.
        _write_summary(row, summary)

    # Reading

    async def list_run_ids(self, before: int, limit: int) -> list[tuple[int, str]]:
        runs = reversed(self._by_key[: before - 1])
        return [(run.row.run_key, run.row.identity.run_id) for run in runs][:limit]

    async def find_run(self, run_id: str) -> RunRow | None:
        run = self._runs.get(run_id)
        return None if run is None else msgspec.structs.replace(run.row)

    async def find_runs_by_prefix(self, prefix: str, limit: int, tenant_id: str | None) -> list[RunRow]:
        rows = [run.row for run_id, run in self._runs.items() if run_id.startswith(prefix)]
        return [row for row in rows if tenant_id in (None, row.identity.tenant_id)][:limit]

    async def find_engine_runs(self, ids: EngineIds, tenant_id: str | None, limit: int) -> list[RunRow]:
        rows = (run.row for run in reversed(self._by_key))
        found = (row for row in rows if (row.provider, row.workflow_id, row.provider_run_id) == ids)
        return [row for row in found if tenant_id in (None, row.identity.tenant_id)][:limit]

    async def list_runs(self, wanted: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        found: list[RunRow] = []
        for run in reversed(self._by_key[: None if before is None else before - 1]):
            if len(found) == limit:
                break
            if _matches(run.row, wanted):
                found.append(msgspec.structs.replace(run.row))
        return found

    async def read_events(self, run_key: int, after: int, limit: int | None) -> list[StoredEvent]:
        events = self._by_key[run_key - 1].events
        start = bisect_right(events, after, key=lambda event: event.run_seq)
        if limit is None:
            return events[start:]
        return list(cut_page(events[start : start + limit], lambda event: event.raw_payload))

    async def select_events(self, run_key: int, after: int, limit: int, wanted: EventFilter) -> list[StoredEvent]:
        rows = await self.read_events(run_key, after, None)
        found = [event for event in rows if _is_wanted(event, wanted)][:limit]
        return list(cut_page(found, lambda event: event.raw_payload))

    async def find_seq_by_id(self, run_key: int, event_id: str) -> int | None:
        own = uuid4_bytes(event_id)
        for event in self._by_key[run_key - 1].events:
            if event.event_id == own if own is not None else event.foreign_event_id == event_id:
                return event.run_seq
        return None

    async def find_times_at(self, positions: list[int]) -> list[int | None]:
        index = max(positions[0] - 1, 0)
        return [self._order[index][1].persisted_at if index < len(self._order) else None]

    async def read_tail(self, positions: list[int], limit: int, types: Sequence[str] | None = None) -> list[TailEvent]:
        start = positions[0]
        found: Iterable[Any] = enumerate(self._order[start:], start + 1)
        if types is not None:
            found = (entry for entry in found if entry[1][1].event_type in types)
        page = (TailEvent(run.row.identity, event, 0, pos) for pos, (run, event) in islice(found, limit))
        return list(cut_page(page, lambda tail_event: tail_event.event.raw_payload))

    async def find_misplaced_events(self, run_key: int) -> list[int]:
        del run_key
        return []

    async def find_orphaned_runs(self) -> list[int]:
        return []

    async def save_summary(self, row: RunRow, summary: RunSummary) -> bool:
        _write_summary(self._runs[row.identity.run_id].row, summary)
        return True

    async def erase_payload(self, row: RunRow, run_seq: int) -> None:
        run = self._runs[row.identity.run_id]
        events = [copy.copy(event) for event in run.events]
        state = erase_payload(events, run_seq)
        erased = events[run_seq - 1]
        stored = run.events[run_seq - 1]
        stored.payload_digest, stored.raw_payload = erased.payload_digest, None
        await self.save_summary(row, state.summary)

    async def alerts(self, run_id: str | None, tenant_id: str | None) -> list[Alert]:
        found = [alert for alert in self._alerts.values() if run_id in (None, alert.run_id)]
        return [alert for alert in found if tenant_id is None or self._tenant_of(alert.run_id) == tenant_id]

    def _tenant_of(self, run_id: str | None) -> str | None:
        run = self._runs.get(run_id or "")
        return None if run is None else run.row.identity.tenant_id

    async def raise_alerts(self, alerts: Iterable[Alert]) -> None:
        for alert in alerts:
            self._store_alert(alert)

    def _store_alert(self, alert: Alert) -> None:
        stamped = msgspec.structs.replace(alert, raised_at=from_micros(self.clock.now()))
        self._alerts.setdefault((alert.code, alert.run_id or "", alert.subject), stamped)

    # Leases

    def _is_live(self, owner: str, epoch: int) -> bool:
        return is_live(self._leases.get(owner), epoch, self.clock.now())

    async def acquire_lease(self, owner: str, ttl: float, holder: Holder | None) -> Lease:
        earlier = self._leases.get(owner)
        epoch = 1 if earlier is None else earlier.epoch + 1
        return self._set_lease(Lease(owner, epoch, 0, ttl), holder)

    def _set_lease(self, lease: Lease, holder: Holder | None) -> Lease:
        expires_at = self.clock.now() + int(lease.ttl * 1e6)
        self._leases[lease.owner] = LeaseRow(lease.owner, lease.epoch, expires_at, holder)
        return msgspec.structs.replace(lease, expires_at=expires_at)

    async def renew_lease(self, lease: Lease) -> Lease:
        row = self._leases.get(lease.owner)
        if row is None or row.epoch != lease.epoch or row.expires_at == RELEASED:
            raise lease_lost()
        return self._set_lease(lease, row.holder)

    async def release_lease(self, lease: Lease) -> None:
        row = self._leases.get(lease.owner)
        if row is not None and row.epoch == lease.epoch:
            self._leases[lease.owner] = msgspec.structs.replace(row, expires_at=RELEASED)

    async def owned_runs(self, lease: Lease) -> set[str]:
        owner = (lease.owner, lease.epoch)
        return {run_id for run_id, run in self._runs.items() if (run.row.owner, run.row.epoch) == owner}

    async def owners(self) -> frozenset[tuple[str, int]]:
        return live_owners(self._leases.values(), self.clock.now())

    async def claim_run(self, run_id: str, lease: Lease) -> Fence:
        self._check_lease(lease)
        run = self._runs.get(run_id)
        if run is None:
            await self.get_run(run_id)
            raise AssertionError
        row, claimant = run.row, (lease.owner, lease.epoch)
        if (
            row.owner is not None
            and row.epoch is not None
            and (row.owner, row.epoch) != claimant
            and self._is_live(row.owner, row.epoch)
        ):
            raise run_owned()
        row.owner, row.epoch = claimant
        return Fence(*claimant)

    def _check_lease(self, lease: Lease) -> None:
        row = self._leases.get(lease.owner)
        if row is None or row.epoch != lease.epoch or row.expires_at <= self.clock.now():
            raise lease_lost()

    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None) -> None:
        await self.get_run(run_id)
        row = self._runs[run_id].row
        if (row.owner, row.epoch) != (fence.owner, fence.epoch):
            raise stale_fence()
        row.owner = row.epoch = None
        row.wake_at = wake_at

    async def claim_due(self, lease: Lease, limit: int) -> list[str]:
        self._check_lease(lease)
        now, claimed = self.clock.now(), list[str]()
        for run in self._by_key:
            row = run.row
            if len(claimed) == limit or row.status in ENDED:
                continue
            if row.owner is not None and row.epoch is not None:
                is_due = not self._is_live(row.owner, row.epoch)
            else:
                is_due = row.wake_at is not None and row.wake_at <= now
            if is_due:
                row.owner, row.epoch, row.wake_at = lease.owner, lease.epoch, None
                claimed.append(row.identity.run_id)
        return claimed

    # For drivers

    async def end_positions(self) -> list[int]:
        return [len(self._order)]

    async def find_signalled_runs(self, positions: list[int]) -> tuple[list[str], list[int]]:
        found = self._order[positions[0] :]
        runs = [run.row.identity.run_id for run, event in found if event.event_type == "SignalAccepted"]
        return runs, [positions[0] + len(found)]

    async def find_seq_by_key(self, run_key: int, entity: str, key: bytes) -> int | None:
        del entity
        found = self._by_key[run_key - 1].by_key.get(key)
        return None if found is None else found.run_seq

    async def store_plan(self, name: str, body: bytes) -> None:
        self._plans.setdefault(name, body)

    async def load_plan(self, name: str) -> bytes | None:
        return self._plans.get(name)

    async def store_value(self, name: str, body: bytes) -> None:
        self._values.setdefault(name, body)

    async def load_value(self, name: str) -> bytes | None:
        return self._values.get(name)

    @property
    def side_tables(self) -> SideTables:
        """Side tables in an in-memory SQLite database that is created on first use."""
        if self._side_tables is None:
            database = apsw.Connection(":memory:")
            cursor = cursor_of(database)
            for _, script in load_migrations("sqlite"):
                cursor.execute(script).fetchall()
            self._side_tables = SideTables("sqlite", *_statement_functions(cursor))
        return self._side_tables

    async def counts(self) -> dict[str, dict[str, int]]:
        runs = Counter(str(run.row.status) for run in self._by_key)
        return {"runs": dict(runs), "alerts": dict(Counter(alert.code for alert in self._alerts.values()))}

    async def health(self) -> dict[str, Any]:
        return {"store": "memory", "runs": len(self._runs), "events": len(self._order)}


def _statement_functions(cursor: Cursor) -> tuple[Any, Any]:
    async def read(sql: str, values: Sequence[Any]) -> list[Any]:
        return cursor.execute(sql, values).fetchall()

    async def write(sql: str, rows: Sequence[Sequence[Any]]) -> list[Any]:
        return [row for values in rows for row in cursor.execute(sql, values).fetchall()]

    return read, write


def _write_summary(row: RunRow, summary: RunSummary) -> None:
    row.summary_text, row.status = encode_summary(summary), summary.status
    row.summary = copy.copy(summary)
    row.provider, row.workflow_id, row.provider_run_id = summary.provider, summary.workflow_id, summary.provider_run_id


def _matches(row: RunRow, wanted: RunFilter) -> bool:
    return (
        wanted.status in (None, row.status)
        and wanted.plan_id in (None, row.identity.plan_id)
        and wanted.tenant_id in (None, row.identity.tenant_id)
        and (wanted.since is None or row.created_at >= wanted.since)
    )


def _is_wanted(event: StoredEvent, wanted: EventFilter) -> bool:
    if wanted.types is not None and event.event_type not in wanted.types:
        return False
    if wanted.entity is None:
        return True
    rest = (event.step_id or "").removeprefix(wanted.entity)
    return event.step_id == wanted.entity or (rest != event.step_id and rest[:1] in ("@", "~", "[", "/"))
