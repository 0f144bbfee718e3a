"""Limits per caller: requests per second (a token bucket), concurrent requests, and slots for large responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakValueDictionary

from runwright.contract.errors import ErrorCode, RunwrightError

MAX_CALLERS = 10_000
FAILED_LOGINS_PER_SECOND = 10.0
"""Requests with missing or invalid tokens that one address may send."""
BURST_SECONDS = 2
"""A full bucket holds the requests of this many seconds."""


class _Bucket(NamedTuple):
    tokens: float
    updated_at: float


class RateLimiter:
    def __init__(self, per_second: float, monotonic: Callable[[], float]) -> None:
        self._per_second = per_second  # 0: no limit
        self._monotonic = monotonic
        self._buckets: dict[str, _Bucket] = {}

    def acquire(self, caller: str) -> None:
        """Count one request of a caller. Raises RATE_LIMITED once the caller's bucket is empty."""
        if not self._per_second:
            return
        now = self._monotonic()
        capacity = BURST_SECONDS * self._per_second
        bucket = self._buckets.get(caller, _Bucket(capacity, now))
        tokens = min(capacity, bucket.tokens + (now - bucket.updated_at) * self._per_second)
        if tokens < 1:
            self._buckets[caller] = _Bucket(tokens, now)
            raise RunwrightError(
                ErrorCode.RATE_LIMITED, f"Rate limit exceeded ({self._per_second:g} requests/s). Retry later."
            )
        if len(self._buckets) >= MAX_CALLERS and caller not in self._buckets:
            self._buckets.clear()
        self._buckets[caller] = _Bucket(tokens - 1, now)


class ConcurrencyLimiter:
    """Limits the concurrent requests of each caller."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}

    def acquire(self, caller: str) -> None:
        """Count a request that begins. Raises RATE_LIMITED if the caller has too many."""
        count = self._counts.get(caller, 0)
        if count >= self._limit:
            message = f"Too many concurrent requests: at most {self._limit:,} are allowed. Retry later."
            raise RunwrightError(ErrorCode.RATE_LIMITED, message)
        self._counts[caller] = count + 1

    def release(self, caller: str) -> None:
        """Count a request that has ended."""
        count = self._counts[caller] - 1
        if count:
            self._counts[caller] = count
        else:
            del self._counts[caller]


class CallerSlots:
    """Slots for work of which every caller may have a few at a time; further requests of the caller wait."""

    def __init__(self, per_caller: int) -> None:
        self._per_caller = per_caller
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def slot_of(self, caller: str) -> asyncio.Semaphore:
        """Return what a request of this caller has to acquire."""
        return self._slots.setdefault(caller, asyncio.Semaphore(self._per_caller))
