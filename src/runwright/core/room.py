"""How many more steps may start now. The caller knows; `decide` is only told."""

from __future__ import annotations

from collections.abc import Mapping

from runwright.contract.plan import StepClass


class Room:
    def __init__(self, free: Mapping[StepClass, int]) -> None:
        self.free = dict(free)
        self.refused = False  # something that could start was left waiting

    def has(self, step_class: StepClass) -> bool:
        return self.free.get(step_class, 0) > 0

    def take(self, step_class: StepClass) -> bool:
        if not self.has(step_class):
            self.refused = True
            return False
        self.free[step_class] -= 1
        return True
