"""The databases that `sql` steps speak to. Each runs one step's SQL in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import decimal
import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol, cast
from urllib.parse import unquote, urlsplit

import msgspec

from .base import StepError
from .pooled import pooled
from .sql_text import asks_for_rows, last_question, statements

BUSY_SECONDS = 30.0
LOCK_PAUSE = 0.1
CONNECT_SECONDS = 10.0
CONNECTIONS = 10
IDLE_SECONDS = 60.0


class Answer(msgspec.Struct, frozen=True):
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    count: int = 0
    """How many rows were changed, where none came back."""


Check = Callable[[Answer], None]

Bound = tuple[str, list[Any]]
"""A statement, and the values for its marks. Where there are no values it may be several statements."""


class Database(Protocol):
    @property
    def mark(self) -> str:
        """What stands before the number of a bound value."""
        ...

    def split(self, query: str) -> list[str]:
        """The statements in a text."""
        ...

    async def ask(self, parts: Sequence[Bound], most: int, check: Check) -> Answer:
        """Run all of it in one transaction. `check` sees the answer, that of the last part, before it is committed."""
        ...


def scheme_of(connection: str) -> str:
    scheme = connection.partition("://")[0].lower()
    return "postgresql" if scheme == "postgres" else scheme


def _file(connection: str) -> str:
    """`sqlite:///shop.db` is relative, `sqlite:////data/shop.db` absolute, `sqlite://` in memory."""
    rest = unquote(connection.partition("://")[2])
    if not rest or rest == "/":
        return ":memory:"
    if not rest.startswith("/"):
        sentence = "Three slashes come before the file, as in sqlite:///shop.db."
        raise StepError("INVALID_INPUT", sentence, retryable=False)
    return rest[1:]


class _InThread(ABC):
    """A database whose calls block: each step has a thread, and a connection that lives as long."""

    def __init__(self, connection: str) -> None:
        self._path = _file(connection)
        self._connection: Any = None
        self._stopped = threading.Event()

    async def ask(self, parts: Sequence[Bound], most: int, check: Check) -> Answer:
        task = asyncio.ensure_future(asyncio.to_thread(self._begin, parts, most, check))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._stopped.set()
            while not task.done():
                with contextlib.suppress(Exception):  # it may just have been closed
                    if self._connection is not None:
                        self._connection.interrupt()
                await asyncio.wait([task], timeout=0.1)
            task.exception()
            raise

    def _begin(self, parts: Sequence[Bound], most: int, check: Check) -> Answer:
        self._go_on()  # there may have been a wait for a thread
        return self._ask(parts, most, check)

    @abstractmethod
    def _ask(self, parts: Sequence[Bound], most: int, check: Check) -> Answer: ...

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise StepError("CANCELLED", "The step was stopped.", retryable=False, category="cancelled")


class Sqlite(_InThread):
    mark = "?"

    def split(self, query: str) -> list[str]:
        """The body of a trigger has semicolons of its own."""
        found: list[str] = []
        now = ""
        for text in statements(query):
            now += f"{text};"
            if sqlite3.complete_statement(now):
                found.append(now)
                now = ""
        return [*found, now] if now else found

    def _ask(self, parts: Sequence[Bound], most: int, check: Check) -> Answer:
        try:
            self._connection = connection = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise _unreachable(f"The SQLite file {self._path}", str(error)) from None
        try:
            connection.execute("begin")
            answer = Answer()
            for query, values in parts:
                for text in [query] if values else self.split(query):
                    cursor = connection.execute(text, list(map(_for_sqlite, values)))
                    columns = [column[0] for column in cursor.description or ()]
                    answer = Answer(columns, cursor.fetchmany(most) if columns else [], max(cursor.rowcount, 0))
                    cursor.close()
            check(answer)
            self._go_on()
            connection.execute("commit")
            return answer
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF  # the rest tells finer differences
            if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
                raise _unreachable(f"The SQLite file {self._path}", str(error)) from None
            raise _sql_error(str(error), retryable=code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)) from None
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            raise _sql_error(str(error)) from None
        finally:
            connection.close()  # what was not committed is undone


def _for_sqlite(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


class Duckdb(_InThread):
    """It answers a change with one row, its count."""

    mark = "$"

    def split(self, query: str) -> list[str]:
        return statements(query)

    def _ask(self, parts: Sequence[Bound], most: int, check: Check) -> Answer:
        import duckdb

        self._connection = connection = self._open()
        try:
            connection.begin()
            answer = Answer()
            for query, values in parts:
                for text in [query] if values else self.split(query):
                    cursor = connection.execute(text, values or None)
                    columns = [column[0] for column in cursor.description or ()]
                    answer = Answer(columns, cursor.fetchmany(most))
                    if columns == ["Count"] and len(answer.rows) == 1 and not asks_for_rows(text):
                        answer = Answer(count=int(answer.rows[0][0]))
            check(answer)
            self._go_on()
            connection.commit()
            return answer
        except duckdb.Error as error:
            collided = isinstance(error, duckdb.TransactionException)
            raise _sql_error(_first_line(error), retryable=collided) from None
        finally:
            connection.close()

    def _open(self) -> Any:
        """DuckDB gives a file to one process at a time: wait a while if another has it."""
        import duckdb

        deadline = monotonic() + BUSY_SECONDS
        while True:
            try:
                return duckdb.connect(self._path)
            except duckdb.Error as error:
                if "lock" not in str(error) or monotonic() > deadline or self._stopped.wait(LOCK_PAUSE):
                    raise _unreachable(f"The DuckDB file {self._path}", _first_line(error)) from None


class Postgres:
    mark = "$"

    def split(self, query: str) -> list[str]:
        return statements(query)

    def __init__(self, connection: str) -> None:
        self._url = connection

    async def ask(self, parts: Sequence[Bound], most: int, check: Check) -> Answer:
        import asyncpg

        where = _where(self._url)
        try:
            opening = pooled((Postgres, self._url), lambda: asyncio.ensure_future(_pool(self._url)), _close)
            pool = await asyncio.shield(opening)
            async with pool.acquire() as connection:  # others of ours may have all: that is no fault of the server
                return await self._ask(connection, parts, most, check)
        except (
            asyncpg.InvalidAuthorizationSpecificationError,
            asyncpg.InvalidCatalogNameError,
            asyncpg.ClientConfigurationError,
        ) as error:
            facts = _state(error)
            raise StepError(
                "DATABASE_REFUSED", f"{where}: {error}", retryable=False, category="database", **facts
            ) from None
        except (
            asyncpg.PostgresConnectionError,
            asyncpg.CannotConnectNowError,
            asyncpg.AdminShutdownError,
            asyncpg.CrashShutdownError,
            OSError,
            TimeoutError,
        ) as error:
            raise _unreachable(where, str(error) or "no answer in time") from None
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.TooManyConnectionsError) as error:
            raise _sql_error(str(error), retryable=True, **_state(error)) from None
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise _sql_error(str(error), **_state(error)) from None

    async def _ask(self, connection: Any, parts: Sequence[Bound], most: int, check: Check) -> Answer:
        *before, (query, values) = parts
        async with connection.transaction():
            for text, given in before:
                statement = await connection.prepare(text)
                await statement.fetch(*_wanted(statement, given))
            texts = statements(query)
            if not values and len(texts) != 1:
                if (asked := last_question(query)) is None:
                    return Answer(count=_count(await connection.execute(query)))
                await connection.execute(asked[0])
                texts = [asked[1]]
            statement = await connection.prepare(texts[0] if len(texts) == 1 else query)
            bound = _wanted(statement, values)
            columns = [attribute.name for attribute in statement.get_attributes()]
            if not columns:
                await statement.fetch(*bound)
                return Answer(count=_count(statement.get_statusmsg()))
            cursor = await statement.cursor(*bound)
            answer = Answer(columns, [tuple(row.values()) for row in await cursor.fetch(most)])
            check(answer)
            return answer


def _wanted(statement: Any, values: list[Any]) -> list[Any]:
    return [_for_postgres(value, kind.name) for value, kind in zip(values, statement.get_parameters(), strict=True)]


def _state(error: Exception) -> dict[str, Any]:
    """What policies tell errors of Postgres apart by."""
    state = getattr(error, "sqlstate", None)
    return {"pg": {"code": state, "sqlstate": state}} if isinstance(state, str) else {}


async def _pool(url: str) -> Any:
    import asyncpg

    make = cast("Callable[..., Any]", asyncpg.create_pool)  # pyright: ignore[reportUnknownMemberType]
    return await make(
        url,
        min_size=0,
        max_size=CONNECTIONS,
        max_inactive_connection_lifetime=IDLE_SECONDS,
        timeout=CONNECT_SECONDS,
        init=_prepare,
    )


async def _close(opening: asyncio.Future[Any]) -> None:
    (await opening).terminate()


async def _prepare(connection: Any) -> None:
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
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
_TEXTS = frozenset({"text", "varchar", "bpchar", "name", "unknown"})


def _for_postgres(value: Any, kind: str) -> Any:
    """Plans have texts and numbers where Postgres has many types: the value as the one that is wanted."""
    if isinstance(value, list) and kind.endswith("[]"):
        return [_for_postgres(item, kind[:-2]) for item in cast("list[Any]", value)]
    try:
        if isinstance(value, str) and kind in _FROM_TEXT:
            return _FROM_TEXT[kind](value)
        if isinstance(value, float) and kind == "numeric":
            return decimal.Decimal(repr(value))
    except (ValueError, ArithmeticError):
        raise _sql_error(f"{value!r} is no {kind}") from None
    if kind in _TEXTS and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return cast("Any", value)


def _count(status: str) -> int:
    word = status.rpartition(" ")[2]
    return int(word) if word.isdecimal() else 0


def _where(url: str) -> str:
    parts = urlsplit(url)
    return f"The Postgres database {parts.path.lstrip('/') or 'default'} at {parts.hostname or 'the local socket'}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _unreachable(what: str, why: str) -> StepError:
    return StepError(
        "DATABASE_UNREACHABLE", f"{what} cannot be reached: {why}. Check the connection.", category="database"
    )


def _sql_error(message: str, *, retryable: bool = False, **facts: Any) -> StepError:
    return StepError("SQL_ERROR", message, retryable=retryable, category="database", **facts)


ENGINES: dict[str, Callable[[str], Database]] = {"sqlite": Sqlite, "duckdb": Duckdb, "postgresql": Postgres}
