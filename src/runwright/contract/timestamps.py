"""RFC 3339 UTC text and the microseconds since 1970 that stand for it inside the log."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_RFC3339_UTC = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt]([01]\d|2[0-3]):([0-5]\d):([0-5]\d|60)(?:\.(\d{1,9})\d*)?(?:[Zz]|\+00:00)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@lru_cache(maxsize=4096)
def _day_exists(year: int, month: int, day: int) -> bool:
    try:
        datetime(year, month, day, tzinfo=UTC)
    except ValueError:
        return False
    return True


def is_utc(text: str) -> bool:
    """Whether this is an RFC 3339 time in UTC; leap seconds are allowed where they can occur."""
    match = _RFC3339_UTC.fullmatch(text)
    if match is None:
        return False
    year, month, day, hour, minute, second, _ = match.groups()
    if second == "60" and (hour, minute) != ("23", "59"):
        return False
    return _day_exists(int(year), int(month), int(day))


def to_micros(text: str) -> int:
    """Microseconds since 1970 of an RFC 3339 UTC time; finer digits are cut off."""
    match = _RFC3339_UTC.fullmatch(text)
    if match is None or not is_utc(text):
        raise ValueError(f"not an RFC 3339 time in UTC: {text!r}")
    year, month, day, hour, minute, second, fraction = match.groups()
    moment = datetime(int(year), int(month), int(day), int(hour), int(minute), tzinfo=UTC)
    whole = (moment - _EPOCH) // _MICROSECOND + int(second) * 1_000_000
    return whole + int((fraction or "0").ljust(6, "0")[:6])


@lru_cache(maxsize=1024)
def _to_the_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")


def from_micros(micros: int) -> str:
    """The text form that the Append Authority writes: always six digits, always `Z`."""
    seconds, fraction = divmod(micros, 1_000_000)
    return f"{_to_the_second(seconds)}.{fraction:06d}Z"


def millis_between(start: str, end: str) -> int:
    """Whole milliseconds from one time to another, never negative: producers' clocks may disagree."""
    return max(0, (to_micros(end) - to_micros(start)) // 1000)
