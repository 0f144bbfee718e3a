"""Who lives, and what a process is told that holds a lease or a run no longer, or not yet."""

from __future__ import annotations

from collections.abc import Iterable

from runwright.contract.errors import ErrorCode, RunwrightError

from .holder import is_dead
from .model import LeaseRow

FORGET_AFTER = 86_400_000_000
"""Microseconds after which a lease that has ended and owns nothing is removed."""


def living_epoch(lease: LeaseRow | None, now: int) -> int | None:
    """The epoch in which this owner is at work; None if it is in none."""
    return lease.epoch if lease is not None and lives(lease, lease.epoch, now) else None


def lives(lease: LeaseRow | None, epoch: int, now: int) -> bool:
    """Whether the owner of this lease, in this epoch, must be taken to be at work."""
    return lease is not None and lease.epoch == epoch and lease.expires_at > now and not is_dead(lease.holder)


def living(leases: Iterable[LeaseRow], now: int) -> frozenset[tuple[str, int]]:
    """The owners that are at work, each with the epoch of its life."""
    return frozenset((lease.owner, lease.epoch) for lease in leases if lives(lease, lease.epoch, now))


def lease_lost() -> RunwrightError:
    return RunwrightError(ErrorCode.LEASE_LOST, "The lease has ended. Stop driving its runs, then acquire a new one.")


def run_owned() -> RunwrightError:
    return RunwrightError(
        ErrorCode.RUN_OWNED, "A live process drives this run. Send a signal, or wait for its lease to end."
    )


def stale_fence() -> RunwrightError:
    return RunwrightError(ErrorCode.STALE_FENCE, "This process no longer drives the run. Stop driving it.")
