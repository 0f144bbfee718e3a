"""How a plan's graph is laid out as lines: a chain reads downwards, a fork indents, a join comes back out.

A step hangs beneath its dominator: the last step that every way to it passes. So whatever a step needs stands
above it, and what may run at the same time stands side by side.
"""

from __future__ import annotations

from runwright.contract.plan import ExecutionPlan, Order

MOST = 400
"""Plans beyond this never fit on a screen; they are listed as declared."""


class Branches:
    """The connectors of a tree, as text."""

    def __init__(self, fork: str, last: str, beside: str, under: str) -> None:
        self.fork, self.last, self.beside, self.under = fork, last, beside, under


LINES = Branches("├─ ", "└─ ", "│  ", "   ")
ASCII = Branches("|- ", "`- ", "|  ", "   ")

ROOT = -1


def lay_out(plan: ExecutionPlan, deepest: int, branches: Branches = LINES) -> list[tuple[str, str]]:
    """Each step with what stands before it. Flat if it would indent beyond `deepest` columns."""
    flat = [(step.step_id, "") for step in plan.steps]
    if plan.order is Order.SEQUENTIAL or len(plan.steps) > MOST:
        return flat
    index = {step.step_id: number for number, step in enumerate(plan.steps)}
    needs = [[index[name] for name in step.depends_on if name in index] for step in plan.steps]
    order = _in_order(needs)
    if len(order) < len(needs):  # a circle; such a plan never runs
        return flat
    forked, joined = _beneath(order, needs)
    rows = [(plan.steps[number].step_id, before) for number, before in _walk(forked, joined, branches)]
    return flat if max((len(before) for _, before in rows), default=0) > deepest else rows


def _in_order(needs: list[list[int]]) -> list[int]:
    """Every step after what it needs; as declared where that leaves a choice."""
    placed: set[int] = set()
    order: list[int] = []
    waiting = list(range(len(needs)))
    while waiting:
        left: list[int] = []
        for number in waiting:
            if placed.issuperset(needs[number]):
                placed.add(number)
                order.append(number)
            else:
                left.append(number)
        if len(left) == len(waiting):
            break
        waiting = left
    return order


def _beneath(order: list[int], needs: list[list[int]]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """What hangs beneath each step: what follows it alone, and what joins several that follow it."""
    parent: dict[int, int] = {}
    depth = {ROOT: 0}
    forked: dict[int, list[int]] = {}
    joined: dict[int, list[int]] = {}
    for number in order:
        above = needs[number][0] if needs[number] else ROOT
        for other in needs[number][1:]:
            while above != other:
                if depth[above] >= depth[other]:
                    above = parent[above]
                else:
                    other = parent[other]
        parent[number] = above
        depth[number] = depth[above] + 1
        group = joined if len(set(needs[number])) > 1 else forked
        group.setdefault(above, []).append(number)
    return forked, joined


def _walk(forked: dict[int, list[int]], joined: dict[int, list[int]], branches: Branches) -> list[tuple[int, str]]:
    """Depth first. `first` stands before the step itself, `rest` before whatever hangs beneath it."""
    rows: list[tuple[int, str]] = []
    stack: list[tuple[int, str, str]] = [(ROOT, "", "")]
    while stack:
        number, first, rest = stack.pop()
        if number != ROOT:
            rows.append((number, first))
        children = forked.get(number, [])
        below: list[tuple[int, str, str]] = []
        if number == ROOT or len(children) == 1:
            below = [(child, rest, rest) for child in children]
        else:
            for child in children[:-1]:
                below.append((child, rest + branches.fork, rest + branches.beside))
            below += [(child, rest + branches.last, rest + branches.under) for child in children[-1:]]
        below += [(child, rest, rest) for child in joined.get(number, [])]
        stack += reversed(below)
    return rows
