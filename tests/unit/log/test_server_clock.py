"""The time of the Postgres server, as a process knows it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from runwright.log.postgres.connection import Connection
from runwright.log.postgres.server_clock import CLOCK_SYNC_SECONDS, ServerClock

HOUR = 3600 * 1_000_000


class LocalClock:
    """A monotonic clock and a wall clock, which is an hour slow."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> int:
        return self.server_time() - HOUR

    def monotonic(self) -> float:
        return self.seconds

    def server_time(self) -> int:
        return int(self.seconds * 1e6) + 7 * HOUR

    async def sleep(self, seconds: float) -> None:
        del seconds


class Server:
    """Answers with its time; then this process is stopped for some seconds before it reads the answer."""

    def __init__(self, clock: LocalClock) -> None:
        self._clock = clock
        self.stops: list[float] = []
        self.count = 0

    async def fetchval(self, _: str) -> int:
        self.count += 1
        answer = self._clock.server_time()
        self._clock.seconds += self.stops.pop(0) if self.stops else 0.001
        return answer


@pytest.fixture
def local() -> LocalClock:
    return LocalClock()


async def sync(clock: ServerClock, server: Server, *stops: float) -> None:
    server.stops = list(stops)
    await clock.sync(cast("Connection", cast("Any", server)), "SELECT time")


def error_of(clock: ServerClock, local: LocalClock) -> int:
    return abs(clock.now() - local.server_time())


async def test_time_is_that_of_the_server(local: LocalClock) -> None:
    clock, server = ServerClock(local), Server(local)
    await sync(clock, server)
    local.seconds += 10
    assert error_of(clock, local) < 1000
    await sync(clock, server)
    assert server.count == 1
    local.seconds += CLOCK_SYNC_SECONDS
    await sync(clock, server)
    assert server.count == 2


async def test_fastest_of_some_answers_counts(local: LocalClock) -> None:
    clock, server = ServerClock(local), Server(local)
    await sync(clock, server, 9, 0.3, 0.4)
    assert error_of(clock, local) == 150_000
    await sync(clock, server)
    assert server.count == 3, "it is precise enough"


async def test_answers_that_were_read_late_do_not_change_the_time(local: LocalClock) -> None:
    clock, server = ServerClock(local), Server(local)
    await sync(clock, server)
    local.seconds += CLOCK_SYNC_SECONDS
    await sync(clock, server, 9, 9, 9)
    assert error_of(clock, local) < 1000
    await sync(clock, server)
    assert server.count == 5, "it is read again at once"


async def test_first_answer_counts_even_if_it_was_read_late(local: LocalClock) -> None:
    clock, server = ServerClock(local), Server(local)
    await sync(clock, server, 9, 9, 9)
    assert error_of(clock, local) == 4_500_000
    await sync(clock, server)
    assert error_of(clock, local) < 1000
