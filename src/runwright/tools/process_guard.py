"""Kills the processes of steps when this process dies, even by `kill -9`.

A small shell, the guard, outlives this process by a moment. Every child reports its process group to the guard before
it does anything else, through a pipe that is open in this process and the child. When the last writer is gone, the pipe
ends and the guard kills every group still on its list, including grandchildren. The parent-death signal of the kernel
would reach only the child itself, only on Linux, and would fire when the thread that started the child ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import threading
from collections.abc import Generator

SHELL = "/bin/sh"

_WATCH = """
trap '' HUP INT QUIT TERM
alive=' '
while read -r mark group; do
  case $mark in
    +) alive="$alive$group " ;;
    -) case $alive in *" $group "*) alive="${alive%% $group *} ${alive#* $group }" ;; esac ;;
  esac
done
for group in $alive; do kill -s KILL -- "-$group"; done 2>/dev/null
"""

_REPORT = """echo "+ $$" >&0; exec "$@" </dev/null"""


class ProcessGuard:
    """The guard shell of this process. Started with the first child, and again if it has exited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    @contextlib.contextmanager
    def report_pipe(self) -> Generator[int]:
        """Open the descriptor that a child must get as its standard input."""
        with self._lock:
            if self._shell is None or self._shell.poll() is not None:
                self._start()
            assert self._pipe is not None
            # A copy, so that `close` in another thread cannot close it while the child is being started.
            copy = os.dup(self._pipe)
        try:
            yield copy
        finally:
            os.close(copy)

    def release_group(self, group: int) -> None:
        """Remove a group that has ended. Call it before its leader is reaped, while the number cannot be reused."""
        with self._lock, contextlib.suppress(OSError):
            if self._pipe is not None:
                os.write(self._pipe, b"- %d\n" % group)

    def close(self) -> None:
        """End the guard; it kills the groups still on its list."""
        with self._lock:
            self._close_pipe()
            if self._shell is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._shell.wait(timeout=2)

    def reset_after_fork(self) -> None:
        """Close the pipe in a fork of this process: it belongs to the parent and must end with the parent."""
        self._lock = threading.Lock()
        self._close_pipe()
        if self._shell is not None:
            self._shell.returncode = 0  # it is not a child of the fork
            self._shell = None

    def _start(self) -> None:
        self._close_pipe()
        reader, self._pipe = os.pipe()
        try:
            self._shell = subprocess.Popen(  # noqa: S603 - no external input
                [SHELL, "-c", _WATCH, "runwright-process-guard"],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={},
            )
        finally:
            os.close(reader)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def with_group_report(argv: list[str]) -> list[str]:
    """Wrap a command so that it first reports its group to the guard. Its stdin must be `report_pipe()`."""
    return [SHELL, "-c", _REPORT, "sh", *argv]


PROCESS_GUARD = ProcessGuard()
atexit.register(PROCESS_GUARD.close)
os.register_at_fork(after_in_child=PROCESS_GUARD.reset_after_fork)
