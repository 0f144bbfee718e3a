"""Outputs for a followed run: events as JSON lines or as lines of text. The live view is in `terminal.live_view`.

Everything is written in a thread: a full pipe or a stopped terminal must not block the engine.
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

from .event_text import EventFormatter

COLOR_MODE = False if os.environ.get("NO_COLOR") else None
"""For click: never, or if the terminal supports it."""


class Output(Protocol):
    tick_interval: float
    """Seconds after which `tick` must be called even if there are no events."""
    shows_hints: bool
    """Whether it shows by itself which command to type when a run waits for an operator."""

    async def write_events(self, records: Sequence[RunEventRecord]) -> None:
        """Show new events."""
        ...

    async def tick(self) -> None:
        """Update what depends on the time."""
        ...

    async def write_notice(self, text: str) -> None:
        """Show a message once, about the run or about this process."""
        ...

    async def close(self) -> None:
        """End the output. Nothing is written afterwards."""
        ...


class StdoutWriter:
    """Standard output. If its reader closes the pipe, output is discarded and the command continues."""

    def __init__(self) -> None:
        self.is_closed = False

    async def write(self, text: str, *, err: bool = False) -> None:
        await asyncio.to_thread(self._write, text, err)

    def _write(self, text: str, err: bool) -> None:
        if self.is_closed and not err:
            return
        try:
            click.echo(text, err=err, color=COLOR_MODE)
        except OSError:
            self.is_closed = True
            if not err:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class JsonOutput:
    """One compact event record per line; notices go to standard error."""

    tick_interval = 1.0
    shows_hints = False

    def __init__(self, writer: StdoutWriter) -> None:
        self._writer = writer

    async def write_events(self, records: Sequence[RunEventRecord]) -> None:
        await self._writer.write("\n".join(msgspec.json.encode(record).decode() for record in records))

    async def tick(self) -> None: ...

    async def write_notice(self, text: str) -> None:
        await self._writer.write(text, err=True)

    async def close(self) -> None: ...


class PlainOutput:
    """One line of text per event."""

    tick_interval = 1.0
    shows_hints = False

    def __init__(self, writer: StdoutWriter, formatter: EventFormatter) -> None:
        self._writer = writer
        self._formatter = formatter

    async def write_events(self, records: Sequence[RunEventRecord]) -> None:
        await self._writer.write("\n".join(self._formatter.line(record) for record in records))

    async def tick(self) -> None: ...

    async def write_notice(self, text: str) -> None:
        await self._writer.write(text)

    async def close(self) -> None: ...
