"""Taking the time of something, on a machine that was given a moment to settle."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Self

import msgspec


class Stopwatch:
    """`with Stopwatch() as watch: ...`, then `watch.seconds`.

    Garbage and unwritten pages that earlier measurements left behind are dealt with before it starts.
    """

    seconds: float = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        os.sync()
        self._start = perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = perf_counter() - self._start


class Measured(msgspec.Struct, frozen=True):
    """How fast something went, and how long one caller waited."""

    per_second: float
    p50_ms: float


def p50_ms(seconds: Sequence[float]) -> float:
    return median(seconds) * 1000
