"""Cheap call_soon_threadsafe: batches callbacks from any thread into one eventfd wake-up.

`call_soon_threadsafe` sends a byte through a socket, and the loop reads until the socket is empty: three system calls
and an exception per wake-up. An eventfd takes two system calls; without eventfds, `call_soon_threadsafe`
is the fallback.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)

_HAS_EVENTFD = hasattr(os, "eventfd")


class LoopWaker:
    """Callbacks from any thread onto a loop. Several pending callbacks cost one wake-up."""

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
                _log.exception("A callback on the event loop failed.")
