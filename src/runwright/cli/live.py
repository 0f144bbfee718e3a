"""The live picture of a run, on a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich.text import Text

from runwright.contract.clock import Clock
from runwright.contract.events import RunEventRecord
from runwright.contract.timestamps import is_utc, to_micros
from runwright.contract.transitions import RunStatus
from runwright.control.interface import OutputReader

from .hints import Commands
from .keyboard import Keyboard, in_foreground
from .progress import Picture
from .render import plain
from .screen import Screen
from .story import Story

FRAME = 0.1
TAILS_EVERY = 0.3
SETTLES = 1_000_000  # microseconds


class Live:
    patience = FRAME
    shows_what_to_do = True

    def __init__(self, story: Story, step_logs: OutputReader, commands: Commands, clock: Clock, idle_hint: str) -> None:
        self._story = story
        self._step_logs = step_logs
        self._commands = commands
        self._clock = clock
        self._idle_hint = idle_hint
        self._screen = Screen()
        self._picture = Picture(story, ascii_only=self._screen.is_plain)
        self._tails: dict[str, str] = {}
        self._settled: set[str] = set()  # steps that have ended: their last line stays what it is
        self._tails_at = self._painted_at = float("-inf")
        self._painting = asyncio.Lock()
        self._question: Text | None = None
        self.keyboard = Keyboard()
        self.can_ask = self.keyboard.is_there  # somebody sits there
        self.keyboard.take()

    async def take(self, records: Sequence[RunEventRecord]) -> None: ...

    async def tick(self) -> None:
        if self._question is None and self._clock.monotonic() - self._painted_at >= FRAME * 0.9:
            await self._paint()

    async def say(self, text: str) -> None:
        async with self._painting:
            await asyncio.to_thread(self._screen.print_above, text)

    async def close(self) -> None:
        """The last picture stays; the terminal is as it was."""
        self._question, self._idle_hint = None, ""
        try:
            self._tails_at = float("-inf")
            if not self._screen.gone:
                await self._paint()
        finally:
            self.keyboard.give_back()

    async def ask(self, question: Text) -> None:
        """Freeze the picture with a question below it."""
        self._question = question
        await self._paint()

    async def go_on(self) -> None:
        self._question = None
        await self._paint()

    def halt(self) -> None:
        """Before the process is halted: leave the terminal to the shell."""
        self.keyboard.give_back()
        self._screen.let_go()

    def wake(self) -> None:
        self.keyboard.take()  # unless we went on in the background

    async def _paint(self) -> None:
        if not in_foreground():  # halted, then sent to the background: the terminal is the shell's
            self._screen.let_go()
            return
        self.keyboard.take()
        async with self._painting:
            size = self._screen.size
            footer = self._footer()
            await self._read_tails(size, len(footer))
            lines = self._picture.lines(size, self._clock.now(), self._tails, footer)
            await asyncio.to_thread(self._screen.paint, lines)
            self._painted_at = self._clock.monotonic()

    def _footer(self) -> list[Text]:
        if self._question is not None:
            return [self._question]
        story = self._story
        if story.has_ended or not self._idle_hint:
            return []
        if story.status is RunStatus.PAUSED:
            reason = story.state.summary.reason
            said = story.message or (f"Paused: {plain(reason)}" if reason else "Paused. Nothing new starts.")
            return [Text(said, "yellow"), _typed("go on", self._commands.resume)]
        if story.asking:
            step_id, asking = next(iter(story.asking.items()))
            answer = self._commands.answer(step_id, asking)
            return [Text(plain(f"{step_id} {asking.words}"), "yellow"), _typed("answer", answer)]
        if story.waits_for_operator:
            step_id = next(reversed(story.failed))
            retry, skip = self._commands.retry(step_id), self._commands.skip(step_id)
            return [Text(story.message or "", "yellow"), _typed("try again", retry), _typed("do without", skip)]
        return [Text(self._idle_hint, "dim")]

    async def _read_tails(self, size: tuple[int, int], footer: int) -> None:
        """The last line that each visible step has written. Read now and then, by a thread."""
        if self._clock.monotonic() - self._tails_at < TAILS_EVERY:
            return
        self._tails_at = self._clock.monotonic()
        story, wanted = self._story, dict[str, str]()
        rows, _ = self._picture.visible(max(1, size[1] - 4 - footer), size[0])
        for step_id, _ in rows:
            cell = story.cell(step_id)
            if cell is None or step_id in self._settled:
                continue
            loop = story.state.loops.get(step_id)
            task = story.tasks.get(step_id)
            wanted[step_id] = next(reversed(loop.running), step_id) if loop is not None else step_id
            if task is not None:
                wanted[step_id] = task.path
            if step_id not in story.running and not cell.retry and self._ended_long_ago(cell.completed_at):
                self._settled.add(step_id)
        if wanted:
            found = await asyncio.to_thread(self._last_lines, wanted)
            self._tails |= found
        self._settled -= story.running.keys()

    def _ended_long_ago(self, at: str | None) -> bool:
        """Long enough for its last words to be on disk."""
        return at is not None and is_utc(at) and self._clock.now() - to_micros(at) > SETTLES

    def _last_lines(self, wanted: dict[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for step_id, path in wanted.items():
            line = self._step_logs.last_line(self._story.run_id, path)
            if line is not None:
                found[step_id] = line
        return found


def _typed(what: str, command: str) -> Text:
    return Text.assemble((f"{what}: ", "dim"), (command, "bold"))
