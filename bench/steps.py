"""The step that both engines execute. It does as little as possible, so that the engine is measured."""

from __future__ import annotations

STEPS_PER_RUN = 10


def work(number: int) -> int:
    return number + 1
