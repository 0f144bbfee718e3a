"""What a server process keeps for workers: the table of their steps, and who waits at it."""

from __future__ import annotations

import asyncio

from runwright.results.logwriter import LogWriter
from runwright.runtimes.tasks import TaskTable

LOOK_EVERY = 1.0
"""Seconds between two looks at the table, should no bell ring."""


class Desks:
    def __init__(self, table: TaskTable) -> None:
        self.table = table
        self.writers: dict[str, LogWriter] = {}
        self._waiting: set[asyncio.Event] = set()

    def ring(self) -> None:
        for event in self._waiting:
            event.set()

    async def wait(self, seconds: float, gone: asyncio.Task[None] | None = None) -> None:
        """Until somebody rings, or leaves, or so long."""
        event = asyncio.Event()
        self._waiting.add(event)
        if gone is not None:
            gone.add_done_callback(lambda _: event.set())
        try:
            async with asyncio.timeout(min(seconds, LOOK_EVERY)):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(event)
