"""Where the steps of a plan go in a drawing: layers from top to bottom, few crossings, short arrows.

Longest-path layering, barycenter ordering, then columns that move towards their neighbours. An arrow over
several layers passes a bend in each of them, so that it does not run through boxes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

import msgspec

from runwright.contract.plan import ExecutionPlan, Order, Step
from runwright.core.playnet import forward_arcs, targets_of

from .dependencies import Graph
from .known import SUB_PLAN

_SWEEPS = 8
_STRAIGHT = 6.0  # how much more an arrow wants to be straight than short
_MOST_BENDS = 5_000  # beyond that arrows run straight, and so do the costs


class Spot(msgspec.Struct):
    """A step, or a bend of an arrow."""

    layer: int
    width: float
    step: int | None = None
    above: list[int] = []
    below: list[int] = []
    x: float = 0.0


class Drawing(msgspec.Struct):
    spots: list[Spot]  # those of the steps first, in declaration order
    layers: list[list[int]]  # numbers of spots, from left to right
    arrows: list[list[int]]  # numbers of spots from a step, over bends, to a step


def arrows_of(plan: ExecutionPlan) -> list[list[int]]:
    """For each step the numbers of the steps it follows."""
    if plan.order is Order.SEQUENTIAL:
        return [[number - 1] if number else [] for number in range(len(plan.steps))]
    if plan.playbook is None:
        return Graph(plan.steps).needs
    numbers = {step.step_id: number for number, step in enumerate(plan.steps)}
    follows: list[list[int]] = [[] for _ in plan.steps]
    for source, target in forward_arcs(plan.playbook.entry, targets_of(plan)):
        if numbers[source] not in follows[numbers[target]]:
            follows[numbers[target]].append(numbers[source])
    return follows


def kind_of(step: Step) -> str:
    """What a step does: its kind, or those of its tasks."""
    if step.route is None:
        return step.kind
    kinds = ("playbook" if task.kind == SUB_PLAN else task.kind.removeprefix("noetl.") for task in step.route.tasks)
    return " > ".join(kinds)


def notes_of(plan: ExecutionPlan, step: Step) -> list[str]:
    """What a drawing says of a step besides its name."""
    if step.route is None:
        return [
            step.kind,
            *(["for each"] if step.foreach is not None else []),
            *(["when"] if step.when is not None else []),
        ]
    notes = [kind_of(step)] if step.route.tasks else []
    if step.route.loop is not None:
        notes.append("for each")
    assert plan.playbook is not None
    ahead = set(forward_arcs(plan.playbook.entry, targets_of(plan)))
    back = [arc.step for arc in step.route.arcs if (step.step_id, arc.step) not in ahead]
    return notes + [f"back to {name}" for name in dict.fromkeys(back)]


def sequence_of(follows: Sequence[Sequence[int]]) -> list[int]:
    """The steps with each after those it follows, otherwise as declared."""
    waiting = [len(sources) for sources in follows]
    followed_by: list[list[int]] = [[] for _ in follows]
    for number, sources in enumerate(follows):
        for source in sources:
            followed_by[source].append(number)
    ready = [number for number, count in enumerate(waiting) if not count]
    heapify(ready)
    sequence: list[int] = []
    while ready:
        number = heappop(ready)
        sequence.append(number)
        for target in followed_by[number]:
            waiting[target] -= 1
            if not waiting[target]:
                heappush(ready, target)
    return sequence


def lay_out(follows: Sequence[Sequence[int]], widths: Sequence[float], gap: float) -> Drawing:
    """A drawing of steps with these widths, `gap` apart."""
    layer_of = [0] * len(follows)
    for number in sequence_of(follows):
        layer_of[number] = 1 + max((layer_of[source] for source in follows[number]), default=-1)
    spots = [
        Spot(layer, width, number, [], []) for number, (layer, width) in enumerate(zip(layer_of, widths, strict=True))
    ]
    arrows = _arrows(spots, follows)
    layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for number, spot in enumerate(spots):
        layers[spot.layer].append(number)
    if len(spots) <= _MOST_BENDS + 1000:
        layers = _ordered(spots, layers)
    _place(spots, layers, gap)
    return Drawing(spots, layers, arrows)


def _arrows(spots: list[Spot], follows: Sequence[Sequence[int]]) -> list[list[int]]:
    bends = sum(
        spots[target].layer - spots[source].layer - 1 for target, sources in enumerate(follows) for source in sources
    )
    arrows: list[list[int]] = []
    for target, sources in enumerate(follows):
        for source in sources:
            way = [source]
            between = range(spots[source].layer + 1, spots[target].layer) if bends <= _MOST_BENDS else range(0)
            for layer in between:
                spots.append(Spot(layer, 0.0, None, [], []))
                way.append(len(spots) - 1)
            way.append(target)
            for upper, lower in pairwise(way):
                spots[upper].below.append(lower)
                spots[lower].above.append(upper)
            arrows.append(way)
    return arrows


def _ordered(spots: list[Spot], layers: list[list[int]]) -> list[list[int]]:
    """The layers with their spots sorted by where their neighbours are; the best of a few sweeps."""
    best, fewest = layers, _crossings(spots, layers)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        layers = [list(layer) for layer in layers]
        downwards = sweep % 2 == 0
        for layer in layers[1:] if downwards else layers[-2::-1]:
            _sort(spots, layers, layer, downwards)
        crossings = _crossings(spots, layers)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best


def _sort(spots: list[Spot], layers: list[list[int]], layer: list[int], downwards: bool) -> None:
    place = {number: at for row in layers for at, number in enumerate(row)}

    def centre(number: int) -> float:
        near = spots[number].above if downwards else spots[number].below
        return sum(place[each] for each in near) / len(near) if near else place[number]

    layer.sort(key=centre)


def _crossings(spots: list[Spot], layers: list[list[int]]) -> int:
    """How many pairs of arrows cross, layer by layer."""
    total = 0
    for upper, lower in pairwise(layers):
        place = {number: at for at, number in enumerate(lower)}
        seen: list[int] = []
        for number in upper:
            ends = sorted(place[end] for end in spots[number].below if end in place)
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _place(spots: list[Spot], layers: list[list[int]], gap: float) -> None:
    """Columns: side by side first, then each layer moves towards its neighbours as far as its own order allows."""
    for layer in layers:
        x = 0.0
        for number in layer:
            spots[number].x = x + spots[number].width / 2
            x += spots[number].width + gap
        for number in layer:
            spots[number].x -= (x - gap) / 2
    for sweep in range(_SWEEPS * 3):
        downwards = sweep % 2 == 0
        both = sweep >= _SWEEPS
        for layer in layers if downwards else reversed(layers):
            _pull(spots, layer, gap, above=downwards or both, below=not downwards or both)


def _pull(spots: list[Spot], layer: list[int], gap: float, *, above: bool, below: bool) -> None:
    wishes: list[float] = []
    weights: list[float] = []
    for number in layer:
        spot = spots[number]
        near = [*(spot.above if above else ()), *(spot.below if below else ())] or [*spot.above, *spot.below]
        pulls = [_STRAIGHT if spot.step is None and spots[each].step is None else 1.0 for each in near]
        weights.append(sum(pulls) or 0.1)
        places = zip(pulls, near, strict=True)
        wishes.append(sum(pull * spots[each].x for pull, each in places) / weights[-1] if near else spot.x)
    widths = [spots[number].width for number in layer]
    for number, x in zip(layer, _spread(wishes, weights, widths, gap), strict=True):
        spots[number].x = x


def _spread(wishes: list[float], weights: list[float], widths: list[float], gap: float) -> list[float]:
    """The places closest to the wishes that keep the order and the distances.

    Neighbours that would overlap become a block, which goes to the weighted mean of what its members wish for.
    """
    offset = 0.0
    offsets: list[float] = []
    for place, width in enumerate(widths):
        if place:
            offset += (widths[place - 1] + width) / 2 + gap
        offsets.append(offset)
    blocks: list[tuple[float, float, int]] = []  # weighted sum of the wished starts, weight, number of members
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        total, count = weight * (wish - offset), 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / weight:
            more, heavier, others = blocks.pop()
            total, weight, count = total + more, weight + heavier, count + others
        blocks.append((total, weight, count))
    starts = [total / weight for total, weight, count in blocks for _ in range(count)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]
