"""A run as a picture: a header, a bar, and a line a step. Never more lines than there is room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from runwright.contract.timestamps import is_utc, to_micros
from runwright.contract.transitions import RunStatus
from runwright.log.clock import SystemClock

from .picture import Glyphs, bar, fit, ticking
from .picture_steps import StepLines
from .render import plain
from .story import Story
from .tree import lay_out

COLOURS = {
    RunStatus.RUNNING: "cyan",
    RunStatus.PAUSED: "yellow",
    RunStatus.COMPLETED: "green",
    RunStatus.FAILED: "red",
    RunStatus.CANCELLED: "magenta",
}
WIDEST_BAR = 60


class Picture:
    """Draws a story. What is shown of big plans is what runs, what failed, what ended last and what comes next."""

    def __init__(self, story: Story, *, ascii_only: bool = False, now: int | None = None) -> None:
        self.story = story
        self.glyphs = Glyphs(ascii_only=ascii_only)
        self._began = now or SystemClock().now()

    def lines(self, size: tuple[int, int], now: int, tails: Mapping[str, str], footer: Sequence[Text]) -> list[Text]:
        """The whole picture, at this moment, for a screen of this many columns and lines."""
        width, height = size
        head = [*self._header(width, now), self._bar(width), Text()]
        foot = [fit(line.copy(), width) for line in footer]
        room = height - len(head) - len(foot) - (1 if foot else 0)
        if room < 1:
            return [*head[:-1], *foot][:height]
        rows, counts = self.visible(room, width)
        steps = StepLines(self.story, self.glyphs, width, [row for row, _ in rows], max_before(rows))
        body = [steps.line(step_id, before, now, tails.get(step_id)) for step_id, before in rows]
        if counts:
            body.append(self._counts(width))
        return [*head, *body, *([Text(), *foot] if foot else [])]

    def visible(self, room: int, width: int) -> tuple[list[tuple[str, str]], bool]:
        """Which steps are shown, each with its branches; and whether the rest is only counted."""
        story = self.story
        if len(story.order) <= room:
            if story.plan is not None and len(story.plan.steps) == len(story.order):
                return lay_out(story.plan, width // 4, self.glyphs.branches), False
            return [(step_id, "") for step_id in story.order], False
        return [(step_id, "") for step_id in self._most_telling(room - 1)], True

    def _most_telling(self, room: int) -> list[str]:
        story = self.story
        chosen: dict[str, None] = {}

        def add(step_ids: Sequence[str], most: int) -> None:
            for step_id in step_ids:
                if most <= 0 or len(chosen) >= room:
                    return
                if step_id not in chosen:
                    chosen[step_id] = None
                    most -= 1

        add(list(reversed(story.failed)), max(1, room // 3))
        add(list(story.running), room)
        add(list(story.retrying), room)
        left = room - len(chosen)
        add(list(reversed(story.latest)), (left + 1) // 2)
        add(story.pending(room), room)
        add(list(reversed(story.latest)), room)
        return sorted(chosen, key=story.place.__getitem__)

    def _header(self, width: int, now: int) -> list[Text]:
        story = self.story
        took = Text(ticking(self._elapsed(now)), "dim")
        head = Text().append(str(story.status), f"bold {COLOURS.get(story.status, '')}".strip())
        if story.substatus:
            head.append(f" {plain(story.substatus)}", "yellow")
        head.append("  ")
        head.append(plain(story.plan_id), "bold")
        name = Text(plain(story.run_id), "dim")
        room = width - took.cell_len - 2
        if head.cell_len + 2 + name.cell_len <= room:
            head.append("  ").append_text(name)
            return [_spread(head, took, width)]
        return [_spread(fit(head, room), took, width), fit(name, width)]

    def _elapsed(self, now: int) -> float:
        summary = self.story.state.summary
        start = to_micros(summary.started_at) if summary.started_at and is_utc(summary.started_at) else self._began
        ended = summary.completed_at
        end = to_micros(ended) if ended and is_utc(ended) else now
        return max(0, end - start) / 1e6

    def _bar(self, width: int) -> Text:
        story = self.story
        label = f"  {story.ended_steps:,}/{story.total:,} steps"
        colour = "red" if story.failed else COLOURS.get(story.status, "green")
        if story.status is RunStatus.RUNNING and not story.failed:
            colour = "green"
        drawn = bar(story.fraction, min(WIDEST_BAR, width - len(label)), colour, self.glyphs)
        return fit(drawn.append(label), width)

    def _counts(self, width: int) -> Text:
        summary = self.story.state.summary
        pending = self.story.total - summary.total_steps
        again = 0 if self.story.has_ended else summary.retrying_steps
        counts = (
            (summary.completed_steps, "done", "green"),
            (summary.running_steps, "running", "cyan"),
            (again, "to be tried again", "yellow"),
            (summary.failed_steps - again, "failed", "red"),
            (summary.skipped_steps, "skipped", "dim"),
            (pending, "to come", "dim"),
        )
        line = Text("  ")
        for count, word, style in counts:
            if count:
                line.append(" · " if len(line) > 2 else "", "dim").append(f"{count:,} {word}", style)
        return fit(line, width)


def max_before(rows: Sequence[tuple[str, str]]) -> int:
    return max((len(before) for _, before in rows), default=0)


def _spread(left: Text, right: Text, width: int) -> Text:
    """One text at the left edge, one at the right."""
    left.append(" " * max(1, width - left.cell_len - right.cell_len))
    return left.append_text(right)
