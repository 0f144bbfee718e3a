"""ClockJumps: notices that the system clock was set, by comparison with the monotonic clock."""

from __future__ import annotations

import logging

from runwright.contract.clock import Clock

logger = logging.getLogger("runwright.runtimes")

MIN_STEP = 1_000_000
"""Microseconds. Smaller differences are corrections of the clock's rate."""

POLL_SECONDS = 1.0


class ClockJumps:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = self._read_offset()
        self._total = 0

    def total(self) -> int:
        """Microseconds by which the clock was set forward since this object was made; negative: back."""
        offset = self._read_offset()
        step, self._offset = offset - self._offset, offset
        if abs(step) >= MIN_STEP:
            self._total += step
            logger.warning("The system clock was set by %+.1f s; waits and delays are computed again.", step / 1e6)
        return self._total

    def _read_offset(self) -> int:
        return self._clock.now() - int(self._clock.monotonic() * 1e6)
