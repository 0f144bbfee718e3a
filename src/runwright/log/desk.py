"""The desk: small tables beside the log, for what is asked of a store besides its events.

Who may do what, what was granted and denied, which run answers which request. The statements are named in
`desk.sql`, once for each dialect; what they mean is the business of whoever uses them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .queries import Conditions, load_queries, with_conditions

Rows = list[Any]
"""Each row as a tuple, or what behaves like one."""


class Desk:
    def __init__(
        self,
        dialect: str,
        read: Callable[[str, Sequence[Any]], Awaitable[Rows]],
        write: Callable[[str, Sequence[Sequence[Any]]], Awaitable[Rows]],
    ) -> None:
        self._sql = load_queries(dialect, "desk")
        self._mark = "$" if dialect == "postgres" else "?"
        self._read = read
        self._write = write

    async def read(self, name: str, *values: Any) -> Rows:
        return await self._read(self._sql[name], values)

    async def select(self, name: str, conditions: Conditions, limit: int | None = None) -> Rows:
        return await self._read(*with_conditions(self._sql[name], self._mark, conditions, limit))

    async def write(self, name: str, *values: Any) -> Rows:
        """One statement, durable when this returns; gives back what it says it does."""
        return await self._write(self._sql[name], (values,))

    async def write_all(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """The same statement for each of the rows, in one transaction."""
        await self._write(self._sql[name], rows)
