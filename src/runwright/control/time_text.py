"""Times in arguments: `2h` ago, or RFC 3339."""

from __future__ import annotations

import re

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import is_utc, to_micros

_SPAN = re.compile(r"(\d{1,9})\s*(s|m|min|h|d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_time(text: str, now: int) -> int:
    """A point in time: `2h` ago, or an RFC 3339 time in UTC. In microseconds since 1970."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        return max(0, now - int(span[1]) * _SECONDS[span[2]] * 1_000_000)
    if is_utc(text):
        return to_micros(text)
    raise RunwrightError(
        ErrorCode.INVALID_ARGUMENT,
        f"Invalid time {text!r}. Use 30m, 2h, 7d or an RFC 3339 time such as 2026-01-31T08:00:00Z.",
    )
