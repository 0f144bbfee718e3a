"""Build run identities and complete events from a few arguments."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import NO_PAYLOAD, RunEventWrite, RunIdentity
from runwright.contract.keys import idempotency_key
from runwright.contract.refs import DEFAULT_TENANT
from runwright.contract.timestamps import from_micros

from .system_clock import SystemClock, SystemIds

_clock = SystemClock()
_ids = SystemIds()


def new_event(
    event_type: str,
    run: RunIdentity,
    *,
    step_id: str | None = None,
    payload: dict[str, Any] | None = None,
    attempt: int = 1,
    engine_attempt: int = 1,
    emitted_at: str | None = None,
    event_id: str | None = None,
    emitted_by: str | None = None,
    traceparent: str | None = None,
) -> RunEventWrite:
    """Return an event ready to be appended, with id, time and idempotency key."""
    return RunEventWrite(
        event_id=event_id or _ids.event_id(),
        event_type=event_type,
        run_id=run.run_id,
        tenant_id=run.tenant_id,
        project_id=run.project_id,
        environment_id=run.environment_id,
        plan_id=run.plan_id,
        plan_version=run.plan_version,
        engine_attempt_id=engine_attempt,
        logical_attempt_id=attempt,
        idempotency_key=idempotency_key(run.run_id, step_id, attempt, event_type, run.plan_id, run.plan_version),
        emitted_at=emitted_at or from_micros(_clock.now()),
        step_id=step_id,
        emitted_by=emitted_by,
        traceparent=traceparent,
        raw_payload=NO_PAYLOAD if payload is None else encode_payload(payload),
    )


def encode_payload(payload: dict[str, Any]) -> msgspec.Raw:
    """Encode a payload as JSON; NaN and infinity are refused."""
    try:
        encoded = msgspec.json.encode(payload)
        if b"null" in encoded:  # msgspec encodes NaN as null without an error.
            json.dumps(msgspec.to_builtins(payload), allow_nan=False)
        return msgspec.Raw(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RunwrightError(
            ErrorCode.SCHEMA_VALIDATION_FAILED, f"The payload is not JSON-serializable: {error}."
        ) from None


def new_run(
    run_id: str,
    plan_id: str,
    plan_version: str = "1",
    *,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = "default",
    environment_id: str = "default",
) -> RunIdentity:
    """Return the constants of a run; everything but its id and plan has a default."""
    return RunIdentity(
        run_id=run_id,
        tenant_id=tenant_id,
        project_id=project_id,
        environment_id=environment_id,
        plan_id=plan_id,
        plan_version=plan_version,
    )
