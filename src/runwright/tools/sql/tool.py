"""The sql step: runs SQL in SQLite, DuckDB or Postgres."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, cast

import msgspec

from runwright.contract.plan import Step
from runwright.core.expressions.template import every_expression_ends_in, has_expression, replace_expressions
from runwright.tools.base import Lane, StepContext, StepError, invalid_input, is_unresolved

from .databases import DATABASES, BoundStatement, Database, QueryResult, in_directory, scheme_of
from .text import SqlTextError, bind_statements, is_outside_literals, to_positional

MAX_ROWS = 100_000

_EXPRESSION_MARK = "name_that_an_expression_gives"

_PACKAGES = {"duckdb": ("duckdb", "runwright[duckdb]"), "postgresql": ("asyncpg", "runwright[postgres]")}


class SqlInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    connection: str
    query: str
    args: dict[str, Any] = {}
    max_rows: int = MAX_ROWS


class SqlTool:
    kind = "sql"
    inputs = SqlInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        connection, query, args = inputs.get("connection"), inputs.get("query"), inputs.get("args", {})
        is_known = isinstance(connection, str) and not is_unresolved(connection)
        if is_known and (problem := connection_problem(str(connection))) is not None:
            return problem
        if not isinstance(query, str):
            return None
        if not query.strip():
            return "`query` must not be empty."
        if has_expression(query):
            if not every_expression_ends_in(query, "ident"):
                return (
                    "An expression in `query` must end in `| ident`, which quotes it as a name. "
                    "Bind values instead: write :name, and set name in `args`."
                )
            query = replace_expressions(query, _EXPRESSION_MARK)
            if not is_outside_literals(query, _EXPRESSION_MARK):
                return "An expression is inside quotes or a comment. Remove the quotes: `| ident` adds them."
        return None if is_unresolved(args) else _text_problem(query, cast("dict[str, Any]", args))

    def lane(self, inputs: SqlInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: SqlInputs, context: StepContext) -> Any:
        problem = connection_problem(inputs.connection)
        if problem is not None:
            raise invalid_input(problem)
        database: Database = DATABASES[scheme_of(inputs.connection)](in_directory(inputs.connection, context.path))
        try:
            texts = bind_statements(inputs.query, inputs.args, database.placeholder, database.split)
        except SqlTextError as error:
            raise invalid_input(str(error)) from None
        statements = [BoundStatement(text, [inputs.args[name] for name in names]) for text, names in texts]
        result = await database.execute(
            statements, inputs.max_rows + 1, lambda result: check_result(result, inputs.max_rows, "maxRows")
        )
        rows = rows_of(result)
        return {"rows": rows, "rowCount": len(rows) if result.columns else result.count}


def connection_problem(connection: str) -> str | None:
    scheme = scheme_of(connection)
    if scheme not in DATABASES:
        return (
            "Invalid `connection`: use sqlite:///shop.db, duckdb:///shop.duckdb or postgresql://host/name; "
            "four slashes before an absolute path."
        )
    module, package = _PACKAGES.get(scheme, (None, None))
    if module is not None and find_spec(module) is None:
        return f"{scheme} connections require `{package}`. Install it."
    return None


def _text_problem(query: str, args: dict[str, Any]) -> str | None:
    try:
        to_positional(query, args, "$")
    except SqlTextError as error:
        return str(error)
    return None


def check_result(result: QueryResult, max_rows: int, limit: str) -> None:
    """Raise StepError if this cannot become a step result. Called before the commit, so the transaction rolls back."""
    columns = [str(column) for column in result.columns]
    duplicate = next((column for column in columns if columns.count(column) > 1), None)
    if duplicate is not None:
        raise StepError("SQL_RESULT", f"Duplicate column name {duplicate!r}. Rename one with AS.", retryable=False)
    if len(result.rows) > max_rows:
        raise StepError(
            "SQL_TOO_MANY_ROWS",
            f"The query returned more than {max_rows:,} rows. Narrow it, raise `{limit}`, or write them to a table.",
            retryable=False,
        )


def rows_of(result: QueryResult) -> list[dict[str, Any]]:
    columns = [str(column) for column in result.columns]
    return [dict(zip(columns, map(_to_json, row), strict=True)) for row in result.rows]


def _to_json(value: Any) -> Any:
    """Convert a database value for JSON. Dates, decimals and UUIDs are converted later, by the result encoder."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(cast("bytes", value)).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(item) for item in cast("Iterable[Any]", value)]
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in cast("dict[Any, Any]", value).items()}
    if value is None or isinstance(value, str | int | float) or type(value).__module__ in _ENCODED_LATER:
        return value
    return str(value)


_ENCODED_LATER = frozenset({"datetime", "decimal", "uuid"})
