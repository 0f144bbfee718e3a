"""The log in memory: the same authority, nothing durable. For tests, yours included, and for simulation."""

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
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.snapshot import Alert, RunSummary
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED, Enforcement
from runwright.core.chain import StoredEvent

from .base import RunLog
from .desk import Desk
from .folding import erase, fold_rows
from .intake import Request
from .judge import Fence, Group
from .leases import lease_lost, lives, living, run_owned, stale_fence
from .model import EventFilter, Holder, Lease, LeaseRow, RunFilter, RunRow
from .news import News
from .openrun import INDEX_LIMIT, Found, OpenRun, encode_summary
from .prepare import identity
from .queries import load_migrations
from .sqlite_connect import Cursor, cursor_of
from .store import Placed


class _Run:
    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.events: list[StoredEvent] = []
        self.by_key: dict[bytes, StoredEvent] = {}
        self.late_ids: set[bytes] = set()


class MemoryLog(RunLog):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._news = News(self.clock, None)  # nobody else can write here
        self._runs: dict[str, _Run] = {}
        self._by_key: list[_Run] = []
        self._order: list[tuple[_Run, StoredEvent]] = []
        self._alerts: dict[tuple[str, str, str], Alert] = {}
        self._leases: dict[str, LeaseRow] = {}
        self._plans: dict[str, bytes] = {}
        self._values: dict[str, bytes] = {}
        self._is_open = False
        self._desk: Desk | None = None

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        self._intake.close()
        await self._news.close()

    async def _changed_elsewhere(self) -> bool:
        return False

    def _enqueue(self, request: Request) -> None:
        if not self._is_open:
            raise RunwrightError(ErrorCode.STORE_CLOSED, "This log was closed. Open it again.")
        if not request.begin():
            return
        group = Group(request.units, self.tally)
        for run_id in group.run_ids():
            if (run := self._runs.get(run_id)) is not None:
                group.open(self._open_run(run))
        for question in group.key_questions():
            found = self._by_key[question.run_key - 1].by_key.get(question.key)
            if found is not None:
                group.answer_key(
                    question.run_key,
                    question.key,
                    Found(found.run_seq, found.event_id, found.persisted_at, found.raw_payload, found.payload_digest),
                )
        for question in group.id_questions():
            if question.key in self._by_key[question.run_key - 1].late_ids:
                group.answer_id(question.run_key, question.key)
        group.answer_live(self._lives)
        for open_run in group.judge(self.clock.now()):
            self._commit(open_run)
        for alert in group.alerts:
            self._keep_alert(alert)
        request.settle()
        self._news.tell()

    def _open_run(self, run: _Run) -> OpenRun:
        row = run.row
        open_run = OpenRun(row.identity.context, row.enforcement)
        open_run.restore(row)
        if row.enforcement is Enforcement.OBSERVE:
            open_run.state.summary = RunSummary()
            fold_rows(open_run.state, run.events, None, None)
            open_run.whole = True
        if row.last_seq <= INDEX_LIMIT:
            open_run.index((event.idempotency_key, event.run_seq, event.event_id) for event in run.events)
        else:
            open_run.early_ids = {event.event_id for event in run.events[:INDEX_LIMIT]}
        return open_run

    def _commit(self, open_run: OpenRun) -> None:
        run = self._runs.get(open_run.run_id)
        summary = open_run.state.summary
        if run is None:
            row = RunRow(
                len(self._by_key) + 1,
                identity(open_run.context),
                open_run.enforcement,
                open_run.persisted_at or self.clock.now(),
                *(0, b"", 0, summary.status, "", summary, None, None, None, 0),
                open_run.owner,
                open_run.epoch,
                None,
            )
            run = self._runs[open_run.run_id] = _Run(row)
            self._by_key.append(run)
        for event in open_run.fresh.values():
            run.events.append(event)
            run.by_key[event.idempotency_key] = event
            if event.run_seq > INDEX_LIMIT:
                run.late_ids.add(event.event_id)
            self._order.append((run, event))
        row = run.row
        row.last_seq, row.head, row.persisted_at = summary.last_event_seq, open_run.head, open_run.persisted_at
        if summary.status in ENDED:
            row.owner = row.epoch = row.wake_at = None  # nobody drives a run that has ended
        _write_summary(row, summary)

    # Reading

    async def _names(self, before: int, limit: int) -> list[tuple[int, str]]:
        runs = reversed(self._by_key[: before - 1])
        return [(run.row.run_key, run.row.identity.run_id) for run in runs][:limit]

    async def _find(self, run_id: str) -> RunRow | None:
        run = self._runs.get(run_id)
        return None if run is None else msgspec.structs.replace(run.row)

    async def _find_prefix(self, prefix: str, limit: int, tenant_id: str | None) -> list[RunRow]:
        rows = [run.row for run_id, run in self._runs.items() if run_id.startswith(prefix)]
        return [row for row in rows if tenant_id in (None, row.identity.tenant_id)][:limit]

    async def _find_engine_run(self, provider: str, workflow_id: str, provider_run_id: str) -> RunRow | None:
        wanted = (provider, workflow_id, provider_run_id)
        for run in reversed(self._by_key):
            if (run.row.provider, run.row.workflow_id, run.row.provider_run_id) == wanted:
                return run.row
        return None

    async def _list(self, wanted: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        found: list[RunRow] = []
        for run in reversed(self._by_key[: None if before is None else before - 1]):
            if len(found) == limit:
                break
            if _matches(run.row, wanted):
                found.append(msgspec.structs.replace(run.row))
        return found

    async def _rows(self, run_key: int, after: int, limit: int | None) -> list[StoredEvent]:
        events = self._by_key[run_key - 1].events
        start = bisect_right(events, after, key=lambda event: event.run_seq)
        return events[start : None if limit is None else start + limit]

    async def _select(self, run_key: int, after: int, limit: int, wanted: EventFilter) -> list[StoredEvent]:
        rows = await self._rows(run_key, after, None)
        return [event for event in rows if _is_wanted(event, wanted)][:limit]

    async def _seq_of_id(self, run_key: int, event_id: str) -> int | None:
        own = uuid4_bytes(event_id)
        for event in self._by_key[run_key - 1].events:
            if event.event_id == own if own is not None else event.foreign_event_id == event_id:
                return event.run_seq
        return None

    async def _times_at(self, positions: list[int]) -> list[int | None]:
        place = max(positions[0] - 1, 0)
        return [self._order[place][1].persisted_at if place < len(self._order) else None]

    async def _tail(self, positions: list[int], limit: int, types: Sequence[str] | None = None) -> list[Placed]:
        start = positions[0]
        found: Iterable[Any] = enumerate(self._order[start:], start + 1)
        if types is not None:
            found = (each for each in found if each[1][1].event_type in types)
        return [(run.row.identity, event, 0, pos) for pos, (run, event) in islice(found, limit)]

    async def _misplaced(self, run_key: int) -> list[int]:
        del run_key
        return []

    async def _orphans(self) -> list[int]:
        return []

    async def _save_summary(self, row: RunRow, summary: RunSummary) -> bool:
        _write_summary(self._runs[row.identity.run_id].row, summary)
        return True

    async def _erase(self, row: RunRow, run_seq: int) -> None:
        run = self._runs[row.identity.run_id]
        events = [copy.copy(event) for event in run.events]
        state = erase(events, run_seq)
        erased = events[run_seq - 1]
        kept = run.events[run_seq - 1]
        kept.payload_digest, kept.raw_payload = erased.payload_digest, None
        await self._save_summary(row, state.summary)

    async def alerts(self, run_id: str | None = None, *, tenant_id: str | None = None) -> list[Alert]:
        found = [alert for alert in self._alerts.values() if run_id in (None, alert.run_id)]
        return [alert for alert in found if tenant_id is None or self._tenant_of(alert.run_id) == tenant_id]

    def _tenant_of(self, run_id: str | None) -> str | None:
        run = self._runs.get(run_id or "")
        return None if run is None else run.row.identity.tenant_id

    async def raise_alerts(self, alerts: Iterable[Alert]) -> None:
        for alert in alerts:
            self._keep_alert(alert)

    def _keep_alert(self, alert: Alert) -> None:
        stamped = msgspec.structs.replace(alert, raised_at=from_micros(self.clock.now()))
        self._alerts.setdefault((alert.code, alert.run_id or "", alert.subject), stamped)

    # Leases

    def _lives(self, owner: str, epoch: int) -> bool:
        return lives(self._leases.get(owner), epoch, self.clock.now())

    async def acquire_lease(self, owner: str, ttl: float = 5.0, holder: Holder | None = None) -> Lease:
        earlier = self._leases.get(owner)
        epoch = 1 if earlier is None else earlier.epoch + 1
        return self._set_lease(Lease(owner, epoch, 0, ttl), holder)

    def _set_lease(self, lease: Lease, holder: Holder | None) -> Lease:
        expires_at = self.clock.now() + int(lease.ttl * 1e6)
        self._leases[lease.owner] = LeaseRow(lease.owner, lease.epoch, expires_at, holder)
        return msgspec.structs.replace(lease, expires_at=expires_at)

    async def renew_lease(self, lease: Lease) -> Lease:
        row = self._leases.get(lease.owner)
        if row is None or row.epoch != lease.epoch or row.expires_at <= self.clock.now():
            raise lease_lost()
        return self._set_lease(lease, row.holder)

    async def release_lease(self, lease: Lease) -> None:
        row = self._leases.get(lease.owner)
        if row is not None and row.epoch == lease.epoch:
            self._leases[lease.owner] = msgspec.structs.replace(row, expires_at=0)

    async def owners(self) -> frozenset[tuple[str, int]]:
        return living(self._leases.values(), self.clock.now())

    async def claim_run(self, run_id: str, lease: Lease) -> Fence:
        self._check_lease(lease)
        run = self._runs.get(run_id)
        if run is None:
            await self.find_run(run_id)
            raise AssertionError
        row, mine = run.row, (lease.owner, lease.epoch)
        if (
            row.owner is not None
            and row.epoch is not None
            and (row.owner, row.epoch) != mine
            and self._lives(row.owner, row.epoch)
        ):
            raise run_owned()
        row.owner, row.epoch = mine
        return Fence(*mine)

    def _check_lease(self, lease: Lease) -> None:
        row = self._leases.get(lease.owner)
        if row is None or row.epoch != lease.epoch or row.expires_at <= self.clock.now():
            raise lease_lost()

    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None = None) -> None:
        await self.find_run(run_id)
        row = self._runs[run_id].row
        if (row.owner, row.epoch) != (fence.owner, fence.epoch):
            raise stale_fence()
        row.owner = row.epoch = None
        row.wake_at = wake_at

    async def claim_due(self, lease: Lease, limit: int = 100) -> list[str]:
        self._check_lease(lease)
        now, claimed = self.clock.now(), list[str]()
        for run in self._by_key:
            row = run.row
            if len(claimed) == limit or row.status in ENDED:
                continue
            if row.owner is not None and row.epoch is not None:
                due = not self._lives(row.owner, row.epoch)
            else:
                due = row.wake_at is not None and row.wake_at <= now
            if due:
                row.owner, row.epoch, row.wake_at = lease.owner, lease.epoch, None
                claimed.append(row.identity.run_id)
        return claimed

    # For drivers

    async def _end(self) -> list[int]:
        return [len(self._order)]

    async def _signalled(self, positions: list[int]) -> tuple[list[str], list[int]]:
        found = self._order[positions[0] :]
        runs = [run.row.identity.run_id for run, event in found if event.event_type == "SignalAccepted"]
        return runs, [positions[0] + len(found)]

    async def _seq_of(self, run_key: int, entity: str, key: bytes) -> int | None:
        del entity
        found = self._by_key[run_key - 1].by_key.get(key)
        return None if found is None else found.run_seq

    async def _put_plan(self, name: str, body: bytes) -> None:
        self._plans.setdefault(name, body)

    async def _get_plan(self, name: str) -> bytes | None:
        return self._plans.get(name)

    async def keep_value(self, name: str, body: bytes) -> None:
        self._values.setdefault(name, body)

    async def value(self, name: str) -> bytes | None:
        return self._values.get(name)

    @property
    def desk(self) -> Desk:
        """Tables are tables: these are in a database that lives and dies with this object."""
        if self._desk is None:
            database = apsw.Connection(":memory:")
            cursor = cursor_of(database)
            for _, script in load_migrations("sqlite"):
                cursor.execute(script).fetchall()
            self._desk = Desk("sqlite", *_in_memory(cursor))
        return self._desk

    async def census(self) -> dict[str, dict[str, int]]:
        runs = Counter(str(run.row.status) for run in self._by_key)
        return {"runs": dict(runs), "alerts": dict(Counter(alert.code for alert in self._alerts.values()))}

    async def health(self) -> dict[str, Any]:
        return {"store": "memory", "runs": len(self._runs), "events": len(self._order)}


def _in_memory(cursor: Cursor) -> tuple[Any, Any]:
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
