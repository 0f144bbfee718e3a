"""Claims, releases and creations of runs that were carried out, although the store reported a failure.

While the process is alive no other one claims such a run: it has to find and drive it itself.
"""

from __future__ import annotations

from typing import Any

import pytest

import runwright as rw
from runwright.log.leases import LeaseService
from support.engine import engine, wait_for_end
from support.waiting import until

PLAN = {"plan": "p", "steps": [{"id": "a", "wait": "0.3s"}]}


class LostAnswers:
    """Makes a method fail once, after it was carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        method = getattr(owner, name)
        self.count = 0

        async def fail_once(*arguments: Any, **options: Any) -> Any:
            answer = await method(*arguments, **options)
            if self.count or answer == []:
                return answer
            self.count += 1
            raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "The connection was lost.", outcome="unknown")

        monkeypatch.setattr(owner, name, fail_once)


async def _abandoned_run(store: str) -> str:
    """Start a run in a process that ends before the run does."""
    async with engine(store) as operations:
        return await operations.start(operations.load(PLAN))


async def test_claimed_run_is_driven_if_the_answer_was_lost(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = await _abandoned_run(store)
    lost = LostAnswers(monkeypatch, LeaseService, "claim_due")
    async with engine(store, recover=True) as operations:
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
    assert lost.count == 1


async def test_claimed_run_is_driven_once_the_store_can_be_read(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = await _abandoned_run(store)
    lost = LostAnswers(monkeypatch, rw.RunLog, "find_run")
    async with engine(store, recover=True) as operations:
        await until(lambda: lost.count)
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def test_created_run_is_driven_if_the_lease_expired_meanwhile(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(store, lease_ttl=1.0) as operations:
        lost = LostAnswers(monkeypatch, operations.log, "create_run")
        keeper = operations.engine.keeper
        create = operations.log.create_run

        async def create_and_expire(*arguments: Any, **options: Any) -> Any:
            try:
                return await create(*arguments, **options)
            finally:
                monkeypatch.setattr(keeper, "_valid_until", 0.0)

        monkeypatch.setattr(operations.log, "create_run", create_and_expire)
        with pytest.raises(rw.RunwrightError, match="Retry with the same id"):
            await operations.start(operations.load(PLAN), run_id="created")
        assert lost.count == 1
        assert (await wait_for_end(operations, "created")).status == "COMPLETED"
