"""Stored results of tasks: load one by its address, delete those whose step or run has ended."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.clock import Clock
from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.result_ref import ResultAddress, parse_result_address
from runwright.contract.transitions import ENDED
from runwright.core.fold.payload_reader import read_payload
from runwright.core.fold.playbook_state import attempt_outcome
from runwright.core.scheduling.scheduler import ResultPrefix
from runwright.log.protocols import run_or_none
from runwright.log.run_log import RunLog
from runwright.storage.file_store import reference_not_available
from runwright.storage.tiers import Tiers
from runwright.storage.values import ValueStore

logger = logging.getLogger("runwright.runtimes")

PRUNE_INTERVAL = 3600.0  # seconds
MAX_PARENTS = 100

_END_EVENTS = ("TaskAttemptDone", "TaskDone", "TaskAttemptFailed", "TaskFailed")


async def load_result(log: RunLog, results: ValueStore, ref: Any, tenant_id: str) -> Any:
    """Return the result that a reference, or the text of its address, names.

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


async def _result_at(log: RunLog, results: ValueStore, run: RunIdentity, address: ResultAddress) -> Any:
    """Return the result of an attempt. Its storage location is read from the log, not trusted from the caller."""
    for event_type in _END_EVENTS:
        record = await log.find_event(address.run_id, event_type, str(address.path), address.attempt)
        if record is None:
            continue
        stored = attempt_outcome(record).result
        if stored.ref is not None:
            return msgspec.json.decode(await results.get(run, stored.ref))
        return None if stored.raw is None else msgspec.json.decode(stored.raw)
    raise reference_not_available(f"Result not found in run {address.run_id!r}")


async def delete_unneeded_results(tiers: Tiers, run: RunIdentity, results: ResultPrefix) -> None:
    """Delete the results of a step or run that has ended; `Scheduler.unneeded_results` names them.

    Results that remain after a failure or a crash are found by `prune_results`.
    """
    try:
        await tiers.delete_prefix(results.store, results.prefix)
    except (RunwrightError, OSError) as error:
        message, extra = "Run %s: deleting results from %s failed: %s", {"run": run.run_id, "tenant": run.tenant_id}
        logger.warning(message, run.run_id, results.store, error, extra={"facts": extra})


async def prune_results(log: RunLog, tiers: Tiers) -> dict[str, int | RunwrightError]:
    """Delete large results of finished runs. Returns the number deleted per store, or why that store failed."""

    async def is_finished(run_id: str, include_parents: bool) -> bool:
        return await _is_finished(log, run_id, include_parents=include_parents)

    return await tiers.prune(is_finished)


async def _is_finished(log: RunLog, run_id: str, *, include_parents: bool) -> bool:
    for _ in range(MAX_PARENTS):
        row = await run_or_none(log, run_id)
        if row is None or row.status not in ENDED:  # An unknown run may belong to another log with the same store.
            return False
        queued = await log.find_event(run_id, "RunQueued") if include_parents else None
        parent = None if queued is None else read_payload(payloads.RunQueued, queued).parent_run_id
        if parent is None:
            return True
        run_id = parent
    return False


async def prune_periodically(log: RunLog, tiers: Tiers, clock: Clock) -> None:
    while True:
        await clock.sleep(PRUNE_INTERVAL)
        try:
            deleted = await prune_results(log, tiers)
        except (RunwrightError, OSError) as error:
            logger.warning("Pruning results failed: %s", error)
        else:
            logger.info("Pruned results: %s", deleted)
