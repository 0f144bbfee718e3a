"""Draw a plan's steps for the terminal. `graph_svg` draws them for the browser.

    ● extract
    ├─╮
    │ ● load
    ● │ check
    ├─╯
    ● report

Each step has a lane, from its own line down to its last successor. A line between lanes connects a step to its
predecessors; it passes behind the lanes that it crosses.
"""

from __future__ import annotations

from collections.abc import Sequence

from runwright.contract.plan import ExecutionPlan, Step

from .layout import step_notes, step_predecessors, topological_sequence
from .svg import graph_svg

MAX_STEPS = 200
MAX_LANES = 40

__all__ = ["graph_svg", "graph_text"]


def graph_text(plan: ExecutionPlan) -> str:
    """Draw the steps from top to bottom. A graph that is too wide or too long to read becomes a list."""
    predecessors = step_predecessors(plan)
    lines = _draw(plan, predecessors) if len(plan.steps) <= MAX_STEPS else None
    return "\n".join(_list(plan, predecessors) if lines is None else lines) + "\n"


def _list(plan: ExecutionPlan, predecessors: Sequence[Sequence[int]]) -> list[str]:
    width = min(max(len(step.step_id) for step in plan.steps), 40)
    lines: list[str] = []
    for step, sources in zip(plan.steps, predecessors, strict=True):
        names = [plan.steps[source].step_id for source in sources[:10]]
        more = f" and {len(sources) - 10:,} more" if len(sources) > 10 else ""
        lines.append(f"{step.step_id.ljust(width)} <- {', '.join(names)}{more}" if names else step.step_id)
    return lines


def _draw(plan: ExecutionPlan, predecessors: Sequence[Sequence[int]]) -> list[str] | None:
    rows = _Lanes(predecessors).rows()
    if max(len(row) for row, _ in rows) > 2 * MAX_LANES:
        return None
    margin = max(len(row) for row, _ in rows) + 1
    width = max(len(step.step_id) for step in plan.steps)
    lines: list[str] = []
    for row, index in rows:
        label = "" if index is None else _label(plan, plan.steps[index], width)
        lines.append(f"{row.ljust(margin)}{label}".rstrip())
    return lines


def _label(plan: ExecutionPlan, step: Step, width: int) -> str:
    return f"{step.step_id.ljust(width)}  {', '.join(step_notes(plan, step))}"


class _Lanes:
    """The lanes of a drawing, built line by line."""

    def __init__(self, predecessors: Sequence[Sequence[int]]) -> None:
        self._predecessors = predecessors
        self._undrawn = [0] * len(predecessors)  # number of successors of each step that are not drawn yet
        for sources in predecessors:
            for source in sources:
                self._undrawn[source] += 1
        self._lanes: list[int | None] = []  # the step of each lane; None if the lane is free
        self._last_lane: int | None = None  # lane of the step on the line above

    def rows(self) -> list[tuple[str, int | None]]:
        """Return the lines, each with the step that is on it, if any."""
        rows: list[tuple[str, int | None]] = []
        for index in topological_sequence(self._predecessors):
            sources = self._predecessors[index]
            source_lanes = [lane for lane, step in enumerate(self._lanes) if step in sources]
            for source in sources:
                self._undrawn[source] -= 1
            closing = [lane for lane in source_lanes if not self._undrawn[self._lanes[lane] or 0]]
            lane = closing[0] if closing else self._free_lane(source_lanes)
            if source_lanes and (source_lanes != [lane] or lane == self._last_lane):
                rows.append((self._connector(lane, source_lanes, closing), None))
            elif not source_lanes and lane == self._last_lane:
                rows.append((self._line(None), None))  # otherwise it would look like a successor of the step above
            for end in closing:
                self._lanes[end] = None
            self._lanes[lane] = index
            rows.append((self._line(lane), index))
            if not self._undrawn[index]:
                self._lanes[lane] = None
            self._last_lane = lane
            while self._lanes and self._lanes[-1] is None:
                self._lanes.pop()
        return rows

    def _free_lane(self, source_lanes: list[int]) -> int:
        """Return the first free lane to the right of the step's first predecessor, adding one if there is none."""
        start = source_lanes[0] + 1 if source_lanes else 0
        for lane in range(start, len(self._lanes)):
            if self._lanes[lane] is None:
                return lane
        self._lanes.append(None)
        return len(self._lanes) - 1

    def _line(self, lane: int | None) -> str:
        signs = ["●" if at == lane else " " if step is None else "│" for at, step in enumerate(self._lanes)]
        return " ".join(signs).rstrip()

    def _connector(self, lane: int, source_lanes: list[int], closing: list[int]) -> str:
        """Return the line above a step: from the lanes of its predecessors to its own."""
        left, right = min(lane, *source_lanes), max(lane, *source_lanes)
        text = ""
        for at in range(max(len(self._lanes), right + 1)):
            text += self._sign(at, lane, source_lanes, closing, left, right)
            text += "─" if left <= at < right else " "
        return text.rstrip()

    def _sign(self, at: int, lane: int, source_lanes: list[int], closing: list[int], left: int, right: int) -> str:
        goes_up = at < len(self._lanes) and self._lanes[at] is not None
        if left == right or at < left or at > right:
            return "│" if goes_up else " "
        joins = at == lane or at in source_lanes
        if not joins:
            return "│" if goes_up else "─"
        goes_down = at == lane or at not in closing
        return _SIGNS[goes_up, goes_down, at > left, at < right]


_SIGNS = {
    (up, down, left, right): sign
    for (up, down), signs in {(True, True): "┤├┼", (True, False): "╯╰┴", (False, True): "╮╭┬"}.items()
    for (left, right), sign in zip(((True, False), (False, True), (True, True)), signs, strict=True)
}
"""Character by whether a line goes up, down, left and right from it."""
