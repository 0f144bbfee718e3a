"""Reads step output back: as it is now, or on and on while it is written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from pathlib import Path

import msgspec

from .logfiles import LONGEST_HEADER, Chunk, LogHeader, is_beneath, list_chunks, may_be_beneath, read_header

_BLOCK = 256 * 1024
_TAIL = 4096
_HASTE = 10
"""Writers that have been quiet for long are looked at only every so many rounds."""

_SETTLED = 2_000_000_000
"""Two changes within a tick of the file system's clock look like one: trust a time only once it has aged."""


class LogLine(msgspec.Struct, frozen=True):
    time: str
    entity: str
    attempt: int
    stream: str  # "out", "err"; "note" where a line is not the step's own
    text: str


class WriterCursor:
    """A place in what one writer wrote. Holds no file open: there may be ten thousand of these."""

    def __init__(self, folder: Path, chunk: Chunk, header: LogHeader) -> None:
        self._folder = folder
        self._chunk = chunk
        self._header: LogHeader | None = None
        self._position = 0
        self._expected = 0  # the offset at which the next file should begin
        self._quiet = 0
        self._turn = hash(folder.name)
        self.since = header.since

    def is_due(self, round_number: int) -> bool:
        """Whether to look at it in this round of polling."""
        return self._quiet < _HASTE or (round_number + self._turn) % _HASTE == 0

    def more(self, *, to_the_end: bool) -> list[LogLine]:
        """The next lines, some of them; none when there are no more for now.

        `to_the_end`: nothing more is coming, so a last line that was never finished counts too.
        """
        while True:
            # Asked before the file is read: once a successor exists, nothing is added to this one.
            successor = self._successor()
            lines = self._from_file(to_the_end=to_the_end or successor is not None)
            if lines or successor is None:
                self._quiet = 0 if lines else self._quiet + 1
                return lines
            self._chunk, self._position, self._header = successor, 0, None

    def _successor(self) -> Chunk | None:
        here = self._chunk
        return next((chunk for chunk in list_chunks(self._folder) if chunk > here and chunk[:2] == here[:2]), None)

    def _from_file(self, *, to_the_end: bool) -> list[LogLine]:
        try:
            with self._chunk.path(self._folder).open("rb") as file:
                lines: list[LogLine] = []
                if self._header is None:
                    first = file.readline(LONGEST_HEADER)
                    self._header = read_header(first)
                    if self._header is None:
                        return []
                    self._position = len(first)
                    lines += self._note_what_is_missing(self._header)
                file.seek(self._position)
                return lines + self._parse(self._header, file.read(_BLOCK), to_the_end)
        except OSError:  # dropped while we looked: the next file tells how much is missing
            return []

    def _parse(self, header: LogHeader, block: bytes, to_the_end: bool) -> list[LogLine]:
        end = len(block) if to_the_end and len(block) < _BLOCK else block.rfind(b"\n") + 1
        self._position += end
        self._expected += end
        lines: list[LogLine] = []
        for line in block[:end].split(b"\n"):
            when, first, rest = line.partition(b"\t")
            stream, second, text = rest.partition(b"\t")
            if first and second:
                lines.append(
                    LogLine(
                        when.decode(errors="replace"),
                        header.entity,
                        header.attempt,
                        stream.decode(errors="replace"),
                        text.decode(errors="replace"),
                    )
                )
        return lines

    def _note_what_is_missing(self, header: LogHeader) -> list[LogLine]:
        missing = header.offset - self._expected
        self._expected = header.offset
        if missing <= 0:
            return []
        text = f"... {missing:,} bytes of output are not kept ..."
        return [LogLine(header.since, header.entity, header.attempt, "note", text)]


class RunCursor:
    """A place in the output of a run, or of one of its entities and what is beneath it."""

    def __init__(self, folder: Path, entity: str | None, attempt: int | None) -> None:
        self._folder = folder
        self._entity = entity
        self._attempt = attempt
        self._seen: dict[str, int] = {}  # what is in a folder can only have changed with its time
        self._writers: dict[tuple[str, int, int], WriterCursor] = {}
        self._round = 0

    def all(self) -> Iterator[LogLine]:
        """Everything up to now, all of it merged by time."""
        self._look_for_new()
        return _merge(self._writers.values())

    def more(self, *, to_the_end: bool) -> list[LogLine]:
        """What has come since the last time, in order of time as far as can be told."""
        self._look_for_new()
        self._round += 1
        lines: list[LogLine] = []
        for cursor in self._writers.values():
            if to_the_end or cursor.is_due(self._round):
                while fresh := cursor.more(to_the_end=to_the_end):
                    lines += fresh
        return sorted(lines, key=_by_time)

    def _look_for_new(self) -> None:
        try:
            with os.scandir(self._folder) as entries:
                folders = [(entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.is_dir()]
        except OSError:
            return
        for name, changed in folders:
            if self._seen.get(name) == changed:
                continue
            if self._entity is None or may_be_beneath(name, self._entity):
                self._look_into(name)
            if time.time_ns() - changed > _SETTLED:
                self._seen[name] = changed

    def _look_into(self, name: str) -> None:
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
    """The newest line of an entity's newest attempt. Reads the end of one file only."""
    chunks = list_chunks(folder)
    newest = [chunk.path(folder) for chunk in chunks if chunk.attempt == chunks[-1].attempt]
    try:
        for path in sorted(newest, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL))
                lines = file.read().rstrip(b"\n").rsplit(b"\n", 1)
            if len(lines) == 2 or size > _TAIL:  # else there is but the header
                return lines[-1].split(b"\t", 2)[-1].decode(errors="replace")
    except OSError:  # dropped while we looked; whoever shows progress asks again soon
        pass
    return None


def _header_of(path: Path) -> LogHeader | None:
    try:
        with path.open("rb") as file:
            return read_header(file.readline(LONGEST_HEADER))
    except OSError:
        return None


def _by_time(line: LogLine) -> str:
    return line.time


def _merge(cursors: Iterable[WriterCursor]) -> Iterator[LogLine]:
    """Lines of many writers by time. What one wrote is read only when its turn has come."""
    waiting = sorted(cursors, key=lambda cursor: cursor.since)
    heap: list[tuple[str, int, Iterator[LogLine], LogLine | None]] = [
        (cursor.since, number, _lines_of(cursor), None) for number, cursor in enumerate(waiting)
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
    while lines := cursor.more(to_the_end=True):
        yield from lines
