"""Follow a run: fold its events into a run view and pass them to an output, until the run has ended."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import click

from runwright.cli.terminal.formatting import printable
from runwright.contract.clock import Clock
from runwright.contract.errors import STORE_CODES, RunwrightError
from runwright.contract.transitions import RunStatus
from runwright.log.protocols import LogReader

from .outputs import Output
from .run_report import RunReporter
from .run_view import InputRequest, RunView

PAGE_SIZE = 1000
POLL_INTERVAL = 0.05  # Seconds between two reads of a growing log; leaves the store to the engine in between.
STORE_TIMEOUT = 60.0

AsyncCallback = Callable[[], Awaitable[None]]


class StoreRetry:
    """Retries while the store is unavailable, up to STORE_TIMEOUT: the engine waits for the same store."""

    def __init__(self, clock: Clock, notices: deque[str]) -> None:
        self._clock = clock
        self._notices = notices
        self._failing_since: float | None = None

    async def wait_or_raise(self, error: RunwrightError) -> None:
        """Wait a second before the next try. Raises the error if it is not a store error, or lasts too long."""
        now = self._clock.monotonic()
        if error.code not in STORE_CODES:
            raise error
        if self._failing_since is None:
            self._failing_since = now
            self._notices.append(f"Store unavailable, retrying: {error}")
        if now - self._failing_since > STORE_TIMEOUT:
            raise error
        await asyncio.sleep(1)

    def reset(self) -> None:
        """Record that the store is available."""
        self._failing_since = None


class Follower:
    """Passes the events of one run to an output. Events up to `after` are folded but not shown."""

    def __init__(
        self,
        log: LogReader,
        view: RunView,
        output: Output,
        reporter: RunReporter,
        *,
        after: int = 0,
        on_second: AsyncCallback | None = None,
    ) -> None:
        self._log = log
        self._view = view
        self._output = output
        self._reporter = reporter
        self._shown_seq = after
        self._on_second = on_second
        self._last_second = float("-inf")
        self._seq = 0
        self._reported_inputs: set[tuple[str, InputRequest]] = set()
        self._reported_failures: set[tuple[str, int]] = set()
        self._pauses = 0
        self.notices: deque[str] = deque(maxlen=100)
        self._read_retry = StoreRetry(log.clock, self.notices)
        self._callback_retry = StoreRetry(log.clock, self.notices)

    async def follow_to_end(self) -> None:
        """Follow until the run has ended and all its events are shown."""
        while True:
            count = await self._read_page()
            if count < PAGE_SIZE:
                await self._write_notices()
                await self._call_on_second()
                if self._view.has_ended:
                    return
            await self._output.tick()
            if count == 0:
                await self._log.wait_for_events(self._output.tick_interval)
            elif count < PAGE_SIZE:
                await asyncio.sleep(POLL_INTERVAL)

    async def _read_page(self) -> int:
        """Read, fold and show the next events; return their number."""
        try:
            records = await self._log.read(self._view.run_id, self._seq, PAGE_SIZE)
            self._read_retry.reset()
        except RunwrightError as error:
            await self._read_retry.wait_or_raise(error)
            return 0
        for record in records:
            self._view.fold(record)
        if records:
            self._seq = records[-1].run_seq
            new = [record for record in records if record.run_seq > self._shown_seq]
            if new:
                await self._output.write_events(new)
        return len(records)

    async def _write_notices(self) -> None:
        """Write warnings and hints, each once."""
        while self.notices:
            await self._output.write_notice(click.style(printable(f"! {self.notices.popleft()}"), fg="yellow"))
        pauses = self._view.state.summary.pauses
        if self._view.status is RunStatus.PAUSED and pauses > self._pauses and not self._output.shows_hints:
            await self._output.write_notice(self._reporter.pause())
        self._pauses = pauses
        if not self._output.shows_hints:
            for step_id, request in self._view.input_requests.items():
                if (step_id, request) not in self._reported_inputs:
                    self._reported_inputs.add((step_id, request))
                    await self._output.write_notice(self._reporter.pending_input(step_id, request))
        if self._view.waits_for_operator:
            for step_id in self._view.failed:
                step = self._view.step_state(step_id)
                if step is None or (step_id, step.attempt) in self._reported_failures:
                    continue
                self._reported_failures.add((step_id, step.attempt))
                report = await self._reporter.step_failure(self._view, step_id, is_waiting=True)
                await self._output.write_notice(report)

    async def _call_on_second(self) -> None:
        """Call `on_second` once a second while the run is open."""
        now = self._log.clock.monotonic()
        if self._on_second is None or now - self._last_second < 1.0 or self._view.has_ended:
            return
        self._last_second = now
        try:
            await self._on_second()
            self._callback_retry.reset()
        except RunwrightError as error:
            await self._callback_retry.wait_or_raise(error)


class _NoticeHandler(logging.Handler):
    def __init__(self, notices: deque[str]) -> None:
        super().__init__(logging.WARNING)
        self._notices = notices

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]!r}"
        if not self._notices or self._notices[-1] != text:
            self._notices.append(text)


@contextmanager
def capture_warnings(notices: deque[str]) -> Generator[None]:
    """Collect the engine's log warnings as notices, so that they are not printed into the live view."""
    logger = logging.getLogger("runwright")
    handler, propagate = _NoticeHandler(notices), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
