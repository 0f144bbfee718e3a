"""A step that asks a database: SQLite, DuckDB or Postgres."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, cast

import msgspec

from runwright.contract.plan import Step
from runwright.core.expressions import every_expression_ends_in, has_expression, with_marks

from .base import Lane, StepContext, StepError, is_open
from .sql_engines import ENGINES, Answer, Database, scheme_of
from .sql_text import SqlTextError, bound, positional, stands_free

MOST_ROWS = 100_000

_MARK = "name_that_an_expression_gives"

_NEEDS = {"duckdb": ("duckdb", "runwright[duckdb]"), "postgresql": ("asyncpg", "runwright[postgres]")}


class SqlInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    connection: str
    query: str
    args: dict[str, Any] = {}
    max_rows: int = MOST_ROWS


class SqlTool:
    kind = "sql"
    inputs = SqlInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        connection, query, args = inputs.get("connection"), inputs.get("query"), inputs.get("args", {})
        known = isinstance(connection, str) and not is_open(connection)
        if known and (trouble := connection_trouble(str(connection))) is not None:
            return trouble
        if not isinstance(query, str):
            return None
        if not query.strip():
            return "`query` is empty."
        if has_expression(query):
            if not every_expression_ends_in(query, "ident"):
                return (
                    "An expression inside `query` must end in `| ident`, which makes it a name. "
                    "Values are bound: write :name, and name under `args`."
                )
            query = with_marks(query, _MARK)
            if not stands_free(query, _MARK):
                return "An expression stands inside quotes or a comment. `| ident` quotes a name by itself."
        return None if is_open(args) else _text_trouble(query, cast("dict[str, Any]", args))

    def lane(self, inputs: SqlInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: SqlInputs, context: StepContext) -> Any:  # noqa: ARG002
        trouble = connection_trouble(inputs.connection)
        if trouble is not None:
            raise _bad(trouble)
        database: Database = ENGINES[scheme_of(inputs.connection)](inputs.connection)
        try:
            texts = bound(inputs.query, inputs.args, database.mark, database.split)
        except SqlTextError as error:
            raise _bad(str(error)) from None
        parts = [(text, [inputs.args[name] for name in names]) for text, names in texts]
        return _result(await database.ask(parts, inputs.max_rows + 1, lambda answer: _check(answer, inputs)))


def connection_trouble(connection: str) -> str | None:
    scheme = scheme_of(connection)
    if scheme not in ENGINES:
        return (
            "`connection` is an address such as sqlite:///shop.db, duckdb:///shop.duckdb or postgresql://host/name; "
            "four slashes before an absolute path."
        )
    module, package = _NEEDS.get(scheme, (None, None))
    if module is not None and find_spec(module) is None:
        return f"This installation cannot talk to {scheme}: install `{package}`."
    return None


def _text_trouble(query: str, args: dict[str, Any]) -> str | None:
    try:
        positional(query, args, "$")
    except SqlTextError as error:
        return str(error)
    return None


def _check(answer: Answer, inputs: SqlInputs) -> None:
    """Refuse what cannot become a result, while it can still be undone."""
    check_answer(answer, inputs.max_rows, "maxRows")


def check_answer(answer: Answer, most: int, limit: str) -> None:
    columns = [str(column) for column in answer.columns]
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise StepError("SQL_RESULT", f"Two columns are called {twice!r}. Name them apart with AS.", retryable=False)
    if len(answer.rows) > most:
        raise StepError(
            "SQL_TOO_MANY_ROWS",
            f"The query gave more than {most:,} rows. Narrow it, raise `{limit}`, or write them to a table instead.",
            retryable=False,
        )


def _result(answer: Answer) -> dict[str, Any]:
    rows = rows_of(answer)
    return {"rows": rows, "rowCount": len(rows) if answer.columns else answer.count}


def rows_of(answer: Answer) -> list[dict[str, Any]]:
    columns = [str(column) for column in answer.columns]
    return [dict(zip(columns, _plain_row(row), strict=True)) for row in answer.rows]


def _plain_row(row: Sequence[Any]) -> Iterable[Any]:
    return (_plain(value) for value in row)


def _plain(value: Any) -> Any:
    """A value as JSON has it; dates, exact numbers and ids become text on their way out."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(cast("bytes", value)).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in cast("Iterable[Any]", value)]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    if value is None or isinstance(value, str | int | float) or type(value).__module__ in _KNOWN:
        return value
    return str(value)


_KNOWN = frozenset({"datetime", "decimal", "uuid"})


def _bad(detail: str) -> StepError:
    return StepError("INVALID_INPUT", detail, retryable=False)
