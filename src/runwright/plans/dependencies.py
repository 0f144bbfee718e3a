"""The order of steps: what they depend on, in a circle or not, and what has surely ended before what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runwright.contract.plan import Order, Step

_AT_ONCE = 4096  # steps that one pass over the graph looks for


class Graph:
    """The steps by number. Dependencies on steps that do not exist, and on oneself, are left out."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.numbers: dict[str, int] = {}
        for number, step in enumerate(steps):
            self.numbers.setdefault(step.step_id, number)
        self.needs = [
            [self.numbers[name] for name in step.depends_on if self.numbers.get(name, number) != number]
            for number, step in enumerate(steps)
        ]

    def sorted(self) -> tuple[list[int], list[list[int]]]:
        """The steps with each after what it needs, and the circles that have no such order, one of each knot."""
        waiting = [len(needs) for needs in self.needs]
        needed_by: list[list[int]] = [[] for _ in self.needs]
        for number, needs in enumerate(self.needs):
            for source in needs:
                needed_by[source].append(number)
        done = [number for number, count in enumerate(waiting) if count == 0]
        placed = 0
        circles: list[list[int]] = []
        first_left = 0
        while True:
            while placed < len(done):
                for target in needed_by[done[placed]]:
                    waiting[target] -= 1
                    if waiting[target] == 0:
                        done.append(target)
                placed += 1
            while first_left < len(waiting) and waiting[first_left] <= 0:
                first_left += 1
            if first_left == len(waiting):
                return ([] if circles else done), circles
            circle = self._circle(first_left, waiting)
            circles.append(circle)
            for number in circle:  # taken as done, so that what merely depends on it is not reported too
                waiting[number] = 0
                done.append(number)

    def _circle(self, start: int, waiting: list[int]) -> list[int]:
        """A circle that can be reached from a step which never becomes free, its first declared step first."""
        seen: dict[int, int] = {}
        walk: list[int] = []
        number = start
        while number not in seen:
            seen[number] = len(walk)
            walk.append(number)
            number = next(source for source in self.needs[number] if waiting[source] > 0)
        circle = walk[seen[number] :]
        first = circle.index(min(circle))
        return circle[first:] + circle[:first]

    def not_before(self, order: Order, pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those of the pairs (step, other) whose other step is not sure to have ended when the step begins."""
        if order is Order.SEQUENTIAL:
            return {(step, other) for step, other in pairs if other >= step}
        direct: dict[int, set[int]] = {}
        far = {
            (step, other)
            for step, other in pairs
            if other not in (direct.get(step) or direct.setdefault(step, set(self.needs[step])))
        }
        targets = sorted({other for _, other in far})
        sequence, _ = self.sorted()
        for start in range(0, len(targets), _AT_ONCE):
            marks = {target: 1 << bit for bit, target in enumerate(targets[start : start + _AT_ONCE])}
            reached = self._reached(sequence, marks)
            far -= {(step, other) for step, other in far if other in marks and reached[step] & marks[other]}
        return far

    def _reached(self, sequence: list[int], marks: dict[int, int]) -> list[int]:
        """For each step the marks of all it depends on, directly or not."""
        reached = [0] * len(self.needs)
        for number in sequence:
            found = 0
            for source in self.needs[number]:
                found |= reached[source] | marks.get(source, 0)
            reached[number] = found
        return reached
