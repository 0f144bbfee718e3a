"""Tables and times for people. Without a terminal nothing is wrapped, coloured or cut."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from runwright.contract.timestamps import millis_between

COLOURS = {
    "COMPLETED": "green",
    "SUCCESS": "green",
    "RUNNING": "cyan",
    "PAUSED": "yellow",
    "FAILED": "red",
    "CANCELLED": "magenta",
    "SKIPPED": "bright_black",
    "PENDING": "bright_black",
    "APPROVED": "blue",
    "INCONSISTENT": "red",
}


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {9: " ", 10: " ", 13: " "}


def plain(text: str) -> str:
    """Text from a log, fit to be printed: what would move the cursor or change colours is spelled out."""
    if text.isprintable():
        return text
    text = text.translate(_CONTROLS)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, set for a terminal by rich, or in plain aligned columns for anything else."""
    rows = [[plain(cell) for cell in row] for row in rows]
    if is_terminal():
        _rich_table(headings, rows)
        return
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        grid.add_column(heading, overflow="fold", no_wrap=heading == "RUN")  # ids are copied
    for row in rows:
        grid.add_row(
            *(Text(cell, style=COLOURS.get(cell.split(" ")[0], "").replace("bright_black", "dim")) for cell in row)
        )
    Console().print(grid)


def status(text: str) -> str:
    return click.style(text, fg=COLOURS.get(text.split(" ")[0]), bold=True)


def heading(text: str) -> str:
    return click.style(text, bold=True)


def clock_time(time: str | None) -> str:
    """A time as people read it: to the millisecond, the T and the Z gone."""
    return "" if time is None else time[:23].replace("T", " ").rstrip("Zz")


def duration(millis: float | None) -> str:
    """Parts of a millisecond are cut off, as where a fold counts them: all places say the same."""
    if millis is None:
        return ""
    millis = int(millis)
    if millis < 1000:
        return f"{millis} ms"
    seconds = millis / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def between(start: str | None, end: str | None) -> str:
    return duration(millis_between(start, end))


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
