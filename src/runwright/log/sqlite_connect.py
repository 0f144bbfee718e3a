"""Opening a SQLite store: pragmas, migrations, and what its errors mean to a person."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import apsw

from runwright.contract.errors import ErrorCode, RunwrightError

from .clock import SystemClock
from .queries import load_migrations

APPLICATION_ID = 0x52754E77  # "RuNw": says that the file is ours
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs", "fuse.sshfs", "ncpfs"}
)


class Cursor(Protocol):
    """As much of apsw's cursor as is used here, with rows of any shape."""

    def execute(self, statements: str, bindings: Any = ()) -> Cursor: ...
    def executemany(self, statements: str, sequenceofbindings: Any) -> Cursor: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...


def cursor_of(connection: apsw.Connection) -> Cursor:
    return cast("Cursor", connection.cursor())


@contextmanager
def coded_errors(path: Path) -> Generator[None]:
    """SQLite's errors, as errors of ours."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error


def translate(error: apsw.Error, path: Path) -> RunwrightError:
    match error:
        case apsw.FullError():
            code, advice = (
                ErrorCode.STORE_FULL,
                "The disk is full. Nothing of this append was written; free space and try again.",
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            code, advice = (
                ErrorCode.STORE_READ_ONLY,
                f"{path} cannot be written. Check its permissions and those of its folder.",
            )
        case apsw.CorruptError():
            code, advice = (
                ErrorCode.STORE_CORRUPT,
                f"{path} is damaged. Restore it from a backup; `runwright verify` tells what is lost.",
            )
        case apsw.NotADBError():
            code, advice = ErrorCode.STORE_FOREIGN, f"{path} is not a SQLite database. Name another file with --store."
        case apsw.CantOpenError():
            code, advice = (
                ErrorCode.STORE_UNAVAILABLE,
                f"{path} cannot be opened. Check that its folder exists and is writable.",
            )
        case _:
            code, advice = ErrorCode.STORE_UNAVAILABLE, f"SQLite could not use {path}."
    # A failed commit is rolled back, but an error of the disk itself leaves open what reached it.
    outcome = "unknown" if isinstance(error, apsw.IOError) else "withdrawn"
    return RunwrightError(code, f"{advice} ({type(error).__name__}: {error})", outcome=outcome, retryable=True)


def connect(path: Path, *, writer: bool) -> apsw.Connection:
    """A connection with the settings that the log's promises rest on."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)
    cursor = cursor_of(connection)
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA cache_size = -32768")
    cursor.execute("PRAGMA temp_store = MEMORY")
    if writer:
        connection.set_busy_timeout(0)  # it has its own, more patient way to wait
    else:
        cursor.execute("PRAGMA query_only = ON")
        connection.wal_autocheckpoint(0)  # only the writer checkpoints
    return connection


def _unavailable(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_UNAVAILABLE, sentence)


def prepare_store(path: Path) -> None:
    """Make the store, or bring it up to date; safe for several processes at once."""
    refuse_network_file_system(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # payloads are nobody else's business
    except OSError as error:
        raise _unavailable(f"The folder {path.parent} cannot be made: {error.strerror}.") from None
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        advice = "Whoever only looks at a log writes beside it as well: use a copy."
        raise _unavailable(f"{path} cannot be opened for writing: {error.strerror}. {advice}") from None
    with coded_errors(path):
        connection = apsw.Connection(str(path))
        try:
            connection.set_busy_timeout(10_000)
            _migrate(connection, path)
        finally:
            connection.close()


def _migrate(connection: apsw.Connection, path: Path) -> None:
    migrations = load_migrations("sqlite")
    cursor = cursor_of(connection)
    cursor.execute("BEGIN")  # what is read now must be of one moment: another process may be making the file
    version = schema_version(connection, path)
    cursor.execute("COMMIT")
    if version > len(migrations):
        raise RunwrightError(
            ErrorCode.STORE_TOO_NEW,
            f"{path} has schema version {version}; this Runwright knows up to {len(migrations)}. Upgrade Runwright.",
        )
    _use_wal(connection)
    if version == len(migrations):
        return
    cursor.execute("BEGIN IMMEDIATE")
    version = schema_version(connection, path)  # another process may have been faster
    for number, script in migrations[version:]:
        cursor.execute(script).fetchall()
        cursor.execute(f"PRAGMA user_version = {number}").fetchall()
    cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}").fetchall()
    cursor.execute("COMMIT")


def _use_wal(connection: apsw.Connection) -> None:
    """Turn write-ahead mode on, for a new file or a copy that SQLite made. SQLite does not wait its turn here."""
    clock = SystemClock()
    deadline = clock.monotonic() + 10
    while read_one(connection, "PRAGMA journal_mode") != "wal":
        try:
            cursor_of(connection).execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if clock.monotonic() > deadline:
                raise
            clock.pause(0.005)


def schema_version(connection: apsw.Connection, path: Path) -> int:
    """The version of a store of ours, 0 for an empty file; anything else is refused."""
    if read_one(connection, "PRAGMA application_id") == APPLICATION_ID:
        return read_one(connection, "PRAGMA user_version")
    if read_one(connection, "SELECT count(*) FROM sqlite_schema"):
        raise RunwrightError(
            ErrorCode.STORE_FOREIGN, f"{path} is a database of another program. Name another file with --store."
        )
    return 0


def read_one(connection: apsw.Connection, statement: str) -> Any:
    return cursor_of(connection).execute(statement).fetchall()[0][0]


def refuse_network_file_system(path: Path, mounts: str | None = None) -> None:
    """SQLite's locks and shared memory do not work across machines; say so before data is lost."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text()
        except OSError:
            return  # not Linux: nothing to go by
    place = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    if kind in NETWORK_FILE_SYSTEMS:
        raise RunwrightError(
            ErrorCode.STORE_UNAVAILABLE,
            f"{path} is on a network file system ({kind}), where SQLite cannot keep its promises. "
            "Put it on a local disk, or use Postgres.",
        )
