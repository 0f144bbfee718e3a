"""Time and identity arrive as parameters, so that a simulator can hand them out."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """Wall-clock time in microseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards; the origin means nothing."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without holding anybody else up."""
        ...


class Ids(Protocol):
    def run_id(self) -> str:
        """A fresh UUID v4, as text. Its beginning tells it from others: people name runs by it."""
        ...

    def event_id(self) -> str:
        """A fresh UUID v4, as text."""
        ...
