"""A process that loses its lease, with more runs than can be claimed again while one lease lasts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import runwright as rw
from runwright.contract.timestamps import from_micros
from support.engine import engine, wait_for_end

MANY = 60


@pytest.mark.parametrize("parked", [True, False])
async def test_a_lease_that_is_lost_with_many_runs_loses_none_of_them(
    store: str, parked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for a time, in the process's memory or by their names only."""
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
        await log.leases.acquire(keeper.lease.owner, 1.5)  # our lease is not ours any more
        assert {(await wait_for_end(operations, run_id)).status for run_id in run_ids} == {"COMPLETED"}
        assert keeper.lease.epoch < 10  # it was not lost again and again


async def test_an_end_that_did_not_get_into_the_log_is_no_end(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is found to be lost while the run's last event is offered."""
    async with engine(store) as operations:
        log = operations.log
        append, refused = log.append_prepared, list[bool]()

        async def once_too_late(events: Any, **more: Any) -> Any:
            if not refused and any(event.stored.event_type == "RunCompleted" for event in events):
                refused.append(True)
                raise rw.RunwrightError(rw.ErrorCode.STALE_FENCE, "The lease of this process has ended.")
            return await append(events, **more)

        monkeypatch.setattr(log, "append_prepared", once_too_late)
        run_id = await operations.start(operations.load({"plan": "p", "steps": [{"id": "a", "wait": "0.1s"}]}))
        snapshot = await operations.wait(run_id, 20)
        assert refused
        assert snapshot.status == "COMPLETED"
        assert (await log.find_run(run_id)).status == "COMPLETED", "what is told is in the log"
