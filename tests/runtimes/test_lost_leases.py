"""A process that loses its lease, with more runs than can be claimed again while one lease lasts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine_kit import ended, engine
from runwright.contract.timestamps import from_micros

MANY = 60


@pytest.mark.parametrize("parked", [True, False])
async def test_a_lease_that_is_lost_with_many_runs_loses_none_of_them(
    store: str, parked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for a time, in the process's memory or by their names only."""
    async with engine(store, lease_ttl=0.6, park_after=0.0 if parked else 3600.0) as operations:
        log, keeper = operations.log, operations.engine.keeper
        claim = log.claim_run

        async def claim_slowly(*arguments: Any) -> Any:
            await asyncio.sleep(0.2)
            return await claim(*arguments)

        due = from_micros(log.clock.now() + 3_000_000)
        plan = operations.load({"plan": "p", "steps": [{"id": "wait", "wait": {"until": due}}]})
        run_ids = [await operations.start(plan) for _ in range(MANY)]
        monkeypatch.setattr(log, "claim_run", claim_slowly)
        assert keeper.lease is not None
        await log.acquire_lease(keeper.lease.owner, 0.6)  # our lease is not ours any more
        assert {(await ended(operations, run_id)).status for run_id in run_ids} == {"COMPLETED"}
        assert keeper.lease.epoch < 10  # it was not lost again and again
