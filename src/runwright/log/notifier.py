"""Wake waiters when the log grows: at once for events of this process, by polling for those of others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from runwright.contract.clock import Clock
from runwright.contract.errors import RunwrightError

logger = logging.getLogger("runwright.log")

POLL_SECONDS = 0.025


class Notifier:
    """Notifies waiters that the log may have grown. A wake-up may be spurious: read, then wait again.

    `changed_elsewhere` returns whether another process wrote; it is polled only while there are waiters.
    """

    def __init__(self, clock: Clock, changed_elsewhere: Callable[[], Awaitable[bool]] | None) -> None:
        self._clock = clock
        self._changed_elsewhere = changed_elsewhere
        self._waiters: set[asyncio.Future[None]] = set()
        self._poller: asyncio.Task[None] | None = None
        self.count = 0

    def notify(self) -> None:
        """Wake all waiters: the log grew. Runs on the loop."""
        self.count += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seen: int, timeout: float | None) -> bool:
        """Wait until `count` exceeds `seen`; False on timeout."""
        if self.count != seen:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        if self._changed_elsewhere is not None and (self._poller is None or self._poller.done()):
            self._poller = asyncio.create_task(self._poll(self._changed_elsewhere))
        try:
            async with asyncio.timeout(timeout):  # asyncio.wait_for may swallow a cancellation.
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def _poll(self, changed_elsewhere: Callable[[], Awaitable[bool]]) -> None:
        while self._waiters:
            try:
                changed = await changed_elsewhere()
            except RunwrightError as error:
                logger.warning("Polling for new events failed; waking all waiters: %s", error)
                changed = True
            if changed:
                self.notify()
            await self._clock.sleep(POLL_SECONDS)

    async def close(self) -> None:
        self.notify()
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
