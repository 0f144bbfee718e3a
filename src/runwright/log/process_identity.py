"""Identity of the process that holds a lease.

A process can be found dead before its lease expires only on the machine where it runs: by pid and start time.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from .model import Holder

UNKNOWN_START = "?"
"""Start time of a process that exists but whose start time cannot be read."""


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
