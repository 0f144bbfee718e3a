"""Checks of values that expressions put into events."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.envelope import value_problem
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.playbook import MAX_SET_BYTES


def check_event_value(subject: str, *values: Any) -> None:
    """Refuse values that are too large for an event or cannot be stored in one."""
    if not any(values):
        return
    body = msgspec.json.encode(values)
    if len(body) > MAX_SET_BYTES:
        raise RunwrightError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"{subject} has {len(body):,} bytes; the limit is {MAX_SET_BYTES:,}. "
            "Store it as a result and refer to it by name.",
        )
    if (problem := value_problem(body)) is not None:
        raise RunwrightError(ErrorCode.RESULT_NOT_STORABLE, f"{subject} {problem}.")
