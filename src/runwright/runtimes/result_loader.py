"""Loads a stored result by its address."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.result_ref import ResultAddress, parse_result_address
from runwright.core.fold.playbook_state import attempt_outcome
from runwright.log.protocols import run_or_none
from runwright.log.run_log import RunLog
from runwright.storage.file_store import reference_not_available
from runwright.storage.values import ValueStore

_END_EVENTS = ("TaskAttemptDone", "TaskDone", "TaskAttemptFailed", "TaskFailed")


async def load_result(log: RunLog, results: ValueStore, ref: Any, tenant_id: str) -> Any:
    """Return the result that a reference, or the text of its address, names; see `load_result_body`."""
    return msgspec.json.decode(await load_result_body(log, results, ref, tenant_id))


async def load_result_body(log: RunLog, results: ValueStore, ref: Any, tenant_id: str) -> bytes:
    """Return the result that a reference, or the text of its address, names, as JSON.

    Raises REFERENCE_NOT_AVAILABLE if there is none, or if its run belongs to another tenant.
    """
    text: Any = ref.get("ref") if isinstance(ref, dict) else ref  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    address = parse_result_address(text) if isinstance(text, str) else None
    if address is None:
        raise reference_not_available(f"Invalid result address: {text!r}")
    row = await run_or_none(log, address.run_id)
    if row is None or row.identity.tenant_id != tenant_id:
        raise reference_not_available(f"Run {address.run_id!r} not found")
    return await _result_at(log, results, row.identity, address)


async def _result_at(log: RunLog, results: ValueStore, run: RunIdentity, address: ResultAddress) -> bytes:
    """Return the result of an attempt. Its storage location is read from the log, not trusted from the caller."""
    for event_type in _END_EVENTS:
        record = await log.find_event(address.run_id, event_type, str(address.path), address.attempt)
        if record is None:
            continue
        stored = attempt_outcome(record).result
        if stored.ref is not None:
            return await results.get(run, stored.ref)
        return stored.raw or b"null"
    raise reference_not_available(f"Result not found in run {address.run_id!r}")
