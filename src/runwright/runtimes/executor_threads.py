"""Threads for steps that are plain functions.

Short steps are quickest on few threads, and steps that wait need one each. So the pool starts small, and grows
when work is not taken as quickly as it should be. While a thread is free and does not come, or the process has its
hands full, that is for want of time: more threads would only make it worse, and the pool is more patient.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import process_time

_PATIENCE = 0.005
_PATIENCE_WHEN_BUSY = 0.05
_SOON = 0.05  # whatever is taken within this time needs no thread of its own
_BUSY = 0.8  # of a processor
_IDLE = 10.0


class ThreadPool:
    """Belongs to a loop: `submit` is called there. The threads are daemons, for one that hangs must not keep us."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self.most = most
        self._loop = loop
        self._few = min(most, 2 + (os.cpu_count() or 1))
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._idle: deque[None] = deque()  # its length is how many threads wait for work
        self._submitted = 0
        self._taken = 0  # at the beginning of the moment
        self._began = self._cpu = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._names = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Have this called soon. It must not raise."""
        self._submitted += 1
        self._queue.put(call)
        if len(self._threads) < self._few and self._queue.qsize() > len(self._idle):
            self._add_thread()
        if self._timer is None:
            self._look_later()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _ in range(len(self._threads)):
            self._queue.put(None)

    def _look_later(self) -> None:
        self._taken = self._submitted - self._queue.qsize()
        self._began, self._cpu = self._loop.time(), process_time()
        self._timer = self._loop.call_later(_PATIENCE, self._look)

    def _look(self) -> None:
        """Add threads for what will not be taken soon, as quickly as it has been; at most as many as there are."""
        self._timer = None
        waiting = self._queue.qsize()
        if waiting == 0 or self._closed:
            return
        lasted = self._loop.time() - self._began
        is_busy = process_time() - self._cpu > _BUSY * lasted
        if self._idle or (is_busy and lasted < _PATIENCE_WHEN_BUSY):
            self._timer = self._loop.call_later(_PATIENCE, self._look)
            return
        taken = self._submitted - waiting - self._taken
        left = waiting - int(taken * _SOON / lasted)
        threads = len(self._threads)
        for _ in range(min(left, max(1, threads), self.most - threads)):
            self._add_thread()
        self._look_later()

    def _add_thread(self) -> None:
        self._names += 1
        thread = threading.Thread(target=self._work, name=f"step thread {self._names}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            self._idle.append(None)
            try:
                call = self._queue.get(timeout=_IDLE)
            except Empty:
                call = None
            self._idle.pop()
            if call is None:
                # No longer counted from here on: what is put now finds another thread, or has been put before.
                self._threads.discard(me)
                if self._closed or self._queue.empty():
                    return
                self._threads.add(me)
                continue
            call()
            del call
            if len(self._threads) > self.most:  # we were given up, and somebody else has our place
                self._threads.discard(me)
                return
