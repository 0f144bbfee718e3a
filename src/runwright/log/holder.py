"""Is the process behind a lease still there? Only answered where it can be known: on this machine."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from .model import Holder

UNKNOWN = "?"
"""When a process started of which one may only know that it is there."""


@cache
def _host() -> str:
    """Names this boot of this machine and this view of its processes: containers share the first, not the second."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def _start_time(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None where there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return UNKNOWN if _is_hidden(pid) else None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _is_hidden(pid: int) -> bool:
    """Whether there is such a process after all: /proc may hide those of other users."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def this_process() -> Holder:
    return _own(os.getpid())


@cache
def _own(pid: int) -> Holder:
    """By pid: a fork is another process."""
    return Holder(_host(), pid, _start_time(pid) or "")


def is_dead(holder: Holder | None) -> bool:
    """True only if that process provably no longer runs: same machine and boot, and no such process."""
    if holder is None or not holder.started or holder.host != _host():
        return False
    return holder != this_process() and _start_time(holder.pid) not in (holder.started, UNKNOWN)
