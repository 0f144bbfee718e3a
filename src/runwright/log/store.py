"""Store: what a backend implements. `RunLog`, `LeaseService` and `Maintenance` work on any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from runwright.contract.clock import Clock
from runwright.contract.events import RunIdentity
from runwright.contract.snapshot import Alert, RunSummary
from runwright.core.fold.run_state import RunState
from runwright.core.integrity.chain import StoredEvent
from runwright.log.append.authority import AppendCounters, Fence
from runwright.log.append.queue import AppendQueue

from .model import EngineIds, EventFilter, Holder, Lease, RunFilter, RunRow
from .notifier import Notifier
from .replay import fold_rows
from .side_tables import SideTables
from .system_clock import SystemClock
from .validation import is_valid_name, not_found

T = TypeVar("T")

PAGE = 1000
PAGE_BYTES = 4 * 2**20
"""Size of the payloads of a page: it ends with the event that reaches this size, or before the limit of events."""


def cut_page(events: Iterable[T], payload_of: Callable[[T], bytes | None]) -> Iterator[T]:
    """Yield events until their payloads reach PAGE_BYTES."""
    size = 0
    for event in events:
        yield event
        size += len(payload_of(event) or b"")
        if size >= PAGE_BYTES:
            return


class TailEvent(NamedTuple):
    """An event of any run, with its shard and its position in the shard."""

    run: RunIdentity
    event: StoredEvent
    shard: int
    position: int


class LeaseRenewer(Protocol):
    """Renews leases from a thread other than that of the event loop, on which it does not depend."""

    def renew(self, lease: Lease) -> Lease:
        """Same as `LeaseService.renew`. Blocks."""
        ...

    def close(self) -> None: ...


class Store(ABC):
    """Rows of runs, events, leases, plans and alerts; validated appends; wake-up of readers."""

    shards: int = 1
    is_shared = True
    """Whether other processes can write to the store."""

    def __init__(self, *, clock: Clock | None = None, write_budget: float = 3.0) -> None:
        self.clock: Clock = clock or SystemClock()
        self.counters = AppendCounters()
        self.append_queue = AppendQueue(write_budget, self.clock.monotonic)
        self.notifier = Notifier(self.clock, self.changed_elsewhere if self.is_shared else None)
        self._listeners: list[Callable[[], None]] = []

    @abstractmethod
    async def open(self) -> None:
        """Connect, create or migrate the tables, and open `append_queue` with the function that writes a request."""

    @abstractmethod
    async def close(self) -> None:
        """Close `append_queue` and `notifier`, then everything that `open` opened."""

    @abstractmethod
    async def health(self) -> dict[str, Any]:
        """Return facts about the store for `doctor`."""

    # Appends and new events

    @abstractmethod
    async def changed_elsewhere(self) -> bool:
        """Whether another process may have written since the last call."""

    # Runs

    @abstractmethod
    async def find_run(self, run_id: str) -> RunRow | None: ...

    async def get_run(self, run_id: str) -> RunRow:
        """Return a run by its id; raises RUN_NOT_FOUND."""
        row = await self.find_run(run_id) if is_valid_name(run_id) else None
        if row is None:
            raise not_found(run_id)
        return row

    @abstractmethod
    async def find_runs_by_prefix(self, prefix: str, limit: int, tenant_id: str | None) -> list[RunRow]: ...
    @abstractmethod
    async def find_engine_runs(self, ids: EngineIds, tenant_id: str | None, limit: int) -> list[RunRow]:
        """Return runs with these ids in another engine, newest first; of all tenants if `tenant_id` is None."""
        ...

    @abstractmethod
    async def list_runs(self, wanted: RunFilter, before: int | None, limit: int) -> list[RunRow]: ...
    @abstractmethod
    async def list_run_ids(self, before: int, limit: int) -> list[tuple[int, str]]: ...
    @abstractmethod
    async def find_signalled_runs(self, positions: list[int]) -> tuple[list[str], list[int]]: ...

    # Events

    @abstractmethod
    async def read_events(self, run_key: int, after: int, limit: int | None) -> list[StoredEvent]:
        """Return a page of a run's events: at most `limit` events, and PAGE_BYTES; without a limit, all of them.
        The page is empty only if there are no events after `after`. The same holds for the other pages."""

    @abstractmethod
    async def select_events(self, run_key: int, after: int, limit: int, wanted: EventFilter) -> list[StoredEvent]: ...
    @abstractmethod
    async def find_seq_by_id(self, run_key: int, event_id: str) -> int | None: ...
    @abstractmethod
    async def find_seq_by_key(self, run_key: int, entity: str, key: bytes) -> int | None: ...
    @abstractmethod
    async def read_tail(
        self, positions: list[int], limit: int, types: Sequence[str] | None = None
    ) -> list[TailEvent]: ...
    @abstractmethod
    async def end_positions(self) -> list[int]: ...
    @abstractmethod
    async def find_times_at(self, positions: list[int]) -> list[int | None]:
        """Return, for each shard, the time of the first event at or after a position."""

    async def fold(self, row: RunRow, until_seq: int | None = None, until_time: int | None = None) -> RunState:
        """Fold the events of a run, up to an event or a time."""
        state = RunState(detailed=True)
        after = 0
        while rows := await self.read_events(row.run_key, after, PAGE):
            if not fold_rows(state, rows, until_seq, until_time):
                break
            after = rows[-1].run_seq
        return state

    # Maintenance

    @abstractmethod
    async def find_misplaced_events(self, run_key: int) -> list[int]: ...
    @abstractmethod
    async def find_orphaned_runs(self) -> list[int]: ...
    @abstractmethod
    async def save_summary(self, row: RunRow, summary: RunSummary) -> bool:
        """Store a run's summary; False if the run has grown since `row` was read."""

    @abstractmethod
    async def erase_payload(self, row: RunRow, run_seq: int) -> None: ...

    # Leases: documented in LeaseService

    @abstractmethod
    async def acquire_lease(self, owner: str, ttl: float, holder: Holder | None) -> Lease: ...
    @abstractmethod
    async def renew_lease(self, lease: Lease) -> Lease: ...
    @property
    def is_replaced(self) -> bool:
        """Whether the file of the store was replaced or deleted: the process has to be restarted."""
        return False

    def lease_renewer(self) -> LeaseRenewer | None:
        """Return what renews leases from another thread; None if only the event loop can."""
        return None

    @abstractmethod
    async def release_lease(self, lease: Lease) -> None: ...
    @abstractmethod
    async def owned_runs(self, lease: Lease) -> set[str]: ...
    @abstractmethod
    async def owners(self) -> frozenset[tuple[str, int]]: ...
    @abstractmethod
    async def claim_run(self, run_id: str, lease: Lease) -> Fence: ...
    @abstractmethod
    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None) -> None: ...
    @abstractmethod
    async def claim_due(self, lease: Lease, limit: int) -> list[str]: ...

    # Alerts, plans, side tables

    @abstractmethod
    async def alerts(self, run_id: str | None, tenant_id: str | None) -> list[Alert]: ...
    @abstractmethod
    async def raise_alerts(self, alerts: Iterable[Alert]) -> None: ...
    @abstractmethod
    async def store_plan(self, name: str, body: bytes) -> None: ...
    @abstractmethod
    async def load_plan(self, name: str) -> bytes | None: ...

    @property
    @abstractmethod
    def side_tables(self) -> SideTables:
        """Return the access to the side tables."""

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Register a callback for `notify` of this process and, if the store supports it, of other processes."""
        self._listeners.append(callback)

    async def notify(self) -> None:
        """Notify subscribers that the side tables have changed."""
        for callback in self._listeners:
            callback()

    async def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of `runs` by status and of `alerts` by code."""
        tables = self.side_tables
        runs, alerts = await tables.read("run_counts"), await tables.read("alert_counts")
        return {"runs": dict(map(tuple, runs)), "alerts": dict(map(tuple, alerts))}
