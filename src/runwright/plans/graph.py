"""A plan's steps as a drawing for the terminal. `graph_svg` makes one for the browser.

    ● extract
    ├─╮
    │ ● load
    ● │ check
    ├─╯
    ● report

Each step has a lane, from its own line down to the last step that follows it. A line between lanes joins a step
to those it follows; it passes behind the lanes that it crosses.
"""

from __future__ import annotations

from collections.abc import Sequence

from runwright.contract.plan import ExecutionPlan, Step

from .layers import arrows_of, notes_of, sequence_of
from .svg import graph_svg

MOST_STEPS = 200
MOST_LANES = 40

__all__ = ["graph_svg", "graph_text"]


def graph_text(plan: ExecutionPlan) -> str:
    """The steps from top to bottom. What would be too wide or too long to follow by eye becomes a list."""
    follows = arrows_of(plan)
    lines = _drawn(plan, follows) if len(plan.steps) <= MOST_STEPS else None
    return "\n".join(_listed(plan, follows) if lines is None else lines) + "\n"


def _listed(plan: ExecutionPlan, follows: Sequence[Sequence[int]]) -> list[str]:
    width = min(max(len(step.step_id) for step in plan.steps), 40)
    lines: list[str] = []
    for step, sources in zip(plan.steps, follows, strict=True):
        names = [plan.steps[source].step_id for source in sources[:10]]
        more = f" and {len(sources) - 10:,} more" if len(sources) > 10 else ""
        lines.append(f"{step.step_id.ljust(width)} <- {', '.join(names)}{more}" if names else step.step_id)
    return lines


def _drawn(plan: ExecutionPlan, follows: Sequence[Sequence[int]]) -> list[str] | None:
    rows = _Lanes(follows).rows()
    if max(len(row) for row, _ in rows) > 2 * MOST_LANES:
        return None
    margin = max(len(row) for row, _ in rows) + 1
    width = max(len(step.step_id) for step in plan.steps)
    lines: list[str] = []
    for row, number in rows:
        label = "" if number is None else _label(plan, plan.steps[number], width)
        lines.append(f"{row.ljust(margin)}{label}".rstrip())
    return lines


def _label(plan: ExecutionPlan, step: Step, width: int) -> str:
    return f"{step.step_id.ljust(width)}  {', '.join(notes_of(plan, step))}"


class _Lanes:
    """The lanes of a drawing, line by line."""

    def __init__(self, follows: Sequence[Sequence[int]]) -> None:
        self._follows = follows
        self._open = [0] * len(follows)  # how many steps are still to follow each
        for sources in follows:
            for source in sources:
                self._open[source] += 1
        self._lanes: list[int | None] = []  # the step whose lane it is, while some are still to follow it
        self._last_lane: int | None = None  # where the line above has its step

    def rows(self) -> list[tuple[str, int | None]]:
        """The lines, each with the step that is on it."""
        rows: list[tuple[str, int | None]] = []
        for number in sequence_of(self._follows):
            sources = self._follows[number]
            ends = [lane for lane, step in enumerate(self._lanes) if step in sources]
            for source in sources:
                self._open[source] -= 1
            closing = [lane for lane in ends if not self._open[self._lanes[lane] or 0]]
            lane = closing[0] if closing else self._free_lane(ends)
            if ends and (ends != [lane] or lane == self._last_lane):
                rows.append((self._joint(lane, ends, closing), None))
            elif not ends and lane == self._last_lane:
                rows.append((self._line(None), None))  # else it would seem to follow the step above
            for end in closing:
                self._lanes[end] = None
            self._lanes[lane] = number
            rows.append((self._line(lane), number))
            if not self._open[number]:
                self._lanes[lane] = None
            self._last_lane = lane
            while self._lanes and self._lanes[-1] is None:
                self._lanes.pop()
        return rows

    def _free_lane(self, ends: list[int]) -> int:
        """The first free lane to the right of where the step's arrows come from, or else any."""
        start = ends[0] + 1 if ends else 0
        for lane in range(start, len(self._lanes)):
            if self._lanes[lane] is None:
                return lane
        self._lanes.append(None)
        return len(self._lanes) - 1

    def _line(self, lane: int | None) -> str:
        signs = ["●" if at == lane else " " if step is None else "│" for at, step in enumerate(self._lanes)]
        return " ".join(signs).rstrip()

    def _joint(self, lane: int, ends: list[int], closing: list[int]) -> str:
        """The line above a step: from the lanes of those it follows over to its own."""
        left, right = min(lane, *ends), max(lane, *ends)
        text = ""
        for at in range(max(len(self._lanes), right + 1)):
            text += self._sign(at, lane, ends, closing, left, right)
            text += "─" if left <= at < right else " "
        return text.rstrip()

    def _sign(self, at: int, lane: int, ends: list[int], closing: list[int], left: int, right: int) -> str:
        goes_up = at < len(self._lanes) and self._lanes[at] is not None
        if left == right or at < left or at > right:
            return "│" if goes_up else " "
        joins = at == lane or at in ends
        if not joins:
            return "│" if goes_up else "─"
        goes_down = at == lane or at not in closing
        return _SIGNS[goes_up, goes_down, at > left, at < right]


_SIGNS = {
    (up, down, left, right): sign
    for (up, down), signs in {(True, True): "┤├┼", (True, False): "╯╰┴", (False, True): "╮╭┬"}.items()
    for (left, right), sign in zip(((True, False), (False, True), (True, True)), signs, strict=True)
}
"""By whether a line goes up, down, left and right from here."""
