"""Reaching Postgres: connections, migrations, and what its errors mean to a person."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from runwright.contract.errors import ErrorCode, RunwrightError

from .queries import load_migrations

LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised when a connection goes away at a moment asyncpg did not expect
    OSError,
    TimeoutError,
)
_CONFLICT = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_NOT_OURS = (
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateObjectError,
    asyncpg.UndefinedColumnError,
    asyncpg.InvalidTextRepresentationError,  # a column of another type is compared
    asyncpg.WrongObjectTypeError,
    ValueError,
)
_MIGRATION_LOCK = 0x52754E77

Connection = Any
"""asyncpg is only partly typed; what we use of it is checked by the conformance suite."""


def is_conflict(error: BaseException) -> bool:
    """Whether the same statement may simply be tried again."""
    return isinstance(error, _CONFLICT)


def place(url: str) -> str:
    """The server and database of a URL, without the password."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
    except ValueError:
        raise _unreadable_url() from None


def _unreadable_url() -> RunwrightError:
    return RunwrightError(
        ErrorCode.STORE_URL_INVALID,
        "This Postgres URL cannot be read. Write it as postgresql://user:password@host:port/database, "
        "with characters such as / # @ in user and password as %2F %23 %40.",
    )


@contextmanager
def coded_errors(url: str, *, outcome: str = "withdrawn") -> Generator[None]:
    """Postgres's errors, as errors of ours. `outcome` says what became of a write that was under way."""
    try:
        yield
    except (asyncpg.PostgresError, *LOST) as error:
        raise translate(error, url, outcome) from error


def translate(error: BaseException, url: str, outcome: str) -> RunwrightError:
    where = place(url)
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return _error(
                ErrorCode.STORE_UNAVAILABLE,
                f"Postgres at {where} refused the login. Check user and password.",
                error,
                outcome,
            )
        case asyncpg.InvalidCatalogNameError():
            return _error(
                ErrorCode.STORE_UNAVAILABLE, f"Postgres has no database for {where}. Create it first.", error, outcome
            )
        case asyncpg.DiskFullError():
            return _error(ErrorCode.STORE_FULL, f"The disk of Postgres at {where} is full.", error, outcome)
        case asyncpg.ReadOnlySQLTransactionError() | asyncpg.InsufficientPrivilegeError():
            return _error(ErrorCode.STORE_READ_ONLY, f"Postgres at {where} does not let us write.", error, outcome)
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return _error(ErrorCode.STORE_CORRUPT, f"Postgres at {where} reports damaged data.", error, outcome)
        case _ if isinstance(error, LOST):
            return _error(ErrorCode.STORE_UNAVAILABLE, f"Postgres at {where} cannot be reached.", error, outcome)
        case _:
            return _error(ErrorCode.STORE_UNAVAILABLE, f"Postgres at {where} could not carry this out.", error, outcome)


def _error(code: ErrorCode, sentence: str, cause: BaseException, outcome: str) -> RunwrightError:
    return RunwrightError(code, f"{sentence} ({type(cause).__name__}: {cause})", outcome=outcome, retryable=True)


async def connect(url: str, patience: float = 60.0) -> Connection:
    place(url)
    settings = {"application_name": "runwright"}
    try:
        return await asyncpg.connect(url, timeout=10, command_timeout=patience, server_settings=settings)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except (ValueError, OverflowError):
        raise _unreadable_url() from None  # what asyncpg says of it may show a part of the password


async def prepare_store(connection: Connection, url: str) -> None:
    """Make the tables, or bring them up to date; safe for many processes at once."""
    try:
        await _migrate(connection, url)
    except _NOT_OURS as error:
        raise RunwrightError(
            ErrorCode.STORE_FOREIGN,
            f"{place(url)} has tables of another program under the names of ours ({error}). "
            "Use a database of its own; nothing was changed in this one.",
        ) from None


async def _migrate(connection: Connection, url: str) -> None:
    migrations = load_migrations("postgres")
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
        version = await _schema_version(connection)
        if version > len(migrations):
            raise RunwrightError(
                ErrorCode.STORE_TOO_NEW,
                f"{place(url)} has schema version {version}; this Runwright knows {len(migrations)}: upgrade it.",
            )
        for number, script in migrations[version:]:
            await connection.execute(script)
            await connection.execute(
                "INSERT INTO meta VALUES ('schema_version', $1) ON CONFLICT (name) DO UPDATE SET value = $1",
                str(number),
            )


async def _schema_version(connection: Connection) -> int:
    if await connection.fetchval("SELECT to_regclass('meta') IS NULL"):
        return 0
    return int(await connection.fetchval("SELECT value FROM meta WHERE name = 'schema_version'") or 0)
