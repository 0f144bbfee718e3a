"""What waits for a time: retries that are due later, and steps that only wait."""

from __future__ import annotations

import hashlib
from heapq import heappop, heappush
from typing import Any

from runwright.contract.plan import Backoff, Retry
from runwright.contract.refs import ErrorInfo

from .workings import Workings

Alarm = tuple[int, str]

LONGEST_TOLD = 24 * 3600.0


def too_late(seconds: float, what: str = "It") -> ErrorInfo:
    return ErrorInfo("STEP_TIMEOUT", f"{what} took longer than {seconds:g} s.", retryable=True, category="timeout")


TOO_LATE = ErrorInfo("STEP_TIMEOUT", "It was to wait for longer than its timeout allows.", True, "timeout")


class Waits:
    """Heaps over the times in a run's workings. An entry that was overtaken is dropped when it comes up."""

    def __init__(self, work: Workings) -> None:
        self._work = work
        self.retries: list[Alarm] = []
        self.dues: list[Alarm] = []
        for path in work.retry_at:
            self.add_retry(path)
        for path in work.due_at:
            self.add_due(path)

    def add_retry(self, path: str) -> None:
        heappush(self.retries, (self._work.retry_at[path], path))

    def add_due(self, path: str) -> None:
        heappush(self.dues, (self._work.due_at[path], path))

    def drop_overtaken(self) -> None:
        while self.dues and self._work.due_at.get(self.dues[0][1]) != self.dues[0][0]:
            heappop(self.dues)
        while self.retries and self._work.retry_at.get(self.retries[0][1]) != self.retries[0][0]:
            heappop(self.retries)

    def next_due(self, now: int) -> Alarm | None:
        """The next wait that is over."""
        self.drop_overtaken()
        return heappop(self.dues) if self.dues and self.dues[0][0] <= now else None

    def next_retry(self, now: int) -> Alarm | None:
        """The next retry that may start."""
        self.drop_overtaken()
        return heappop(self.retries) if self.retries and self.retries[0][0] <= now else None

    def next_after(self, now: int) -> int | None:
        """When there will be something to do. What is due already and was not done waits for something else: for
        room, or for the run to be resumed."""
        if not self.dues and not self.retries:
            return None
        self.drop_overtaken()
        heads = [heap[0][0] for heap in (self.dues, self.retries) if heap]
        return min((at for at in heads if at > now), default=None)


def may_retry(error: ErrorInfo | None, attempt: int, policy: Retry) -> bool:
    return attempt < policy.max_attempts and (error is None or error.retryable is not False)


def delay(policy: Retry, run_id: str, path: str, attempt: int, error: ErrorInfo | None = None) -> float:
    """Seconds until the next attempt; no fewer than the failed one was told to wait."""
    told: Any = ((error.facts if error is not None else None) or {}).get("retryAfter")
    least = float(told) if isinstance(told, int | float) and 0 < told <= LONGEST_TOLD else 0.0
    return max(least, _backoff(policy, run_id, path, attempt))


def _backoff(policy: Retry, run_id: str, path: str, attempt: int) -> float:
    """By policy. The jitter hangs on what is tried, so that the same run decides alike."""
    seconds = policy.initial
    if policy.backoff is Backoff.EXPONENTIAL:
        seconds *= 2.0 ** min(attempt - 1, 64)
    seconds = min(seconds, policy.longest)
    if not policy.jitter:
        return seconds
    digest = hashlib.sha256(f"{run_id}|{path}|{attempt}".encode()).digest()
    return seconds * (0.5 + int.from_bytes(digest[:4]) / 2**33)
