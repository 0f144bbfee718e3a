"""The real clock and real ids. Everything else takes them as parameters."""

from __future__ import annotations

import asyncio
import time
import uuid


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def pause(self, seconds: float) -> None:
        """Hold this thread; for the writer thread between two tries, never for an event loop."""
        time.sleep(seconds)


class SystemIds:
    def event_id(self) -> str:
        return str(uuid.uuid4())
