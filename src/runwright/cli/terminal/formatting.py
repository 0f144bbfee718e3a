"""Tables, times and durations for the terminal. Without a terminal nothing is wrapped, colored or truncated."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import click

from runwright.contract.timestamps import millis_between

COLORS = {
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
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def printable(text: str) -> str:
    """Escape control characters in text from a log, so that it cannot move the cursor or change colors."""
    if text.isprintable():
        return text
    text = text.translate(_CONTROLS)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def strip_ansi(text: str) -> str:
    """Remove colors and cursor movements from a line of step output.

    Of a line that overwrites itself with carriage returns, as progress bars do, only the last state is returned.
    """
    if text.isprintable():
        return text
    text = _ANSI.sub("", text).rstrip("\r")
    return printable(text.rpartition("\r")[2].expandtabs(8))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: with rich on a terminal, otherwise in plain aligned columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    if is_terminal():
        _print_rich_table(headings, rows)
        return
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        grid.add_column(
            heading, overflow="fold", no_wrap=heading == "RUN"
        )  # Run ids are copied, so they must not wrap.
    for row in rows:
        grid.add_row(
            *(Text(cell, style=COLORS.get(cell.split(" ")[0], "").replace("bright_black", "dim")) for cell in row)
        )
    Console().print(grid)


def styled_status(text: str) -> str:
    return click.style(text, fg=COLORS.get(text.split(" ")[0]), bold=True)


def bold(text: str) -> str:
    return click.style(text, bold=True)


def format_time(time: str | None) -> str:
    """Format an RFC 3339 time to the millisecond, without the T and the Z."""
    return "" if time is None else time[:23].replace("T", " ").rstrip("Zz")


def format_duration(millis: float | None) -> str:
    """Format a duration. Fractions of a millisecond are truncated, as the fold does, so that all displays agree."""
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


def format_elapsed(start: str | None, end: str | None) -> str:
    return format_duration(millis_between(start, end))


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
