"""The two state machines, as tables. Every layer that judges a transition reads these."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class RunStatus(StrEnum):
    PENDING = "PENDING"
    APPROVED = "APPROVED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StepStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class Enforcement(StrEnum):
    """What the Append Authority does with an illegal transition: refuse it, or store it and say so."""

    STRICT = "strict"
    OBSERVE = "observe"


ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
"""Nothing leaves these."""

OPEN = frozenset(RunStatus) - ENDED
_BEFORE_START = frozenset({RunStatus.PENDING, RunStatus.APPROVED})
_UNDER_WAY = frozenset({RunStatus.RUNNING, RunStatus.PAUSED})

RUN_TRANSITIONS: dict[str, tuple[frozenset[RunStatus], RunStatus | None]] = {
    "RunQueued": (_BEFORE_START, None),
    "RunApproved": (frozenset({RunStatus.PENDING}), RunStatus.APPROVED),
    "RunStarted": (_BEFORE_START, RunStatus.RUNNING),
    "RunPaused": (frozenset({RunStatus.RUNNING}), RunStatus.PAUSED),
    "RunResumed": (frozenset({RunStatus.PAUSED}), RunStatus.RUNNING),
    "RunCompleted": (frozenset({RunStatus.RUNNING}), RunStatus.COMPLETED),
    "RunFailed": (OPEN, RunStatus.FAILED),
    "RunCancelled": (OPEN, RunStatus.CANCELLED),
}
"""Run-level type: the statuses it is legal in, and the status it leads to (None: it stays)."""

StepRule = tuple[StepStatus, StepStatus, frozenset[RunStatus]]
"""From, to (both of one attempt), and the run's statuses in which that may happen."""

STEP_TRANSITIONS: dict[str, StepRule] = {
    "StepStarted": (StepStatus.PENDING, StepStatus.RUNNING, _UNDER_WAY),
    "StepCompleted": (StepStatus.RUNNING, StepStatus.SUCCESS, _UNDER_WAY),
    "StepFailed": (StepStatus.RUNNING, StepStatus.FAILED, _UNDER_WAY),
    "StepSkipped": (StepStatus.PENDING, StepStatus.SKIPPED, OPEN),
}
"""What each step-level type does."""


class InvalidTransition(msgspec.Struct, frozen=True, rename="camel"):
    """Why an event may not happen now."""

    attempted_event_type: str
    expected_state: str
    actual_state: str
    detail: str
