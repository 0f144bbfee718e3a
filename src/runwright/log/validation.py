"""Validation of arguments other than events, before the store is queried."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import is_utc, to_micros


def is_valid_name(name: str) -> bool:
    """Whether a store can be queried for this id: it may reject NUL, lone surrogates and long texts."""
    try:
        return 0 < len(name) <= 512 and b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


def check_number(name: str, value: int, minimum: int) -> None:
    if not minimum <= value < 2**62:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"{name} must be at least {minimum} and less than 2**62.")


def not_found(name: str) -> RunwrightError:
    return RunwrightError(ErrorCode.RUN_NOT_FOUND, f"Run {name!r} not found. `runwright list` shows the existing runs.")


def parse_time(time: str | datetime) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Invalid time: a datetime must have a time zone.")
        return to_micros(time.astimezone(UTC).isoformat())
    if not is_utc(time):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, "Invalid time: use RFC 3339 in UTC, such as 2026-01-31T08:00:00Z."
        )
    return to_micros(time)


def expected_seq_for(expected_seq: int | Mapping[str, int] | None, run_id: str) -> int | None:
    """Return the expected sequence number of this run, or None."""
    if expected_seq is None or isinstance(expected_seq, int):
        return expected_seq
    return expected_seq.get(run_id)
