"""Draft events: produced by a decision, folded at once, and appended together by the runtime."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.transitions import InvalidTransition

_encode = msgspec.json.Encoder().encode

Payload = msgspec.Struct | dict[str, Any] | bytes | None


class Draft(msgspec.Struct, gc=False):
    event_type: str
    step_id: str | None
    logical_attempt_id: int
    raw_payload: bytes | None
    emitted_at: str
    engine_attempt_id: int
    run_seq: int = 0  # not known yet
    schema_version: int | None = None
    is_append_boundary: bool = False  # the log may end here: an append may be split after this event


def draft(
    event_type: str,
    emitted_at: str,
    engine_attempt_id: int,
    step_id: str | None = None,
    attempt: int = 1,
    payload: Payload = None,
) -> Draft:
    raw = payload if payload is None or isinstance(payload, bytes) else _encode(payload)
    return Draft(event_type, step_id, attempt, raw, emitted_at, engine_attempt_id)


class Violation(Exception):
    """This engine was about to emit an event that the state machines forbid."""

    def __init__(self, entity: str, invalid: InvalidTransition) -> None:
        super().__init__(invalid.detail)
        self.entity = entity
        self.facts = {
            "invalidTransitionDetected": True,
            "expectedState": invalid.expected_state,
            "actualState": invalid.actual_state,
            "attemptedEventType": invalid.attempted_event_type,
        }
