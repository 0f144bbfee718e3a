"""Terminal input while a live view is shown: single keys without echo, and signals as something to await."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Self

POLL = 0.1
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def is_foreground() -> bool:
    """Return True if this process may use the terminal. The kernel stops a background job that changes its modes."""
    try:
        return os.tcgetpgrp(sys.stdout.fileno()) == os.getpgrp()
    except OSError:
        return False


class Keyboard:
    """The terminal's keyboard. It is changed only while the process is in the foreground."""

    def __init__(self) -> None:
        self._saved: list[Any] | None = None
        self.is_available = sys.stdin is not None and sys.stdin.isatty() and is_foreground()  # pyright: ignore[reportUnnecessaryComparison]

    def acquire(self) -> None:
        """Turn off echo and line buffering."""
        if not self.is_available or self._saved is not None or not is_foreground():
            return
        with contextlib.suppress(termios.error):
            self._saved = termios.tcgetattr(0)
            modes = termios.tcgetattr(0)
            modes[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(0, termios.TCSADRAIN, modes)

    def restore(self) -> None:
        """Restore the saved modes. Pending input is discarded: it was not meant for the shell."""
        saved, self._saved = self._saved, None
        if saved is None or not is_foreground():
            return
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSAFLUSH, saved)

    def discard_input(self) -> None:
        with contextlib.suppress(termios.error):
            termios.tcflush(0, termios.TCIFLUSH)

    def read_key(self, cancelled: threading.Event) -> str | None:
        """Return the next key; None if the keyboard is closed or `cancelled` is set. Blocks: call it in a thread."""
        while not cancelled.is_set():
            try:
                if select.select([0], [], [], POLL)[0]:
                    return os.read(0, 64)[:1].decode(errors="replace") or None
            except OSError:
                return None
        return None


class Interrupts:
    """A queue of the signals that ask the process to end. A signal that is already ignored (`nohup`) stays ignored."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> Self:
        for number in END_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._received.put_nowait, number)
                self._handled.append(number)
        return self

    def on_suspend(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Handle Ctrl-Z: call `before` to restore the terminal, stop the process, call `after` when it continues."""

        def suspend() -> None:
            before()
            os.kill(os.getpid(), signal.SIGSTOP)
            after()

        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            self._loop.add_signal_handler(signal.SIGTSTP, suspend)
            self._handled.append(signal.SIGTSTP)

    def __exit__(self, *_: object) -> None:
        for number in self._handled:
            self._loop.remove_signal_handler(number)
        # asyncio does not reinstall its own SIGINT handler: from here on Ctrl-C raises KeyboardInterrupt.
        if signal.SIGINT in self._handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    async def next(self) -> signal.Signals:
        return await self._received.get()


class InterruptChoice(StrEnum):
    """The keys of the prompt that Ctrl-C shows."""

    PAUSE = "p"
    RESUME = "r"
    CANCEL = "c"
    LEAVE = "l"
    CONTINUE = ""
