"""Virtual time: it advances only while the event loop is idle, so that waiting for three days takes no real time."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

BEGIN = 1_780_000_000_000_000
"""Start of virtual time, in microseconds since 1970."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when no callback is ready and no thread is running."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0
        self._in_threads = 0
        self.stalled = False
        """Set when no callback is ready and no timer is scheduled: the loop would wait forever."""

    def time(self) -> float:
        return self._virtual

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        self._in_threads += 1
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _future: asyncio.Future[Any]) -> None:
        self._in_threads -= 1

    def _run_once(self) -> None:
        ready: Any = getattr(self, "_ready")  # noqa: B009 - asyncio has no public accessor
        scheduled: Any = getattr(self, "_scheduled")  # noqa: B009
        if not ready and not self._in_threads:
            if scheduled:
                self._virtual = max(self._virtual, scheduled[0].when())
            else:
                self.stalled = True
                self.stop()
        super()._run_once()  # type: ignore[misc] # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]


class VirtualClock:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.offset = 0  # Microseconds; simulates a change of the wall clock.

    def now(self) -> int:
        return BEGIN + self.offset + int(self._loop.time() * 1e6)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SeededIds:
    """Ids from a seeded generator: the same in every test run."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def run_id(self) -> str:
        return self.event_id()

    def event_id(self) -> str:
        return str(uuid.UUID(int=self._generator.getrandbits(128), version=4))
