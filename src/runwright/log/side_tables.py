"""Access to the side tables of a store: tokens, audit records, start requests, tasks and output.

They are operational: none of their rows is an event. The statements are named queries in `side_tables.sql`, one file
per dialect; their callers define the meaning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .sql_files import Conditions, load_queries, with_conditions

Rows = list[Any]
"""Each row is a tuple or behaves like one."""


class SideTables:
    """Executes named queries through the read and write functions of a store."""

    def __init__(
        self,
        dialect: str,
        read: Callable[[str, Sequence[Any]], Awaitable[Rows]],
        write: Callable[[str, Sequence[Sequence[Any]]], Awaitable[Rows]],
    ) -> None:
        self._sql = load_queries(dialect, "side_tables")
        self._placeholder = "$" if dialect == "postgres" else "?"
        self._read = read
        self._write = write

    async def read(self, name: str, *values: Any) -> Rows:
        """Return the rows of a query."""
        return await self._read(self._sql[name], values)

    async def select(self, name: str, conditions: Conditions, limit: int | None = None) -> Rows:
        """Return the rows of a query whose conditions are filled in."""
        return await self._read(*with_conditions(self._sql[name], self._placeholder, conditions, limit))

    async def write(self, name: str, *values: Any) -> Rows:
        """Execute one statement, durable on return; return the rows of its RETURNING clause."""
        return await self._write(self._sql[name], (values,))

    async def write_all(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute the statement for each row of values, in one transaction."""
        await self._write(self._sql[name], rows)
