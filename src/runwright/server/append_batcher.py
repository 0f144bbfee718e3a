"""Batches events that many callers post one at a time.

While one batch is written, the next is collected. With many concurrent callers it pays to wait a moment for the rest of
them: otherwise the event loop that receives requests and the thread that writes would only alternate.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from runwright.contract.errors import RunwrightError
from runwright.log.model import AppendResult
from runwright.log.run_log import RunLog

MANY_CALLERS = 16
"""Number of concurrent callers from which a batch waits for further ones."""

QUIET_SECONDS = 0.0005
"""A waiting batch is written once no event arrived for this time."""

MAX_WAIT_SECONDS = 0.01


class _PendingEvent(NamedTuple):
    line: bytes
    outcome: asyncio.Future[AppendResult]


class AppendBatcher:
    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._pending: list[_PendingEvent] = []
        self._callers = 0
        self._usual_callers = 0  # A decaying maximum of concurrent callers.
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pending_at_timer = 0  # Number of pending events when the timer was set.
        self._deadline = 0.0

    async def append(self, line: bytes) -> AppendResult:
        """Append one event, encoded as JSON. Returns a receipt or a refusal."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._pending.append(_PendingEvent(line, future))
        self._callers += 1
        self._usual_callers = max(self._usual_callers, self._callers)
        self._flush_if_ready()
        try:
            return await future
        finally:
            self._callers -= 1

    def _flush_if_ready(self) -> None:
        if self._writing is not None or not self._pending:
            return
        if self._usual_callers < MANY_CALLERS or len(self._pending) >= self._usual_callers:
            self._flush()
        elif self._timer is None:
            self._deadline = asyncio.get_running_loop().time() + MAX_WAIT_SECONDS
            self._start_timer()

    def _start_timer(self) -> None:
        self._pending_at_timer = len(self._pending)
        self._timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._writing is not None or not self._pending:
            return
        if len(self._pending) > self._pending_at_timer and asyncio.get_running_loop().time() < self._deadline:
            self._start_timer()
            return
        self._usual_callers = max(len(self._pending), self._usual_callers * 3 // 4)  # Some callers have stopped.
        self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._pending = self._pending, []
        self._writing = asyncio.create_task(self._write(batch))

    async def _write(self, batch: list[_PendingEvent]) -> None:
        try:
            outcomes = await self._log.append_independent([event.line for event in batch])
            for event, outcome in zip(batch, outcomes, strict=True):
                if not event.outcome.done():
                    event.outcome.set_result(outcome)
        except RunwrightError as error:
            _fail(batch, error)
        except BaseException as error:
            _fail(batch, error)
            raise
        finally:
            self._writing = None
            self._flush_if_ready()


def _fail(batch: list[_PendingEvent], error: BaseException) -> None:
    for event in batch:
        if not event.outcome.done():
            # One exception per caller: raising a shared one would mix their tracebacks.
            is_known = isinstance(error, RunwrightError)
            event.outcome.set_exception(RunwrightError(error.code, error.detail, **error.facts) if is_known else error)
