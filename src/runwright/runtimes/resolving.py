"""From the address of a task's result to the result itself, by way of the log."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.resultref import ResultAddress, parse_result_address
from runwright.core.playwork import ended_of
from runwright.log.base import RunLog
from runwright.log.reader import run_or_none
from runwright.results.store import not_available
from runwright.results.values import KeptValues

_ENDS = ("TaskAttemptDone", "TaskDone", "TaskAttemptFailed", "TaskFailed")


async def _result_at(log: RunLog, results: KeptValues, run: RunIdentity, address: ResultAddress) -> Any:
    """What the attempt that an address names came to. Its log says where that is, not whoever asks."""
    for event_type in _ENDS:
        record = await log.find_event(address.run_id, event_type, str(address.place), address.attempt)
        if record is None:
            continue
        stored = ended_of(record).result
        if stored.ref is not None:
            return msgspec.json.decode(await results.get(run, stored.ref))
        return None if stored.raw is None else msgspec.json.decode(stored.raw)
    raise not_available(f"Run {address.run_id!r} has no such result")


async def resolve(log: RunLog, results: KeptValues, ref: Any, tenant_id: str) -> Any:
    """The result of a task that a reference names, or the text of one; only of runs of this tenant."""
    text: Any = ref.get("ref") if isinstance(ref, dict) else ref  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    address = parse_result_address(text) if isinstance(text, str) else None
    if address is None:
        raise not_available(f"{text!r} is not the address of a result")
    row = await run_or_none(log, address.run_id)
    if row is None or row.identity.tenant_id != tenant_id:
        raise not_available(f"There is no run {address.run_id!r}")
    return await _result_at(log, results, row.identity, address)
