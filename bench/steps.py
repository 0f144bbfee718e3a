"""The step that both engines carry out: as little as a step can do, so that it is the engine that is measured."""

from __future__ import annotations

STEPS_A_RUN = 10


def work(number: int) -> int:
    return number + 1
