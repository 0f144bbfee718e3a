"""Is the process behind a lease still there? Only answered where it can be known: on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from .model import Holder


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{os.uname().nodename}"


def _start_time(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None where that cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def this_process() -> Holder:
    pid = os.getpid()
    return Holder(_boot_id(), pid, _start_time(pid) or "")


def is_dead(holder: Holder | None) -> bool:
    """True only if that process provably no longer runs: same machine and boot, and no such process."""
    if holder is None or not holder.started or holder.host != _boot_id():
        return False
    return _start_time(holder.pid) != holder.started
