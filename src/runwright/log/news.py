"""Waking those who wait for events: at once for what this process wrote, by a look now and then for the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from runwright.contract.clock import Clock
from runwright.contract.errors import RunwrightError

logger = logging.getLogger("runwright.log")

POLL_SECONDS = 0.025


class News:
    """Tells waiters that the log may have grown. A wake-up promises nothing: look, then wait again.

    `changed_elsewhere` is asked only while somebody waits; it says whether another process wrote.
    """

    def __init__(self, clock: Clock, changed_elsewhere: Callable[[], Awaitable[bool]] | None) -> None:
        self._clock = clock
        self._changed_elsewhere = changed_elsewhere
        self._waiters: set[asyncio.Future[None]] = set()
        self._poller: asyncio.Task[None] | None = None
        self.count = 0

    def tell(self) -> None:
        """The log grew. Runs on the loop."""
        self.count += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seen: int, timeout: float | None) -> bool:
        """Wait until `count` is beyond `seen`; False if that did not happen in time."""
        if self.count != seen:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        if self._changed_elsewhere is not None and (self._poller is None or self._poller.done()):
            self._poller = asyncio.create_task(self._poll(self._changed_elsewhere))
        try:
            async with asyncio.timeout(timeout):  # wait_for may swallow a cancellation
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
                logger.warning("Looking for news failed; waiters look for themselves: %s", error)
                changed = True
            if changed:
                self.tell()
            await self._clock.sleep(POLL_SECONDS)

    async def close(self) -> None:
        self.tell()
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
