"""SQLite connections, pragmas, migrations, and translation of errors."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import apsw

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.sql_files import load_migrations
from runwright.log.system_clock import SystemClock

APPLICATION_ID = 0x52754E77  # "RuNw": marks the file as a Runwright store
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs", "fuse.sshfs", "ncpfs"}
)


class Cursor(Protocol):
    """The part of apsw's cursor that is used here, with rows of any type."""

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
    """Raise errors of SQLite as RunwrightError."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error


def translate(error: apsw.Error, path: Path) -> RunwrightError:
    """Return the RunwrightError for an error of SQLite; its `outcome` states whether the write is withdrawn."""
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
                f"{path} is damaged. Restore it from a backup; `runwright verify` reports missing events.",
            )
        case apsw.NotADBError():
            code, advice = ErrorCode.STORE_FOREIGN, f"{path} is not a SQLite database. Use another file with --store."
        case apsw.CantOpenError():
            code, advice = (
                ErrorCode.STORE_UNAVAILABLE,
                f"{path} cannot be opened. Check that its folder exists and is writable.",
            )
        case _:
            code, advice = ErrorCode.STORE_UNAVAILABLE, f"SQLite could not use {path}."
    # A failed commit is rolled back, but after an I/O error it is unknown what reached the disk.
    outcome = "unknown" if isinstance(error, apsw.IOError) else "withdrawn"
    return RunwrightError(code, f"{advice} ({type(error).__name__}: {error})", outcome=outcome, retryable=True)


def connect(path: Path, *, writer: bool) -> apsw.Connection:
    """Open a connection with the pragmas that durability depends on."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)
    cursor = cursor_of(connection)
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA cache_size = -32768")
    cursor.execute("PRAGMA temp_store = MEMORY")
    if writer:
        connection.set_busy_timeout(0)  # The writer waits for the lock itself, without a limit.
    else:
        cursor.execute("PRAGMA query_only = ON")
        connection.wal_autocheckpoint(0)  # Only the writer checkpoints.
    return connection


def _unavailable(detail: str) -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_UNAVAILABLE, detail)


def prepare_store(path: Path) -> None:
    """Create or migrate the store; safe for several processes at once."""
    refuse_network_file_system(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # Payloads may be confidential.
    except OSError as error:
        raise _unavailable(f"Cannot create folder {path.parent}: {error.strerror}.") from None
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        advice = "Readers need write access, too (for the -wal and -shm files): use a copy."
        raise _unavailable(f"Cannot open {path} for writing: {error.strerror}. {advice}") from None
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
    cursor.execute("BEGIN")  # Consistent reads: another process may be creating the file.
    version = schema_version(connection, path)
    cursor.execute("COMMIT")
    if version > len(migrations):
        raise RunwrightError(
            ErrorCode.STORE_TOO_NEW,
            f"{path} has schema version {version}; this Runwright supports {len(migrations)}. Upgrade Runwright.",
        )
    _use_wal(connection)
    if version == len(migrations):
        return
    cursor.execute("BEGIN IMMEDIATE")
    version = schema_version(connection, path)  # Another process may have migrated it in the meantime.
    for number, script in migrations[version:]:
        cursor.execute(script).fetchall()
        cursor.execute(f"PRAGMA user_version = {number}").fetchall()
    cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}").fetchall()
    cursor.execute("COMMIT")


def _use_wal(connection: apsw.Connection) -> None:
    """Enable WAL mode, for a new file or a copy made by SQLite, which ignores the busy timeout here."""
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
    """Return the schema version of a store, 0 for an empty file; raises STORE_FOREIGN for any other file."""
    if read_one(connection, "PRAGMA application_id") == APPLICATION_ID:
        return read_one(connection, "PRAGMA user_version")
    if read_one(connection, "SELECT count(*) FROM sqlite_schema"):
        raise RunwrightError(
            ErrorCode.STORE_FOREIGN, f"{path} is a database of another program. Use another file with --store."
        )
    return 0


def read_one(connection: apsw.Connection, statement: str) -> Any:
    return cursor_of(connection).execute(statement).fetchall()[0][0]


def refuse_network_file_system(path: Path, mounts: str | None = None) -> None:
    """Raise if the file is on a network file system, where SQLite's locks and shared memory do not work."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text()
        except OSError:
            return  # Not Linux: the mounts are unknown.
    real_path = os.path.realpath(path)
    mount_point, file_system = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        is_inside = real_path == point or real_path.startswith(point.rstrip("/") + "/")
        if is_inside and len(point) >= len(mount_point):
            mount_point, file_system = point, fields[2]
    if file_system in NETWORK_FILE_SYSTEMS:
        raise RunwrightError(
            ErrorCode.STORE_UNAVAILABLE,
            f"{path} is on a network file system ({file_system}), where SQLite cannot guarantee durability. "
            "Use a local disk, or Postgres.",
        )


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def store_replaced(path: Path) -> RunwrightError:
    return RunwrightError(
        ErrorCode.STORE_REPLACED,
        f"{path} was replaced or deleted while it was open. Restart this process to use the file that is there now.",
        outcome="withdrawn",
        retryable=True,
    )
