"""Protocols of the clock and the id source. Both are parameters, so that a simulation can replace them."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """Wall-clock time in microseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never decrease, from an arbitrary origin."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the event loop."""
        ...


class Ids(Protocol):
    def run_id(self) -> str:
        """A new UUID v4, as text. Its first characters are random, because users refer to runs by a prefix."""
        ...

    def event_id(self) -> str:
        """A new UUID v4, as text."""
        ...
