"""What a store provides: the seam between the log and SQLite, Postgres, memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from runwright.contract.clock import Clock
from runwright.contract.events import RunIdentity
from runwright.contract.snapshot import Alert, RunSummary
from runwright.core.chain import StoredEvent

from .desk import Desk
from .intake import Request
from .judge import Fence
from .model import EventFilter, Holder, Lease, RunFilter, RunRow

Placed = tuple[RunIdentity, StoredEvent, int, int]
"""An event of some run, with its shard and its position there."""


class Store(ABC):
    """Rows in, rows out, and leases. What they mean is the business of `RunLog`."""

    _shards: int = 1
    clock: Clock
    _heard: list[Callable[[], None]]

    @property
    @abstractmethod
    def desk(self) -> Desk:
        """Small tables beside the log."""

    def store_time(self) -> int:
        """The time that all who use this store agree on, in microseconds since 1970."""
        return self.clock.now()

    def on_ring(self, call: Callable[[], None]) -> None:
        """Be called when somebody rings, in this process or, as far as the store can tell, in another."""
        self._heard.append(call)

    async def ring(self) -> None:
        """Say that there is something new at the desk."""
        for call in self._heard:
            call()

    @abstractmethod
    async def open(self) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...
    @abstractmethod
    def _enqueue(self, request: Request) -> None: ...
    @abstractmethod
    async def _changed_elsewhere(self) -> bool: ...
    @abstractmethod
    async def _names(self, before: int, limit: int) -> list[tuple[int, str]]: ...
    @abstractmethod
    async def _find(self, run_id: str) -> RunRow | None: ...
    @abstractmethod
    async def _find_prefix(self, prefix: str, limit: int, tenant_id: str | None) -> list[RunRow]: ...
    @abstractmethod
    async def _find_engine_run(self, provider: str, workflow_id: str, provider_run_id: str) -> RunRow | None: ...
    @abstractmethod
    async def _list(self, wanted: RunFilter, before: int | None, limit: int) -> list[RunRow]: ...
    @abstractmethod
    async def _rows(self, run_key: int, after: int, limit: int | None) -> list[StoredEvent]: ...
    @abstractmethod
    async def _select(self, run_key: int, after: int, limit: int, wanted: EventFilter) -> list[StoredEvent]: ...
    @abstractmethod
    async def _seq_of_id(self, run_key: int, event_id: str) -> int | None: ...
    @abstractmethod
    async def _times_at(self, positions: list[int]) -> list[int | None]:
        """When the first event at or after each shard's position was persisted."""
        ...

    @abstractmethod
    async def _tail(self, positions: list[int], limit: int, types: Sequence[str] | None = None) -> list[Placed]: ...
    @abstractmethod
    async def _misplaced(self, run_key: int) -> list[int]: ...
    @abstractmethod
    async def _orphans(self) -> list[int]: ...
    @abstractmethod
    async def _save_summary(self, row: RunRow, summary: RunSummary) -> bool: ...
    @abstractmethod
    async def _erase(self, row: RunRow, run_seq: int) -> None: ...

    @abstractmethod
    async def alerts(self, run_id: str | None = None, *, tenant_id: str | None = None) -> list[Alert]:
        """Alerts, oldest first; those about a run, or about any run of a tenant."""

    @abstractmethod
    async def raise_alerts(self, alerts: Iterable[Alert]) -> None:
        """Store alerts; one that is stored already is left alone."""

    @abstractmethod
    async def acquire_lease(self, owner: str, ttl: float = 5.0, holder: Holder | None = None) -> Lease:
        """Say that this process lives. A new epoch each time: what an earlier life held is no longer held.

        With a `holder` (`rw.this_process()`), others on this machine see at once if the process is gone; without
        one they wait until the lease ends.
        """

    @abstractmethod
    async def renew_lease(self, lease: Lease) -> Lease:
        """Extend a lease that has not ended; LEASE_LOST if it has."""

    @abstractmethod
    async def release_lease(self, lease: Lease) -> None:
        """End a lease now; its runs are free for others."""

    @abstractmethod
    async def owners(self) -> frozenset[tuple[str, int]]:
        """The processes that are at work, each with the epoch of its life."""

    @abstractmethod
    async def claim_run(self, run_id: str, lease: Lease) -> Fence:
        """Become the one who drives a run; RUN_OWNED while another does and lives."""

    @abstractmethod
    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None = None) -> None:
        """Let a run go; `wake_at` says when somebody should look at it again. STALE_FENCE if it is not held."""

    @abstractmethod
    async def claim_due(self, lease: Lease, limit: int = 100) -> list[str]:
        """Claim runs that nobody drives although somebody should: their driver died, or their time has come."""

    @abstractmethod
    async def _end(self) -> list[int]: ...
    @abstractmethod
    async def _signalled(self, positions: list[int]) -> tuple[list[str], list[int]]: ...
    @abstractmethod
    async def _seq_of(self, run_key: int, entity: str, key: bytes) -> int | None: ...
    @abstractmethod
    async def _put_plan(self, name: str, body: bytes) -> None: ...
    @abstractmethod
    async def _get_plan(self, name: str) -> bytes | None: ...

    async def census(self) -> dict[str, dict[str, int]]:
        """How many `runs` there are in each status, and how many `alerts` of each code."""
        return {name: dict(map(tuple, await self.desk.read(f"census_{name}"))) for name in ("runs", "alerts")}

    @abstractmethod
    async def health(self) -> dict[str, Any]:
        """Facts about the store for `doctor`."""
