"""Which workers count as lost."""

from __future__ import annotations

import pytest

from runwright.runtimes.embedded.task_queue import WorkerTask
from runwright.runtimes.embedded.worker_liveness import LostWorkerDetector

LEASE = 5.0


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> int:
        raise AssertionError("leases of workers do not depend on the wall clock")

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        del seconds


def started(task_id: int = 1, *, lease_no: int = 1, renewals: int = 0) -> WorkerTask:
    return WorkerTask(task_id, "r", "a", 1, "STARTED", "w", lease_no, 0, None, renewals)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def detector(clock: Clock) -> LostWorkerDetector:
    return LostWorkerDetector(clock, LEASE)


def look(detector: LostWorkerDetector, clock: Clock, seconds: float, *tasks: WorkerTask) -> list[int]:
    """Look every half second for some time; return the ids of the tasks found lost."""
    lost: set[int] = set()
    for _ in range(int(seconds * 2)):
        clock.seconds += 0.5
        lost |= {task.task_id for task in detector.find_lost(list(tasks))}
    return sorted(lost)


def test_worker_that_does_not_renew_is_lost(detector: LostWorkerDetector, clock: Clock) -> None:
    assert look(detector, clock, LEASE, started()) == []
    assert look(detector, clock, 1, started()) == [1]


def test_renewal_begins_a_new_lease(detector: LostWorkerDetector, clock: Clock) -> None:
    assert look(detector, clock, 4, started(), started(2)) == []
    assert look(detector, clock, 4, started(renewals=1), started(2)) == [2]
    assert look(detector, clock, 4, started(renewals=2)) == []


def test_claim_begins_a_new_lease(detector: LostWorkerDetector, clock: Clock) -> None:
    assert look(detector, clock, 4, started()) == []
    assert look(detector, clock, 4, started(lease_no=2)) == []


@pytest.mark.parametrize("gap", [3.0, 30.0])
def test_time_without_a_look_does_not_end_a_lease(detector: LostWorkerDetector, clock: Clock, gap: float) -> None:
    assert look(detector, clock, 3, started()) == []
    clock.seconds += gap
    assert look(detector, clock, 1, started()) == []


def test_after_a_long_gap_a_worker_has_a_whole_lease(detector: LostWorkerDetector, clock: Clock) -> None:
    assert look(detector, clock, 4.5, started()) == []
    clock.seconds += 30
    assert look(detector, clock, LEASE, started()) == []
    assert look(detector, clock, 1, started()) == [1]


def test_slow_looks_find_a_lost_worker(detector: LostWorkerDetector, clock: Clock) -> None:
    lost: list[WorkerTask] = []
    for _ in range(8):
        clock.seconds += 2
        lost += detector.find_lost([started()])
    assert lost
