"""Wake an event loop: LoopWaker for callbacks from other threads, Notifier for readers that wait for new events."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from runwright.contract.clock import Clock
from runwright.contract.errors import RunwrightError

logger = logging.getLogger("runwright.log")

POLL_SECONDS = 0.025
_HAS_EVENTFD = hasattr(os, "eventfd")


class LoopWaker:
    """Callbacks from any thread onto a loop. Several pending callbacks cost one wake-up.

    `call_soon_threadsafe` sends a byte through a socket, and the loop reads until the socket is empty: three system
    calls and an exception per wake-up. An eventfd takes two system calls; without eventfds, `call_soon_threadsafe` is
    the fallback.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_scheduled = self._is_closed = False
        self._lock = threading.Lock()  # A closed eventfd must not be written to: its number may be reused.
        self._eventfd: int | None = None
        if _HAS_EVENTFD:
            eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            try:
                loop.add_reader(eventfd, self._on_readable)
                self._eventfd = eventfd
            except NotImplementedError:  # Not every loop supports readers.
                os.close(eventfd)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call this on the loop soon. Ignored once the loop is closed."""
        self._pending.append((callback, args))
        if self._is_scheduled or self._is_closed:
            return
        self._is_scheduled = True
        with self._lock:
            if self._eventfd is not None:
                os.eventfd_write(self._eventfd, 1)
                return
        try:
            self._loop.call_soon_threadsafe(self._run_pending)
        except RuntimeError:
            self._pending.clear()

    def call_soon_here(self, callback: Callable[..., object], *args: Any) -> None:
        """Same as `call_soon` for callers on the loop."""
        self._pending.append((callback, args))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run_pending)

    def close(self) -> None:
        """Run pending callbacks and ignore later ones. Must be called on the loop."""
        self._run_pending()
        self._is_closed = True
        with self._lock:
            eventfd, self._eventfd = self._eventfd, None
        if eventfd is not None:
            self._loop.remove_reader(eventfd)
            os.close(eventfd)

    def _on_readable(self) -> None:
        assert self._eventfd is not None
        os.eventfd_read(self._eventfd)
        self._run_pending()

    def _run_pending(self) -> None:
        self._is_scheduled = False  # First, so that callbacks added from here on schedule another wake-up.
        while self._pending and not self._is_closed:
            callback, args = self._pending.popleft()
            try:
                callback(*args)
            except Exception:
                logger.exception("A callback on the event loop failed.")


class Notifier:
    """Notifies waiters that the log may have grown: at once for events of this process, by polling for those of others.

    A wake-up may be spurious: read, then wait again.
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
