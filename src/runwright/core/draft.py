"""An event that is about to be appended: what `decide` gives out, and what `evolve` can fold at once."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.transitions import InvalidTransition

_encode = msgspec.json.Encoder().encode


class Draft(msgspec.Struct, gc=False):
    event_type: str
    step_id: str | None
    logical_attempt_id: int
    raw_payload: bytes | None
    emitted_at: str
    engine_attempt_id: int
    run_seq: int = 0  # not known yet
    schema_version: int | None = None
    is_whole: bool = False  # what was decided up to here stands by itself: an append may end with it


def draft(
    event_type: str,
    emitted_at: str,
    engine_attempt_id: int,
    step_id: str | None = None,
    attempt: int = 1,
    payload: msgspec.Struct | dict[str, Any] | bytes | None = None,
) -> Draft:
    raw = payload if payload is None or isinstance(payload, bytes) else _encode(payload)
    return Draft(event_type, step_id, attempt, raw, emitted_at, engine_attempt_id)


class Violation(Exception):
    """The producer's own guard: this engine was about to write what the state machines forbid."""

    def __init__(self, entity: str, invalid: InvalidTransition) -> None:
        super().__init__(invalid.detail)
        self.entity = entity
        self.facts = {
            "invalidTransitionDetected": True,
            "expectedState": invalid.expected_state,
            "actualState": invalid.actual_state,
            "attemptedEventType": invalid.attempted_event_type,
        }
