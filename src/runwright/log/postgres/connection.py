"""Postgres connections, migrations, and translation of errors."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.sql_files import load_migrations

CONNECTION_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised when a connection is lost at a moment asyncpg does not expect
    OSError,
    TimeoutError,
)
_CONFLICT = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_FOREIGN_SCHEMA_ERRORS = (
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateObjectError,
    asyncpg.UndefinedColumnError,
    asyncpg.InvalidTextRepresentationError,  # comparison with a column of another type
    asyncpg.WrongObjectTypeError,
    ValueError,
)
_MIGRATION_LOCK = 0x52754E77

Connection = Any
"""asyncpg is only partly typed; the conformance suite checks our use of it."""


def is_conflict(error: BaseException) -> bool:
    """Whether the same statement can be retried unchanged."""
    return isinstance(error, _CONFLICT)


def server_name(url: str) -> str:
    """Return the server and database of a URL, without the password."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
    except ValueError:
        raise _invalid_url() from None


def _invalid_url() -> RunwrightError:
    return RunwrightError(
        ErrorCode.STORE_URL_INVALID,
        "Invalid Postgres URL. Use postgresql://user:password@host:port/database, "
        "with characters such as / # @ in user and password encoded as %2F %23 %40.",
    )


@contextmanager
def coded_errors(url: str, *, outcome: str = "withdrawn") -> Generator[None]:
    """Raise errors of Postgres as RunwrightError. `outcome` is that of a write in progress."""
    try:
        yield
    except (asyncpg.PostgresError, *CONNECTION_ERRORS) as error:
        raise translate(error, url, outcome) from error


def translate(error: BaseException, url: str, outcome: str) -> RunwrightError:
    server = server_name(url)
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return _error(
                ErrorCode.STORE_UNAVAILABLE,
                f"Postgres at {server} refused the login. Check user and password.",
                error,
                outcome,
            )
        case asyncpg.InvalidCatalogNameError():
            return _error(ErrorCode.STORE_UNAVAILABLE, f"Database {server} not found. Create it first.", error, outcome)
        case asyncpg.DiskFullError():
            return _error(ErrorCode.STORE_FULL, f"The disk of Postgres at {server} is full.", error, outcome)
        case asyncpg.ReadOnlySQLTransactionError() | asyncpg.InsufficientPrivilegeError():
            return _error(ErrorCode.STORE_READ_ONLY, f"Postgres at {server} does not permit writing.", error, outcome)
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return _error(ErrorCode.STORE_CORRUPT, f"Postgres at {server} reports corrupt data.", error, outcome)
        case _ if isinstance(error, CONNECTION_ERRORS):
            return _error(ErrorCode.STORE_UNAVAILABLE, f"Postgres at {server} is unavailable.", error, outcome)
        case _:
            return _error(
                ErrorCode.STORE_UNAVAILABLE, f"Postgres at {server} could not execute the statement.", error, outcome
            )


def _error(code: ErrorCode, detail: str, cause: BaseException, outcome: str) -> RunwrightError:
    return RunwrightError(code, f"{detail} ({type(cause).__name__}: {cause})", outcome=outcome, retryable=True)


async def connect(url: str, timeout: float = 60.0) -> Connection:
    server_name(url)
    settings = {"application_name": "runwright"}
    try:
        return await asyncpg.connect(url, timeout=10, command_timeout=timeout, server_settings=settings)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except (ValueError, OverflowError):
        raise _invalid_url() from None  # The message of asyncpg may contain a part of the password.


async def prepare_store(connection: Connection, url: str) -> None:
    """Create or migrate the tables; safe for several processes at once."""
    try:
        await _migrate(connection, url)
    except _FOREIGN_SCHEMA_ERRORS as error:
        raise RunwrightError(
            ErrorCode.STORE_FOREIGN,
            f"{server_name(url)} has tables of another program with the same names ({error}). "
            "Use a separate database; this one was not changed.",
        ) from None


async def _migrate(connection: Connection, url: str) -> None:
    migrations = load_migrations("postgres")
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
        version = await _schema_version(connection)
        if version > len(migrations):
            raise RunwrightError(
                ErrorCode.STORE_TOO_NEW,
                f"{server_name(url)} has schema version {version}; this Runwright supports {len(migrations)}. "
                "Upgrade Runwright.",
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
