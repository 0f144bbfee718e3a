"""Diff painting of lines at the bottom of the terminal.

Only lines that changed are rewritten, which avoids flicker. The cursor stays visible, because a process that is killed
with SIGKILL cannot restore it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # Synchronized output; terminals without support ignore it.
CLEAR_LINE, CLEAR_BELOW = "\x1b[K", "\x1b[J"


class ScreenSize(NamedTuple):
    width: int
    height: int


class Screen:
    """The painted lines. Methods block while the terminal does not accept output: call them in a thread."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._painted: list[Text] = []
        self._width = self._console.width
        self.is_closed = False
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
        self.is_ascii = not encoding.startswith("utf")  # Box-drawing characters cannot be encoded.

    @property
    def size(self) -> ScreenSize:
        """The usable columns and lines. A full last line or column would make the terminal scroll."""
        size = self._console.size
        return ScreenSize(max(20, size.width - 1), max(2, size.height - 1))

    def paint(self, lines: Sequence[Text]) -> None:
        """Replace the painted lines."""
        width = self._console.width
        parts = [BEGIN, self._to_top()]
        if width != self._width:
            self._width, self._painted = width, []
            parts.append(CLEAR_BELOW)
        for number, line in enumerate(lines):
            if number >= len(self._painted) or self._painted[number] != line:
                parts += [self._encode(line), CLEAR_LINE]
            parts.append("\n")
        if len(self._painted) > len(lines):
            parts.append(CLEAR_BELOW)
        self._painted = list(lines)
        self._write("".join([*parts, END]))

    def print_above(self, text: str) -> None:
        """Print text that stays, above the painted lines."""
        lines, to_top = self._painted, self._to_top()
        self._painted = []
        repainted = "".join(f"{self._encode(line)}\n" for line in lines)
        self._write(f"{BEGIN}{to_top}{CLEAR_BELOW}{text}\n{repainted}{END}")
        self._painted = lines

    def release(self) -> None:
        """Leave the painted lines as they are; the next lines are painted below them."""
        self._painted = []

    def _to_top(self) -> str:
        """Move to the first painted line. In a terminal that became narrower, painted lines may be wrapped."""
        width = self._console.width
        rows = sum(max(1, -(-line.cell_len // width)) for line in self._painted)
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _encode(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", no_wrap=True, overflow="ignore", crop=False)
        return captured.get()

    def _write(self, text: str) -> None:
        if self.is_closed:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:  # The terminal was closed; the run continues.
            self.is_closed = True
            _discard_output()


def _discard_output() -> None:
    """Redirect stdout to /dev/null, so that flushing it at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
