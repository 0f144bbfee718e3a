"""How many more steps may start now. The caller knows; `decide` is only told."""

from __future__ import annotations

from runwright.contract.plan import StepClass


class Room:
    """`closed`: nothing may start, not even what takes no room."""

    def __init__(self, free: dict[StepClass, int], *, closed: bool = False) -> None:
        self.free = free
        self.closed = closed
        self.refused = closed  # something that could start was left waiting
        self.short: set[StepClass] = set()  # for want of room of these classes
        self.taken: list[StepClass] = []

    def has(self, step_class: StepClass) -> bool:
        return self.free.get(step_class, 0) > 0

    def refuse(self, step_class: StepClass) -> None:
        self.refused = True
        self.short.add(step_class)

    def any(self) -> bool:
        return not self.closed and any(count > 0 for count in self.free.values())

    def take(self, step_class: StepClass) -> bool:
        if not self.has(step_class):
            self.refuse(step_class)
            return False
        self.free[step_class] -= 1
        self.taken.append(step_class)
        return True
