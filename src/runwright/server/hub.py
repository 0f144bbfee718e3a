"""The hub: one reader of the log for all who listen.

An event is read once and encoded once, however many listen. A listener that falls behind is let go of: it reads on
from the log by itself, at its own pace, and joins again when it has caught up. So nobody loses an event or gets one
twice, and whoever reads slowly costs nobody else anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.noetl import noetl_event
from runwright.log.base import RunLog
from runwright.log.model import TailPage

logger = logging.getLogger("runwright.server")

MOST_WAITING = 1000
"""Events that may wait for a listener before it is let go of."""
RETRY_SECONDS = 1.0

_encoder = msgspec.json.Encoder()


class Told:
    """An event as listeners get it."""

    __slots__ = ("body", "place", "record")

    def __init__(self, record: RunEventRecord, place: tuple[int, int]) -> None:
        self.record = record
        self.place = place
        self.body = _sse(record.event_type, record)

    def in_words(self, words: str) -> bytes:
        if words != "noetl":
            return self.body
        event = noetl_event(self.record)
        return _sse(event["event_type"], event)


def _sse(name: str, event: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encoder.encode(event) + b"\n\n"


class Listener:
    """Somebody who is told of events as they come. `is_behind`: it was let go of."""

    def __init__(self, run_id: str | None, tenant_id: str | None) -> None:
        self._run_id = run_id
        self._tenant_id = tenant_id
        self._waiting: deque[Told] = deque()
        self._wake: asyncio.Future[None] | None = None
        self.is_behind = False

    def wants(self, record: RunEventRecord) -> bool:
        if self._run_id is not None:
            return record.run_id == self._run_id
        return self._tenant_id is None or record.tenant_id == self._tenant_id

    def put(self, told: Told) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.is_behind = True
            self._waiting.clear()
        if not self.is_behind:
            self._waiting.append(told)
        self.wake()

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    @property
    def has_news(self) -> bool:
        return bool(self._waiting) or self.is_behind

    def take(self) -> list[Told]:
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    async def wait(self, seconds: float) -> None:
        """Until there is something, or the time is up."""
        if self.has_news:
            return
        self._wake = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._wake
        except TimeoutError:
            pass
        finally:
            self._wake = None


class Hub:
    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._by_run: dict[str, set[Listener]] = {}
        self._of_all: set[Listener] = set()
        self._begun = asyncio.Event()
        self._placed = asyncio.Event()
        self.positions: list[int] = []
        """How far all who listen have been told."""
        self.is_closed = False

    @property
    def count(self) -> int:
        return len(self._of_all) + sum(map(len, self._by_run.values()))

    async def join(self, run_id: str | None, tenant_id: str | None) -> Listener:
        """Be told of what comes from now on; `positions` says what that is."""
        self._begun.set()
        await self._placed.wait()
        listener = Listener(run_id, tenant_id)
        self.join_again(listener, run_id)
        return listener

    def join_again(self, listener: Listener, run_id: str | None) -> None:
        listener.is_behind = False
        (self._of_all if run_id is None else self._by_run.setdefault(run_id, set())).add(listener)

    def leave(self, listener: Listener, run_id: str | None) -> None:
        if run_id is None:
            self._of_all.discard(listener)
        elif (there := self._by_run.get(run_id)) is not None:
            there.discard(listener)
            if not there:
                del self._by_run[run_id]

    async def run(self) -> None:
        """Read the log and tell everybody, for ever. Nothing is read before somebody listens."""
        await self._begun.wait()
        while True:
            try:
                cursor = await self._log.end_cursor()
                self.positions = [int(part) for part in cursor.split(".")]
                self._placed.set()
                async for page in self._log.tail(cursor):
                    self._tell(page)
            except RunwrightError as error:
                logger.warning("Listeners wait: the log cannot be read for now: %s", error)
                self._let_go()
                await self._log.clock.sleep(RETRY_SECONDS)

    def _tell(self, page: TailPage) -> None:
        for record, (shard, pos) in zip(page.records, page.places, strict=True):
            self.positions[shard] = pos
            there = self._by_run.get(record.run_id, ())
            if not there and not self._of_all:
                continue
            told = Told(record, (shard, pos))
            for listener in (*there, *self._of_all):
                if listener.wants(record):
                    listener.put(told)

    def _let_go(self) -> None:
        for listener in (*self._of_all, *(each for there in self._by_run.values() for each in there)):
            listener.is_behind = True
            listener.wake()

    def close(self) -> None:
        """Everybody is told that nothing more comes from here."""
        self.is_closed = True
        self._placed.set()
        self._let_go()


async def run_events(log: RunLog, run_id: str, after: int) -> AsyncIterator[Told]:
    """A run's events from the log itself."""
    async for record in log.events(run_id, after):
        yield Told(record, (0, 0))
