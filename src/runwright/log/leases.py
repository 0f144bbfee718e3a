"""Liveness of process leases, the identity of the process behind a lease, and the errors of ownership.

A process can be found dead before its lease expires only on the machine where it runs: by pid and start time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from runwright.contract.errors import ErrorCode, RunwrightError

from .model import Holder, LeaseRow

LEASE_RETENTION_MICROS = 86_400_000_000
"""Microseconds after which an expired lease that owns no run is deleted."""

RELEASED = 0
"""The time at which a lease expired that was released."""

UNKNOWN_START = "?"
"""Start time of a process that exists but whose start time cannot be read."""


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


@cache
def _host() -> str:
    """Return an id of this boot and pid namespace: containers share the boot, but not the namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def _start_time(pid: int) -> str | None:
    """Return when a process started, in kernel ticks; None if it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return UNKNOWN_START if _is_hidden(pid) else None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _is_hidden(pid: int) -> bool:
    """Whether the process exists although /proc does not show it, as it may for those of other users."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def this_process() -> Holder:
    """Return the identity of the calling process, to be passed to `acquire_lease`."""
    return _identify(os.getpid())


@cache
def _identify(pid: int) -> Holder:
    """Return the identity of this process. Cached by pid, because a fork is another process."""
    return Holder(_host(), pid, _start_time(pid) or "")


def is_dead(holder: Holder | None) -> bool:
    """Whether the process has certainly ended: same machine and boot, and no such process."""
    if holder is None or not holder.started or holder.host != _host():
        return False
    return holder != this_process() and _start_time(holder.pid) not in (holder.started, UNKNOWN_START)
