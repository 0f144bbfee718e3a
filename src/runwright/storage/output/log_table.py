"""Step output in a table of the store, where every process that shares the store can read it.

Here too a step never waits for its output: blocks of lines are queued and written by the event loop, many rows at a
time. The end of an attempt is reported only once its output is stored (`when_stored`), so that a follower reads all of
it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from .chunks import CAP_BYTES, is_beneath
from .reader import LogLine, parse_lines
from .writer import LogWriter, OutputMask

logger = logging.getLogger("runwright.storage")

T = TypeVar("T")
FLUSH_SECONDS = 0.2
FLUSH_TIMEOUT = 2.0
RETRY_SECONDS = 1.0
MAX_QUEUED_BYTES = 16 * 1024 * 1024
PAGE_ROWS = 200
POLL_SECONDS = 0.3


class OutputTable(Protocol):
    """Access to table `step_output` by the names of its statements."""

    async def read(self, name: str, *values: Any) -> list[Any]: ...
    async def write_all(self, name: str, rows: Sequence[Sequence[Any]]) -> None: ...


class _OutputRow(NamedTuple):
    """A block of lines, in the order of the parameters of `insert_output`."""

    run_id: str
    entity: str
    attempt: int
    block: bytes


class _TableSink:
    """Queues the blocks of one attempt, up to CAP_BYTES; the rest is dropped."""

    def __init__(self, table: StepLogTable, run_id: str, entity: str, attempt: int) -> None:
        self._table = table
        self._key = (run_id, entity, attempt)
        self._bytes = 0

    def write(self, block: bytes, since: str) -> None:
        if self._bytes + len(block) <= CAP_BYTES:
            self._table.queue(_OutputRow(*self._key, block))
        elif self._bytes <= CAP_BYTES:
            note = f"{since}\tnote\t... the rest of the output was dropped ...\n"
            self._table.queue(_OutputRow(*self._key, note.encode()))
        self._bytes += len(block)

    def skip(self, count: int) -> None:
        self._bytes += count


class StepLogTable:
    def __init__(self, table: OutputTable) -> None:
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._queue: deque[_OutputRow] = deque()
        self._queued_bytes = 0
        self._waiting: list[LogWriter] = []
        self._flusher: asyncio.Task[None] | None = None
        self._flush_lock = asyncio.Lock()
        self._last_lines: dict[tuple[str, str], str] = {}
        self._refreshing: set[str] = set()  # runs whose last lines are being read

    def now(self) -> int:
        return time.time_ns() // 1000

    # For writers, on any thread

    def writer(self, run_id: str, entity: str, attempt: int, mask: OutputMask | None = None) -> LogWriter:
        return LogWriter(self, run_id, entity, attempt, mask)

    def sink(self, run_id: str, entity: str, attempt: int) -> _TableSink:
        return _TableSink(self, run_id, entity, attempt)

    def queue(self, row: _OutputRow) -> None:
        with self._lock:
            if self._queued_bytes + len(row.block) > MAX_QUEUED_BYTES:
                raise OSError("the store is too slow")  # or unavailable; steps do not wait for it
            self._queue.append(row)
            self._queued_bytes += len(row.block)
        self._wake()

    def flush_soon(self, writer: LogWriter) -> None:
        with self._lock:
            self._waiting.append(writer)
        self._wake()

    def on_write_error(self, error: OSError) -> None:
        logger.warning("Dropping step output: %s", error)

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and so are its readers
            self._loop.call_soon_threadsafe(self._start_flusher)

    def _start_flusher(self) -> None:
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush_periodically())

    async def _flush_periodically(self) -> None:
        while self._queue or self._waiting:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self, *, at_once: bool = False) -> None:
        """Write the queued rows. If the store is unavailable, queue them again."""
        with self._lock:
            writers, self._waiting = self._waiting, []
        held_back = [writer for writer in writers if writer.flush(at_once=at_once)]
        async with self._flush_lock:
            with self._lock:
                self._waiting += held_back
                rows, self._queue, self._queued_bytes = list(self._queue), deque(), 0
            if rows:
                await self._write(rows)

    async def _write(self, rows: list[_OutputRow]) -> None:
        try:
            await self._table.write_all("insert_output", rows)
        except Exception as error:
            logger.warning("Storing step output failed, retrying: %s", error)
            with self._lock:
                self._queue.extendleft(reversed(rows))
                self._queued_bytes += sum(len(row.block) for row in rows)
            await asyncio.sleep(RETRY_SECONDS)

    def when_stored(self, call: Callable[[], None]) -> None:
        """Call once all output queued so far is stored, or after FLUSH_TIMEOUT. On the loop."""
        if not self._queue and not self._flush_lock.locked():
            call()
            return
        task = asyncio.create_task(self._flush_then(call))
        task.add_done_callback(lambda _: None)

    async def _flush_then(self, call: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT):
                await self.flush()
        except TimeoutError:
            pass  # the end of the step matters more than its output
        call()

    def close(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()

    async def aclose(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT):
                await self.flush(at_once=True)
        except TimeoutError:
            pass
        self.close()

    # For readers

    def read(self, run_id: str, entity: str | None = None, *, attempt: int | None = None) -> Iterator[LogLine]:
        """Read the output so far, ordered by time. Blocks, so it must not be called on the loop."""
        return iter(sorted(self._wait(self._read_all(run_id, entity, attempt)), key=lambda line: line.time))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _read_all(self, run_id: str, entity: str | None, attempt: int | None) -> list[LogLine]:
        await self.flush(at_once=True)
        lines: list[LogLine] = []
        after = 0
        while True:
            page, after = await self._read_page(run_id, entity, attempt, after)
            if page is None:
                return lines
            lines += page

    async def _read_page(
        self, run_id: str, entity: str | None, attempt: int | None, after: int
    ) -> tuple[list[LogLine] | None, int]:
        """Return the next lines, None if there are no more, and the position to continue from."""
        rows = await self._table.read("read_output", run_id, after, PAGE_ROWS)
        if not rows:
            return None, after
        lines = [
            line
            for _, name, number, block in rows
            if (entity is None or is_beneath(name, entity)) and attempt in (None, number)
            for line in parse_lines(name, number, block)
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
        """Read the output so far, then new lines until `stopped` returns True, then the rest."""
        after = 0
        while True:
            ending = stopped()  # before reading, so that nothing written before the end is missed
            while True:
                lines, after = await self._read_page(run_id, entity, attempt, after)
                if lines is None:
                    break
                for line in lines:
                    yield line
            if ending:
                return
            await sleep(POLL_SECONDS)

    def last_line(self, run_id: str, entity: str) -> str | None:
        """Return the newest line that is known, and start a refresh for the next call."""
        if run_id not in self._refreshing:
            self._refreshing.add(run_id)
            task = self._loop.create_task(self._refresh_last_lines(run_id))
            task.add_done_callback(lambda _: self._refreshing.discard(run_id))
        return self._last_lines.get((run_id, entity))

    async def _refresh_last_lines(self, run_id: str) -> None:
        for line in await self._read_all(run_id, None, None):
            self._last_lines[run_id, line.entity] = line.text
        await asyncio.sleep(POLL_SECONDS)
