"""ServerClock: the time of the database server, which all processes of a store share."""

from __future__ import annotations

import math
from typing import NamedTuple

from runwright.contract.clock import Clock

from .connection import Connection

CLOCK_SYNC_SECONDS = 30.0
SYNC_ATTEMPTS = 3
GOOD_SYNC_MICROS, MAX_SYNC_MICROS = 20_000, 500_000
"""Round trips within which the server's time is precise, and precise enough. This process, or the server, may be
stopped or busy in between."""


class _ClockSample(NamedTuple):
    round_trip: int
    offset: int


class ServerClock:
    """The server's clock as an offset of the local monotonic one.

    All processes must agree on the time, also while the wall clock of one of them is wrong or set: on persistedAt, and
    on due times, since the process that ends a wait may be another one than that which began it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic = clock.monotonic
        self._offset = clock.now() - self._local()
        self._is_synced = False
        self._due = -math.inf

    def now(self) -> int:
        return self._local() + self._offset

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    async def sync(self, connection: Connection, sql: str) -> None:
        if self._clock.monotonic() < self._due:
            return
        best = await self._measure(connection, sql)
        for _ in range(SYNC_ATTEMPTS - 1):
            if best.round_trip > GOOD_SYNC_MICROS:
                best = min(best, await self._measure(connection, sql))
        is_precise = best.round_trip <= MAX_SYNC_MICROS
        if is_precise or not self._is_synced:
            self._offset = best.offset
        if is_precise:
            self._is_synced = True
            self._due = self._clock.monotonic() + CLOCK_SYNC_SECONDS

    async def _measure(self, connection: Connection, sql: str) -> _ClockSample:
        before = self._local()
        server: int = await connection.fetchval(sql)
        after = self._local()
        return _ClockSample(after - before, server - (before + after) // 2)

    def _local(self) -> int:
        return int(self._clock.monotonic() * 1_000_000)
