"""Turns what a step prints into lines, each with its time and stream, and hands them on in blocks."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from runwright.contract.timestamps import from_micros

LONGEST_LINE = 64 * 1024
BLOCK = 64 * 1024

_SLICE = 32 * 1024  # a slice of nothing but newlines grows thirty-fold
_SAME_TIME = 1_000  # lines within a millisecond share their time


class LineBuffer:
    """Not for several threads at once: whoever owns it has a lock."""

    def __init__(self, now: Callable[[], int], sink: Callable[[bytes, str], None]) -> None:
        self._now = now
        self._sink = sink  # takes a block of lines, and the time of its first
        self._out = _Stream(b"out")
        self._err = _Stream(b"err")
        self._last_time = 0
        self._stamp = b""
        self._buffer = bytearray()
        self._buffer_since = b""

    def take(self, stream: str, data: bytes) -> None:
        target = self._err if stream == "err" else self._out
        if len(data) <= _SLICE:
            self._take_slice(target, data)
            return
        for start in range(0, len(data), _SLICE):
            self._take_slice(target, data[start : start + _SLICE])

    def empty(self) -> None:
        """Hand on what has been gathered."""
        if self._buffer:
            block = bytes(self._buffer)
            self._buffer.clear()
            self._sink(block, self._buffer_since.decode())

    def finish_lines(self, begun_before: float | None) -> bool:
        """Write unfinished lines that are old enough. Whether there are younger ones."""
        younger = False
        for stream in (self._out, self._err):
            if not stream.partial:
                continue
            if begun_before is not None and stream.since > begun_before:
                younger = True
                continue
            # Half a character waits for its other half, unless none will come.
            cut = len(stream.partial) if begun_before is None else _end_of_text(stream.partial, len(stream.partial))
            if cut:
                self._add_lines(stream, bytes(stream.partial[:cut]))
                del stream.partial[:cut]
                stream.cut_short = not stream.partial
        return younger

    def _take_slice(self, stream: _Stream, data: bytes) -> None:
        if stream.cut_short:
            stream.cut_short = False
            if data.startswith(b"\n"):  # ends the line that was written before its end came
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
            self._add_lines(stream, whole if len(whole) <= LONGEST_LINE else _break_up(whole))
        while len(stream.partial) > LONGEST_LINE:
            cut = _end_of_text(stream.partial, LONGEST_LINE)
            self._add_lines(stream, bytes(stream.partial[:cut]))
            del stream.partial[:cut]
        if len(self._buffer) >= BLOCK:
            self.empty()

    def _add_lines(self, stream: _Stream, lines: bytes) -> None:
        now = self._time()
        if not self._buffer:
            self._buffer_since = now
        prefix = now + stream.mark
        self._buffer += prefix
        self._buffer += lines.replace(b"\n", b"\n" + prefix)
        self._buffer += b"\n"

    def _time(self) -> bytes:
        """The time as text. It never runs backwards within an attempt, whatever the clock does."""
        now = self._now()
        if now - self._last_time >= _SAME_TIME:
            self._last_time = now
            self._stamp = from_micros(now).encode()
        return self._stamp


class _Stream:
    __slots__ = ("cut_short", "mark", "partial", "since")

    def __init__(self, name: bytes) -> None:
        self.mark = b"\t" + name + b"\t"
        self.partial = bytearray()  # the line that has not ended yet
        self.since = 0.0  # when it began
        self.cut_short = False  # it was written before its end came


def _break_up(lines: bytes) -> bytes:
    """The same lines, none longer than LONGEST_LINE."""
    parts: list[bytes] = []
    for line in lines.split(b"\n"):
        while len(line) > LONGEST_LINE:
            cut = _end_of_text(line, LONGEST_LINE)
            parts.append(line[:cut])
            line = line[cut:]
        parts.append(line)
    return b"\n".join(parts)


def _end_of_text(data: bytes | bytearray, limit: int) -> int:
    """Where to cut before `limit` so that no UTF-8 character is torn apart."""
    for back in range(1, min(4, limit) + 1):
        byte = data[limit - back]
        if byte < 0x80:
            return limit
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return limit if back >= width else limit - back
    return limit
