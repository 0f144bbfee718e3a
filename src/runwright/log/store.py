"""Store: the interface that the memory, SQLite and Postgres backends implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from runwright.contract.clock import Clock
from runwright.contract.events import RunIdentity
from runwright.contract.snapshot import Alert, RunSummary
from runwright.core.integrity.chain import StoredEvent
from runwright.log.append.authority import Fence
from runwright.log.append.queue import AppendRequest

from .model import EventFilter, Holder, Lease, RunFilter, RunRow
from .side_tables import SideTables


class TailEvent(NamedTuple):
    """An event of any run, with its shard and its position in the shard."""

    run: RunIdentity
    event: StoredEvent
    shard: int
    position: int


class Store(ABC):
    """Stores rows and leases. `RunLog` implements their meaning."""

    _shards: int = 1
    clock: Clock
    _listeners: list[Callable[[], None]]

    @property
    @abstractmethod
    def side_tables(self) -> SideTables:
        """Return the access to the side tables."""

    def store_time(self) -> int:
        """Return the time shared by all processes that use this store, in microseconds since 1970."""
        return self.clock.now()

    def subscribe(self, call: Callable[[], None]) -> None:
        """Register a callback for `notify` of this process and, if the store supports it, of other processes."""
        self._listeners.append(call)

    async def notify(self) -> None:
        """Notify subscribers that the side tables have changed."""
        for call in self._listeners:
            call()

    @abstractmethod
    async def open(self) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...
    @abstractmethod
    def _enqueue(self, request: AppendRequest) -> None: ...
    @abstractmethod
    async def _changed_elsewhere(self) -> bool: ...
    @abstractmethod
    async def _list_run_ids(self, before: int, limit: int) -> list[tuple[int, str]]: ...
    @abstractmethod
    async def _find_run(self, run_id: str) -> RunRow | None: ...
    @abstractmethod
    async def _find_runs_by_prefix(self, prefix: str, limit: int, tenant_id: str | None) -> list[RunRow]: ...
    @abstractmethod
    async def _find_engine_run(self, provider: str, workflow_id: str, provider_run_id: str) -> RunRow | None: ...
    @abstractmethod
    async def _list_runs(self, wanted: RunFilter, before: int | None, limit: int) -> list[RunRow]: ...
    @abstractmethod
    async def _read_events(self, run_key: int, after: int, limit: int | None) -> list[StoredEvent]: ...
    @abstractmethod
    async def _select_events(self, run_key: int, after: int, limit: int, wanted: EventFilter) -> list[StoredEvent]: ...
    @abstractmethod
    async def _find_seq_by_id(self, run_key: int, event_id: str) -> int | None: ...
    @abstractmethod
    async def _find_times_at(self, positions: list[int]) -> list[int | None]:
        """Return, for each shard, the time of the first event at or after a position."""
        ...

    @abstractmethod
    async def _read_tail(
        self, positions: list[int], limit: int, types: Sequence[str] | None = None
    ) -> list[TailEvent]: ...
    @abstractmethod
    async def _find_misplaced_events(self, run_key: int) -> list[int]: ...
    @abstractmethod
    async def _find_orphaned_runs(self) -> list[int]: ...
    @abstractmethod
    async def _save_summary(self, row: RunRow, summary: RunSummary) -> bool: ...
    @abstractmethod
    async def _erase_payload(self, row: RunRow, run_seq: int) -> None: ...

    @abstractmethod
    async def alerts(self, run_id: str | None = None, *, tenant_id: str | None = None) -> list[Alert]:
        """Return alerts, oldest first; optionally of one run, or of all runs of a tenant."""

    @abstractmethod
    async def raise_alerts(self, alerts: Iterable[Alert]) -> None:
        """Store alerts; those already stored are not changed."""

    @abstractmethod
    async def acquire_lease(self, owner: str, ttl: float = 5.0, holder: Holder | None = None) -> Lease:
        """Acquire a lease for this process, in a new epoch: runs held in an earlier epoch are no longer held.

        With a `holder` (`rw.this_process()`), other processes on this machine detect at once that the process has
        died; without one they wait until the lease expires.
        """

    @abstractmethod
    async def renew_lease(self, lease: Lease) -> Lease:
        """Extend a lease; raises LEASE_LOST if it has expired."""

    @abstractmethod
    async def release_lease(self, lease: Lease) -> None:
        """End a lease now, so that other processes can claim its runs."""

    @abstractmethod
    async def owners(self) -> frozenset[tuple[str, int]]:
        """Return the live owners, each with its epoch."""

    @abstractmethod
    async def claim_run(self, run_id: str, lease: Lease) -> Fence:
        """Become the owner of a run; raises RUN_OWNED while another live process owns it."""

    @abstractmethod
    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None = None) -> None:
        """Release a run; at `wake_at` it becomes due again. Raises STALE_FENCE if it is not held."""

    @abstractmethod
    async def claim_due(self, lease: Lease, limit: int = 100) -> list[str]:
        """Claim runs that need a driver: their owner died, or their `wake_at` has passed."""

    @abstractmethod
    async def _end_positions(self) -> list[int]: ...
    @abstractmethod
    async def _find_signalled_runs(self, positions: list[int]) -> tuple[list[str], list[int]]: ...
    @abstractmethod
    async def _find_seq_by_key(self, run_key: int, entity: str, key: bytes) -> int | None: ...
    @abstractmethod
    async def _store_plan(self, name: str, body: bytes) -> None: ...
    @abstractmethod
    async def _load_plan(self, name: str) -> bytes | None: ...

    async def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of `runs` by status and of `alerts` by code."""
        tables = self.side_tables
        runs, alerts = await tables.read("run_counts"), await tables.read("alert_counts")
        return {"runs": dict(map(tuple, runs)), "alerts": dict(map(tuple, alerts))}

    @abstractmethod
    async def health(self) -> dict[str, Any]:
        """Return facts about the store for `doctor`."""
