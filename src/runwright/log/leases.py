"""LeaseService: which process is alive, and which runs it owns."""

from __future__ import annotations

from runwright.log.append.authority import Fence

from .model import Holder, Lease
from .store import Store


class LeaseService:
    """Process leases and ownership of runs: `log.leases`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def acquire(self, owner: str, ttl: float = 5.0, holder: Holder | None = None) -> Lease:
        """Acquire a lease for this process, in a new epoch: runs held in an earlier epoch are no longer held.

        With a `holder` (`rw.this_process()`), other processes on this machine detect at once that the process has
        died; without one they wait until the lease expires.
        """
        return await self._store.acquire_lease(owner, ttl, holder)

    async def renew(self, lease: Lease) -> Lease:
        """Extend a lease; raises LEASE_LOST if it was released or replaced.

        A lease that has expired can be extended too. Runs that other processes claimed meanwhile have another owner:
        see `owned_runs`.
        """
        return await self._store.renew_lease(lease)

    async def release(self, lease: Lease) -> None:
        """End a lease now, so that other processes can claim its runs."""
        await self._store.release_lease(lease)

    async def owned_runs(self, lease: Lease) -> set[str]:
        """Return the runs that are owned under this lease."""
        return await self._store.owned_runs(lease)

    async def owners(self) -> frozenset[tuple[str, int]]:
        """Return the live owners, each with its epoch."""
        return await self._store.owners()

    async def claim_run(self, run_id: str, lease: Lease) -> Fence:
        """Become the owner of a run; raises RUN_OWNED while another live process owns it."""
        return await self._store.claim_run(run_id, lease)

    async def release_run(self, run_id: str, fence: Fence, wake_at: int | None = None) -> None:
        """Release a run; at `wake_at` it becomes due again. Raises STALE_FENCE if it is not held."""
        await self._store.release_run(run_id, fence, wake_at)

    async def claim_due(self, lease: Lease, limit: int = 100) -> list[str]:
        """Claim runs that need a driver: their owner died, or their `wake_at` has passed."""
        return await self._store.claim_due(lease, limit)
