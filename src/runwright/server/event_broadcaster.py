"""One reader of the log for all event streams of a server.

An event is read and encoded once for all subscribers. A subscriber that falls behind is marked as lagging and receives
nothing more: it catches up from the log at its own pace and subscribes again. So no subscriber loses an event or gets
one twice, and a slow reader does not slow down the others. A reader that does not read at all is disconnected by
`StreamWriter` after `stalled_reader_seconds`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.noetl.view import noetl_event
from runwright.log.model import TailPage
from runwright.log.run_log import RunLog

logger = logging.getLogger("runwright.server")

MAX_QUEUED_EVENTS = 1000
"""Events that may be queued for a subscriber before it counts as lagging."""
MAX_QUEUED_BYTES = 4 * 1024 * 1024
"""Size of the queued events above which a subscriber counts as lagging with the next one."""
RETRY_SECONDS = 1.0

_encoder = msgspec.json.Encoder()


class BroadcastEvent:
    """An event and its server-sent form. `position`: its shard, and its position in that shard."""

    __slots__ = ("body", "position", "record")

    def __init__(self, record: RunEventRecord, position: tuple[int, int]) -> None:
        self.record = record
        self.position = position
        self.body = _encode_sse(record.event_type, record)

    def encode_as(self, event_format: str) -> bytes:
        if event_format != "noetl":
            return self.body
        event = noetl_event(self.record)
        return _encode_sse(event["event_type"], event)


def _encode_sse(name: str, event: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encoder.encode(event) + b"\n\n"


class Subscriber:
    """Queue of new events for one stream: those of a run, of a tenant, or all.

    `is_lagging`: the queue overflowed or the log could not be read; catch up from the log, then subscribe again.
    """

    def __init__(self, run_id: str | None, tenant_id: str | None) -> None:
        self._run_id = run_id
        self._tenant_id = tenant_id
        self._queue: deque[BroadcastEvent] = deque()
        self._queued_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self.is_lagging = False

    def matches(self, record: RunEventRecord) -> bool:
        if self._run_id is not None:
            return record.run_id == self._run_id
        return self._tenant_id is None or record.tenant_id == self._tenant_id

    def put(self, event: BroadcastEvent) -> None:
        if len(self._queue) >= MAX_QUEUED_EVENTS or self._queued_bytes >= MAX_QUEUED_BYTES:
            self.is_lagging = True
            self.drain()
        if not self.is_lagging:
            self._queue.append(event)
            self._queued_bytes += len(event.body)
        self.wake()

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    @property
    def has_pending(self) -> bool:
        return bool(self._queue) or self.is_lagging

    def drain(self) -> list[BroadcastEvent]:
        events = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        return events

    async def wait(self, seconds: float) -> None:
        """Wait until something is pending, `wake` is called, or the time is over."""
        if self.has_pending:
            return
        self._wake = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._wake
        except TimeoutError:
            pass
        finally:
            self._wake = None


class EventBroadcaster:
    """Passes new events of the log to subscribers. `positions`: how far they have been passed on, by shard."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._by_run: dict[str, set[Subscriber]] = {}
        self._of_all_runs: set[Subscriber] = set()
        self._is_needed = asyncio.Event()
        self._is_positioned = asyncio.Event()
        self.positions: list[int] = []
        self.is_closed = False

    @property
    def subscriber_count(self) -> int:
        return len(self._of_all_runs) + sum(map(len, self._by_run.values()))

    async def subscribe(self, run_id: str | None, tenant_id: str | None) -> Subscriber:
        """Subscribe to events after `positions`: those of a run, or of all runs of a tenant (None: all tenants)."""
        self._is_needed.set()
        await self._is_positioned.wait()
        subscriber = Subscriber(run_id, tenant_id)
        self.resubscribe(subscriber, run_id)
        return subscriber

    def resubscribe(self, subscriber: Subscriber, run_id: str | None) -> None:
        subscriber.is_lagging = False
        (self._of_all_runs if run_id is None else self._by_run.setdefault(run_id, set())).add(subscriber)

    def unsubscribe(self, subscriber: Subscriber, run_id: str | None) -> None:
        if run_id is None:
            self._of_all_runs.discard(subscriber)
        elif (subscribers := self._by_run.get(run_id)) is not None:
            subscribers.discard(subscriber)
            if not subscribers:
                del self._by_run[run_id]

    async def run(self) -> None:
        """Read the log and publish its events until cancelled. Reading begins with the first subscriber."""
        await self._is_needed.wait()
        while True:
            try:
                cursor = await self._log.end_cursor()
                self.positions = [int(part) for part in cursor.split(".")]
                self._is_positioned.set()
                async for page in self._log.tail(cursor):
                    self._publish(page)
            except RunwrightError as error:
                logger.warning("Reading the log for event streams failed, retrying: %s", error)
                self._mark_all_lagging()
                await self._log.clock.sleep(RETRY_SECONDS)

    def _publish(self, page: TailPage) -> None:
        for record, (shard, pos) in zip(page.records, page.places, strict=True):
            self.positions[shard] = pos
            subscribers = self._by_run.get(record.run_id, ())
            if not subscribers and not self._of_all_runs:
                continue
            event = BroadcastEvent(record, (shard, pos))
            for subscriber in (*subscribers, *self._of_all_runs):
                if subscriber.matches(record):
                    subscriber.put(event)

    def _mark_all_lagging(self) -> None:
        of_runs = (subscriber for subscribers in self._by_run.values() for subscriber in subscribers)
        for subscriber in (*self._of_all_runs, *of_runs):
            subscriber.is_lagging = True
            subscriber.wake()

    def close(self) -> None:
        """Wake all subscribers: they find `is_closed` set, and end their streams."""
        self.is_closed = True
        self._is_positioned.set()
        self._mark_all_lagging()


async def read_run_events(log: RunLog, run_id: str, after: int) -> AsyncIterator[BroadcastEvent]:
    """Read the events of a run from the log, to catch up."""
    async for record in log.events(run_id, after):
        yield BroadcastEvent(record, (0, 0))
