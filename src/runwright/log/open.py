"""From a store's URL to an open log, and from a few words to a whole event."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from runwright.contract.clock import Clock, Ids
from runwright.contract.envelope import MAX_PAYLOAD_BYTES
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import NO_PAYLOAD, RunEventWrite, RunIdentity
from runwright.contract.keys import idempotency_key
from runwright.contract.refs import DEFAULT_TENANT
from runwright.contract.timestamps import from_micros

from .base import RunLog
from .clock import SystemClock, SystemIds

DEFAULT_STORE = "sqlite:///.runwright/runs.db"


def open_log(
    url: str = DEFAULT_STORE,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    write_budget: float = 3.0,
    payload_limit: int = MAX_PAYLOAD_BYTES,
) -> RunLog:
    """The log at a URL, to be used with `async with`.

    `sqlite:///runs.db` (relative), `sqlite:////var/lib/runs.db` (absolute), `postgresql://...`, `memory://`.
    `write_budget` is how many seconds an append may take before its caller is told STORE_WRITE_BUDGET_EXCEEDED.
    """
    options: dict[str, Any] = {"clock": clock, "ids": ids, "write_budget": write_budget, "payload_limit": payload_limit}
    scheme, found, rest = url.partition("://")
    if found and scheme == "memory":
        from .memory import MemoryLog

        return MemoryLog(**options)
    if found and scheme == "sqlite":
        from .sqlite import SqliteLog

        if not rest.startswith("/") or len(rest) < 2 or rest == "/:memory:":
            raise _bad_url(url)
        return SqliteLog(Path(rest[1:]), **options)
    if found and scheme in ("postgresql", "postgres"):
        try:
            from .postgres import PostgresLog
        except ImportError:
            raise RunwrightError(
                ErrorCode.STORE_URL_INVALID, "Postgres needs one more package: pip install 'runwright[postgres]'."
            ) from None
        return PostgresLog(url, **options)
    raise _bad_url(url)


def _bad_url(url: str) -> RunwrightError:
    scheme = re.match("[a-z]{1,20}(?=:)", url)  # never more than that: the rest may hold a password
    return RunwrightError(
        ErrorCode.STORE_URL_INVALID,
        f"This is no store URL{'' if scheme is None else f' ({scheme[0]}:…)'}. Use sqlite:///file, "
        "sqlite:////absolute/file, postgresql://… or memory://.",
    )


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
    """An event ready to be appended: id, time and idempotency key are filled in."""
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
    """A payload as it is appended."""
    try:
        encoded = msgspec.json.encode(payload)
        if b"null" in encoded:  # it would write NaN so, and without a word
            json.dumps(msgspec.to_builtins(payload), allow_nan=False)
        return msgspec.Raw(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RunwrightError(
            ErrorCode.SCHEMA_VALIDATION_FAILED, f"The payload cannot be written as JSON: {error}."
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
    """The constants of a run; everything but its id and plan has a default."""
    return RunIdentity(
        run_id=run_id,
        tenant_id=tenant_id,
        project_id=project_id,
        environment_id=environment_id,
        plan_id=plan_id,
        plan_version=plan_version,
    )
