"""The `postgres`, `duckdb` and `sqlite` tasks of playbooks: one or more statements, in one transaction."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.tools.base import Lane, StepContext, StepError, invalid_input, is_unresolved
from runwright.tools.sql.databases import DATABASES, BoundStatement, Database, in_directory, scheme_of
from runwright.tools.sql.text import SqlTextError, bind_statements, parameter_names
from runwright.tools.sql.tool import MAX_ROWS, check_result, connection_problem, rows_of

SCHEMES = {"postgres": "postgresql", "duckdb": "duckdb", "sqlite": "sqlite"}


class PlaybookSqlInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    engine: str
    query: str
    connection: str | None = None
    args: dict[str, Any] = {}
    max_rows: int = MAX_ROWS


class PlaybookSqlTool:
    kind = "noetl.sql"
    inputs = PlaybookSqlInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        connection, query, engine = inputs.get("connection"), inputs.get("query"), str(inputs.get("engine"))
        if not isinstance(query, str) or not query.strip():
            return "`query` must not be empty."
        if connection is None:
            return "Set `auth` (the name of a secret with the database URL) or `connection`."
        return None if is_unresolved(connection) else _problem(engine, str(connection))

    def lane(self, inputs: PlaybookSqlInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: PlaybookSqlInputs, context: StepContext) -> Any:
        connection = inputs.connection or ""
        if (problem := _problem(inputs.engine, connection)) is not None:
            raise invalid_input(problem)
        database: Database = DATABASES[scheme_of(connection)](in_directory(connection, context.path))
        used = {name: value for name, value in inputs.args.items() if name in parameter_names(inputs.query)}
        try:
            statements = _bind(inputs, used, database)
        except SqlTextError as error:
            raise invalid_input(str(error)) from None
        max_rows = inputs.max_rows
        try:
            result = await database.execute(
                statements, max_rows + 1, lambda result: check_result(result, max_rows, "max_rows")
            )
        except StepError as error:
            error.facts.setdefault("kind", "postgres" if inputs.engine == "postgres" else "sql")
            raise
        rows = rows_of(result)
        return {"rows": rows, "row_count": len(rows) if result.columns else result.count}


def _bind(inputs: PlaybookSqlInputs, args: dict[str, Any], database: Database) -> list[BoundStatement]:
    # Without args only SQLite is parsed: in the others `:n` is also slice syntax, as in `list[:n]`.
    if not args and inputs.engine != "sqlite":
        return [BoundStatement(inputs.query, [])]
    texts = bind_statements(inputs.query, args, database.placeholder, database.split)
    return [BoundStatement(text, [args[name] for name in names]) for text, names in texts]


def _problem(engine: str, connection: str) -> str | None:
    if scheme_of(connection) != SCHEMES.get(engine):
        return f"The URL of a {engine} database must begin with {SCHEMES.get(engine)}://."
    return connection_problem(connection)
