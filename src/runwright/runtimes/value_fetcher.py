"""Fetch values that decisions and launches wait for."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from runwright.contract.errors import RETRYABLE_STORE_CODES, RunwrightError
from runwright.contract.result_ref import ref_digest

from .run_session import RunSession

logger = logging.getLogger("runwright.runtimes")


async def fetch_values(session: RunSession, wanted: dict[str, dict[str, Any]]) -> None:
    """Fetch the values that the decider misses, and those that launches want. While a store is unavailable, decisions
    wait for it; a launch fails, and the retry policy of its step applies."""
    decider, services = session.decider, session.services
    is_unavailable = False
    for name, ref in {**decider.missing_values, **wanted}.items():
        try:
            body = await services.results.get(session.run, ref)
            decider.values.cache.add(ref_digest(ref), msgspec.json.decode(body), len(body))
        except RunwrightError as error:
            is_transient = error.facts.get("passing") or error.code in RETRYABLE_STORE_CODES
            if name in decider.missing_values and is_transient:
                message = "Run %s: fetching a value failed, retrying: %s"
                logger.warning(message, session.run.run_id, error, extra=session.log_extra)
                is_unavailable = True
            else:
                decider.values.unavailable[name] = error
    if is_unavailable:
        await services.wait_for_store()
