"""Lengths of time as people write them: `500ms`, `30s`, `1h30m`, or a number of seconds."""

from __future__ import annotations

import math
import re
from typing import Any

LONGEST = 100 * 366 * 86400.0
"""A hundred years, in seconds: beyond that it is a mistake."""

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(
    "".join(rf"(?:(\d{{1,15}}(?:\.\d{{1,9}})?)\s*{unit}\s*)?" for unit in ("d", "h", "m(?!s)", "s", "ms")), re.ASCII
)


class NoDuration(ValueError):
    """Why a value is no duration: a sentence."""


def read_duration(value: Any) -> float:
    """A duration in seconds."""
    seconds = _seconds(value)
    if not 0 <= seconds <= LONGEST:
        raise NoDuration("A duration lies between 0 and a hundred years.")
    return seconds


def _seconds(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) <= LONGEST else math.inf
    text = value.strip() if isinstance(value, str) else ""
    match = _DURATION.fullmatch(text) if text else None
    if match is None:
        raise NoDuration("A duration is a number of seconds, or text such as 500ms, 30s, 5m, 1h30m or 2d.")
    parts = zip(match.groups(), _UNITS.values(), strict=True)
    return math.fsum(float(number) * unit for number, unit in parts if number is not None)


def duration_text(seconds: float) -> str | float:
    """A short way to write a duration that is read back as exactly this one, or the number itself."""
    for text in (_in_units(seconds), f"{round(seconds * 1000)}ms"):
        if text and read_duration(text) == seconds:
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
