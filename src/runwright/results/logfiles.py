"""Where a step's output lies on disk, and what the first line of each file says.

    <folder>/<run>/<entity>/<attempt>-<writer>.<chunk>.log

Run ids and entity paths are free text, so folders carry a safe form of them; the exact names are in the
first line of every file. That line also says how many bytes of output came before the file, so a reader
sees what is missing. An attempt has several writers where it was run again after a crash, where it forked,
or where two processes believed that they were to run it: none ever touches the files of another.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

CHUNK_BYTES = 1024 * 1024
CAP_BYTES = 16 * CHUNK_BYTES
"""What is kept of one attempt's output: its first chunk and its newest ones."""

LONGEST_HEADER = 64 * 1024

_PLAIN = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,79}", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)
_FILE = re.compile(r"(\d{1,10})-(\d{1,10})\.(\d{1,10})\.log", re.ASCII)
_LONGEST_PREFIX = 80


class LogHeader(msgspec.Struct, frozen=True, rename="camel"):
    """The first line of a file."""

    run_id: str
    entity: str
    attempt: int
    offset: int  # bytes that its writer wrote before this file, kept or not
    since: str  # when it was begun


def read_header(line: bytes) -> LogHeader | None:
    try:
        return msgspec.json.decode(line, type=LogHeader)
    except (msgspec.DecodeError, UnicodeError):
        return None


def safe_name(text: str) -> str:
    """A folder name for any text: the text itself where that is harmless, else its start and a hash.

    Capitals count as harmful: some file systems do not tell them from small letters.
    """
    if _PLAIN.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{_readable(text)}~{digest}"


def may_be_beneath(name: str, entity: str) -> bool:
    """Whether a folder of this name can belong to this entity or to a part of it. The header tells for certain."""
    return name.startswith(_readable(entity)[: _LONGEST_PREFIX - 1])


def is_beneath(name: str, entity: str) -> bool:
    """Whether an entity is this one or a part of it: an iteration, a later visit, a task."""
    if not name.startswith(entity):
        return False
    return len(name) == len(entity) or name[len(entity)] in "@~[/"


class Chunk(NamedTuple):
    """Which file of an entity. They sort by attempt, and as they were written."""

    attempt: int
    writer: int
    number: int

    def path(self, folder: Path) -> Path:
        return folder / f"{self.attempt}-{self.writer}.{self.number}.log"


def list_chunks(folder: Path) -> list[Chunk]:
    """The files that are there, in order."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    matches = (_FILE.fullmatch(name) for name in names)
    return sorted(Chunk(*map(int, match.groups())) for match in matches if match)


def _readable(text: str) -> str:
    start = _UNSAFE.sub("_", text[:_LONGEST_PREFIX])
    return f"_{start[1:]}" if start.startswith(".") else start
