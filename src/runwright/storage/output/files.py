"""Step output in files of this machine, next to the log and never in it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from .chunks import ChunkFiles, safe_name
from .reader import LogLine, RunCursor, last_line
from .writer import LogWriter, OutputMask

__all__ = ["LogLine", "LogWriter", "StepLogs"]

_log = logging.getLogger(__name__)
_FLUSH_SECONDS = 0.2
_POLL_SECONDS = 0.1


def _system_now() -> int:
    return time.time_ns() // 1000


class StepLogs:
    """Store of step output in files. Writing never fails and never blocks a step; readers lag by under a second."""

    def __init__(self, folder: Path, *, now: Callable[[], int] = _system_now) -> None:
        self._folder = Path(folder)
        self.now = now
        self._lock = threading.Lock()
        self._waiting: list[LogWriter] = []
        self._wake_up = threading.Event()
        self._closed = threading.Event()
        self._flusher: threading.Thread | None = None
        self._write_error: OSError | None = None
        self._has_warned = False

    def writer(self, run_id: str, entity: str, attempt: int, mask: OutputMask | None = None) -> LogWriter:
        """Create the writer of an attempt. Costs nothing until something is written."""
        return LogWriter(self, run_id, entity, attempt, mask)

    def read(self, run_id: str, entity: str | None = None, *, attempt: int | None = None) -> Iterator[LogLine]:
        """Read the output so far, ordered by time. An entity includes its iterations and tasks."""
        self._flush_all()
        return RunCursor(self._folder / safe_name(run_id), entity, attempt).read_all()

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
        cursor = RunCursor(self._folder / safe_name(run_id), entity, attempt)
        while True:
            ending = stopped()  # before reading, so that nothing written before the end is missed
            for line in cursor.read_more(to_the_end=ending):
                yield line
            if ending:
                return
            await sleep(_POLL_SECONDS)

    def last_line(self, run_id: str, entity: str) -> str | None:
        """Return the newest line of an entity, for progress displays."""
        return last_line(self.path(run_id, entity))

    def close(self) -> None:
        """Write everything that is in memory. Writers that are still open write when they are closed."""
        self._closed.set()
        self._wake_up.set()
        if self._flusher is not None:
            self._flusher.join(timeout=2)
        self._flush_all()

    def when_stored(self, call: Callable[[], None]) -> None:
        """Call once the output of closed writers is stored: at once, because closing writes to the file."""
        call()

    async def aclose(self) -> None:
        self.close()

    # For writers

    def sink(self, run_id: str, entity: str, attempt: int) -> ChunkFiles:
        return ChunkFiles(self.path(run_id, entity), run_id, entity, attempt)

    def path(self, run_id: str, entity: str) -> Path:
        return self._folder / safe_name(run_id) / safe_name(entity)

    def flush_soon(self, writer: LogWriter) -> None:
        with self._lock:
            self._waiting.append(writer)
            if self._flusher is None and not self._closed.is_set():
                self._flusher = threading.Thread(
                    target=self._flush_periodically, name="runwright step logs", daemon=True
                )
                self._flusher.start()
        self._wake_up.set()

    def on_write_error(self, error: OSError) -> None:
        # Logged by the flusher: this may be called inside a step, whose log records go to the step's own output.
        self._write_error = error
        self._wake_up.set()

    def _flush_all(self) -> None:
        with self._lock:
            writers = list(self._waiting)
        for writer in writers:
            writer.flush(at_once=True)

    def _flush_periodically(self) -> None:
        while self._wake_up.wait() and not self._closed.wait(_FLUSH_SECONDS):
            self._wake_up.clear()
            with self._lock:
                writers, self._waiting = self._waiting, []
            held_back = [writer for writer in writers if writer.flush()]
            if held_back:
                with self._lock:
                    self._waiting += held_back
                self._wake_up.set()
            if self._write_error is not None and not self._has_warned:
                self._has_warned = True
                _log.warning("Dropping step output: %s. Steps continue to run.", self._write_error)
