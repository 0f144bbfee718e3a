"""Timing, after garbage collection and disk synchronization."""

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

    Garbage and unwritten pages of earlier measurements are collected and synced before timing starts.
    """

    seconds: float = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        os.sync()
        self._start = perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = perf_counter() - self._start


class Throughput(msgspec.Struct, frozen=True):
    """Throughput, and the median latency of one caller."""

    per_second: float
    p50_ms: float


def p50_ms(seconds: Sequence[float]) -> float:
    return median(seconds) * 1000
