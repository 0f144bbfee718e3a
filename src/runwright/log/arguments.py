"""What callers hand in besides events, checked before a store is asked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import is_utc, to_micros


def can_be_a_name(name: str) -> bool:
    """Whether a store can be asked for it at all."""
    try:
        return 0 < len(name) <= 512 and b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


def check_number(name: str, value: int, least: int) -> None:
    if not least <= value < 2**62:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, f"{name} must be {least} or more, and no more than can be counted."
        )


def not_found(name: str) -> RunwrightError:
    return RunwrightError(
        ErrorCode.RUN_NOT_FOUND, f"There is no run {name!r} here. `runwright list` shows those there are."
    )


def moment(moment: str | datetime) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Give the time with its time zone, in UTC.")
        return to_micros(moment.astimezone(UTC).isoformat())
    if not is_utc(moment):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, "Give the time as RFC 3339 in UTC, such as 2026-01-31T08:00:00Z."
        )
    return to_micros(moment)


def expected_of(expected_seq: int | Mapping[str, int] | None, run_id: str) -> int | None:
    """What a condition on the sequence says of this run."""
    if expected_seq is None or isinstance(expected_seq, int):
        return expected_seq
    return expected_seq.get(run_id)
