"""Databases of the sql step. Each runs the SQL of a step in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import decimal
import json
import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import quote, unquote, urlsplit

import msgspec

from runwright.tools.base import StepError, invalid_input
from runwright.tools.connection_cache import get_cached

from .text import returns_rows, split_last_query, split_statements

BUSY_SECONDS = 30.0  # wait for a locked SQLite or DuckDB file
LOCK_POLL_SECONDS = 0.1
CONNECT_TIMEOUT = 10.0
MAX_CONNECTIONS = 10
IDLE_SECONDS = 60.0


class QueryResult(msgspec.Struct, frozen=True):
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    count: int = 0
    """Number of changed rows, if the statement returns none."""


ResultCheck = Callable[[QueryResult], None]


class BoundStatement(NamedTuple):
    """A statement and the values of its placeholders. Without values the text may hold several statements."""

    text: str
    values: list[Any]


class Database(Protocol):
    @property
    def placeholder(self) -> str:
        """Prefix of the number of a bound value."""
        ...

    def split(self, query: str) -> list[str]:
        """Split a text into statements."""
        ...

    async def execute(self, statements: Sequence[BoundStatement], max_rows: int, check: ResultCheck) -> QueryResult:
        """Run the statements in one transaction; return the result of the last. `check` is called before the commit."""
        ...


_IN_MEMORY = ":memory:"


def scheme_of(connection: str) -> str:
    scheme = connection.partition("://")[0].lower()
    return "postgresql" if scheme == "postgres" else scheme


def _file_path(connection: str) -> str:
    """Return the path: `sqlite:///shop.db` is relative, `sqlite:////data/shop.db` absolute, `sqlite://` in memory."""
    rest = unquote(connection.partition("://")[2])
    if not rest or rest == "/":
        return _IN_MEMORY
    if not rest.startswith("/"):
        raise invalid_input("Invalid `connection`: use three slashes before the file, as in sqlite:///shop.db.")
    return rest[1:]


def in_directory(connection: str, path: Callable[[str], str]) -> str:
    """Return the connection with the file of the database, if it has one, as `path` returns it."""
    scheme = scheme_of(connection)
    if scheme == "postgresql" or (file := _file_path(connection)) == _IN_MEMORY:
        return connection
    return f"{scheme}:///{quote(os.path.abspath(path(file)))}"


class _ThreadedDatabase(ABC):
    """A database with blocking calls: each step has a thread and a connection of its own."""

    def __init__(self, connection: str) -> None:
        self._path = _file_path(connection)
        self._connection: Any = None
        self._stopped = threading.Event()

    async def execute(self, statements: Sequence[BoundStatement], max_rows: int, check: ResultCheck) -> QueryResult:
        task = asyncio.ensure_future(asyncio.to_thread(self._start, statements, max_rows, check))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._stopped.set()
            while not task.done():
                with contextlib.suppress(Exception):  # the connection may just have been closed
                    if self._connection is not None:
                        self._connection.interrupt()
                await asyncio.wait([task], timeout=0.1)
            task.exception()
            raise

    def _start(self, statements: Sequence[BoundStatement], max_rows: int, check: ResultCheck) -> QueryResult:
        self._raise_if_stopped()  # the thread may have started late
        return self._execute(statements, max_rows, check)

    @abstractmethod
    def _execute(self, statements: Sequence[BoundStatement], max_rows: int, check: ResultCheck) -> QueryResult: ...

    def _raise_if_stopped(self) -> None:
        if self._stopped.is_set():
            raise StepError("CANCELLED", "The step was cancelled.", retryable=False, category="cancelled")


class Sqlite(_ThreadedDatabase):
    placeholder = "?"

    def split(self, query: str) -> list[str]:
        """Split a text into statements. The body of a trigger contains semicolons too, so pieces are joined again."""
        found: list[str] = []
        pending = ""
        for text in split_statements(query):
            pending += f"{text};"
            if sqlite3.complete_statement(pending):
                found.append(pending)
                pending = ""
        return [*found, pending] if pending else found

    def _execute(self, statements: Sequence[BoundStatement], max_rows: int, check: ResultCheck) -> QueryResult:
        try:
            self._connection = connection = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise _unreachable(f"SQLite file {self._path}", str(error)) from None
        try:
            connection.execute("begin")
            result = QueryResult()
            for query, values in statements:
                for text in [query] if values else self.split(query):
                    cursor = connection.execute(text, list(map(_for_sqlite, values)))
                    columns = [column[0] for column in cursor.description or ()]
                    result = QueryResult(
                        columns, cursor.fetchmany(max_rows) if columns else [], max(cursor.rowcount, 0)
                    )
                    cursor.close()
            check(result)
            self._raise_if_stopped()
            connection.execute("commit")
            return result
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF  # the primary code; higher bits are the extended one
            if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
                raise _unreachable(f"SQLite file {self._path}", str(error)) from None
            raise _sql_error(str(error), retryable=code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)) from None
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            raise _sql_error(str(error)) from None
        finally:
            connection.close()  # rolls back unless committed


def _for_sqlite(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


class Duckdb(_ThreadedDatabase):
    """DuckDB returns one row with the count for a change."""

    placeholder = "$"

    def split(self, query: str) -> list[str]:
        return split_statements(query)

    def _execute(self, statements: Sequence[BoundStatement], max_rows: int, check: ResultCheck) -> QueryResult:
        import duckdb

        self._connection = connection = self._open()
        try:
            connection.begin()
            result = QueryResult()
            for query, values in statements:
                for text in [query] if values else self.split(query):
                    cursor = connection.execute(text, values or None)
                    columns = [column[0] for column in cursor.description or ()]
                    result = QueryResult(columns, cursor.fetchmany(max_rows))
                    if columns == ["Count"] and len(result.rows) == 1 and not returns_rows(text):
                        result = QueryResult(count=int(result.rows[0][0]))
            check(result)
            self._raise_if_stopped()
            connection.commit()
            return result
        except duckdb.Error as error:
            is_conflict = isinstance(error, duckdb.TransactionException)
            raise _sql_error(_first_line(error), retryable=is_conflict) from None
        finally:
            connection.close()

    def _open(self) -> Any:
        """Open the file, waiting up to BUSY_SECONDS: DuckDB lets only one process open it at a time."""
        import duckdb

        deadline = monotonic() + BUSY_SECONDS
        while True:
            try:
                return duckdb.connect(self._path)
            except duckdb.Error as error:
                if "lock" not in str(error) or monotonic() > deadline or self._stopped.wait(LOCK_POLL_SECONDS):
                    raise _unreachable(f"DuckDB file {self._path}", _first_line(error)) from None


class Postgres:
    placeholder = "$"

    def split(self, query: str) -> list[str]:
        return split_statements(query)

    def __init__(self, connection: str) -> None:
        self._url = connection

    async def execute(self, statements: Sequence[BoundStatement], max_rows: int, check: ResultCheck) -> QueryResult:
        import asyncpg

        name = _database_name(self._url)
        try:
            opening = get_cached(
                (Postgres, self._url), lambda: asyncio.ensure_future(_open_pool(self._url)), _close_pool
            )
            pool = await asyncio.shield(opening)
            async with pool.acquire() as connection:  # may wait for other steps, which is not an error of the server
                return await self._execute(connection, statements, max_rows, check)
        except (
            asyncpg.InvalidAuthorizationSpecificationError,
            asyncpg.InvalidCatalogNameError,
            asyncpg.ClientConfigurationError,
        ) as error:
            facts = _sqlstate(error)
            raise StepError(
                "DATABASE_REFUSED", f"{name}: {error}", retryable=False, category="database", **facts
            ) from None
        except (
            asyncpg.PostgresConnectionError,
            asyncpg.CannotConnectNowError,
            asyncpg.AdminShutdownError,
            asyncpg.CrashShutdownError,
            OSError,
            TimeoutError,
        ) as error:
            raise _unreachable(name, str(error) or "timed out") from None
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.TooManyConnectionsError) as error:
            raise _sql_error(str(error), retryable=True, **_sqlstate(error)) from None
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise _sql_error(str(error), **_sqlstate(error)) from None

    async def _execute(
        self, connection: Any, statements: Sequence[BoundStatement], max_rows: int, check: ResultCheck
    ) -> QueryResult:
        *before, (query, values) = statements
        async with connection.transaction():
            for earlier in before:
                statement = await connection.prepare(earlier.text)
                await statement.fetch(*_convert_values(statement, earlier.values))
            texts = split_statements(query)
            if not values and len(texts) != 1:
                if (parts := split_last_query(query)) is None:
                    return QueryResult(count=_row_count(await connection.execute(query)))
                await connection.execute(parts[0])
                texts = [parts[1]]
            statement = await connection.prepare(texts[0] if len(texts) == 1 else query)
            bound = _convert_values(statement, values)
            columns = [attribute.name for attribute in statement.get_attributes()]
            if not columns:
                await statement.fetch(*bound)
                return QueryResult(count=_row_count(statement.get_statusmsg()))
            cursor = await statement.cursor(*bound)
            result = QueryResult(columns, [tuple(row.values()) for row in await cursor.fetch(max_rows)])
            check(result)
            return result


def _convert_values(statement: Any, values: list[Any]) -> list[Any]:
    return [_for_postgres(value, kind.name) for value, kind in zip(values, statement.get_parameters(), strict=True)]


def _sqlstate(error: Exception) -> dict[str, Any]:
    """Return the SQLSTATE as error facts, for the policies of playbooks."""
    state = getattr(error, "sqlstate", None)
    return {"pg": {"code": state, "sqlstate": state}} if isinstance(state, str) else {}


async def _open_pool(url: str) -> Any:
    import asyncpg

    create_pool = cast("Callable[..., Any]", asyncpg.create_pool)  # pyright: ignore[reportUnknownMemberType]
    return await create_pool(
        url,
        min_size=0,
        max_size=MAX_CONNECTIONS,
        max_inactive_connection_lifetime=IDLE_SECONDS,
        timeout=CONNECT_TIMEOUT,
        init=_register_json,
    )


async def _close_pool(opening: asyncio.Future[Any]) -> None:
    (await opening).terminate()


async def _register_json(connection: Any) -> None:
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


_TEXT_PARSERS: dict[str, Callable[[str], Any]] = {
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timetz": datetime.time.fromisoformat,
    "timestamp": datetime.datetime.fromisoformat,
    "timestamptz": datetime.datetime.fromisoformat,
    "numeric": decimal.Decimal,
    "int2": int,
    "int4": int,
    "int8": int,
    "float4": float,
    "float8": float,
}
_TEXT_TYPES = frozenset({"text", "varchar", "bpchar", "name", "unknown"})


def _for_postgres(value: Any, kind: str) -> Any:
    """Convert a plan's text or number to the Postgres type of the parameter."""
    if isinstance(value, list) and kind.endswith("[]"):
        return [_for_postgres(item, kind[:-2]) for item in cast("list[Any]", value)]
    try:
        if isinstance(value, str) and kind in _TEXT_PARSERS:
            return _TEXT_PARSERS[kind](value)
        if isinstance(value, float) and kind == "numeric":
            return decimal.Decimal(repr(value))
    except (ValueError, ArithmeticError):
        raise _sql_error(f"Invalid {kind}: {value!r}") from None
    if kind in _TEXT_TYPES and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return cast("Any", value)


def _row_count(status: str) -> int:
    count = status.rpartition(" ")[2]
    return int(count) if count.isdecimal() else 0


def _database_name(url: str) -> str:
    parts = urlsplit(url)
    return f"Postgres database {parts.path.lstrip('/') or 'default'} at {parts.hostname or 'the local socket'}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _unreachable(name: str, reason: str) -> StepError:
    return StepError(
        "DATABASE_UNREACHABLE", f"{name} is unavailable: {reason}. Check the connection.", category="database"
    )


def _sql_error(message: str, *, retryable: bool = False, **facts: Any) -> StepError:
    return StepError("SQL_ERROR", message, retryable=retryable, category="database", **facts)


DATABASES: dict[str, Callable[[str], Database]] = {"sqlite": Sqlite, "duckdb": Duckdb, "postgresql": Postgres}
