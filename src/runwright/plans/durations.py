"""Durations in plans and settings: `500ms`, `30s`, `1h30m`, or a number of seconds."""

from __future__ import annotations

import math
import re
from typing import Any

MAX_SECONDS = 100 * 366 * 86400.0
"""A hundred years. A longer duration is considered a mistake."""

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(
    "".join(rf"(?:(\d{{1,15}}(?:\.\d{{1,9}})?)\s*{unit}\s*)?" for unit in ("d", "h", "m(?!s)", "s", "ms")), re.ASCII
)


class InvalidDuration(ValueError):
    """The value is not a duration. The message is a sentence for the user."""


def parse_duration(value: Any) -> float:
    """Return a duration in seconds. Raises InvalidDuration."""
    seconds = _seconds(value)
    if not 0 <= seconds <= MAX_SECONDS:
        raise InvalidDuration("A duration must be between 0 and a hundred years.")
    return seconds


def _seconds(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) <= MAX_SECONDS else math.inf
    text = value.strip() if isinstance(value, str) else ""
    match = _DURATION.fullmatch(text) if text else None
    if match is None:
        raise InvalidDuration("A duration must be a number of seconds, or text such as 500ms, 30s, 5m, 1h30m or 2d.")
    parts = zip(match.groups(), _UNITS.values(), strict=True)
    return math.fsum(float(number) * unit for number, unit in parts if number is not None)


def format_duration(seconds: float) -> str | float:
    """Return a short text that parses to exactly this duration, or the number itself if there is none."""
    for text in (_in_units(seconds), f"{round(seconds * 1000)}ms"):
        if text and parse_duration(text) == seconds:
            return text
    return seconds


def _in_units(seconds: float) -> str:
    if seconds != int(seconds):
        return ""
    rest = int(seconds)
    text = ""
    for name, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{name}" if count else ""
    return text or "0s"
