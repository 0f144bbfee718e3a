"""Threads for steps that are plain functions.

Short steps are fastest on few threads, and steps that wait need one each. So the pool starts small, and grows when
calls stay in the queue for too long. If a thread is idle but was not scheduled yet, or the process is busy, the cause
is a lack of processor time: more threads would make it worse, so the pool waits longer before it grows.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import process_time

_CHECK_INTERVAL = 0.005  # seconds, as all but _BUSY_SHARE
_BUSY_WAIT = 0.05  # before a busy process adds threads
_SOON = 0.05  # a call that will be started within this time needs no additional thread
_BUSY_SHARE = 0.8  # of one processor
_IDLE_TIMEOUT = 10.0


class ThreadPool:
    """A pool for one loop, where `submit` is called. Its threads are daemons: one that hangs must not block exit."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_threads: int) -> None:
        self.max_threads = max_threads
        self._loop = loop
        self._initial_threads = min(max_threads, 2 + (os.cpu_count() or 1))
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._idle: deque[None] = deque()  # one entry per thread that waits for a call
        self._submitted = 0
        self._started_before = 0  # calls started before the current interval
        self._interval_start = self._cpu_at_start = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._threads_started = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Call something in a thread, soon. It must not raise."""
        self._submitted += 1
        self._queue.put(call)
        if len(self._threads) < self._initial_threads and self._queue.qsize() > len(self._idle):
            self._add_thread()
        if self._timer is None:
            self._start_interval()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _ in range(len(self._threads)):
            self._queue.put(None)

    def _start_interval(self) -> None:
        self._started_before = self._submitted - self._queue.qsize()
        self._interval_start, self._cpu_at_start = self._loop.time(), process_time()
        self._timer = self._loop.call_later(_CHECK_INTERVAL, self._grow_if_needed)

    def _grow_if_needed(self) -> None:
        """Add threads for the calls that will not start soon at the current rate; at most double their number."""
        self._timer = None
        waiting = self._queue.qsize()
        if waiting == 0 or self._closed:
            return
        elapsed = self._loop.time() - self._interval_start
        is_busy = process_time() - self._cpu_at_start > _BUSY_SHARE * elapsed
        if self._idle or (is_busy and elapsed < _BUSY_WAIT):
            self._timer = self._loop.call_later(_CHECK_INTERVAL, self._grow_if_needed)
            return
        started = self._submitted - waiting - self._started_before
        excess = waiting - int(started * _SOON / elapsed)
        threads = len(self._threads)
        for _ in range(min(excess, max(1, threads), self.max_threads - threads)):
            self._add_thread()
        self._start_interval()

    def _add_thread(self) -> None:
        self._threads_started += 1
        thread = threading.Thread(target=self._run, name=f"step thread {self._threads_started}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        thread = threading.current_thread()
        while True:
            self._idle.append(None)
            try:
                call = self._queue.get(timeout=_IDLE_TIMEOUT)
            except Empty:
                call = None
            self._idle.pop()
            if call is None:
                # Leave the pool before the queue is checked: a call submitted after that starts another thread, and one
                # submitted before it is found by the check.
                self._threads.discard(thread)
                if self._closed or self._queue.empty():
                    return
                self._threads.add(thread)
                continue
            call()
            del call
            if len(self._threads) > self.max_threads:  # the call was abandoned and this thread replaced
                self._threads.discard(thread)
                return
