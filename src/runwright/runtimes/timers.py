"""Alarms by some clock's reading: one sleeper for all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from heapq import heappop, heappush

LONGEST_SLEEP = 1.0
"""Seconds: a wall clock may be set while we sleep, so we look again."""


class Timers:
    """`read` tells the time, `seconds` how long one unit of it takes. Alarms cannot be taken back: whoever is
    called looks whether there still is something to do."""

    def __init__(
        self,
        read: Callable[[], float],
        seconds: float,
        sleep: Callable[[float], asyncio.Future[None]],
        longest: float = LONGEST_SLEEP,
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._sleep = sleep
        self._longest = longest
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._earlier = asyncio.Event()

    def set(self, when: float, call: Callable[[], None]) -> None:
        heappush(self._heap, (when, next(self._numbers), call))
        if self._heap[0][0] == when:
            self._earlier.set()

    async def run(self) -> None:
        while True:
            now = self._read()
            while self._heap and self._heap[0][0] <= now:
                heappop(self._heap)[2]()
            if not self._heap:
                self._earlier.clear()
                await self._earlier.wait()
                continue
            self._earlier.clear()
            pause = self._sleep(min(self._longest, (self._heap[0][0] - now) * self._seconds))
            earlier = asyncio.ensure_future(self._earlier.wait())
            try:
                await asyncio.wait([pause, earlier], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiter in (pause, earlier):
                    waiter.cancel()
