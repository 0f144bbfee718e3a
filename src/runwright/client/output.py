"""What steps wrote, read over the line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar
from urllib.parse import quote

from runwright.results.steplogs import LogLine

from .line import Line
from .log import address

T = TypeVar("T")
POLL = 0.5


class RemoteOutput:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._last: dict[tuple[str, str], str] = {}
        self._asking: set[str] = set()

    def read(self, run_id: str, entity: str | None = None, *, attempt: int | None = None) -> Iterator[LogLine]:
        """All of it. Not for the loop that the line is on: it waits."""
        return iter(self._wait(self._lines(run_id, entity, attempt, None)))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _lines(self, run_id: str, entity: str | None, attempt: int | None, after: str | None) -> list[LogLine]:
        path = f"{address(run_id)}/logs" + ("" if entity is None else f"/{quote(entity, safe='')}")
        page = await self._line.get(path, {"attempt": attempt, "after": after, "tail": 100_000})
        return [LogLine(**line) for line in page["lines"]]

    async def follow(
        self,
        run_id: str,
        entity: str | None = None,
        *,
        stopped: Callable[[], bool],
        attempt: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncIterator[LogLine]:
        after: str | None = None
        while True:
            ending = stopped()
            lines = await self._lines(run_id, entity, attempt, after)
            for line in lines:
                yield line
            after = lines[-1].time if lines else after
            if ending:
                return
            await sleep(POLL)

    def last_line(self, run_id: str, entity: str) -> str | None:
        """The newest line that is known; a newer one is asked for."""
        if run_id not in self._asking:
            self._asking.add(run_id)
            task = self._loop.create_task(self._look(run_id))
            task.add_done_callback(lambda _: self._asking.discard(run_id))
        return self._last.get((run_id, entity))

    async def _look(self, run_id: str) -> None:
        page = await self._line.get(f"{address(run_id)}/logs", {"tail": 200})
        for line in page["lines"]:
            self._last[run_id, line["entity"]] = line["text"]
        await self._line.clock.sleep(POLL)
