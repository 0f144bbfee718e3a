"""The stores' SQL lives in `.sql` files; this reads them: named queries, and migrations in order."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load_queries(dialect: str) -> dict[str, str]:
    text = (files("runwright.log") / "sql" / dialect / "queries.sql").read_text()
    _, *parts = _NAME.split(text)
    return {name: _bare(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _bare(body: str) -> str:
    """The statement without the comment above it."""
    lines = [line for line in body.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).rstrip(";")


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
