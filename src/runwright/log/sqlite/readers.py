"""Reader threads of a SQLite store, each with its own connection.

Results are passed to the event loop through LoopWaker, as in the writer: an executor would use more CPU time to pass a
query on than SQLite to execute it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import apsw

from runwright.log.notifier import LoopWaker
from runwright.log.row_mapping import CORRUPTION_ERRORS, store_corrupt

from .connection import Cursor, coded_errors, connect, cursor_of

T = TypeVar("T")
_THREADS = 2

ReadRequest = tuple[Callable[[Cursor], Any], "asyncio.Future[Any]"]


class SqliteReaders:
    """Executes queries on reader threads."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._loop = loop
        self._waker = LoopWaker(loop)
        self._queue: SimpleQueue[ReadRequest | None] = SimpleQueue()
        name = f"runwright-reader {path.name}"
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(_THREADS)]
        for thread in self._threads:
            thread.start()

    async def read(self, query: Callable[[Cursor], T]) -> T:
        """Execute a query on one of the threads."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((query, future))
        return await future

    async def close(self) -> None:
        """Stop the threads after the queued queries."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._waker.close()

    # On the threads

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while (request := self._queue.get()) is not None:
            query, future = request
            try:
                with coded_errors(self._path):
                    connection = connection or connect(self._path, writer=False)
                    result = self._execute(query, connection)
            except Exception as error:
                self._waker.call_soon(_resolve, future.set_exception, future, error)
            else:
                self._waker.call_soon(_resolve, future.set_result, future, result)
            del request, query, future  # They may hold much memory, and the next request may come late.
        if connection is not None:
            connection.close()

    def _execute(self, query: Callable[[Cursor], T], connection: apsw.Connection) -> T:
        try:
            return query(cursor_of(connection))
        except CORRUPTION_ERRORS as error:
            raise store_corrupt(str(self._path)) from error


def _resolve(set_outcome: Callable[[Any], None], future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.done():  # The caller may have been cancelled.
        set_outcome(outcome)
