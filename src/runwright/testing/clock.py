"""Time that only passes when nothing else is to be done: three days of waiting take no time at all."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

BEGIN = 1_780_000_000_000_000
"""When played runs begin, in microseconds since 1970."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while there is work, and jumps to the next alarm when there is none."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0
        self._in_threads = 0
        self.stalled = False
        """Nothing is to be done, and no alarm is set: nothing will ever happen."""

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
        ready: Any = getattr(self, "_ready")  # noqa: B009 - asyncio has no public way to ask
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
        self.offset = 0  # a wall clock may be set

    def now(self) -> int:
        return BEGIN + self.offset + int(self._loop.time() * 1e6)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SeededIds:
    """The same ids in every play."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def run_id(self) -> str:
        return self.event_id()

    def event_id(self) -> str:
        return str(uuid.UUID(int=self._dice.getrandbits(128), version=4))
