"""The bottom of the terminal as a surface. Lines are painted over the lines before, and only those that changed.

So nothing flickers and nothing jumps. The cursor is left visible: a process that is killed with -9 must not leave
a broken terminal behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # show all of it at once; terminals that do not know it pass over it
CLEAR_LINE, CLEAR_BELOW = "\x1b[K", "\x1b[J"


class Screen:
    """Blocks while the terminal does not take more: call it from a thread that may wait."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._shown: list[Text] = []
        self._width = self._console.width
        self.gone = False  # nobody looks any more
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
        self.is_plain = not encoding.startswith("utf")  # lines and ticks cannot be shown

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines that may be used: a full last line or column would make the terminal scroll."""
        size = self._console.size
        return max(20, size.width - 1), max(2, size.height - 1)

    def paint(self, lines: Sequence[Text]) -> None:
        """Show these lines instead of those before."""
        width = self._console.width
        parts = [BEGIN, self._to_top()]
        if width != self._width:
            self._width, self._shown = width, []
            parts.append(CLEAR_BELOW)
        for number, line in enumerate(lines):
            if number >= len(self._shown) or self._shown[number] != line:
                parts += [self._encode(line), CLEAR_LINE]
            parts.append("\n")
        if len(self._shown) > len(lines):
            parts.append(CLEAR_BELOW)
        self._shown = list(lines)
        self._write("".join([*parts, END]))

    def print_above(self, text: str) -> None:
        """Print something that stays, above the painted lines."""
        lines, before = self._shown, self._to_top()
        self._shown = []
        painted = "".join(f"{self._encode(line)}\n" for line in lines)
        self._write(f"{BEGIN}{before}{CLEAR_BELOW}{text}\n{painted}{END}")
        self._shown = lines

    def let_go(self) -> None:
        """What is painted stays; the next lines go below it."""
        self._shown = []

    def _to_top(self) -> str:
        """Back to the first painted line. If the terminal has become narrower, lines may have been folded."""
        width = self._console.width
        rows = sum(max(1, -(-line.cell_len // width)) for line in self._shown)
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _encode(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", no_wrap=True, overflow="ignore", crop=False)
        return captured.get()

    def _write(self, text: str) -> None:
        if self.gone:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:  # the terminal was closed; the run goes on
            self.gone = True
            _discard_output()


def _discard_output() -> None:
    """Keep the interpreter from tripping over what it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
