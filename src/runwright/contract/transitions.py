"""The state machines of run and step, as tables. Every layer that validates transitions uses them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

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
    """Treatment of an illegal transition by the Append Authority.

    STRICT refuses the event. OBSERVE stores it, marks the run as inconsistent and raises an alert.
    """

    STRICT = "strict"
    OBSERVE = "observe"


ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
"""Terminal statuses: no transition leads out of them."""

OPEN = frozenset(RunStatus) - ENDED
_BEFORE_START = frozenset({RunStatus.PENDING, RunStatus.APPROVED})
_ACTIVE = frozenset({RunStatus.RUNNING, RunStatus.PAUSED})


class RunTransition(NamedTuple):
    legal_in: frozenset[RunStatus]
    target: RunStatus | None  # None: the status does not change


RUN_TRANSITIONS: dict[str, RunTransition] = {
    "RunQueued": RunTransition(_BEFORE_START, None),
    "RunApproved": RunTransition(frozenset({RunStatus.PENDING}), RunStatus.APPROVED),
    "RunStarted": RunTransition(_BEFORE_START, RunStatus.RUNNING),
    "RunPaused": RunTransition(frozenset({RunStatus.RUNNING}), RunStatus.PAUSED),
    "RunResumed": RunTransition(frozenset({RunStatus.PAUSED}), RunStatus.RUNNING),
    "RunCompleted": RunTransition(frozenset({RunStatus.RUNNING}), RunStatus.COMPLETED),
    "RunFailed": RunTransition(OPEN, RunStatus.FAILED),
    "RunCancelled": RunTransition(OPEN, RunStatus.CANCELLED),
}
"""State machine of a run, by event type."""


class StepTransition(NamedTuple):
    """A transition of one attempt of a step."""

    source: StepStatus
    target: StepStatus
    legal_in: frozenset[RunStatus]  # statuses of the run


STEP_TRANSITIONS: dict[str, StepTransition] = {
    "StepStarted": StepTransition(StepStatus.PENDING, StepStatus.RUNNING, _ACTIVE),
    "StepCompleted": StepTransition(StepStatus.RUNNING, StepStatus.SUCCESS, _ACTIVE),
    "StepFailed": StepTransition(StepStatus.RUNNING, StepStatus.FAILED, _ACTIVE),
    "StepSkipped": StepTransition(StepStatus.PENDING, StepStatus.SKIPPED, OPEN),
}
"""State machine of a step, by event type."""


class InvalidTransition(msgspec.Struct, frozen=True, rename="camel"):
    """The reason why the state machines forbid an event."""

    attempted_event_type: str
    expected_state: str
    actual_state: str
    detail: str
