"""From another thread onto an event loop, with as little ado as the system allows.

`call_soon_threadsafe` sends a byte through a socket, and the loop reads until there is no more: three system calls
and an exception for each wake-up. Where the system has event counters it takes two.
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

_COUNTERS = hasattr(os, "eventfd")


class Bell:
    """Calls that any thread may leave for a loop. Several that are left together cost one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._rung = self._closed = False
        self._gate = threading.Lock()  # no counter is written to once it is closed: its number may be another file's
        self._counter: int | None = None
        if _COUNTERS:
            counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            try:
                loop.add_reader(counter, self._hear)
                self._counter = counter
            except NotImplementedError:  # not every loop has readers
                os.close(counter)

    def call(self, work: Callable[..., object], *arguments: Any) -> None:
        """Have this called on the loop, soon. Nobody is there to call it once the loop is closed."""
        self._left.append((work, arguments))
        if self._rung or self._closed:
            return
        self._rung = True
        with self._gate:
            if self._counter is not None:
                os.eventfd_write(self._counter, 1)
                return
        try:
            self._loop.call_soon_threadsafe(self._take)
        except RuntimeError:
            self._left.clear()

    def call_here(self, work: Callable[..., object], *arguments: Any) -> None:
        """The same, for whoever is on the loop already."""
        self._left.append((work, arguments))
        if not self._rung:
            self._rung = True
            self._loop.call_soon(self._take)

    def close(self) -> None:
        """On the loop: what was left is called now, and nothing from here on."""
        self._take()
        self._closed = True
        with self._gate:
            counter, self._counter = self._counter, None
        if counter is not None:
            self._loop.remove_reader(counter)
            os.close(counter)

    def _hear(self) -> None:
        assert self._counter is not None
        os.eventfd_read(self._counter)
        self._take()

    def _take(self) -> None:
        self._rung = False  # first: what is left from here on rings again
        while self._left and not self._closed:
            work, arguments = self._left.popleft()
            try:
                work(*arguments)
            except Exception:
                _log.exception("What was left for an event loop failed.")
