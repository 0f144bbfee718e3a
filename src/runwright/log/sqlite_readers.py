"""The threads that read a SQLite store, each over a connection of its own.

They answer through the bell, as the writer does: an executor would take more of a processor to hand a question over
than SQLite takes to answer it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import apsw

from .bell import Bell
from .rows import DAMAGE, damaged
from .sqlite_connect import Cursor, coded_errors, connect, cursor_of

T = TypeVar("T")
_THREADS = 2

Question = tuple[Callable[[Cursor], Any], "asyncio.Future[Any]"]


class SqliteReaders:
    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._loop = loop
        self._bell = Bell(loop)
        self._inbox: SimpleQueue[Question | None] = SimpleQueue()
        name = f"runwright-reader {path.name}"
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(_THREADS)]
        for thread in self._threads:
            thread.start()

    async def read(self, work: Callable[[Cursor], T]) -> T:
        """Have one of the threads look something up."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._inbox.put((work, answer))
        return await answer

    async def close(self) -> None:
        """What was asked before is answered."""
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._bell.close()

    # The threads

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while (question := self._inbox.get()) is not None:
            work, answer = question
            try:
                with coded_errors(self._path):
                    connection = connection or connect(self._path, writer=False)
                    found = self._look(work, connection)
            except Exception as error:
                self._bell.call(_settle, answer.set_exception, answer, error)
            else:
                self._bell.call(_settle, answer.set_result, answer, found)
            del question, work, answer  # they may hold much, and the next question may be long in coming
        if connection is not None:
            connection.close()

    def _look(self, work: Callable[[Cursor], T], connection: apsw.Connection) -> T:
        try:
            return work(cursor_of(connection))
        except DAMAGE as error:
            raise damaged(str(self._path)) from error


def _settle(settle: Callable[[Any], None], answer: asyncio.Future[Any], what: Any) -> None:
    if not answer.done():  # whoever asked may be gone
        settle(what)
