"""The output of steps: files beside the log, never in it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from .logchunks import ChunkFiles
from .logfiles import safe_name
from .logreader import LogLine, RunCursor, last_line
from .logwriter import LogWriter, Masking

__all__ = ["LogLine", "LogWriter", "StepLogs"]

_log = logging.getLogger(__name__)
_FLUSH_EVERY = 0.2
_POLL_EVERY = 0.1


def _system_now() -> int:
    return time.time_ns() // 1000


class StepLogs:
    """Keeps what steps print. Writing never fails and never holds a step up; reading sees it within a moment."""

    def __init__(self, folder: Path, *, now: Callable[[], int] = _system_now) -> None:
        self._folder = Path(folder)
        self.now = now
        self._lock = threading.Lock()
        self._waiting: list[LogWriter] = []
        self._work = threading.Event()
        self._closed = threading.Event()
        self._flusher: threading.Thread | None = None
        self._failure: OSError | None = None
        self._warned = False

    def writer(self, run_id: str, entity: str, attempt: int, mask: Masking | None = None) -> LogWriter:
        """Where an attempt's output goes. Costs nothing until something is written."""
        return LogWriter(self, run_id, entity, attempt, mask)

    def read(self, run_id: str, entity: str | None = None, *, attempt: int | None = None) -> Iterator[LogLine]:
        """What has been written so far, by time. An entity stands for its iterations and tasks too."""
        self._flush_all()
        return RunCursor(self._folder / safe_name(run_id), entity, attempt).all()

    async def follow(
        self,
        run_id: str,
        entity: str | None = None,
        *,
        stopped: Callable[[], bool],
        attempt: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncIterator[LogLine]:
        """What there is, then what comes, until `stopped` says that nothing more will; then the rest."""
        cursor = RunCursor(self._folder / safe_name(run_id), entity, attempt)
        while True:
            ending = stopped()  # asked first, so that nothing written before it is missed
            for line in cursor.more(to_the_end=ending):
                yield line
            if ending:
                return
            await sleep(_POLL_EVERY)

    def last_line(self, run_id: str, entity: str) -> str | None:
        """The newest line of an entity, for showing progress."""
        return last_line(self.path(run_id, entity))

    def close(self) -> None:
        """Write what is still in memory. Writers that are open go on, and write when they are closed."""
        self._closed.set()
        self._work.set()
        if self._flusher is not None:
            self._flusher.join(timeout=2)
        self._flush_all()

    def settle(self, call: Callable[[], None]) -> None:
        """Call once all that was written so far is kept, which it is."""
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
                    target=self._flush_now_and_then, name="runwright step logs", daemon=True
                )
                self._flusher.start()
        self._work.set()

    def note_failure(self, error: OSError) -> None:
        # Said by the flusher: here we may be inside a step, and what is logged there goes to the step's log.
        self._failure = error
        self._work.set()

    def _flush_all(self) -> None:
        with self._lock:
            writers = list(self._waiting)
        for writer in writers:
            writer.flush(at_once=True)

    def _flush_now_and_then(self) -> None:
        while self._work.wait() and not self._closed.wait(_FLUSH_EVERY):
            self._work.clear()
            with self._lock:
                writers, self._waiting = self._waiting, []
            held_back = [writer for writer in writers if writer.flush()]
            if held_back:
                with self._lock:
                    self._waiting += held_back
                self._work.set()
            if self._failure is not None and not self._warned:
                self._warned = True
                _log.warning("Output of steps is being dropped: %s. The steps themselves go on.", self._failure)
