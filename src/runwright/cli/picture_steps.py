"""One line a step: sign, name, kind, time, and what there is to say about it, in columns that stay where they are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from runwright.contract.timestamps import is_utc, to_micros
from runwright.contract.transitions import StepStatus
from runwright.core.state import StepCell
from runwright.plans.layers import kind_of

from .picture import Glyphs, bar, fit, ticking
from .render import plain
from .story import Story, TaskNow
from .written import readable

TIME_WIDTH = 9
NARROW = 72
LOOP_BAR = 12


class StepLines:
    """The columns are as wide as the widest of what is shown, within reason."""

    def __init__(self, story: Story, glyphs: Glyphs, width: int, shown: Sequence[str], indent: int) -> None:
        self._story = story
        self._glyphs = glyphs
        self._width = width
        names = max((cell_len(plain(step_id)) for step_id in shown), default=4)
        self._name_width = min(max(names + indent, 12), max(12, width * 2 // 5))
        kinds = [kind_of(step) for step_id in shown if (step := story.step(step_id)) is not None]
        self._kind_width = 0 if width < NARROW else min(max(map(len, kinds), default=0), max(12, width // 6))

    def line(self, step_id: str, before: str, now: int, tail: str | None) -> Text:
        story, cell = self._story, self._story.cell(step_id)
        sign, style = self._sign(step_id, cell)
        line = Text().append(before, "bright_black")
        line.append(sign, style).append(" ")
        dim = "dim" if cell is None or cell.status is StepStatus.SKIPPED else ""
        line.append_text(fit(Text(plain(step_id), dim), self._name_width - len(before)))
        _pad(line, self._name_width + 2)
        if self._kind_width:
            step = story.step(step_id)
            kind = "" if step is None else kind_of(step)
            line.append("  ").append_text(fit(Text(plain(kind), "dim"), self._kind_width))
            _pad(line, self._name_width + 4 + self._kind_width)
        line.append(self._time(cell, now).rjust(TIME_WIDTH), "" if step_id in story.running else "dim")
        note = self._note(step_id, cell, now, tail)
        if note.plain:
            line.append("  ").append_text(note)
        return fit(line, self._width, self._glyphs.cut)

    def _sign(self, step_id: str, cell: StepCell | None) -> tuple[str, str]:
        glyphs = self._glyphs
        if cell is None:
            return glyphs.pending, "bright_black"
        if self._story.is_retrying(step_id):
            return glyphs.again, "yellow"
        return {
            StepStatus.RUNNING: (glyphs.running, "cyan"),
            StepStatus.SUCCESS: (glyphs.done, "green"),
            StepStatus.FAILED: (glyphs.failed, "bold red"),
            StepStatus.SKIPPED: (glyphs.skipped, "bright_black"),
        }.get(cell.status, (glyphs.pending, "bright_black"))

    def _time(self, cell: StepCell | None, now: int) -> str:
        if cell is None or cell.started_at is None or not is_utc(cell.started_at):
            return ""
        end = cell.completed_at
        until = to_micros(end) if end is not None and is_utc(end) else now
        return ticking(max(0, until - to_micros(cell.started_at)) / 1e6)

    def _note(self, step_id: str, cell: StepCell | None, now: int, tail: str | None) -> Text:
        asking = self._story.asking.get(step_id)
        asks = Text("" if asking is None else plain(asking.words), "bold yellow")
        queue = self._story.queues.get(step_id)
        if queue is not None:
            return Text(plain(f"waits for a worker of {queue}"), "yellow")
        if cell is None:
            return asks
        parts = [self._attempt(step_id, cell, now), self._loop(step_id), self._wait(step_id, cell, now), asks]
        if (task := self._story.tasks.get(step_id)) is not None:
            parts += self._task(step_id, task, now)
            tail = None if task.due is not None else tail
        if cell.status is StepStatus.FAILED and cell.error is not None:
            parts.append(self._error(cell, again=self._story.is_retrying(step_id)))
        elif cell.status is StepStatus.SKIPPED:
            parts.append(Text((cell.reason_code or "skipped").replace("_", " ").lower(), "dim"))
        elif tail:
            parts.append(Text(readable(tail).strip(), "dim"))
        return Text("  ").join([part for part in parts if part.plain])

    def _attempt(self, step_id: str, cell: StepCell, now: int) -> Text:
        again = self._story.is_retrying(step_id)
        if cell.attempt == 1 and not again:
            return Text()
        step = self._story.step(step_id)
        attempt = cell.attempt + 1 if again else cell.attempt
        most = attempt if step is None else max(step.retry.max_attempts, attempt)
        if not again:
            return Text(f"attempt {attempt}/{most}", "yellow" if cell.status is StepStatus.RUNNING else "dim")
        left = max(0, self._story.due.get(step_id, now) - now) / 1e6
        return Text(f"attempt {attempt}/{most} in {ticking(left)}", "yellow")

    def _task(self, step_id: str, task: TaskNow, now: int) -> list[Text]:
        """Which task it is at, the how manyth try, and what the one before came to."""
        step = self._story.step(step_id)
        is_alone = step is None or step.route is None or len(step.route.tasks) < 2
        parts = [] if is_alone else [Text(plain(task.label), "cyan")]
        if task.due is not None:
            left = ticking(max(0, task.due - now) / 1e6)
            parts.append(Text(f"try {task.attempt + 1} in {left}", "yellow"))
        elif task.attempt > 1:
            parts.append(Text(f"try {task.attempt}", "yellow"))
        if task.error is not None:
            parts.append(Text(plain(task.error), "dim"))
        return parts

    def _loop(self, step_id: str) -> Text:
        loop = self._story.state.loops.get(step_id)
        if loop is None:
            return Text()
        text = Text()
        if step_id in self._story.running:
            share = loop.done / loop.total if loop.total else 0.0
            text.append_text(bar(share, LOOP_BAR, "green", self._glyphs)).append(" ")
        width = len(f"{loop.total:,}")
        text.append(f"{loop.done:>{width},}/{loop.total:,}", "" if step_id in self._story.running else "dim")
        return text.append(f" {loop.failed:,} failed", "red") if loop.failed else text

    def _wait(self, step_id: str, cell: StepCell, now: int) -> Text:
        due = self._story.due.get(step_id)
        if due is None or cell.status is not StepStatus.RUNNING:
            return Text()
        return Text(f"{ticking(max(0, due - now) / 1e6)} left", "cyan")

    def _error(self, cell: StepCell, *, again: bool) -> Text:
        assert cell.error is not None
        text = Text().append(plain(cell.error.code or ""), "yellow" if again else "red")
        return text.append(" ").append(plain(cell.error.message or ""), "dim" if again else "")


def _pad(line: Text, width: int) -> None:
    line.append(" " * max(0, width - line.cell_len))
