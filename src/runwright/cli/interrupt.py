"""Ctrl-C, and being asked to end, as something to wait for instead of something that breaks in."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.text import Text

    from .live import Live

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While this is open, signals to end are queued. One that is ignored from outside (`nohup`) stays ignored."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._came: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._mine: list[signal.Signals] = []

    def __enter__(self) -> Self:
        for number in ENDINGS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._came.put_nowait, number)
                self._mine.append(number)
        return self

    def on_halt(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Ctrl-Z: have the terminal put in order before we are halted, and taken again when we go on."""

        def halt() -> None:
            before()
            os.kill(os.getpid(), signal.SIGSTOP)
            after()

        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            self._loop.add_signal_handler(signal.SIGTSTP, halt)
            self._mine.append(signal.SIGTSTP)

    def __exit__(self, *_: object) -> None:
        for number in self._mine:
            self._loop.remove_signal_handler(number)
        # What asyncio had here is gone; from here on Ctrl-C ends us as it ends any program.
        if signal.SIGINT in self._mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    async def next(self) -> signal.Signals:
        return await self._came.get()


class Choice(StrEnum):
    PAUSE = "p"
    RESUME = "r"
    CANCEL = "c"
    LEAVE = "l"
    GO_ON = ""


async def ask(live: Live, interrupts: Interrupts, *, paused: bool) -> Choice:
    """What to do with the run. Ctrl-C again leaves it."""
    first = Choice.RESUME if paused else Choice.PAUSE
    live.keyboard.forget_typed()  # before anybody can have seen the question
    await live.ask(_question(first))
    given_up = threading.Event()
    key = asyncio.create_task(asyncio.to_thread(live.keyboard.key, given_up))
    again = asyncio.create_task(interrupts.next())
    try:
        await asyncio.wait({key, again}, return_when=asyncio.FIRST_COMPLETED)
        if again.done():
            return Choice.LEAVE
        answer = key.result()
    finally:
        given_up.set()
        again.cancel()
        await asyncio.gather(key, again, return_exceptions=True)
    if answer is None:
        return Choice.LEAVE
    try:
        choice = Choice(answer.lower())
    except ValueError:
        return Choice.GO_ON
    return choice if choice in (first, Choice.CANCEL, Choice.LEAVE) else Choice.GO_ON


def _question(first: Choice) -> Text:
    from rich.text import Text

    text = Text()
    for key, rest in ((first, "esume" if first is Choice.RESUME else "ause"), ("c", "ancel"), ("l", "eave it")):
        text.append(f"[{key}]", "bold").append(f"{rest}   ")
    return text.append("[any other key] go on", "dim")
