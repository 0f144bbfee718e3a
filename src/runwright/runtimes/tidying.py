"""Deleting large results that nobody can want any more, whoever left them behind."""

from __future__ import annotations

import logging

from runwright.contract import payloads
from runwright.contract.clock import Clock
from runwright.contract.errors import RunwrightError
from runwright.contract.transitions import ENDED
from runwright.core.reading import read_payload
from runwright.log.base import RunLog
from runwright.log.reader import run_or_none
from runwright.results.tiers import Tiers

logger = logging.getLogger("runwright.engine")

EVERY = 3600.0  # seconds
MOST_PARENTS = 100


async def prune_results(log: RunLog, tiers: Tiers) -> dict[str, int | RunwrightError]:
    """How many were deleted, by store, or why that could not be done."""

    async def is_over(run_id: str, whole: bool) -> bool:
        return await _is_over(log, run_id, whole=whole)

    return await tiers.prune(is_over)


async def _is_over(log: RunLog, run_id: str, *, whole: bool) -> bool:
    for _ in range(MOST_PARENTS):
        row = await run_or_none(log, run_id)
        if row is None or row.status not in ENDED:  # none: perhaps it is of another log that has the same store
            return False
        queued = await log.find_event(run_id, "RunQueued") if whole else None
        parent = None if queued is None else read_payload(payloads.RunQueued, queued).parent_run_id
        if parent is None:
            return True
        run_id = parent
    return False


async def tidy_for_ever(log: RunLog, tiers: Tiers, clock: Clock) -> None:
    while True:
        await clock.sleep(EVERY)
        try:
            gone = await prune_results(log, tiers)
        except (RunwrightError, OSError) as error:
            logger.warning("Results could not be tidied up: %s", error)
        else:
            logger.info("Results tidied up: %s", gone)
