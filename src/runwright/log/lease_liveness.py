"""Liveness of process leases: which owners are alive, and the errors of those that are not."""

from __future__ import annotations

from collections.abc import Iterable

from runwright.contract.errors import ErrorCode, RunwrightError

from .model import LeaseRow
from .process_identity import is_dead

LEASE_RETENTION_MICROS = 86_400_000_000
"""Microseconds after which an expired lease that owns no run is deleted."""

RELEASED = 0
"""The time at which a lease expired that was released."""


def live_epoch(lease: LeaseRow | None, now: int) -> int | None:
    """Return the epoch in which the owner of this lease is live; None if it is not."""
    return lease.epoch if lease is not None and is_live(lease, lease.epoch, now) else None


def is_live(lease: LeaseRow | None, epoch: int, now: int) -> bool:
    """Whether the owner of this lease must be considered live in this epoch."""
    return lease is not None and lease.epoch == epoch and lease.expires_at > now and not is_dead(lease.holder)


def live_owners(leases: Iterable[LeaseRow], now: int) -> frozenset[tuple[str, int]]:
    """Return the live owners, each with its epoch."""
    return frozenset((lease.owner, lease.epoch) for lease in leases if is_live(lease, lease.epoch, now))


def lease_lost() -> RunwrightError:
    return RunwrightError(ErrorCode.LEASE_LOST, "Lease expired. Stop driving its runs, then acquire a new lease.")


def run_owned() -> RunwrightError:
    return RunwrightError(
        ErrorCode.RUN_OWNED, "A live process drives this run. Send a signal, or wait until its lease expires."
    )


def stale_fence() -> RunwrightError:
    return RunwrightError(
        ErrorCode.STALE_FENCE, "This process no longer owns the run. Stop driving it; its new owner continues."
    )
