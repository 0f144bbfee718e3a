"""Times: RFC 3339 text in UTC, and microseconds since 1970, which the log stores."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_RFC3339_UTC = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt]([01]\d|2[0-3]):([0-5]\d):([0-5]\d|60)(?:\.(\d+))?(?:[Zz]|\+00:00)", re.ASCII
)
MAX_CHARS = 64
"""Maximum length of a time; longer texts are rejected before they are parsed."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@lru_cache(maxsize=1024)
def _micros_of_day(day: str) -> int | None:
    """Return the start of a day; None if the calendar has no such day."""
    try:
        return (datetime.fromisoformat(day).replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
    except ValueError:
        return None


def is_utc(text: str) -> bool:
    """Whether a text is an RFC 3339 time in UTC. A leap second is allowed where one can occur, at 23:59:60."""
    match = _RFC3339_UTC.fullmatch(text) if len(text) <= MAX_CHARS else None
    if match is None or _micros_of_day(match[1]) is None:
        return False
    return text[17] != "6" or text[11:16] == "23:59"


def to_micros(text: str) -> int:
    """Return the microseconds since 1970 of an RFC 3339 time in UTC; further digits are truncated."""
    match = _RFC3339_UTC.fullmatch(text)
    start = None if match is None else _micros_of_day(match[1])
    if match is None or start is None or not is_utc(text):
        raise ValueError(f"Invalid RFC 3339 time in UTC: {text!r}")
    _, hour, minute, second, fraction = match.groups()
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second)
    return start + seconds * 1_000_000 + int((fraction or "0").ljust(6, "0")[:6])


@lru_cache(maxsize=1024)
def _format_seconds(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")


def from_micros(micros: int) -> str:
    """Return the text form that the Append Authority writes: always six fractional digits and `Z`."""
    seconds, fraction = divmod(micros, 1_000_000)
    return f"{_format_seconds(seconds)}.{fraction:06d}Z"


def millis_between(start: str | None, end: str | None) -> int | None:
    """Return the whole milliseconds between two times; None if one is unknown.

    Never negative, because the clocks of producers may differ.
    """
    if start is None or end is None or not (is_utc(start) and is_utc(end)):
        return None
    return max(0, (to_micros(end) - to_micros(start)) // 1000)
