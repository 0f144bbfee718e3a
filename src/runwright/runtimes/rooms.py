"""Who may start steps: the executor has only so much room, and the runs share it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from runwright.contract.plan import StepClass
from runwright.core.room import Room

from .work import Executing

if TYPE_CHECKING:
    from .driver import RunDriver

CLASSES = tuple(StepClass)


class Rooms:
    def __init__(self, executor: Executing) -> None:
        self._executor = executor
        self._waiting: dict[StepClass, dict[RunDriver, None]] = {step_class: {} for step_class in CLASSES}
        self._reserved = dict.fromkeys(CLASSES, 0)
        self.is_closed = False  # nothing more starts here

    def now(self) -> Room:
        """How much may start now: what the executor has room for, less what is being appended."""
        if self.is_closed:
            return Room(dict.fromkeys(CLASSES, 0))
        free = {step_class: self._executor.room(step_class) - self._reserved[step_class] for step_class in CLASSES}
        return Room(free)

    def reserve(self, room: Room, change: int = 1) -> None:
        """Keep what was taken for whoever is about to use it; with -1, let it go."""
        for step_class in room.taken:
            self._reserved[step_class] += change
            if change < 0:
                self.is_free(step_class)  # what took it may not have needed it after all

    def wait(self, driver: RunDriver, classes: Collection[StepClass]) -> None:
        """Of these classes the driver could use more. It may have had the turn for another: then the next gets it."""
        if not classes and not driver.room_matters:
            return
        driver.room_matters = bool(classes)
        for step_class, waiting in self._waiting.items():
            if step_class in classes:
                waiting[driver] = None
            else:
                waiting.pop(driver, None)
            self.is_free(step_class)  # it may have come free while the driver was busy

    def is_free(self, step_class: StepClass) -> None:
        """A slot may be free: whoever has waited longest for one of its class gets to look first."""
        if self.is_closed:
            return  # whoever looked would find nothing, and look again for ever
        waiting = self._waiting[step_class]
        if waiting and self._executor.room(step_class) > self._reserved[step_class]:
            driver = next(iter(waiting))
            del waiting[driver]
            driver.poke()
