"""The idempotency key of RunEvents v2.0.1: six fields, one delimiter, SHA-256.

`tenantId`, `projectId`, `environmentId` and `engineAttemptId` are not part of it.
"""

from __future__ import annotations

from hashlib import sha256

RUN = "RUN"
"""Placeholder for the step of a run event. A step may also be named RUN."""


def preimage(
    run_id: str, step_id: str | None, logical_attempt_id: int, event_type: str, plan_id: str, plan_version: str
) -> str:
    return f"{run_id}|{RUN if step_id is None else step_id}|{logical_attempt_id}|{event_type}|{plan_id}|{plan_version}"


def key_bytes(
    run_id: str, step_id: str | None, logical_attempt_id: int, event_type: str, plan_id: str, plan_version: str
) -> bytes:
    """Return the key as it is stored: 32 bytes."""
    text = preimage(run_id, step_id, logical_attempt_id, event_type, plan_id, plan_version)
    return sha256(text.encode()).digest()


def idempotency_key(
    run_id: str, step_id: str | None, logical_attempt_id: int, event_type: str, plan_id: str, plan_version: str
) -> str:
    """Return the key as it is sent: 64 lower-case hexadecimal digits."""
    return key_bytes(run_id, step_id, logical_attempt_id, event_type, plan_id, plan_version).hex()
