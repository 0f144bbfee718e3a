"""Dependency graph of steps: topological order, cycles, and which step has ended before which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runwright.contract.plan import Order, Step

_TARGETS_PER_PASS = 4096  # steps whose descendants one pass over the graph finds: the bits of one integer


class TopologicalOrder(NamedTuple):
    sequence: list[int]  # each step after its dependencies; empty if there are cycles
    cycles: list[list[int]]  # one cycle of each group of steps that depend on each other


class DependencyGraph:
    """Steps by index. Dependencies on unknown steps, and of a step on itself, are left out."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.index_of: dict[str, int] = {}
        for index, step in enumerate(steps):
            self.index_of.setdefault(step.step_id, index)
        self.dependencies = [
            [self.index_of[name] for name in step.depends_on if self.index_of.get(name, index) != index]
            for index, step in enumerate(steps)
        ]

    def topological_order(self) -> TopologicalOrder:
        blocked_by = [len(sources) for sources in self.dependencies]
        dependents: list[list[int]] = [[] for _ in self.dependencies]
        for index, sources in enumerate(self.dependencies):
            for source in sources:
                dependents[source].append(index)
        done = [index for index, count in enumerate(blocked_by) if count == 0]
        processed = 0
        cycles: list[list[int]] = []
        first_blocked = 0
        while True:
            while processed < len(done):
                for target in dependents[done[processed]]:
                    blocked_by[target] -= 1
                    if blocked_by[target] == 0:
                        done.append(target)
                processed += 1
            while first_blocked < len(blocked_by) and blocked_by[first_blocked] <= 0:
                first_blocked += 1
            if first_blocked == len(blocked_by):
                return TopologicalOrder([] if cycles else done, cycles)
            cycle = self._find_cycle(first_blocked, blocked_by)
            cycles.append(cycle)
            for index in cycle:  # treated as done, so that steps that merely depend on the cycle are not reported too
                blocked_by[index] = 0
                done.append(index)

    def _find_cycle(self, start: int, blocked_by: list[int]) -> list[int]:
        """Return a cycle that is reachable from a blocked step. It begins with its first declared step."""
        position: dict[int, int] = {}
        walk: list[int] = []
        index = start
        while index not in position:
            position[index] = len(walk)
            walk.append(index)
            index = next(source for source in self.dependencies[index] if blocked_by[source] > 0)
        cycle = walk[position[index] :]
        first = cycle.index(min(cycle))
        return cycle[first:] + cycle[:first]

    def find_unordered(self, order: Order, pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the pairs (step, other) in which the other step may not have ended when the step starts."""
        if order is Order.SEQUENTIAL:
            return {(step, other) for step, other in pairs if other >= step}
        direct: dict[int, set[int]] = {}
        unordered = {
            (step, other)
            for step, other in pairs
            if other not in (direct.get(step) or direct.setdefault(step, set(self.dependencies[step])))
        }
        targets = sorted({other for _, other in unordered})
        sequence = self.topological_order().sequence
        for start in range(0, len(targets), _TARGETS_PER_PASS):
            bits = {target: 1 << bit for bit, target in enumerate(targets[start : start + _TARGETS_PER_PASS])}
            ancestors = self._ancestor_bits(sequence, bits)
            unordered -= {(step, other) for step, other in unordered if other in bits and ancestors[step] & bits[other]}
        return unordered

    def _ancestor_bits(self, sequence: list[int], bits: dict[int, int]) -> list[int]:
        """Return for each step the bits of all steps that it depends on, directly or indirectly."""
        ancestors = [0] * len(self.dependencies)
        for index in sequence:
            found = 0
            for source in self.dependencies[index]:
                found |= ancestors[source] | bits.get(source, 0)
            ancestors[index] = found
        return ancestors
