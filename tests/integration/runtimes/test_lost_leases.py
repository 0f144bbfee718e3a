"""A lost lease, with more runs than can be claimed again within one lease, and during the last append."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import runwright as rw
from runwright.contract.timestamps import from_micros
from support.engine import engine, wait_for_end

MANY = 60


@pytest.mark.parametrize("parked", [True, False])
async def test_all_runs_complete_after_the_lease_was_lost(
    store: str, parked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs wait for a time, in memory or parked."""
    async with engine(store, lease_ttl=1.5, park_after=0.0 if parked else 3600.0) as operations:
        log, keeper = operations.log, operations.engine.keeper
        claim = log.leases.claim_run

        async def claim_slowly(*arguments: Any) -> Any:
            await asyncio.sleep(0.2)
            return await claim(*arguments)

        due = from_micros(log.clock.now() + 3_000_000)
        plan = operations.load({"plan": "p", "steps": [{"id": "wait", "wait": {"until": due}}]})
        run_ids = [await operations.start(plan) for _ in range(MANY)]
        monkeypatch.setattr(log.leases, "claim_run", claim_slowly)
        assert keeper.lease is not None
        await log.leases.acquire(keeper.lease.owner, 1.5)  # The new epoch makes the engine's lease stale.
        assert {(await wait_for_end(operations, run_id)).status for run_id in run_ids} == {"COMPLETED"}
        assert keeper.lease.epoch < 10  # The lease was not lost repeatedly.


async def test_lost_lease_does_not_report_an_end(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the last event of the run once, because of a lost lease."""
    async with engine(store) as operations:
        log = operations.log
        append, refused = log.append_prepared, list[bool]()

        async def refuse_last_event_once(events: Any, **more: Any) -> Any:
            if not refused and any(event.stored.event_type == "RunCompleted" for event in events):
                refused.append(True)
                raise rw.RunwrightError(rw.ErrorCode.STALE_FENCE, "The lease of this process has ended.")
            return await append(events, **more)

        monkeypatch.setattr(log, "append_prepared", refuse_last_event_once)
        run_id = await operations.start(operations.load({"plan": "p", "steps": [{"id": "a", "wait": "0.1s"}]}))
        snapshot = await operations.wait(run_id, 20)
        assert refused
        assert snapshot.status == "COMPLETED"
        assert (await log.find_run(run_id)).status == "COMPLETED", "the reported status is in the log"
