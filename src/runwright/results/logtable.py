"""The output of steps in the store itself, where many processes share one: any of them can show it.

A step never waits for its output here either. Blocks of lines are queued and written by the loop, many at a time; an
attempt's end is told only once what it printed is kept, so that whoever follows a run reads to that point.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from .logfiles import CAP_BYTES, is_beneath
from .logreader import LogLine
from .logwriter import LogWriter, Masking

logger = logging.getLogger("runwright.results")

T = TypeVar("T")
FLUSH_SECONDS = 0.2
MOST_QUEUED = 16 * 1024 * 1024
PAGE = 200
POLL = 0.3


class OutputDesk(Protocol):
    """Where the rows go."""

    async def read(self, name: str, *values: Any) -> list[Any]: ...
    async def write_all(self, name: str, rows: Sequence[Sequence[Any]]) -> None: ...


class _Sink:
    """Takes one attempt's blocks; after so many bytes, no more."""

    def __init__(self, home: StepLogTable, run_id: str, entity: str, attempt: int) -> None:
        self._home = home
        self._key = (run_id, entity, attempt)
        self._bytes = 0

    def write(self, block: bytes, since: str) -> None:
        before, self._bytes = self._bytes, self._bytes + len(block)
        if self._bytes <= CAP_BYTES:
            self._home.queue((*self._key, block))
        elif before <= CAP_BYTES:
            self._home.queue((*self._key, f"{since}\tnote\t... the rest of the output is not kept ...\n".encode()))

    def skip(self, count: int) -> None:
        self._bytes += count


class StepLogTable:
    def __init__(self, desk: OutputDesk) -> None:
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._queue: deque[tuple[str, str, int, bytes]] = deque()
        self._queued = 0
        self._dropped = 0
        self._waiting: list[LogWriter] = []
        self._flusher: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()
        self._last: dict[tuple[str, str], str] = {}
        self._looking: set[str] = set()

    def now(self) -> int:
        return time.time_ns() // 1000

    # For writers, on any thread

    def writer(self, run_id: str, entity: str, attempt: int, mask: Masking | None = None) -> LogWriter:
        return LogWriter(self, run_id, entity, attempt, mask)

    def sink(self, run_id: str, entity: str, attempt: int) -> _Sink:
        return _Sink(self, run_id, entity, attempt)

    def queue(self, row: tuple[str, str, int, bytes]) -> None:
        with self._lock:
            if self._queued + len(row[3]) > MOST_QUEUED:
                self._dropped += len(row[3])  # the store is away, and steps do not wait for it
                return
            self._queue.append(row)
            self._queued += len(row[3])
        self._wake()

    def flush_soon(self, writer: LogWriter) -> None:
        with self._lock:
            self._waiting.append(writer)
        self._wake()

    def note_failure(self, error: OSError) -> None:
        logger.warning("Output of a step is dropped: %s", error)

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended; nobody reads any more
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush_now_and_then())

    async def _flush_now_and_then(self) -> None:
        while self._queue or self._waiting:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self, *, at_once: bool = False) -> None:
        """Write what is queued."""
        with self._lock:
            writers, self._waiting = self._waiting, []
        held_back = [writer for writer in writers if writer.flush(at_once=at_once)]
        async with self._busy:
            with self._lock:
                self._waiting += held_back
                rows, self._queue, self._queued = list(self._queue), deque(), 0
                dropped, self._dropped = self._dropped, 0
            if dropped:
                logger.warning("%s bytes of output were dropped: the store took them too slowly", f"{dropped:,}")
            if rows:
                try:
                    await self._desk.write_all("put_output", rows)
                except Exception as error:
                    logger.warning("Output of steps waits for the store: %s", error)
                    with self._lock:
                        self._queue.extendleft(reversed(rows))
                        self._queued += sum(len(row[3]) for row in rows)
                    await asyncio.sleep(1.0)

    def settle(self, call: Callable[[], None]) -> None:
        """Call once all that was written so far is kept. On the loop."""
        if not self._queue and not self._busy.locked():
            call()
            return
        task = asyncio.create_task(self._settle(call))
        task.add_done_callback(lambda _: None)

    async def _settle(self, call: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(2.0):
                await self.flush()
        except TimeoutError:
            pass  # the step's end matters more
        call()

    def close(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()

    async def aclose(self) -> None:
        try:
            async with asyncio.timeout(2.0):
                await self.flush(at_once=True)
        except TimeoutError:
            pass
        self.close()

    # For readers

    def read(self, run_id: str, entity: str | None = None, *, attempt: int | None = None) -> Iterator[LogLine]:
        """What has been written so far, by time. Not for the loop itself: it waits."""
        return iter(sorted(self._wait(self._all(run_id, entity, attempt)), key=lambda line: line.time))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _all(self, run_id: str, entity: str | None, attempt: int | None) -> list[LogLine]:
        await self.flush(at_once=True)
        lines: list[LogLine] = []
        after = 0
        while True:
            more, after = await self._page(run_id, entity, attempt, after)
            if more is None:
                return lines
            lines += more

    async def _page(
        self, run_id: str, entity: str | None, attempt: int | None, after: int
    ) -> tuple[list[LogLine] | None, int]:
        """The next lines, and where to go on; None where there are no more."""
        rows = await self._desk.read("read_output", run_id, after, PAGE)
        if not rows:
            return None, after
        lines = [
            line
            for _, name, number, body in rows
            if (entity is None or is_beneath(name, entity)) and attempt in (None, number)
            for line in _lines(name, number, body)
        ]
        return lines, rows[-1][0]

    async def follow(
        self,
        run_id: str,
        entity: str | None = None,
        *,
        stopped: Callable[[], bool],
        attempt: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncIterator[LogLine]:
        after = 0
        while True:
            ending = stopped()
            while True:
                lines, after = await self._page(run_id, entity, attempt, after)
                if lines is None:
                    break
                for line in lines:
                    yield line
            if ending:
                return
            await sleep(POLL)

    def last_line(self, run_id: str, entity: str) -> str | None:
        """The newest line that is known; a newer one is looked for."""
        if run_id not in self._looking:
            self._looking.add(run_id)
            task = self._loop.create_task(self._look(run_id))
            task.add_done_callback(lambda _: self._looking.discard(run_id))
        return self._last.get((run_id, entity))

    async def _look(self, run_id: str) -> None:
        for line in await self._all(run_id, None, None):
            self._last[run_id, line.entity] = line.text
        await asyncio.sleep(POLL)


def _lines(entity: str, attempt: int, body: bytes) -> Iterator[LogLine]:
    for row in body.split(b"\n"):
        when, first, rest = row.partition(b"\t")
        stream, second, text = rest.partition(b"\t")
        if first and second:
            parts = [part.decode(errors="replace") for part in (when, stream, text)]
            yield LogLine(parts[0], entity, attempt, parts[1], parts[2])
