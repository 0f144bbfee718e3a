"""Following a run: its events are folded into a story and given to an outlet, until it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import click

from runwright.contract.clock import Clock
from runwright.contract.errors import STORE_CODES, RunwrightError
from runwright.contract.transitions import RunStatus
from runwright.log.reader import LogReader

from .outlet import Outlet
from .render import plain
from .report import Reporter
from .story import Asking, Story

PAGE = 1000
BREATH = 0.05  # seconds between two looks at a log that keeps growing: the engine has better things to do
STORE_PATIENCE = 60.0

Errand = Callable[[], Awaitable[None]]


class Patience:
    """With a store that is away: it comes back more often than not, and the runs need it as much as we do."""

    def __init__(self, clock: Clock, notices: deque[str]) -> None:
        self._clock = clock
        self._notices = notices
        self._since: float | None = None

    async def bear(self, error: RunwrightError) -> None:
        """Wait a little; raise what is no trouble of the store, or lasts too long."""
        now = self._clock.monotonic()
        if error.code not in STORE_CODES:
            raise error
        if self._since is None:
            self._since = now
            self._notices.append(f"The store cannot be used for now: {error}")
        if now - self._since > STORE_PATIENCE:
            raise error
        await asyncio.sleep(1)

    def over(self) -> None:
        """It answers."""
        self._since = None


class Follower:
    """Tells an outlet what happens in one run. Events up to `after` are folded and not told again."""

    def __init__(
        self,
        log: LogReader,
        story: Story,
        outlet: Outlet,
        reporter: Reporter,
        *,
        after: int = 0,
        watchful: Errand | None = None,
    ) -> None:
        self._log = log
        self._story = story
        self._outlet = outlet
        self._reporter = reporter
        self._told = after
        self._watchful = watchful  # done once a second
        self._watched_at = float("-inf")
        self._seq = 0
        self._asked: set[tuple[str, Asking]] = set()
        self._reported: set[tuple[str, int]] = set()
        self._pauses = 0
        self.notices: deque[str] = deque(maxlen=100)
        self._patience = Patience(log.clock, self.notices)
        self._patience_to_watch = Patience(log.clock, self.notices)

    async def to_the_end(self) -> None:
        """Follow until the run has ended and all of it was told."""
        while True:
            count = await self._page()
            if count < PAGE:
                await self._speak()
                if self._story.has_ended:
                    return
            await self._outlet.tick()
            if count == 0:
                await self._log.wait_for_news(self._outlet.patience)
            elif count < PAGE:
                await asyncio.sleep(BREATH)

    async def _page(self) -> int:
        """Take in the next events; how many there were."""
        try:
            records = await self._log.read(self._story.run_id, self._seq, PAGE)
            self._patience.over()
        except RunwrightError as error:
            await self._patience.bear(error)
            return 0
        for record in records:
            self._story.fold(record)
        if records:
            self._seq = records[-1].run_seq
            untold = [record for record in records if record.run_seq > self._told]
            if untold:
                await self._outlet.take(untold)
        return len(records)

    async def _speak(self) -> None:
        """Whatever is to be said besides the events."""
        while self.notices:
            await self._outlet.say(click.style(plain(f"! {self.notices.popleft()}"), fg="yellow"))
        pauses = self._story.state.summary.pauses
        if self._story.status is RunStatus.PAUSED and pauses > self._pauses and not self._outlet.shows_what_to_do:
            await self._outlet.say(self._reporter.of_pause())
        self._pauses = pauses
        if not self._outlet.shows_what_to_do:
            for step_id, asking in self._story.asking.items():
                if (step_id, asking) not in self._asked:
                    self._asked.add((step_id, asking))
                    await self._outlet.say(self._reporter.of_question(step_id, asking))
        if self._story.waits_for_operator:
            for step_id in self._story.failed:
                cell = self._story.cell(step_id)
                if cell is None or (step_id, cell.attempt) in self._reported:
                    continue
                self._reported.add((step_id, cell.attempt))
                await self._outlet.say(await self._reporter.of_step(self._story, step_id, waiting=True))
        now = self._log.clock.monotonic()
        if self._watchful is not None and now - self._watched_at >= 1.0 and not self._story.has_ended:
            self._watched_at = now
            try:
                await self._watchful()
                self._patience_to_watch.over()
            except RunwrightError as error:
                await self._patience_to_watch.bear(error)


class _Notices(logging.Handler):
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
def overheard(notices: deque[str]) -> Generator[None]:
    """What the engine warns of is told among the rest, not printed across it."""
    logger = logging.getLogger("runwright")
    handler, passed_on = _Notices(notices), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = passed_on
