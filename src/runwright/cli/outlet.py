"""Where the story of a run goes: events as JSON, or as lines of words. The live picture is in `live`.

Everything is written by a thread of its own: a pipe that nobody empties, or a terminal on hold, must not keep the
engine from its work.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Protocol

import click
import msgspec

from runwright.contract.events import RunEventRecord

from .words import Narrator

NO_COLOUR = False if os.environ.get("NO_COLOR") else None
"""For click: never, or as the terminal allows."""


class Outlet(Protocol):
    patience: float
    """Seconds after which it wants to be given a tick, news or not."""
    shows_what_to_do: bool
    """Whether it says by itself what to type when a run is paused."""

    async def take(self, records: Sequence[RunEventRecord]) -> None:
        """These events are new."""
        ...

    async def tick(self) -> None:
        """Time has passed."""
        ...

    async def say(self, text: str) -> None:
        """Something to be told once, about the run or about us."""
        ...

    async def close(self) -> None:
        """Nothing more comes."""
        ...


class Pipe:
    """Standard output. Whoever reads it may go; what we do goes on."""

    def __init__(self) -> None:
        self.unheard = False

    async def write(self, text: str, *, err: bool = False) -> None:
        await asyncio.to_thread(self._write, text, err)

    def _write(self, text: str, err: bool) -> None:
        if self.unheard and not err:
            return
        try:
            click.echo(text, err=err, color=NO_COLOUR)
        except OSError:
            self.unheard = True
            if not err:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class JsonLines:
    """One compact event record a line; everything else goes to standard error."""

    patience = 1.0
    shows_what_to_do = False

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def take(self, records: Sequence[RunEventRecord]) -> None:
        await self._pipe.write("\n".join(msgspec.json.encode(record).decode() for record in records))

    async def tick(self) -> None: ...

    async def say(self, text: str) -> None:
        await self._pipe.write(text, err=True)

    async def close(self) -> None: ...


class PlainLines:
    """One line of words an event."""

    patience = 1.0
    shows_what_to_do = False

    def __init__(self, pipe: Pipe, narrator: Narrator) -> None:
        self._pipe = pipe
        self._narrator = narrator

    async def take(self, records: Sequence[RunEventRecord]) -> None:
        await self._pipe.write("\n".join(self._narrator.line(record) for record in records))

    async def tick(self) -> None: ...

    async def say(self, text: str) -> None:
        await self._pipe.write(text)

    async def close(self) -> None: ...
