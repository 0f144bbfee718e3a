"""The live view of a run on a terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from rich.text import Text

from runwright.cli.hints import CommandHints
from runwright.cli.run_view import RunView
from runwright.contract.clock import Clock
from runwright.contract.events import RunEventRecord
from runwright.contract.timestamps import is_utc, to_micros
from runwright.contract.transitions import RunStatus
from runwright.control.protocols import OutputReader

from .formatting import printable
from .input import InterruptChoice, Interrupts, Keyboard, is_foreground
from .progress_view import ProgressView
from .screen import Screen, ScreenSize

FRAME_INTERVAL = 0.1  # seconds
TAIL_INTERVAL = 0.3  # seconds
OUTPUT_DELAY = 1_000_000  # microseconds after a step's end until its last output is certainly on disk


class LiveView:
    """An `Output` that repaints progress in place. Events are not printed: they are visible in the run view."""

    tick_interval = FRAME_INTERVAL
    shows_hints = True

    def __init__(
        self, view: RunView, step_logs: OutputReader, commands: CommandHints, clock: Clock, idle_hint: str
    ) -> None:
        self._view = view
        self._step_logs = step_logs
        self._commands = commands
        self._clock = clock
        self._idle_hint = idle_hint
        self._screen = Screen()
        self._progress = ProgressView(view, ascii_only=self._screen.is_ascii)
        self._tails: dict[str, str] = {}
        self._final_tails: set[str] = set()  # Steps that ended: their last line does not change any more.
        self._tails_at = self._painted_at = float("-inf")
        self._painting = asyncio.Lock()
        self._prompt: Text | None = None
        self._keyboard = Keyboard()
        self.can_prompt = self._keyboard.is_available
        self._keyboard.acquire()

    async def write_events(self, records: Sequence[RunEventRecord]) -> None: ...

    async def tick(self) -> None:
        if self._prompt is None and self._clock.monotonic() - self._painted_at >= FRAME_INTERVAL * 0.9:
            await self._paint()

    async def write_notice(self, text: str) -> None:
        async with self._painting:
            await asyncio.to_thread(self._screen.print_above, text)

    async def close(self) -> None:
        """Paint the last frame, which stays, and restore the keyboard."""
        self._prompt, self._idle_hint = None, ""
        try:
            self._tails_at = float("-inf")
            if not self._screen.is_closed:
                await self._paint()
        finally:
            self._keyboard.restore()

    # Prompt

    async def prompt_choice(self, interrupts: Interrupts, *, is_paused: bool) -> InterruptChoice:
        """Freeze the view, ask what to do with the run, and continue painting. A second Ctrl-C means LEAVE."""
        first = InterruptChoice.RESUME if is_paused else InterruptChoice.PAUSE
        self._keyboard.discard_input()  # Keys typed before the prompt was visible are not an answer to it.
        self._prompt = _prompt(first)
        await self._paint()
        try:
            key = await self._read_key(interrupts)
        finally:
            self._prompt = None
        await self._paint()
        if key is None:
            return InterruptChoice.LEAVE
        try:
            choice = InterruptChoice(key.lower())
        except ValueError:
            return InterruptChoice.CONTINUE
        allowed = (first, InterruptChoice.CANCEL, InterruptChoice.LEAVE)
        return choice if choice in allowed else InterruptChoice.CONTINUE

    async def _read_key(self, interrupts: Interrupts) -> str | None:
        """Return the next key; None if the keyboard is closed or another interrupt arrives first."""
        cancelled = threading.Event()
        key = asyncio.create_task(asyncio.to_thread(self._keyboard.read_key, cancelled))
        interrupt = asyncio.create_task(interrupts.next())
        try:
            await asyncio.wait({key, interrupt}, return_when=asyncio.FIRST_COMPLETED)
            return None if interrupt.done() else key.result()
        finally:
            cancelled.set()
            interrupt.cancel()
            await asyncio.gather(key, interrupt, return_exceptions=True)

    # Suspension (Ctrl-Z)

    def on_suspend(self) -> None:
        """Return the terminal to the shell before the process is stopped."""
        self._keyboard.restore()
        self._screen.release()

    def on_continue(self) -> None:
        self._keyboard.acquire()  # Has no effect if the process continues in the background.

    # Painting

    async def _paint(self) -> None:
        if not is_foreground():  # Continued in the background: the terminal belongs to the shell.
            self._screen.release()
            return
        self._keyboard.acquire()
        async with self._painting:
            size = self._screen.size
            footer = self._footer()
            await self._read_tails(size, len(footer))
            lines = self._progress.lines(size, self._clock.now(), self._tails, footer)
            await asyncio.to_thread(self._screen.paint, lines)
            self._painted_at = self._clock.monotonic()

    def _footer(self) -> list[Text]:
        if self._prompt is not None:
            return [self._prompt]
        view = self._view
        if view.has_ended or not self._idle_hint:
            return []
        if view.status is RunStatus.PAUSED:
            reason = view.state.summary.reason
            message = view.message or (f"Paused: {printable(reason)}" if reason else "Paused. No new steps start.")
            return [Text(message, "yellow"), _hint_line("resume", self._commands.resume)]
        if view.input_requests:
            step_id, request = next(iter(view.input_requests.items()))
            answer = self._commands.answer(step_id, request)
            return [Text(printable(f"{step_id} {request.text}"), "yellow"), _hint_line("answer", answer)]
        if view.waits_for_operator:
            step_id = next(reversed(view.failed))
            retry, skip = self._commands.retry(step_id), self._commands.skip(step_id)
            return [Text(view.message or "", "yellow"), _hint_line("retry", retry), _hint_line("skip", skip)]
        return [Text(self._idle_hint, "dim")]

    async def _read_tails(self, size: ScreenSize, footer_height: int) -> None:
        """Read the last output line of each visible step, at most every TAIL_INTERVAL, in a thread."""
        if self._clock.monotonic() - self._tails_at < TAIL_INTERVAL:
            return
        self._tails_at = self._clock.monotonic()
        view, paths = self._view, dict[str, str]()
        visible = self._progress.visible(max(1, size.height - 4 - footer_height), size.width)
        for row in visible.rows:
            step_id = row.step_id
            step = view.step_state(step_id)
            if step is None or step_id in self._final_tails:
                continue
            loop = view.state.loops.get(step_id)
            task = view.tasks.get(step_id)
            paths[step_id] = next(reversed(loop.running), step_id) if loop is not None else step_id
            if task is not None:
                paths[step_id] = task.path
            if step_id not in view.running and not step.retry and self._is_output_final(step.completed_at):
                self._final_tails.add(step_id)
        if paths:
            self._tails |= await asyncio.to_thread(self._last_lines, paths)
        self._final_tails -= view.running.keys()

    def _is_output_final(self, completed_at: str | None) -> bool:
        if completed_at is None or not is_utc(completed_at):
            return False
        return self._clock.now() - to_micros(completed_at) > OUTPUT_DELAY

    def _last_lines(self, paths: dict[str, str]) -> dict[str, str]:
        lines: dict[str, str] = {}
        for step_id, path in paths.items():
            line = self._step_logs.last_line(self._view.run_id, path)
            if line is not None:
                lines[step_id] = line
        return lines


def _prompt(first: InterruptChoice) -> Text:
    text = Text()
    rest = "esume" if first is InterruptChoice.RESUME else "ause"
    for key, label in ((first, rest), (InterruptChoice.CANCEL, "ancel"), (InterruptChoice.LEAVE, "eave it")):
        text.append(f"[{key}]", "bold").append(f"{label}   ")
    return text.append("[any other key] continue", "dim")


def _hint_line(label: str, command: str) -> Text:
    return Text.assemble((f"{label}: ", "dim"), (command, "bold"))
