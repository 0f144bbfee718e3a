"""The system clock and random ids. Other modules receive them as parameters."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial

_STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000

    monotonic = staticmethod(partial(time.clock_gettime, _STEADY_CLOCK))
    """Includes the time that the machine is suspended, because leases expire in that time.

    It is called several times per event, hence without a function of Python in between.
    """

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def pause(self, seconds: float) -> None:
        """Block this thread; for the writer thread between two attempts, never on an event loop."""
        time.sleep(seconds)


class SystemIds:
    """UUIDs v4, generated in batches: one system call per id would cost more than the rest."""

    def run_id(self) -> str:
        return _uuid4(os.urandom(16).hex())

    def event_id(self) -> str:
        while True:
            try:
                return _event_ids.pop()
            except IndexError:
                _event_ids.extend(_generate_ids(256))


_event_ids: list[str] = []
os.register_at_fork(after_in_child=_event_ids.clear)  # Otherwise parent and child would return the same ids.


def _generate_ids(count: int) -> list[str]:
    """Generate ids with a common prefix, so that they are adjacent in an index; each has 90 random bits of its own."""
    first, digits = os.urandom(4).hex(), os.urandom(12 * count).hex()
    return [_uuid4(first + digits[at : at + 24]) for at in range(0, len(digits), 24)]


def _uuid4(raw: str) -> str:
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{'89ab'[int(raw[16], 16) & 3]}{raw[17:20]}-{raw[20:]}"
