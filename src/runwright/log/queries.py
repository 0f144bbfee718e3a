"""The stores' SQL lives in `.sql` files; this reads them: named queries, and migrations in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load_queries(dialect: str, name: str = "queries") -> dict[str, str]:
    text = (files("runwright.log") / "sql" / dialect / f"{name}.sql").read_text()
    _, *parts = _NAME.split(text)
    return {name: _bare(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _bare(body: str) -> str:
    """The statement without the comment above it."""
    lines = [line for line in body.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).rstrip(";")


Conditions = Sequence[tuple[str, Any]]
"""Each a comparison without its right side, such as `run_id =`, and the value; None leaves it out."""


def with_conditions(sql: str, mark: str, conditions: Conditions, limit: int | None = None) -> tuple[str, list[Any]]:
    """A query with its `{conditions}` filled in, and the values that go with them."""
    wanted = [(condition, value) for condition, value in conditions if value is not None]
    marked = [f"{condition} {mark}{place}" for place, (condition, _) in enumerate(wanted, 1)]
    return sql.format(conditions=" AND ".join(marked) or "1 = 1", limit=limit), [value for _, value in wanted]


@cache
def load_migrations(dialect: str) -> list[tuple[int, str]]:
    """The numbered files of a dialect, in order; their count is the schema's version."""
    folder = files("runwright.log") / "sql" / dialect
    found = sorted(
        (int(match[1]), entry.read_text())
        for entry in folder.iterdir()
        if (match := re.fullmatch(r"(\d{4})_\w+\.sql", entry.name))
    )
    assert [number for number, _ in found] == list(range(1, len(found) + 1)), "migrations are numbered without gaps"
    return found
