"""Due times of a run: retries that start later, and steps that only wait."""

from __future__ import annotations

from heapq import heappop, heappush

from runwright.contract.refs import ErrorInfo
from runwright.core.fold.execution_state import ExecutionState

Alarm = tuple[int, str]
"""Microseconds since 1970, and the path that is due then."""

WAIT_TIMED_OUT = ErrorInfo("STEP_TIMEOUT", "The wait is longer than the timeout of the step.", True, "timeout")


def timeout_error(seconds: float, subject: str = "The step") -> ErrorInfo:
    return ErrorInfo("STEP_TIMEOUT", f"{subject} timed out after {seconds:g} s.", retryable=True, category="timeout")


class DueTimes:
    """Heaps over the due times in the execution state. A stale entry is dropped when it reaches the top.

    `shifts` corrects due times of the log after the system clock was set: a wait of a minute then takes a minute all
    the same. Times that a plan names (`until`) are not corrected.
    """

    def __init__(self, execution: ExecutionState) -> None:
        self._execution = execution
        self.shifts: dict[Alarm, int] = {}  # microseconds, by the due time in the log and the path
        self._fill()

    def _fill(self) -> None:
        self.retries: list[Alarm] = []
        self.waits: list[Alarm] = []
        for path in self._execution.retry_at:
            self.add_retry(path)
        for path in self._execution.due_at:
            self.add_wait(path)

    def shift(self, micros: int) -> None:
        """The system clock was set forward by so many microseconds: end present waits and delays that much later."""
        execution, shifts = self._execution, self.shifts
        waits = [(at, path) for path, at in execution.due_at.items() if path not in execution.until_times]
        retries = [(at, path) for path, at in execution.retry_at.items()]
        self.shifts = {alarm: shifts.get(alarm, 0) + micros for alarm in (*waits, *retries)}
        self._fill()

    def restore_shifts(self, shifts: dict[Alarm, int]) -> None:
        """Apply the corrections that another object had for the same run."""
        if shifts:
            self.shifts = shifts
            self._fill()

    def add_retry(self, path: str) -> None:
        heappush(self.retries, (self._time(self._execution.retry_at, path), path))

    def add_wait(self, path: str) -> None:
        heappush(self.waits, (self._time(self._execution.due_at, path), path))

    def pop_wait(self, now: int) -> str | None:
        """The path of the next wait that is over."""
        self._drop_stale()
        return heappop(self.waits)[1] if self.waits and self.waits[0][0] <= now else None

    def pop_retry(self, now: int) -> str | None:
        """The path of the next retry that is due."""
        self._drop_stale()
        return heappop(self.retries)[1] if self.retries and self.retries[0][0] <= now else None

    def next_after(self, now: int) -> int | None:
        """The next time in the future. An entry that is due already waits for something else: for capacity, or for
        the run to be resumed."""
        self._drop_stale()
        heads = [heap[0][0] for heap in (self.waits, self.retries) if heap]
        return min((at for at in heads if at > now), default=None)

    def _time(self, times: dict[str, int], path: str) -> int:
        at = times.get(path, -1)
        return at + self.shifts.get((at, path), 0) if self.shifts else at

    def _drop_stale(self) -> None:
        while self.waits and self._time(self._execution.due_at, self.waits[0][1]) != self.waits[0][0]:
            heappop(self.waits)
        while self.retries and self._time(self._execution.retry_at, self.retries[0][1]) != self.retries[0][0]:
            heappop(self.retries)
