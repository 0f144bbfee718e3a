"""The `postgres`, `duckdb` and `sqlite` of playbooks: one or more statements, in one transaction."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.plan import Step

from .base import Lane, StepContext, StepError, is_open
from .sql import MOST_ROWS, check_answer, connection_trouble, rows_of
from .sql_engines import ENGINES, Database, scheme_of
from .sql_text import SqlTextError, bound, mentioned

SCHEMES = {"postgres": "postgresql", "duckdb": "duckdb", "sqlite": "sqlite"}


class PlaybookSqlInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    engine: str
    query: str
    connection: str | None = None
    args: dict[str, Any] = {}
    max_rows: int = MOST_ROWS


class PlaybookSqlTool:
    kind = "noetl.sql"
    inputs = PlaybookSqlInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        connection, query, engine = inputs.get("connection"), inputs.get("query"), str(inputs.get("engine"))
        if not isinstance(query, str) or not query.strip():
            return "There is no SQL: write it as `query`."
        if connection is None:
            return "Say which database: `auth`, the name of a secret with its address, or `connection`."
        return None if is_open(connection) else _trouble(engine, str(connection))

    def lane(self, inputs: PlaybookSqlInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: PlaybookSqlInputs, context: StepContext) -> Any:  # noqa: ARG002
        connection = inputs.connection or ""
        if (trouble := _trouble(inputs.engine, connection)) is not None:
            raise StepError("INVALID_INPUT", trouble, retryable=False)
        database: Database = ENGINES[scheme_of(connection)](connection)
        used = {name: value for name, value in inputs.args.items() if name in mentioned(inputs.query)}
        try:
            is_bound = used or inputs.engine == "sqlite"  # elsewhere `list[:n]` means something else
            names: list[str] = []
            texts = bound(inputs.query, used, database.mark, database.split) if is_bound else [(inputs.query, names)]
        except SqlTextError as error:
            raise StepError("INVALID_INPUT", str(error), retryable=False) from None
        try:
            parts, most = [(text, [used[name] for name in names]) for text, names in texts], inputs.max_rows
            answer = await database.ask(parts, most + 1, lambda answer: check_answer(answer, most, "max_rows"))
        except StepError as error:
            error.facts.setdefault("kind", "postgres" if inputs.engine == "postgres" else "sql")
            raise
        rows = rows_of(answer)
        return {"rows": rows, "row_count": len(rows) if answer.columns else answer.count}


def _trouble(engine: str, connection: str) -> str | None:
    if scheme_of(connection) != SCHEMES.get(engine):
        return f"The address of a {engine} database begins with {SCHEMES.get(engine)}://."
    return connection_trouble(connection)
