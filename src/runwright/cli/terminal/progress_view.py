"""The progress of a run as rich text: a header, a progress bar and a row per step, never higher than the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from runwright.cli.run_view import CurrentTask, RunView
from runwright.contract.timestamps import is_utc, to_micros
from runwright.contract.transitions import RunStatus, StepStatus
from runwright.core.fold.run_state import StepState
from runwright.log.system_clock import SystemClock
from runwright.plans.drawing.layout import describe_kind

from .formatting import printable, strip_ansi
from .graph_layout import ASCII, LINES, GraphRow, layout_rows
from .screen import ScreenSize

COLORS = {
    RunStatus.RUNNING: "cyan",
    RunStatus.PAUSED: "yellow",
    RunStatus.COMPLETED: "green",
    RunStatus.FAILED: "red",
    RunStatus.CANCELLED: "magenta",
}
MAX_BAR_WIDTH = 60
LOOP_BAR_WIDTH = 12
TIME_WIDTH = 9
MIN_KIND_WIDTH = 72  # Narrower screens have no column for the kind of step.


class VisibleSteps(NamedTuple):
    rows: list[GraphRow]
    is_selection: bool
    """True if steps are left out, which are then only counted."""


class ProgressView:
    """Renders a run view. Of a plan that does not fit on the screen, a selection of steps is shown."""

    def __init__(self, view: RunView, *, ascii_only: bool = False, now: int | None = None) -> None:
        self.view = view
        self.glyphs = Glyphs(ascii_only=ascii_only)
        self._created_at = now or SystemClock().now()

    def lines(self, size: ScreenSize, now: int, tails: Mapping[str, str], footer: Sequence[Text]) -> list[Text]:
        """Render all lines. `now` is in microseconds; `tails` maps steps to their last line of output."""
        width, height = size
        head = [*self._header(width, now), self._bar(width), Text()]
        foot = [fit(line.copy(), width) for line in footer]
        available = height - len(head) - len(foot) - (1 if foot else 0)
        if available < 1:
            return [*head[:-1], *foot][:height]
        visible = self.visible(available, width)
        rows = StepRows(self.view, self.glyphs, width, visible.rows)
        body = [rows.row(row, now, tails.get(row.step_id)) for row in visible.rows]
        if visible.is_selection:
            body.append(self._counts(width))
        return [*head, *body, *([Text(), *foot] if foot else [])]

    def visible(self, available: int, width: int) -> VisibleSteps:
        """Return the steps that are shown in `available` lines."""
        view = self.view
        if len(view.step_ids) <= available:
            if view.plan is not None and len(view.plan.steps) == len(view.step_ids):
                return VisibleSteps(layout_rows(view.plan, width // 4, self.glyphs.connectors), is_selection=False)
            return VisibleSteps([GraphRow(step_id) for step_id in view.step_ids], is_selection=False)
        selected = self._select_steps(available - 1)
        return VisibleSteps([GraphRow(step_id) for step_id in selected], is_selection=True)

    def _select_steps(self, available: int) -> list[str]:
        """Select running and failed steps first, then those that ended last and those that come next."""
        view = self.view
        selected: dict[str, None] = {}

        def add(step_ids: Sequence[str], limit: int) -> None:
            for step_id in step_ids:
                if limit <= 0 or len(selected) >= available:
                    return
                if step_id not in selected:
                    selected[step_id] = None
                    limit -= 1

        add(list(reversed(view.failed)), max(1, available // 3))
        add(list(view.running), available)
        add(list(view.retrying), available)
        remaining = available - len(selected)
        add(list(reversed(view.recently_ended)), (remaining + 1) // 2)
        add(view.pending(available), available)
        add(list(reversed(view.recently_ended)), available)
        return sorted(selected, key=view.positions.__getitem__)

    def _header(self, width: int, now: int) -> list[Text]:
        view = self.view
        elapsed = Text(format_running_time(self._elapsed(now)), "dim")
        head = Text().append(str(view.status), f"bold {COLORS.get(view.status, '')}".strip())
        if view.substatus:
            head.append(f" {printable(view.substatus)}", "yellow")
        head.append("  ")
        head.append(printable(view.plan_id), "bold")
        run_id = Text(printable(view.run_id), "dim")
        available = width - elapsed.cell_len - 2
        if head.cell_len + 2 + run_id.cell_len <= available:
            head.append("  ").append_text(run_id)
            return [_justify(head, elapsed, width)]
        return [_justify(fit(head, available), elapsed, width), fit(run_id, width)]

    def _elapsed(self, now: int) -> float:
        summary = self.view.state.summary
        start = to_micros(summary.started_at) if summary.started_at and is_utc(summary.started_at) else self._created_at
        ended = summary.completed_at
        end = to_micros(ended) if ended and is_utc(ended) else now
        return max(0, end - start) / 1e6

    def _bar(self, width: int) -> Text:
        view = self.view
        label = f"  {view.ended_steps:,}/{view.total:,} steps"
        color = "red" if view.failed else COLORS.get(view.status, "green")
        if view.status is RunStatus.RUNNING and not view.failed:
            color = "green"
        drawn = bar(view.fraction, min(MAX_BAR_WIDTH, width - len(label)), color, self.glyphs)
        return fit(drawn.append(label), width)

    def _counts(self, width: int) -> Text:
        summary = self.view.state.summary
        pending = self.view.total - summary.total_steps
        retrying = 0 if self.view.has_ended else summary.retrying_steps
        counts = (
            (summary.completed_steps, "done", "green"),
            (summary.running_steps, "running", "cyan"),
            (retrying, "retrying", "yellow"),
            (summary.failed_steps - retrying, "failed", "red"),
            (summary.skipped_steps, "skipped", "dim"),
            (pending, "pending", "dim"),
        )
        line = Text("  ")
        for count, label, style in counts:
            if count:
                line.append(" · " if len(line) > 2 else "", "dim").append(f"{count:,} {label}", style)
        return fit(line, width)


class StepRows:
    """Rows of steps in aligned columns: glyph, name, kind, time, details.

    The columns are as wide as the widest visible step_state, up to a share of the screen.
    """

    def __init__(self, view: RunView, glyphs: Glyphs, width: int, rows: Sequence[GraphRow]) -> None:
        self._view = view
        self._glyphs = glyphs
        self._width = width
        indent = max((len(row.prefix) for row in rows), default=0)
        names = max((cell_len(printable(row.step_id)) for row in rows), default=4)
        self._name_width = min(max(names + indent, 12), max(12, width * 2 // 5))
        kinds = [describe_kind(step) for row in rows if (step := view.plan_step(row.step_id)) is not None]
        self._kind_width = 0 if width < MIN_KIND_WIDTH else min(max(map(len, kinds), default=0), max(12, width // 6))

    def row(self, row: GraphRow, now: int, tail: str | None) -> Text:
        step_id, prefix = row
        view, state = self._view, self._view.step_state(step_id)
        glyph, style = self._glyph(step_id, state)
        line = Text().append(prefix, "bright_black")
        line.append(glyph, style).append(" ")
        dim = "dim" if state is None or state.status is StepStatus.SKIPPED else ""
        line.append_text(fit(Text(printable(step_id), dim), self._name_width - len(prefix)))
        _pad(line, self._name_width + 2)
        if self._kind_width:
            step = view.plan_step(step_id)
            kind = "" if step is None else describe_kind(step)
            line.append("  ").append_text(fit(Text(printable(kind), "dim"), self._kind_width))
            _pad(line, self._name_width + 4 + self._kind_width)
        line.append(self._time(state, now).rjust(TIME_WIDTH), "" if step_id in view.running else "dim")
        details = self._details(step_id, state, now, tail)
        if details.plain:
            line.append("  ").append_text(details)
        return fit(line, self._width, self._glyphs.ellipsis)

    def _glyph(self, step_id: str, state: StepState | None) -> tuple[str, str]:
        glyphs = self._glyphs
        if state is None:
            return glyphs.pending, "bright_black"
        if self._view.is_retrying(step_id):
            return glyphs.retrying, "yellow"
        return {
            StepStatus.RUNNING: (glyphs.running, "cyan"),
            StepStatus.SUCCESS: (glyphs.done, "green"),
            StepStatus.FAILED: (glyphs.failed, "bold red"),
            StepStatus.SKIPPED: (glyphs.skipped, "bright_black"),
        }.get(state.status, (glyphs.pending, "bright_black"))

    def _time(self, state: StepState | None, now: int) -> str:
        if state is None or state.started_at is None or not is_utc(state.started_at):
            return ""
        ended = state.completed_at
        end = to_micros(ended) if ended is not None and is_utc(ended) else now
        return format_running_time(max(0, end - to_micros(state.started_at)) / 1e6)

    def _details(self, step_id: str, state: StepState | None, now: int, tail: str | None) -> Text:
        request = self._view.input_requests.get(step_id)
        request_text = Text("" if request is None else printable(request.text), "bold yellow")
        queue = self._view.worker_queues.get(step_id)
        if queue is not None:
            return Text(printable(f"waits for a worker on queue {queue}"), "yellow")
        if state is None:
            return request_text
        attempt, loop, wait = self._attempt(step_id, state, now), self._loop(step_id), self._wait(step_id, state, now)
        parts = [attempt, loop, wait, request_text]
        if (task := self._view.tasks.get(step_id)) is not None:
            parts += self._task(step_id, task, now)
            tail = None if task.due_at is not None else tail
        if state.status is StepStatus.FAILED and state.error is not None:
            parts.append(self._error(state, is_retrying=self._view.is_retrying(step_id)))
        elif state.status is StepStatus.SKIPPED:
            parts.append(Text((state.reason_code or "skipped").replace("_", " ").lower(), "dim"))
        elif tail:
            parts.append(Text(strip_ansi(tail).strip(), "dim"))
        return Text("  ").join([part for part in parts if part.plain])

    def _attempt(self, step_id: str, state: StepState, now: int) -> Text:
        is_retrying = self._view.is_retrying(step_id)
        if state.attempt == 1 and not is_retrying:
            return Text()
        step = self._view.plan_step(step_id)
        attempt = state.attempt + 1 if is_retrying else state.attempt
        max_attempts = attempt if step is None else max(step.retry.max_attempts, attempt)
        if not is_retrying:
            style = "yellow" if state.status is StepStatus.RUNNING else "dim"
            return Text(f"attempt {attempt}/{max_attempts}", style)
        remaining = max(0, self._view.due_times.get(step_id, now) - now) / 1e6
        return Text(f"attempt {attempt}/{max_attempts} in {format_running_time(remaining)}", "yellow")

    def _task(self, step_id: str, task: CurrentTask, now: int) -> list[Text]:
        """Describe the current task of a pipeline: its label, its attempt, and the error of the previous attempt."""
        step = self._view.plan_step(step_id)
        is_only_task = step is None or step.route is None or len(step.route.tasks) < 2
        parts = [] if is_only_task else [Text(printable(task.label), "cyan")]
        if task.due_at is not None:
            remaining = format_running_time(max(0, task.due_at - now) / 1e6)
            parts.append(Text(f"attempt {task.attempt + 1} in {remaining}", "yellow"))
        elif task.attempt > 1:
            parts.append(Text(f"attempt {task.attempt}", "yellow"))
        if task.error is not None:
            parts.append(Text(printable(task.error), "dim"))
        return parts

    def _loop(self, step_id: str) -> Text:
        loop = self._view.state.loops.get(step_id)
        if loop is None:
            return Text()
        text = Text()
        if step_id in self._view.running:
            fraction = loop.done / loop.total if loop.total else 0.0
            text.append_text(bar(fraction, LOOP_BAR_WIDTH, "green", self._glyphs)).append(" ")
        width = len(f"{loop.total:,}")
        text.append(f"{loop.done:>{width},}/{loop.total:,}", "" if step_id in self._view.running else "dim")
        return text.append(f" {loop.failed:,} failed", "red") if loop.failed else text

    def _wait(self, step_id: str, state: StepState, now: int) -> Text:
        due_at = self._view.due_times.get(step_id)
        if due_at is None or state.status is not StepStatus.RUNNING:
            return Text()
        return Text(f"{format_running_time(max(0, due_at - now) / 1e6)} left", "cyan")

    def _error(self, state: StepState, *, is_retrying: bool) -> Text:
        assert state.error is not None
        text = Text().append(printable(state.error.code or ""), "yellow" if is_retrying else "red")
        return text.append(" ").append(printable(state.error.message or ""), "dim" if is_retrying else "")


class Glyphs:
    def __init__(self, *, ascii_only: bool = False) -> None:
        self.connectors = ASCII if ascii_only else LINES
        self.done, self.failed, self.skipped, self.running, self.retrying, self.pending = (
            "+x-*~." if ascii_only else "✔✘–●↻○"
        )
        self.bar, self.bar_end, self.bar_rest = "##." if ascii_only else "━╸─"
        self.ellipsis = "..." if ascii_only else "…"


def bar(fraction: float, width: int, style: str, glyphs: Glyphs) -> Text:
    """A bar in half-column steps. It is rounded down, so that only a complete bar looks complete."""
    width = max(4, width)
    halves = int(fraction * width * 2)
    full, half = divmod(halves, 2)
    # The style is set on the part: a style of the whole text would also color text that is appended later.
    text = Text().append(glyphs.bar * full, style)
    if half:
        text.append(glyphs.bar_end, style)
    return text.append(glyphs.bar_rest * (width - full - half), "bright_black")


def format_running_time(seconds: float) -> str:
    """Format a time that changes while it is shown: its width seldom changes."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02} h" if hours else f"{minutes}:{second:02} min"


def fit(line: Text, width: int, ellipsis: str = "…") -> Text:
    """Truncate a line to a width in columns, ending with an ellipsis."""
    if line.cell_len <= width:
        return line
    line.truncate(max(0, width - len(ellipsis)))
    return line.append(ellipsis)


def _pad(line: Text, width: int) -> None:
    line.append(" " * max(0, width - line.cell_len))


def _justify(left: Text, right: Text, width: int) -> Text:
    """Place one text at the left edge and one at the right."""
    left.append(" " * max(1, width - left.cell_len - right.cell_len))
    return left.append_text(right)
