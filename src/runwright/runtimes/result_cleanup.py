"""Deletes stored results that no later step needs, because their step or run has ended."""

from __future__ import annotations

import logging

from runwright.contract import payloads
from runwright.contract.clock import Clock
from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.transitions import ENDED
from runwright.core.fold.payload_reader import read_payload
from runwright.core.scheduling.scheduler import ResultPrefix
from runwright.log.protocols import run_or_none
from runwright.log.run_log import RunLog
from runwright.storage.result_stores import Tiers

logger = logging.getLogger("runwright.runtimes")

PRUNE_INTERVAL = 3600.0  # seconds
MAX_PARENTS = 100


async def delete_results_out_of_scope(tiers: Tiers, run: RunIdentity, results: ResultPrefix) -> None:
    """Delete the results of a step or run that has ended; `Scheduler.results_out_of_scope` names them.

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
