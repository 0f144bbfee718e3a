"""Timers on a given clock: a heap of due times with a single sleeper."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from heapq import heappop, heappush

MAX_SLEEP = 1.0
"""Seconds. A wall clock may be set during a sleep, so it is read again at least this often."""


class Timers:
    """Calls functions at their due time. `now` reads the clock, `unit` is the length of its unit in seconds.

    A timer cannot be cancelled: the function that is called checks whether it still applies.
    """

    def __init__(
        self,
        now: Callable[[], float],
        unit: float,
        sleep: Callable[[float], asyncio.Future[None]],
        longest: float = MAX_SLEEP,
    ) -> None:
        self._now = now
        self._unit = unit
        self._sleep = sleep
        self._longest = longest
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # keeps timers with equal due times in order
        self._rescheduled = asyncio.Event()

    def set(self, due: float, call: Callable[[], None]) -> None:
        heappush(self._heap, (due, next(self._numbers), call))
        if self._heap[0][0] == due:
            self._rescheduled.set()

    async def run(self) -> None:
        while True:
            now = self._now()
            while self._heap and self._heap[0][0] <= now:
                heappop(self._heap)[2]()
            if not self._heap:
                self._rescheduled.clear()
                await self._rescheduled.wait()
                continue
            self._rescheduled.clear()
            sleep = self._sleep(min(self._longest, (self._heap[0][0] - now) * self._unit))
            rescheduled = asyncio.ensure_future(self._rescheduled.wait())
            try:
                await asyncio.wait([sleep, rescheduled], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiter in (sleep, rescheduled):
                    waiter.cancel()
