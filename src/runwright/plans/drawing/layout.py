"""Layout of a plan's graph: layers from top to bottom, few crossings, short arrows.

Longest-path layering, barycenter ordering, then columns that move towards their neighbours. An arrow that spans several
layers has a bend in each of them, so that it does not run through boxes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

import msgspec

from runwright.contract.plan import ExecutionPlan, Order, Step
from runwright.core.graph.playbook_graph import forward_arcs, targets_of
from runwright.plans.dependency_graph import DependencyGraph
from runwright.plans.registry import SUB_PLAN

_SWEEPS = 8
_STRAIGHT_WEIGHT = 6.0  # straightness of a long arrow, relative to shortness
_MAX_BENDS = 5_000  # with more, arrows have no bends, which keeps the cost linear


class LayoutNode(msgspec.Struct):
    """A step, or a bend of an arrow."""

    layer: int
    width: float
    step: int | None = None
    above: list[int] = []
    below: list[int] = []
    x: float = 0.0


class Layout(msgspec.Struct):
    nodes: list[LayoutNode]  # the steps first, in declaration order, then bends
    layers: list[list[int]]  # indexes of nodes, in the order of columns
    arrows: list[list[int]]  # indexes of nodes: from a step, over bends, to a step


def step_predecessors(plan: ExecutionPlan) -> list[list[int]]:
    """Return for each step the indexes of the steps that it directly follows."""
    if plan.order is Order.SEQUENTIAL:
        return [[index - 1] if index else [] for index in range(len(plan.steps))]
    if plan.playbook is None:
        return DependencyGraph(plan.steps).dependencies
    index_of = {step.step_id: index for index, step in enumerate(plan.steps)}
    predecessors: list[list[int]] = [[] for _ in plan.steps]
    for source, target in forward_arcs(plan.playbook.entry, targets_of(plan)):
        if index_of[source] not in predecessors[index_of[target]]:
            predecessors[index_of[target]].append(index_of[source])
    return predecessors


def describe_kind(step: Step) -> str:
    """Return the kind of a step, or the kinds of its tasks."""
    if step.route is None:
        return step.kind
    kinds = ("playbook" if task.kind == SUB_PLAN else task.kind.removeprefix("noetl.") for task in step.route.tasks)
    return " > ".join(kinds)


def step_notes(plan: ExecutionPlan, step: Step) -> list[str]:
    """Return the notes that a drawing shows next to the name of a step."""
    if step.route is None:
        return [
            step.kind,
            *(["for each"] if step.foreach is not None else []),
            *(["when"] if step.when is not None else []),
        ]
    notes = [describe_kind(step)] if step.route.tasks else []
    if step.route.loop is not None:
        notes.append("for each")
    assert plan.playbook is not None
    forward = set(forward_arcs(plan.playbook.entry, targets_of(plan)))
    back = [arc.step for arc in step.route.arcs if (step.step_id, arc.step) not in forward]
    return notes + [f"back to {name}" for name in dict.fromkeys(back)]


def topological_sequence(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Return the steps with each after its predecessors, otherwise in declaration order."""
    blocked_by = [len(sources) for sources in predecessors]
    successors: list[list[int]] = [[] for _ in predecessors]
    for index, sources in enumerate(predecessors):
        for source in sources:
            successors[source].append(index)
    ready = [index for index, count in enumerate(blocked_by) if not count]
    heapify(ready)
    sequence: list[int] = []
    while ready:
        index = heappop(ready)
        sequence.append(index)
        for target in successors[index]:
            blocked_by[target] -= 1
            if not blocked_by[target]:
                heappush(ready, target)
    return sequence


def compute_layout(predecessors: Sequence[Sequence[int]], widths: Sequence[float], gap: float) -> Layout:
    """Lay out steps of these widths, with a horizontal gap between them."""
    layer_of = [0] * len(predecessors)
    for index in topological_sequence(predecessors):
        layer_of[index] = 1 + max((layer_of[source] for source in predecessors[index]), default=-1)
    nodes = [
        LayoutNode(layer, width, index, [], [])
        for index, (layer, width) in enumerate(zip(layer_of, widths, strict=True))
    ]
    arrows = _create_arrows(nodes, predecessors)
    layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for index, node in enumerate(nodes):
        layers[node.layer].append(index)
    if len(nodes) <= _MAX_BENDS + 1000:
        layers = _order_layers(nodes, layers)
    _assign_columns(nodes, layers, gap)
    return Layout(nodes, layers, arrows)


def _create_arrows(nodes: list[LayoutNode], predecessors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Connect the nodes, adding a bend for each layer that an arrow crosses."""
    bends = sum(
        nodes[target].layer - nodes[source].layer - 1
        for target, sources in enumerate(predecessors)
        for source in sources
    )
    arrows: list[list[int]] = []
    for target, sources in enumerate(predecessors):
        for source in sources:
            arrow = [source]
            between = range(nodes[source].layer + 1, nodes[target].layer) if bends <= _MAX_BENDS else range(0)
            for layer in between:
                nodes.append(LayoutNode(layer, 0.0, None, [], []))
                arrow.append(len(nodes) - 1)
            arrow.append(target)
            for upper, lower in pairwise(arrow):
                nodes[upper].below.append(lower)
                nodes[lower].above.append(upper)
            arrows.append(arrow)
    return arrows


def _order_layers(nodes: list[LayoutNode], layers: list[list[int]]) -> list[list[int]]:
    """Sort the nodes of each layer by the positions of their neighbours; return the best result of a few sweeps."""
    best, fewest = layers, _count_crossings(nodes, layers)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        layers = [list(layer) for layer in layers]
        downwards = sweep % 2 == 0
        for layer in layers[1:] if downwards else layers[-2::-1]:
            _sort_layer(nodes, layers, layer, downwards)
        crossings = _count_crossings(nodes, layers)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best


def _sort_layer(nodes: list[LayoutNode], layers: list[list[int]], layer: list[int], downwards: bool) -> None:
    position = {index: at for row in layers for at, index in enumerate(row)}

    def barycenter(index: int) -> float:
        neighbours = nodes[index].above if downwards else nodes[index].below
        return sum(position[each] for each in neighbours) / len(neighbours) if neighbours else position[index]

    layer.sort(key=barycenter)


def _count_crossings(nodes: list[LayoutNode], layers: list[list[int]]) -> int:
    """Count the pairs of arrows that cross between adjacent layers."""
    total = 0
    for upper, lower in pairwise(layers):
        position = {index: at for at, index in enumerate(lower)}
        ends_to_the_left: list[int] = []
        for index in upper:
            ends = sorted(position[end] for end in nodes[index].below if end in position)
            total += sum(len(ends_to_the_left) - bisect_right(ends_to_the_left, end) for end in ends)
            for end in ends:
                insort(ends_to_the_left, end)
    return total


def _assign_columns(nodes: list[LayoutNode], layers: list[list[int]], gap: float) -> None:
    """Place the nodes of each layer side by side, then move them towards their neighbours, keeping their order."""
    for layer in layers:
        x = 0.0
        for index in layer:
            nodes[index].x = x + nodes[index].width / 2
            x += nodes[index].width + gap
        for index in layer:
            nodes[index].x -= (x - gap) / 2
    for sweep in range(_SWEEPS * 3):
        downwards = sweep % 2 == 0
        both = sweep >= _SWEEPS
        for layer in layers if downwards else reversed(layers):
            _pull_layer(nodes, layer, gap, above=downwards or both, below=not downwards or both)


def _pull_layer(nodes: list[LayoutNode], layer: list[int], gap: float, *, above: bool, below: bool) -> None:
    """Move the nodes of a layer towards the weighted means of their neighbours' columns."""
    targets: list[float] = []
    weights: list[float] = []
    for index in layer:
        node = nodes[index]
        neighbours = [*(node.above if above else ()), *(node.below if below else ())] or [*node.above, *node.below]
        pulls = [_STRAIGHT_WEIGHT if node.step is None and nodes[each].step is None else 1.0 for each in neighbours]
        weights.append(sum(pulls) or 0.1)
        weighted = zip(pulls, neighbours, strict=True)
        targets.append(sum(pull * nodes[each].x for pull, each in weighted) / weights[-1] if neighbours else node.x)
    widths = [nodes[index].width for index in layer]
    for index, x in zip(layer, _spread(targets, weights, widths, gap), strict=True):
        nodes[index].x = x


def _spread(targets: list[float], weights: list[float], widths: list[float], gap: float) -> list[float]:
    """Return the columns closest to the targets that keep the order and the distances.

    Neighbours that would overlap become a block, which is placed at the weighted mean of its members' targets.
    """
    offset = 0.0
    offsets: list[float] = []
    for position, width in enumerate(widths):
        if position:
            offset += (widths[position - 1] + width) / 2 + gap
        offsets.append(offset)
    blocks: list[tuple[float, float, int]] = []  # weighted sum of the target starts, weight, number of members
    for target, weight, offset in zip(targets, weights, offsets, strict=True):
        total, count = weight * (target - offset), 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / weight:
            other_total, other_weight, other_count = blocks.pop()
            total, weight, count = total + other_total, weight + other_weight, count + other_count
        blocks.append((total, weight, count))
    starts = [total / weight for total, weight, count in blocks for _ in range(count)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]
