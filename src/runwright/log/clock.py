"""The real clock and real ids. Everything else takes them as parameters."""

from __future__ import annotations

import asyncio
import os
import time

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Goes on while the machine sleeps: a lease does not."""
        return time.clock_gettime(_STEADY)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def pause(self, seconds: float) -> None:
        """Hold this thread; for the writer thread between two tries, never for an event loop."""
        time.sleep(seconds)


class SystemIds:
    """UUIDs v4. Randomness is drawn for many at once: a call to the kernel for each would cost more than the rest."""

    def run_id(self) -> str:
        return _uuid4(os.urandom(16).hex())

    def event_id(self) -> str:
        while True:
            try:
                return _drawn.pop()
            except IndexError:
                _drawn.extend(_draw(256))


_drawn: list[str] = []
os.register_at_fork(after_in_child=_drawn.clear)  # or parent and child would hand out the same ids


def _draw(count: int) -> list[str]:
    """Ids that begin alike: drawn together they lie together in an index. 90 random bits are each one's own."""
    first, digits = os.urandom(4).hex(), os.urandom(12 * count).hex()
    return [_uuid4(first + digits[at : at + 24]) for at in range(0, len(digits), 24)]


def _uuid4(raw: str) -> str:
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{'89ab'[int(raw[16], 16) & 3]}{raw[17:20]}-{raw[20:]}"
