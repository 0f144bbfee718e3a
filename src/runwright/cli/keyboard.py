"""The terminal's keyboard while a picture is shown: nothing typed is echoed into it, and one key is an answer."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
from typing import Any

POLL = 0.1


def in_foreground() -> bool:
    """Whether this process may use the terminal: a job in the background would be halted for touching it."""
    try:
        return os.tcgetpgrp(sys.stdout.fileno()) == os.getpgrp()
    except OSError:
        return False


class Keyboard:
    def __init__(self) -> None:
        self._saved: list[Any] | None = None
        self.is_there = sys.stdin is not None and sys.stdin.isatty() and in_foreground()  # pyright: ignore[reportUnnecessaryComparison]

    def take(self) -> None:
        """Have the keyboard to ourselves. Only while in the foreground, as everything here."""
        if not self.is_there or self._saved is not None or not in_foreground():
            return
        with contextlib.suppress(termios.error):
            self._saved = termios.tcgetattr(0)
            quiet = termios.tcgetattr(0)
            quiet[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(0, termios.TCSADRAIN, quiet)

    def give_back(self) -> None:
        """As it was. What was typed into the picture is forgotten: it was not meant for the shell."""
        saved, self._saved = self._saved, None
        if saved is None or not in_foreground():
            return
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSAFLUSH, saved)

    def forget_typed(self) -> None:
        with contextlib.suppress(termios.error):
            termios.tcflush(0, termios.TCIFLUSH)

    def key(self, given_up: threading.Event) -> str | None:
        """The next key; None once the keyboard is gone or the question is moot. Blocks: call it from a thread."""
        while not given_up.is_set():
            try:
                if select.select([0], [], [], POLL)[0]:
                    return os.read(0, 64)[:1].decode(errors="replace") or None
            except OSError:
                return None
        return None
