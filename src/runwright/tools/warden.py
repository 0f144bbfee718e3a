"""Sees to it that the processes of steps die with us, however we die.

One small shell outlives us by a moment. Every child tells it its process group before it does anything else,
through a pipe that we and the child hold. When the last holder is gone (`kill -9` included) the pipe ends, and
the warden kills every group that is still on its list, grandchildren and all. The kernel's own death signal
would reach only the child itself, only on Linux, and would fire when the thread that started it ends.
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


class Warden:
    """The watching shell of this process. Started with the first child, and again should it be gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    @contextlib.contextmanager
    def ear(self) -> Generator[int]:
        """The descriptor that a child is to be given as its standard input."""
        with self._lock:
            if self._shell is None or self._shell.poll() is not None:
                self._start()
            assert self._pipe is not None
            # A copy, so that nobody closes it under the child that is being started.
            copy = os.dup(self._pipe)
        try:
            yield copy
        finally:
            os.close(copy)

    def forget(self, group: int) -> None:
        """The group is gone. Say so while its leader is not reaped yet: then its number is not in use again."""
        with self._lock, contextlib.suppress(OSError):
            if self._pipe is not None:
                os.write(self._pipe, b"- %d\n" % group)

    def close(self) -> None:
        """Let the warden go; it kills what is still on its list."""
        with self._lock:
            self._drop()
            if self._shell is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._shell.wait(timeout=2)

    def leave_to_parent(self) -> None:
        """In a forked copy of this process: the pipe is the parent's, and must end with the parent."""
        self._lock = threading.Lock()
        self._drop()
        if self._shell is not None:
            self._shell.returncode = 0  # not our child
            self._shell = None

    def _start(self) -> None:
        self._drop()
        reader, self._pipe = os.pipe()
        try:
            self._shell = subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
                [SHELL, "-c", _WATCH, "runwright-warden"],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={},
            )
        finally:
            os.close(reader)

    def _drop(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def reporting(argv: list[str]) -> list[str]:
    """The same command, as one that tells the warden its group first. It must be given `ear()` as stdin."""
    return [SHELL, "-c", _REPORT, "sh", *argv]


WARDEN = Warden()
atexit.register(WARDEN.close)
os.register_at_fork(after_in_child=WARDEN.leave_to_parent)
