"""A plan's dependency graph as indented rows: a chain reads downwards, a fork indents, a join returns to its level.

A step is placed below its immediate dominator: the last step on every path to it. So the dependencies of a step are
always above it, and steps that can run at the same time are siblings.
"""

from __future__ import annotations

from typing import NamedTuple

from runwright.contract.plan import ExecutionPlan, Order

MAX_STEPS = 400
"""Larger plans never fit on a screen; their steps are listed in the order of declaration."""


class Connectors(NamedTuple):
    """The connectors of a tree, as text."""

    fork: str  # before a child that has later siblings
    last: str  # before the last child
    sibling: str  # before the descendants of a child that has later siblings
    blank: str  # before the descendants of the last child


class GraphRow(NamedTuple):
    step_id: str
    prefix: str = ""
    """Connectors and indentation before the step."""


LINES = Connectors("├─ ", "└─ ", "│  ", "   ")
ASCII = Connectors("|- ", "`- ", "|  ", "   ")

ROOT = -1


def layout_rows(plan: ExecutionPlan, max_indent: int, connectors: Connectors = LINES) -> list[GraphRow]:
    """Return a row per step. The list is flat if the tree would indent by more than `max_indent` columns."""
    flat = [GraphRow(step.step_id) for step in plan.steps]
    if plan.order is Order.SEQUENTIAL or len(plan.steps) > MAX_STEPS:
        return flat
    index = {step.step_id: number for number, step in enumerate(plan.steps)}
    dependencies = [[index[name] for name in step.depends_on if name in index] for step in plan.steps]
    order = _topological_order(dependencies)
    if len(order) < len(dependencies):  # A plan with a cycle is invalid and never runs.
        return flat
    forked, joined = _dominator_tree(order, dependencies)
    rows = [GraphRow(plan.steps[number].step_id, prefix) for number, prefix in _depth_first(forked, joined, connectors)]
    return flat if max((len(row.prefix) for row in rows), default=0) > max_indent else rows


def _topological_order(dependencies: list[list[int]]) -> list[int]:
    """Order steps after their dependencies, otherwise as declared. Steps of a cycle are left out."""
    placed: set[int] = set()
    order: list[int] = []
    waiting = list(range(len(dependencies)))
    while waiting:
        blocked: list[int] = []
        for number in waiting:
            if placed.issuperset(dependencies[number]):
                placed.add(number)
                order.append(number)
            else:
                blocked.append(number)
        if len(blocked) == len(waiting):
            break
        waiting = blocked
    return order


def _dominator_tree(
    order: list[int], dependencies: list[list[int]]
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return the children of each step: those that depend on one step, and those that join several branches."""
    parent: dict[int, int] = {}
    depth = {ROOT: 0}
    forked: dict[int, list[int]] = {}
    joined: dict[int, list[int]] = {}
    for number in order:
        dominator = dependencies[number][0] if dependencies[number] else ROOT
        for other in dependencies[number][1:]:
            while dominator != other:
                if depth[dominator] >= depth[other]:
                    dominator = parent[dominator]
                else:
                    other = parent[other]
        parent[number] = dominator
        depth[number] = depth[dominator] + 1
        group = joined if len(set(dependencies[number])) > 1 else forked
        group.setdefault(dominator, []).append(number)
    return forked, joined


def _depth_first(
    forked: dict[int, list[int]], joined: dict[int, list[int]], connectors: Connectors
) -> list[tuple[int, str]]:
    """Return each step with its prefix. On the stack, `first` precedes the step and `rest` all its descendants."""
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
                below.append((child, rest + connectors.fork, rest + connectors.sibling))
            below += [(child, rest + connectors.last, rest + connectors.blank) for child in children[-1:]]
        below += [(child, rest, rest) for child in joined.get(number, [])]
        stack += reversed(below)
    return rows
