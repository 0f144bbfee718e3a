"""Files of step output: where they are, what their first line holds, and how they rotate.

    <folder>/<run>/<entity>/<attempt>-<writer>.<chunk>.log

Run ids and entity paths are arbitrary text, so folder names are a safe form of them; the exact names are in the first
line of every file. That line also holds the number of bytes written before the file, so that a reader can detect
missing output. An attempt has several writers if it was repeated after a crash, if its process forked, or if two
processes both believed that they owned it. No writer ever changes the files of another.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from pathlib import Path
from typing import NamedTuple

import msgspec

from runwright.storage.private_files import FILE_MODE, make_private_folder

CHUNK_BYTES = 1024 * 1024
CAP_BYTES = 16 * CHUNK_BYTES
"""Limit of stored output per attempt: its first chunk and its newest ones are retained."""

MAX_HEADER_BYTES = 64 * 1024

_PLAIN = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,79}", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)
_FILE_NAME = re.compile(r"(\d{1,10})-(\d{1,10})\.(\d{1,10})\.log", re.ASCII)
_MAX_PREFIX = 80


class LogHeader(msgspec.Struct, frozen=True, rename="camel"):
    """First line of a file."""

    run_id: str
    entity: str
    attempt: int
    offset: int  # bytes that the writer produced before this file, stored or dropped
    since: str  # time of the first line


def read_header(line: bytes) -> LogHeader | None:
    try:
        return msgspec.json.decode(line, type=LogHeader)
    except (msgspec.DecodeError, UnicodeError):
        return None


def safe_name(text: str) -> str:
    """Return a folder name for any text: the text itself if it is safe, else its start and a hash.

    Capitals are unsafe: some file systems do not distinguish them from small letters.
    """
    if _PLAIN.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{_readable(text)}~{digest}"


def may_be_beneath(name: str, entity: str) -> bool:
    """Whether a folder of this name can belong to the entity or to a part of it. Only the header is exact."""
    return name.startswith(_readable(entity)[: _MAX_PREFIX - 1])


def is_beneath(name: str, entity: str) -> bool:
    """Whether `name` is the entity or a part of it: an iteration, a later visit, a task."""
    if not name.startswith(entity):
        return False
    return len(name) == len(entity) or name[len(entity)] in "@~[/"


def _readable(text: str) -> str:
    start = _UNSAFE.sub("_", text[:_MAX_PREFIX])
    return f"_{start[1:]}" if start.startswith(".") else start


class Chunk(NamedTuple):
    """Identity of one file of an entity. Sorts by attempt, then in the order of writing."""

    attempt: int
    writer: int
    number: int

    def path(self, folder: Path) -> Path:
        return folder / f"{self.attempt}-{self.writer}.{self.number}.log"


def list_chunks(folder: Path) -> list[Chunk]:
    """List the files of an entity, in order."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    matches = (_FILE_NAME.fullmatch(name) for name in names)
    return sorted(Chunk(*map(int, match.groups())) for match in matches if match)


class ChunkFiles:
    """Files of one writer: starts a new file when the current one is full, deletes the oldest above CAP_BYTES.

    Takes blocks of whole lines. No file stays open between two blocks, because there may be many writers.
    """

    def __init__(self, folder: Path, run_id: str, entity: str, attempt: int) -> None:
        self._folder = folder
        self._run_id, self._entity, self._attempt = run_id, entity, attempt
        self._writer: int | None = None
        self._path: Path | None = None  # the current file
        self._size = 0
        self._number = -1
        self._offset = 0  # bytes so far, stored or dropped
        self._full: deque[tuple[int, int]] = deque()  # (number, size) of full files, without the first and the newest
        self._full_bytes = 0

    def write(self, block: bytes, since: str) -> None:
        """Store a block whose first line is of time `since`: all of it, or nothing and an OSError."""
        if self._path is None or self._size >= CHUNK_BYTES:
            self._end_file()
            self._start_file(since)
        assert self._path is not None
        _append(self._path, block, self._size)
        self._size += len(block)
        self._offset += len(block)

    def skip(self, count: int) -> None:
        """Count dropped bytes and end the file: the header of the next one shows that they are missing."""
        self._offset += count
        self._end_file()

    def _start_file(self, since: str) -> None:
        self._number += 1
        path = self._create_file()
        line = msgspec.json.encode(LogHeader(self._run_id, self._entity, self._attempt, self._offset, since)) + b"\n"
        try:
            _append(path, line, 0)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._path, self._size = path, len(line)
        self._delete_oldest()

    def _create_file(self) -> Path:
        if self._writer is not None:
            path = self._path_of(self._number)
            path.touch(FILE_MODE, exist_ok=False)
            return path
        make_private_folder(self._folder)
        others = [chunk.writer for chunk in list_chunks(self._folder) if chunk.attempt == self._attempt]
        writer = max(others, default=0) + 1
        while True:
            path = Chunk(self._attempt, writer, self._number).path(self._folder)
            try:
                path.touch(FILE_MODE, exist_ok=False)
            except FileExistsError:  # another writer started concurrently
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
            self._full.append((self._number, self._size))
            self._full_bytes += self._size

    def _delete_oldest(self) -> None:
        # The first file and the newest are counted as full.
        while self._full and self._full_bytes + 2 * CHUNK_BYTES > CAP_BYTES:
            number, size = self._full.popleft()
            self._full_bytes -= size
            self._path_of(number).unlink(missing_ok=True)


def _append(path: Path, block: bytes, size: int) -> None:
    """Append to a file of this size. On failure, truncate it back so that no partial line remains."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    done = 0
    try:
        while done < len(block):
            done += os.write(descriptor, block[done:] if done else block)
    except OSError:
        if done:
            os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)
