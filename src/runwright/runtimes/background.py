"""Background tasks of a runtime: started without waiting for them, and never failing silently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger("runwright.runtimes")


class BackgroundTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)

    def all(self) -> list[asyncio.Task[Any]]:
        return list(self._tasks)

    async def wait(self) -> None:
        """Wait until all have ended. One may start another."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


def log_failure(task: asyncio.Task[Any]) -> None:
    """Done callback: log the exception of a task that is not awaited."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A background task of the engine failed", exc_info=error)


async def cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel repeatedly until all tasks are done: user code may swallow CancelledError."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.1)
