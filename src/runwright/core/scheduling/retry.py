"""Retries: whether a failed attempt may be retried, and after which delay. Shared by plans and playbooks."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

from runwright.contract.plan import Backoff, Retry
from runwright.contract.refs import ErrorInfo

MAX_RETRY_AFTER = 24 * 3600.0
"""Seconds. A longer `retryAfter` of a plan's step is ignored."""

_MOST_DOUBLINGS = 64


class Growth(StrEnum):
    """How the delay grows from attempt to attempt."""

    CONSTANT = "constant"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


def may_retry(error: ErrorInfo | None, attempt: int, policy: Retry) -> bool:
    return attempt < policy.max_attempts and (error is None or error.retryable is not False)


def step_retry_delay(policy: Retry, run_id: str, path: str, attempt: int, error: ErrorInfo | None = None) -> float:
    """Seconds until the next attempt of a plan's step: the backoff, or `retryAfter` of the error if that is longer."""
    growth = Growth.EXPONENTIAL if policy.backoff is Backoff.EXPONENTIAL else Growth.CONSTANT
    seconds = backoff_delay(policy.initial, growth, attempt, policy.longest)
    if policy.jitter:
        seconds *= _jitter(f"{run_id}|{path}|{attempt}")
    retry_after = ((error.facts if error is not None else None) or {}).get("retryAfter")
    return max(seconds, valid_retry_after(retry_after, MAX_RETRY_AFTER))


def backoff_delay(initial: float, growth: Growth, attempt: int, longest: float) -> float:
    """Seconds to wait after this attempt, at most `longest`."""
    if growth is Growth.LINEAR:
        initial *= attempt
    elif growth is Growth.EXPONENTIAL:
        initial *= 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
    return min(initial, longest)


def valid_retry_after(seconds: Any, longest: float) -> float:
    """The `Retry-After` of a failed attempt; 0 if there is none, or none that is sensible."""
    return float(seconds) if isinstance(seconds, int | float) and 0 < seconds <= longest else 0.0


def _jitter(seed: str) -> float:
    """A factor from 0.5 to 1. Derived from the attempt, so that every process decides the same for the same run."""
    return 0.5 + int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4]) / 2**33
