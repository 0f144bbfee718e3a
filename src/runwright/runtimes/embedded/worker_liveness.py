"""LostWorkerDetector: finds the workers that no longer renew the lease of their task.

Time is measured by the monotonic clock of the process that drives the run, from when it first sees a renewal. Clocks of
other machines do not matter, and a clock that is set ends no lease. Time in which this process could not look, because
it was stopped or its store was unavailable, does not count: workers could not renew their leases either.
"""

from __future__ import annotations

from typing import NamedTuple

from runwright.contract.clock import Clock

from .task_queue import WorkerTask

MAX_COUNTED_GAP = 1.0
"""Seconds between two looks that count at most."""


class _Renewal(NamedTuple):
    lease_no: int
    renewals: int
    seen_at: float  # by `LostWorkerDetector._elapsed`


class LostWorkerDetector:
    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._last_look = clock.monotonic()
        self._elapsed = 0.0  # seconds in which this process looked
        self._renewals: dict[int, _Renewal] = {}  # by task id

    def find_lost(self, started: list[WorkerTask]) -> list[WorkerTask]:
        """Return the tasks whose lease was not renewed in time. `started` are all tasks that workers execute now."""
        self._count_time()
        renewals = {task.task_id: self._last_renewal(task) for task in started}
        self._renewals = renewals
        return [task for task in started if self._elapsed - renewals[task.task_id].seen_at > self._lease_seconds]

    def _count_time(self) -> None:
        now = self._clock.monotonic()
        gap, self._last_look = now - self._last_look, now
        if gap >= self._lease_seconds:
            self._renewals = {}  # every worker gets a whole lease to renew
        self._elapsed += min(gap, MAX_COUNTED_GAP)

    def _last_renewal(self, task: WorkerTask) -> _Renewal:
        known = self._renewals.get(task.task_id)
        if known is not None and (known.lease_no, known.renewals) == (task.lease_no, task.renewals):
            return known
        return _Renewal(task.lease_no, task.renewals, self._elapsed)
