"""Free slots by step class, as the runtime sees them at the time of a decision."""

from __future__ import annotations

from runwright.contract.plan import StepClass


class Capacity:
    """The slots that one decision may use. `closed`: nothing may start, not even steps that need no slot."""

    def __init__(self, free: dict[StepClass, int], *, closed: bool = False) -> None:
        self.free = free
        self.closed = closed
        self.refused = closed  # a step that could start was not started
        self.short: set[StepClass] = set()  # classes without a free slot for a ready step
        self.acquired: list[StepClass] = []

    def has(self, step_class: StepClass) -> bool:
        return self.free.get(step_class, 0) > 0

    def mark_short(self, step_class: StepClass) -> None:
        self.refused = True
        self.short.add(step_class)

    def is_available(self) -> bool:
        return not self.closed and any(count > 0 for count in self.free.values())

    def acquire(self, step_class: StepClass) -> bool:
        if not self.has(step_class):
            self.mark_short(step_class)
            return False
        self.free[step_class] -= 1
        self.acquired.append(step_class)
        return True
