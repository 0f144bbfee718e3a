"""Writer of one attempt's output.

A step never waits for its output and never fails because of it. LineBuffer splits the bytes into lines, each with its
time and stream, and gathers them in memory; LogWriter stores them in blocks. An unfinished line is written after
HOLD_BACK seconds, so that a prompt is visible to a reader. Blocks that cannot be stored are dropped and counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from runwright.contract.timestamps import from_micros

HOLD_BACK = 0.2
"""Seconds for which a line may stay unfinished before it is written as it is."""

RETRY_AFTER = 1.0
"""Seconds without another attempt to store after a failed one; blocks are dropped meanwhile."""

MAX_LINE_BYTES = 64 * 1024
BLOCK = 64 * 1024

_SLICE = 32 * 1024  # a slice of nothing but newlines grows thirty-fold
_SAME_TIME = 1_000  # microseconds: lines within a millisecond share their timestamp

_process = object()
"""Identity of this process: a fork has another. Comparing it is faster than calling getpid for each line."""


def _on_fork() -> None:
    global _process  # noqa: PLW0603
    _process = object()


os.register_at_fork(after_in_child=_on_fork)


class BlockSink(Protocol):
    """Stores the blocks of lines of one attempt."""

    def write(self, block: bytes, since: str) -> None:
        """Store a block whose first line is of time `since`: all of it, or nothing and an OSError."""
        ...

    def skip(self, count: int) -> None:
        """Record that this many bytes were dropped."""
        ...


class OutputBackend(Protocol):
    """Owner of writers: creates their sinks and flushes them."""

    def now(self) -> int: ...
    def sink(self, run_id: str, entity: str, attempt: int) -> BlockSink: ...
    def flush_soon(self, writer: LogWriter) -> None: ...
    def on_write_error(self, error: OSError) -> None: ...


class OutputMask(Protocol):
    """Hides secrets."""

    longest: int
    """Bytes that must be read together to find every secret."""

    def mask_bytes(self, data: bytes) -> bytes: ...


class LogWriter:
    """Output of one attempt. Thread-safe. Most steps print nothing, so everything is created at the first write."""

    __slots__ = (
        "_attempt", "_backend", "_busy", "_closed", "_entity", "_forked", "_lines", "_lock", "_mask", "_process",
        "_retry_at", "_run_id", "_sink", "_waiting", "dropped", "failure",
    )  # fmt: skip

    def __init__(
        self, backend: OutputBackend, run_id: str, entity: str, attempt: int, mask: OutputMask | None = None
    ) -> None:
        self.dropped = 0
        """Bytes that could not be stored."""
        self.failure: str | None = None
        """Why they could not be stored."""
        self._backend = backend
        self._mask = mask  # hides secrets; only whole lines are written then, because a secret may span two writes
        self._run_id, self._entity, self._attempt = run_id, entity, attempt
        self._lock = threading.RLock()
        self._lines: LineBuffer | None = None
        self._sink: BlockSink | None = None
        self._closed = self._busy = self._waiting = False  # waiting: for the next flush of the backend
        self._process = _process
        self._forked = False  # in a fork of our process, where no flusher runs
        self._retry_at = 0.0

    def write(self, stream: str, data: bytes) -> None:
        """Add output of `stream`: "out" or "err"."""
        if self._lines is None or self._process is not _process:
            self._start()
        with self._lock:
            if self._closed or self._busy or not data:  # busy: a destructor printed while this thread was writing
                return
            assert self._lines is not None
            self._busy = True
            try:
                self._lines.add(stream, data)
                if self._forked:
                    self._lines.flush()
            finally:
                self._busy = False
            if self._forked or self._waiting:
                return
            self._waiting = True
        self._backend.flush_soon(self)

    def flush(self, *, at_once: bool = False) -> bool:
        """Store the lines that are due, or all with `at_once`. Return True if unfinished lines are still held back."""
        with self._lock:
            if self._closed or self._busy or self._lines is None:
                return self._waiting and not self._closed
            if self._mask is None:
                self._waiting = self._lines.finish_lines(monotonic() - (0 if at_once else HOLD_BACK))
            else:
                self._waiting = False
            self._lines.flush()
            return self._waiting

    def close(self) -> None:
        """Store everything. Later output is dropped silently, because the attempt has ended."""
        with self._lock:
            if not self._closed and self._lines is not None:
                self._lines.finish_lines(None)
                self._lines.flush()
            self._closed = True

    def _start(self) -> None:
        """Create buffer and sink at the first output; again in a fork, because the parent stores its own buffer."""
        if self._process is not _process:
            self._lock = threading.RLock()  # the old one may be held by a thread that the fork does not have
            self._process = _process
            self._forked, self._busy, self._lines = True, False, None
        with self._lock:
            if self._lines is None:
                self._sink = self._backend.sink(self._run_id, self._entity, self._attempt)
                self._lines = LineBuffer(self._backend.now, self._store, self._mask)

    def _store(self, block: bytes, since: str) -> None:
        assert self._sink is not None
        failure = None
        if monotonic() >= self._retry_at:
            try:
                self._sink.write(block, since)
                return
            except OSError as error:
                failure = error
                self._retry_at = monotonic() + RETRY_AFTER
        self.dropped += len(block)
        self._sink.skip(len(block))
        if failure is not None:
            self.failure = failure.strerror or str(failure)
            self._backend.on_write_error(failure)


class LineBuffer:
    """Splits bytes of two streams into timestamped lines and emits them in blocks. Not thread-safe."""

    def __init__(
        self, now: Callable[[], int], emit: Callable[[bytes, str], None], mask: OutputMask | None = None
    ) -> None:
        self._now = now
        self._mask = mask
        self._emit = emit  # called with a block of lines and the time of its first
        self._out = _Stream(b"out")
        self._err = _Stream(b"err")
        self._last_time = 0
        self._timestamp = b""
        self._buffer = bytearray()
        self._buffer_since = b""

    def add(self, stream: str, data: bytes) -> None:
        target = self._err if stream == "err" else self._out
        if len(data) <= _SLICE:
            self._add_slice(target, data)
            return
        for start in range(0, len(data), _SLICE):
            self._add_slice(target, data[start : start + _SLICE])

    def flush(self) -> None:
        """Emit the gathered lines as one block."""
        if self._buffer:
            block = bytes(self._buffer)
            self._buffer.clear()
            self._emit(block, self._buffer_since.decode())

    def finish_lines(self, begun_before: float | None) -> bool:
        """Add unfinished lines that began before this time, or all with None. Return True if younger ones remain."""
        has_younger = False
        for stream in (self._out, self._err):
            if not stream.partial:
                continue
            if begun_before is not None and stream.since > begun_before:
                has_younger = True
                continue
            # An incomplete UTF-8 character waits for its other bytes, unless no more output will come.
            cut = len(stream.partial) if begun_before is None else _end_of_text(stream.partial, len(stream.partial))
            if cut:
                self._add_lines(stream, self._masked(bytes(stream.partial[:cut])))
                del stream.partial[:cut]
                stream.was_cut = not stream.partial
        return has_younger

    def _add_slice(self, stream: _Stream, data: bytes) -> None:
        if stream.was_cut:
            stream.was_cut = False
            if data.startswith(b"\n"):  # ends the line that was written unfinished
                data = data[1:]
                if not data:
                    return
        end = data.rfind(b"\n")
        if end < 0:
            if not stream.partial:
                stream.since = monotonic()
            stream.partial += data
        else:
            whole = bytes(stream.partial) + data[:end] if stream.partial else data[:end]
            stream.partial[:] = data[end + 1 :]
            if stream.partial:
                stream.since = monotonic()
            whole = self._masked(whole)
            self._add_lines(stream, whole if len(whole) <= MAX_LINE_BYTES else _break_up(whole))
        # A secret may be at the place where a line is broken, so the line must be long enough to find it there.
        limit = MAX_LINE_BYTES + (0 if self._mask is None else self._mask.longest)
        while len(stream.partial) > limit:
            stream.partial[:] = self._masked(bytes(stream.partial))
            cut = _end_of_text(stream.partial, MAX_LINE_BYTES)
            self._add_lines(stream, bytes(stream.partial[:cut]))
            del stream.partial[:cut]
        if len(self._buffer) >= BLOCK:
            self.flush()

    def _masked(self, data: bytes) -> bytes:
        return data if self._mask is None else self._mask.mask_bytes(data)

    def _add_lines(self, stream: _Stream, lines: bytes) -> None:
        now = self._current_timestamp()
        if not self._buffer:
            self._buffer_since = now
        prefix = now + stream.tag
        self._buffer += prefix
        self._buffer += lines.replace(b"\n", b"\n" + prefix)
        self._buffer += b"\n"

    def _current_timestamp(self) -> bytes:
        """Return the time as text. It never runs backwards within an attempt, even if the clock does."""
        now = self._now()
        if now - self._last_time >= _SAME_TIME:
            self._last_time = now
            self._timestamp = from_micros(now).encode()
        return self._timestamp


class _Stream:
    __slots__ = ("partial", "since", "tag", "was_cut")

    def __init__(self, name: bytes) -> None:
        self.tag = b"\t" + name + b"\t"
        self.partial = bytearray()  # the unfinished line
        self.since = 0.0  # when it began (monotonic)
        self.was_cut = False  # the last line was written unfinished


def _break_up(lines: bytes) -> bytes:
    """Break lines that are longer than MAX_LINE_LENGTH."""
    parts: list[bytes] = []
    for line in lines.split(b"\n"):
        while len(line) > MAX_LINE_BYTES:
            cut = _end_of_text(line, MAX_LINE_BYTES)
            parts.append(line[:cut])
            line = line[cut:]
        parts.append(line)
    return b"\n".join(parts)


def _end_of_text(data: bytes | bytearray, limit: int) -> int:
    """Return the largest position up to `limit` that does not split a UTF-8 character."""
    for back in range(1, min(4, limit) + 1):
        byte = data[limit - back]
        if byte < 0x80:
            return limit
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return limit if back >= width else limit - back
    return limit
