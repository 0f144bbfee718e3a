"""Load the SQL of the stores from `.sql` files: named queries, and numbered migrations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load_queries(dialect: str, name: str = "queries") -> dict[str, str]:
    """Return the named queries of a file of a dialect."""
    text = (files("runwright.log") / "sql" / dialect / f"{name}.sql").read_text()
    _, *parts = _NAME.split(text)
    return {name: _without_comment(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _without_comment(body: str) -> str:
    """Return the statement without the comment above it."""
    lines = [line for line in body.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).rstrip(";")


Conditions = Sequence[tuple[str, Any]]
"""Pairs of a comparison without its right side, such as `run_id =`, and its value; None omits the condition."""


def with_conditions(
    sql: str, placeholder: str, conditions: Conditions, limit: int | None = None
) -> tuple[str, list[Any]]:
    """Return a query with `{conditions}` filled in, and the values of its parameters."""
    active = [(condition, value) for condition, value in conditions if value is not None]
    clauses = [f"{condition} {placeholder}{number}" for number, (condition, _) in enumerate(active, 1)]
    return sql.format(conditions=" AND ".join(clauses) or "1 = 1", limit=limit), [value for _, value in active]


@cache
def load_migrations(dialect: str) -> list[tuple[int, str]]:
    """Return the numbered migrations of a dialect, in order; their count is the schema version."""
    folder = files("runwright.log") / "sql" / dialect
    found = sorted(
        (int(match[1]), entry.read_text())
        for entry in folder.iterdir()
        if (match := re.fullmatch(r"(\d{4})_\w+\.sql", entry.name))
    )
    assert [number for number, _ in found] == list(range(1, len(found) + 1)), "migrations must be numbered without gaps"
    return found
