"""Capacity of the executor, shared by the runs of an engine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from runwright.contract.plan import StepClass
from runwright.core.scheduling.context import Capacity
from runwright.runtimes.protocols import ExecutorProtocol

CLASSES = tuple(StepClass)


class CapacityWaiter(Protocol):
    """A run that can start more steps than there are slots."""

    waits_for_capacity: bool

    def wake(self) -> None: ...


class CapacityPool:
    def __init__(self, executor: ExecutorProtocol) -> None:
        self._executor = executor
        self._waiting: dict[StepClass, dict[CapacityWaiter, None]] = {step_class: {} for step_class in CLASSES}
        self._reserved = dict.fromkeys(CLASSES, 0)
        self.is_closed = False  # nothing more starts here

    def now(self) -> Capacity:
        """The free slots of the executor, less those of steps whose start is being appended."""
        if self.is_closed:
            return Capacity(dict.fromkeys(CLASSES, 0))
        free = {
            step_class: self._executor.free_slots(step_class) - self._reserved[step_class] for step_class in CLASSES
        }
        return Capacity(free)

    def reserve(self, capacity: Capacity, change: int = 1) -> None:
        """Reserve the acquired slots until the executor counts them; with -1, release the reservation."""
        for step_class in capacity.acquired:
            self._reserved[step_class] += change
            if change < 0:
                self.on_slot_free(step_class)  # it may not have been used

    def wait(self, waiter: CapacityWaiter, classes: Collection[StepClass]) -> None:
        """The run needs slots of these classes. It may have been woken for another class: then the next one is."""
        if not classes and not waiter.waits_for_capacity:
            return
        waiter.waits_for_capacity = bool(classes)
        for step_class, waiting in self._waiting.items():
            if step_class in classes:
                waiting[waiter] = None
            else:
                waiting.pop(waiter, None)
            self.on_slot_free(step_class)  # a slot may have become free while the run was deciding

    def on_slot_free(self, step_class: StepClass) -> None:
        """A slot may be free: wake the run that has waited longest for one of this class."""
        if self.is_closed:
            return  # a run that is woken would find no slot, and wait again, forever
        waiting = self._waiting[step_class]
        if waiting and self._executor.free_slots(step_class) > self._reserved[step_class]:
            waiter = next(iter(waiting))
            del waiting[waiter]
            waiter.wake()
