"""The files of one writer: a new one once a file is full, the oldest given up once there are too many."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import msgspec

from .logfiles import CAP_BYTES, CHUNK_BYTES, Chunk, LogHeader, list_chunks


class ChunkFiles:
    """Takes blocks of whole lines. No file stays open between two: there may be many writers."""

    def __init__(self, folder: Path, run_id: str, entity: str, attempt: int) -> None:
        self._folder = folder
        self._run_id, self._entity, self._attempt = run_id, entity, attempt
        self._writer: int | None = None
        self._path: Path | None = None  # the file that is written to
        self._size = 0
        self._number = -1
        self._offset = 0  # bytes so far, kept or not
        self._kept: deque[tuple[int, int]] = deque()  # (number, size), without the first and the newest
        self._kept_bytes = 0

    def write(self, block: bytes, since: str) -> None:
        """Keep a block whose first line is of this time: all of it, or nothing and an OSError."""
        if self._path is None or self._size >= CHUNK_BYTES:
            self._end_file()
            self._begin_file(since)
        assert self._path is not None
        _append(self._path, block, self._size)
        self._size += len(block)
        self._offset += len(block)

    def skip(self, count: int) -> None:
        """So many bytes are lost. The next file says how much came before it, and so that they are missing."""
        self._offset += count
        self._end_file()

    def _begin_file(self, since: str) -> None:
        self._number += 1
        path = self._new_file()
        line = msgspec.json.encode(LogHeader(self._run_id, self._entity, self._attempt, self._offset, since)) + b"\n"
        try:
            _append(path, line, 0)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._path, self._size = path, len(line)
        self._drop_oldest()

    def _new_file(self) -> Path:
        if self._writer is not None:
            path = self._path_of(self._number)
            path.touch(exist_ok=False)
            return path
        self._folder.mkdir(parents=True, exist_ok=True)
        others = [chunk.writer for chunk in list_chunks(self._folder) if chunk.attempt == self._attempt]
        writer = max(others, default=0) + 1
        while True:
            path = Chunk(self._attempt, writer, self._number).path(self._folder)
            try:
                path.touch(exist_ok=False)
            except FileExistsError:  # somebody else begins at this moment
                writer += 1
                continue
            self._writer = writer
            return path

    def _path_of(self, number: int) -> Path:
        return Chunk(self._attempt, self._writer or 0, number).path(self._folder)

    def _end_file(self) -> None:
        if self._path is None:
            return
        self._path = None
        if self._number > 0:
            self._kept.append((self._number, self._size))
            self._kept_bytes += self._size

    def _drop_oldest(self) -> None:
        # The first file and the newest count as full.
        while self._kept and self._kept_bytes + 2 * CHUNK_BYTES > CAP_BYTES:
            number, size = self._kept.popleft()
            self._kept_bytes -= size
            self._path_of(number).unlink(missing_ok=True)


def _append(path: Path, block: bytes, size: int) -> None:
    """Add to a file of this size."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    done = 0
    try:
        while done < len(block):
            done += os.write(descriptor, block[done:] if done else block)
    except OSError:
        if done:
            os.ftruncate(descriptor, size)  # no half line stays
        raise
    finally:
        os.close(descriptor)
