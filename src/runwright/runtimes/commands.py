"""Commands to a runtime: what it is to do once a decision is durable.

They follow from the log alone: `commands_of` derives them from a folded run, so that a process that recovers the run
continues where the log ends.
"""

from __future__ import annotations

import msgspec

from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.decider import Decider
from runwright.core.scheduling.signals import Stop


class Execute(msgspec.Struct, frozen=True):
    """Execute an attempt whose start is in the log."""

    path: str
    attempt: int


class Commands(msgspec.Struct, frozen=True):
    execute: list[Execute]
    claimable: dict[str, int]  # attempts that workers may claim: path to attempt
    wake_at: int | None  # decide again at this time (microseconds since 1970)
    stop: Stop | None  # stop what is executed, then decide again
    ended: RunStatus | None


def commands_of(decider: Decider) -> Commands:
    """Everything a runtime has to do for a run, according to its log."""
    has_ended = decider.status in ENDED
    return Commands(
        execute=[Execute(each.path, each.attempt) for each in decider.scheduler.running_attempts()],
        claimable={} if has_ended or decider.stop is not None else dict(decider.scheduler.queued_for_workers()),
        wake_at=None if has_ended else decider.next_wake(),
        stop=decider.stop,
        ended=decider.status if has_ended else None,
    )
