"""Writes one attempt's output.

A step never waits for its output and never fails because of it. Lines are gathered in memory and written
in blocks; an unfinished line is written after a moment, so that somebody who watches sees a prompt. What
the disk does not take is dropped and counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from .loglines import LineBuffer

HOLD_BACK = 0.2
"""How long, in seconds, a line may stay unfinished before it is written as it is."""

TRY_AGAIN = 1.0
"""How long, in seconds, nothing is tried after the disk took nothing."""

_process = object()
"""Stands for this process: a fork of it has another. Asking the system for each line would take longer."""


def _note_fork() -> None:
    global _process  # noqa: PLW0603
    _process = object()


os.register_at_fork(after_in_child=_note_fork)


class Sink(Protocol):
    """Takes an attempt's blocks of lines."""

    def write(self, block: bytes, since: str) -> None:
        """Keep a block whose first line is of this time: all of it, or nothing and an OSError."""
        ...

    def skip(self, count: int) -> None:
        """So many bytes are lost."""
        ...


class LogHome(Protocol):
    """Whoever keeps the writers."""

    def now(self) -> int: ...
    def sink(self, run_id: str, entity: str, attempt: int) -> Sink: ...
    def flush_soon(self, writer: LogWriter) -> None: ...
    def note_failure(self, error: OSError) -> None: ...


Masking = Callable[[bytes], bytes]


class LogWriter:
    """The output of one attempt. Any thread may write. Most steps print nothing: until then it costs nothing."""

    __slots__ = (
        "_alone", "_attempt", "_busy", "_closed", "_entity", "_files", "_home", "_lines", "_lock", "_mask", "_process",
        "_retry_at", "_run_id", "_waiting", "dropped",
    )  # fmt: skip

    def __init__(self, home: LogHome, run_id: str, entity: str, attempt: int, mask: Masking | None = None) -> None:
        self.dropped = 0
        """Bytes that the disk did not take."""
        self._home = home
        self._mask = mask  # hides secrets; then nothing is written before its line has ended
        self._run_id, self._entity, self._attempt = run_id, entity, attempt
        self._lock = threading.RLock()
        self._lines: LineBuffer | None = None
        self._files: Sink | None = None
        self._closed = self._busy = self._waiting = False  # waiting: for the next flush
        self._process = _process
        self._alone = False  # in a fork of our process, where nobody flushes
        self._retry_at = 0.0

    def write(self, stream: str, data: bytes) -> None:
        """Take output of `stream`: "out" or "err"."""
        if self._lines is None or self._process is not _process:
            self._begin()
        with self._lock:
            if self._closed or self._busy or not data:  # busy: a destructor printed while we were writing
                return
            assert self._lines is not None
            self._busy = True
            try:
                self._lines.take(stream, data)
                if self._alone:
                    self._lines.empty()
            finally:
                self._busy = False
            if self._alone or self._waiting:
                return
            self._waiting = True
        self._home.flush_soon(self)

    def flush(self, *, at_once: bool = False) -> bool:
        """Write what is due, or all there is. Whether something is still held back."""
        with self._lock:
            if self._closed or self._busy or self._lines is None:
                return self._waiting and not self._closed
            if self._mask is None:
                self._waiting = self._lines.finish_lines(monotonic() - (0 if at_once else HOLD_BACK))
            else:
                self._waiting = False
            self._lines.empty()
            return self._waiting

    def close(self) -> None:
        """Write all there is. What comes later is dropped in silence: nobody waits for it any more."""
        with self._lock:
            if not self._closed and self._lines is not None:
                self._lines.finish_lines(None)
                self._lines.empty()
            self._closed = True

    def _begin(self) -> None:
        """With the first output; and anew in a fork, for the parent writes what it had, where it was."""
        if self._process is not _process:
            self._lock = threading.RLock()  # it may have been held by a thread that is not here
            self._process = _process
            self._alone, self._busy, self._lines = True, False, None
        with self._lock:
            if self._lines is None:
                self._files = self._home.sink(self._run_id, self._entity, self._attempt)
                self._lines = LineBuffer(self._home.now, self._keep)

    def _keep(self, block: bytes, since: str) -> None:
        assert self._files is not None
        block = block if self._mask is None else self._mask(block)
        error = None
        if monotonic() >= self._retry_at:
            try:
                self._files.write(block, since)
                return
            except OSError as trouble:
                error = trouble
                self._retry_at = monotonic() + TRY_AGAIN
        self.dropped += len(block)
        self._files.skip(len(block))
        if error is not None:
            self._home.note_failure(error)
