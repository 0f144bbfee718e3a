"""Readers of step output in files: once, or continuously while it is being written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from pathlib import Path

import msgspec

from .chunks import MAX_HEADER_BYTES, Chunk, LogHeader, is_beneath, list_chunks, may_be_beneath, read_header

_BLOCK = 256 * 1024
_TAIL = 4096
_IDLE_INTERVAL = 10
"""A writer without new lines for this many polls is polled only once in as many rounds."""

_MTIME_RESOLUTION = 2_000_000_000
"""Nanoseconds. Two changes within one tick of the file system's clock have the same time, so a folder's time proves
that nothing changed only once it is this old."""


class LogLine(msgspec.Struct, frozen=True):
    time: str
    entity: str
    attempt: int
    stream: str  # "out" or "err"; "note" for a line added by Runwright
    text: str


class WriterCursor:
    """Position in the output of one writer. Holds no file open, because there may be ten thousand cursors."""

    def __init__(self, folder: Path, chunk: Chunk, header: LogHeader) -> None:
        self._folder = folder
        self._chunk = chunk
        self._header: LogHeader | None = None
        self._position = 0
        self._expected = 0  # the offset at which the next file should begin
        self._idle_polls = 0
        self._phase = hash(folder.name)  # spreads idle writers over the rounds
        self.since = header.since

    def is_due(self, round_number: int) -> bool:
        """Whether to poll this writer in this round."""
        return self._idle_polls < _IDLE_INTERVAL or (round_number + self._phase) % _IDLE_INTERVAL == 0

    def read_more(self, *, to_the_end: bool) -> list[LogLine]:
        """Return some of the next lines; an empty list if there are none for now.

        `to_the_end`: the writer has ended, so an unfinished last line is returned too.
        """
        while True:
            # Checked before the file is read: once a successor exists, nothing is appended to this file.
            successor = self._successor()
            lines = self._read_file(to_the_end=to_the_end or successor is not None)
            if lines or successor is None:
                self._idle_polls = 0 if lines else self._idle_polls + 1
                return lines
            self._chunk, self._position, self._header = successor, 0, None

    def _successor(self) -> Chunk | None:
        current = self._chunk
        later = (chunk for chunk in list_chunks(self._folder) if chunk > current)
        return next((chunk for chunk in later if chunk[:2] == current[:2]), None)

    def _read_file(self, *, to_the_end: bool) -> list[LogLine]:
        try:
            with self._chunk.path(self._folder).open("rb") as file:
                lines: list[LogLine] = []
                if self._header is None:
                    first = file.readline(MAX_HEADER_BYTES)
                    self._header = read_header(first)
                    if self._header is None:
                        return []
                    self._position = len(first)
                    lines += self._note_missing_bytes(self._header)
                file.seek(self._position)
                return lines + self._parse(self._header, file.read(_BLOCK), to_the_end)
        except OSError:  # deleted by rotation meanwhile: the header of the next file shows how much is missing
            return []

    def _parse(self, header: LogHeader, block: bytes, to_the_end: bool) -> list[LogLine]:
        end = len(block) if to_the_end and len(block) < _BLOCK else block.rfind(b"\n") + 1
        self._position += end
        self._expected += end
        return list(parse_lines(header.entity, header.attempt, block[:end]))

    def _note_missing_bytes(self, header: LogHeader) -> list[LogLine]:
        missing = header.offset - self._expected
        self._expected = header.offset
        if missing <= 0:
            return []
        text = f"... {missing:,} bytes of output were dropped ..."
        return [LogLine(header.since, header.entity, header.attempt, "note", text)]


class RunCursor:
    """Position in the output of a run, or of one entity including its iterations and tasks."""

    def __init__(self, folder: Path, entity: str | None, attempt: int | None) -> None:
        self._folder = folder
        self._entity = entity
        self._attempt = attempt
        self._unchanged_since: dict[str, int] = {}  # folder -> mtime; equal mtime means no new files
        self._writers: dict[tuple[str, int, int], WriterCursor] = {}
        self._round = 0

    def read_all(self) -> Iterator[LogLine]:
        """Return all lines up to now, merged by time."""
        self._find_new_writers()
        return _merge(self._writers.values())

    def read_more(self, *, to_the_end: bool) -> list[LogLine]:
        """Return the lines since the last call, sorted by time within this call."""
        self._find_new_writers()
        self._round += 1
        lines: list[LogLine] = []
        for cursor in self._writers.values():
            if to_the_end or cursor.is_due(self._round):
                while new_lines := cursor.read_more(to_the_end=to_the_end):
                    lines += new_lines
        return sorted(lines, key=_by_time)

    def _find_new_writers(self) -> None:
        try:
            with os.scandir(self._folder) as entries:
                folders = [(entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.is_dir()]
        except OSError:
            return
        for name, changed in folders:
            if self._unchanged_since.get(name) == changed:
                continue
            if self._entity is None or may_be_beneath(name, self._entity):
                self._find_writers_in(name)
            if time.time_ns() - changed > _MTIME_RESOLUTION:
                self._unchanged_since[name] = changed

    def _find_writers_in(self, name: str) -> None:
        folder = self._folder / name
        for chunk in list_chunks(folder):
            key = (name, chunk.attempt, chunk.writer)
            if key in self._writers or self._attempt not in (None, chunk.attempt):
                continue
            header = _header_of(chunk.path(folder))
            if header is None or not (self._entity is None or is_beneath(header.entity, self._entity)):
                continue
            self._writers[key] = WriterCursor(folder, chunk, header)


def last_line(folder: Path) -> str | None:
    """Return the newest line of an entity's newest attempt. Reads only the end of a file."""
    chunks = list_chunks(folder)
    newest = [chunk.path(folder) for chunk in chunks if chunk.attempt == chunks[-1].attempt]
    try:
        for path in sorted(newest, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL))
                lines = file.read().rstrip(b"\n").rsplit(b"\n", 1)
            if len(lines) == 2 or size > _TAIL:  # else the file holds only its header
                return lines[-1].split(b"\t", 2)[-1].decode(errors="replace")
    except OSError:  # deleted by rotation meanwhile; progress displays call again soon
        pass
    return None


def _header_of(path: Path) -> LogHeader | None:
    try:
        with path.open("rb") as file:
            return read_header(file.readline(MAX_HEADER_BYTES))
    except OSError:
        return None


def _by_time(line: LogLine) -> str:
    return line.time


def _merge(cursors: Iterable[WriterCursor]) -> Iterator[LogLine]:
    """Merge the lines of many writers by time. A writer is read only when its first line is next."""
    ordered = sorted(cursors, key=lambda cursor: cursor.since)
    heap: list[tuple[str, int, Iterator[LogLine], LogLine | None]] = [
        (cursor.since, number, _lines_of(cursor), None) for number, cursor in enumerate(ordered)
    ]
    heapify(heap)
    while heap:
        _, number, lines, line = heap[0]
        if line is not None:
            yield line
        following = next(lines, None)
        if following is None:
            heappop(heap)
        else:
            heapreplace(heap, (following.time, number, lines, following))


def _lines_of(cursor: WriterCursor) -> Iterator[LogLine]:
    while lines := cursor.read_more(to_the_end=True):
        yield from lines


def parse_lines(entity: str, attempt: int, block: bytes) -> Iterator[LogLine]:
    """Parse stored lines of the form `<time> TAB <stream> TAB <text>`. Malformed lines are skipped."""
    for row in block.split(b"\n"):
        timestamp, first, rest = row.partition(b"\t")
        stream, second, text = rest.partition(b"\t")
        if first and second:
            yield LogLine(
                timestamp.decode(errors="replace"),
                entity,
                attempt,
                stream.decode(errors="replace"),
                text.decode(errors="replace"),
            )
