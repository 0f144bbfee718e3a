"""How much a caller may ask: a bucket each, that fills again as time passes."""

from __future__ import annotations

from collections.abc import Callable

from runwright.contract.errors import ErrorCode, RunwrightError

MOST_CALLERS = 10_000
FAILED_LOGINS = 10.0
"""Wrong tokens a second that one address may show."""


class Rates:
    def __init__(self, a_second: float, monotonic: Callable[[], float]) -> None:
        self._a_second = a_second
        self._monotonic = monotonic
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        """RATE_LIMITED once the caller's bucket is empty. It holds what two seconds bring."""
        if not self._a_second:
            return
        now = self._monotonic()
        full = 2 * self._a_second
        left, at = self._buckets.get(caller, (full, now))
        left = min(full, left + (now - at) * self._a_second)
        if left < 1:
            self._buckets[caller] = (left, now)
            raise RunwrightError(
                ErrorCode.RATE_LIMITED, f"You may ask {self._a_second:g} times a second. Wait a little."
            )
        if len(self._buckets) >= MOST_CALLERS and caller not in self._buckets:
            self._buckets.clear()
        self._buckets[caller] = (left - 1, now)
