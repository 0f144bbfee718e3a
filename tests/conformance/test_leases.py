"""Leases and fences on every store: one process at a time may drive a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256

import pytest

import runwright as rw
from support.events import History

MakeLog = Callable[..., rw.RunLog]


async def code_of(work: object) -> str:
    with pytest.raises(rw.RunwrightError) as caught:
        await work
    return caught.value.code


async def test_only_the_owner_may_change_the_state_of_a_run(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        lease = await log.leases.acquire("one", ttl=30)
        fence = await log.leases.claim_run("run-1", lease)
        assert await code_of(log.append([event("StepStarted", "a")])) == "RUN_OWNED"
        assert await code_of(log.append([event("RunPaused")])) == "RUN_OWNED"
        await log.append([event("SignalAccepted", "signal/1")])  # signals need no fence
        await log.append([event("StepStarted", "a")], fence=fence)
        assert (await log.append([event("StepStarted", "a")]))[0].status == "duplicate"
        await log.leases.release_run("run-1", fence)
        await log.append([event("StepCompleted", "a")])


async def test_owners_lists_the_holders_of_live_leases(make_log: MakeLog) -> None:
    async with make_log() as log:
        assert await log.owners() == frozenset()
        first, second = await log.leases.acquire("one", ttl=30), await log.leases.acquire("two", ttl=0.05)
        again = await log.leases.acquire("one", ttl=30)
        await asyncio.sleep(0.1)
        assert await log.owners() == {("one", again.epoch)}
        assert (first.epoch, second.epoch) != (again.epoch, 0)
        await log.leases.release(again)
        assert await log.owners() == frozenset()


async def test_a_stale_fence_is_refused_and_writes_nothing(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        first = await log.leases.acquire("one", ttl=0.05)
        old = await log.leases.claim_run("run-1", first)
        await log.append([event("StepStarted", "a")], fence=old)
        await asyncio.sleep(0.1)
        second = await log.leases.acquire("two", ttl=30)
        new = await log.leases.claim_run("run-1", second)
        assert await code_of(log.append([event("StepCompleted", "a")], fence=old)) == "STALE_FENCE"
        assert len(await log.read("run-1")) == 3
        await log.append([event("StepCompleted", "a")], fence=new)
        assert await code_of(log.leases.release_run("run-1", old)) == "STALE_FENCE"


async def test_run_created_with_a_fence_is_owned_by_its_creator(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        lease = await log.leases.acquire("one", ttl=30)
        fence = rw.Fence(lease.owner, lease.epoch)
        await log.create_run(event.run, event.started(), fence=fence)
        assert await code_of(log.append([event("RunPaused")])) == "RUN_OWNED"
        other = await log.leases.acquire("two", ttl=30)
        assert await code_of(log.leases.claim_run("run-1", other)) == "RUN_OWNED"
        await log.append([event("RunPaused")], fence=fence)


async def test_expired_lease_is_renewed_with_its_unclaimed_runs(make_log: MakeLog) -> None:
    async with make_log() as log:
        lease = await log.leases.acquire("one", ttl=0.05)
        fences: dict[str, rw.Fence] = {}
        for name in ("kept", "claimed"):
            await log.append(History(name).started())
            lease = await log.leases.renew(lease)
            fences[name] = await log.leases.claim_run(name, lease)
        await asyncio.sleep(0.1)
        other = await log.leases.acquire("two", ttl=30)
        await log.leases.claim_run("claimed", other)
        assert (await log.leases.renew(lease)).epoch == lease.epoch
        assert await log.leases.owned_runs(lease) == {"kept"}
        assert await log.leases.owned_runs(other) == {"claimed"}
        await log.append([History("kept")("StepStarted", "a")], fence=fences["kept"])
        refused = log.append([History("claimed")("StepStarted", "a")], fence=fences["claimed"])
        assert await code_of(refused) == "STALE_FENCE"
        await log.append([History("kept")("RunCompleted")], fence=fences["kept"])
        assert await log.leases.owned_runs(lease) == set(), "a run that has ended has no owner"


async def test_replaced_or_released_lease_cannot_be_renewed(make_log: MakeLog) -> None:
    async with make_log() as log:
        lease = await log.leases.acquire("one", ttl=30)
        again = await log.leases.acquire("one", ttl=30)
        assert again.epoch == lease.epoch + 1
        assert await code_of(log.leases.renew(lease)) == "LEASE_LOST"
        assert (await log.leases.renew(again)).expires_at >= again.expires_at
        await log.leases.release(again)
        assert await code_of(log.leases.renew(again)) == "LEASE_LOST"


async def test_exactly_one_of_many_concurrent_claims_wins(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        leases = [await log.leases.acquire(f"owner-{number}", ttl=30) for number in range(8)]
        claims = await asyncio.gather(
            *(log.leases.claim_run("run-1", lease) for lease in leases), return_exceptions=True
        )
        winners = [claim for claim in claims if isinstance(claim, rw.Fence)]
        assert len(winners) == 1
        assert {claim.code for claim in claims if isinstance(claim, rw.RunwrightError)} == {"RUN_OWNED"}


async def test_claim_due_returns_due_and_abandoned_runs(make_log: MakeLog) -> None:
    async with make_log() as log:
        runs = {name: History(name) for name in ("due", "later", "idle", "orphan", "held", "ended")}
        for events in runs.values():
            await log.append(events.started())
        now = log.clock.now()
        me, dead = await log.leases.acquire("me", ttl=30), await log.leases.acquire("dead", ttl=30)
        other = await log.leases.acquire("other", ttl=30)
        for name, wake_at in (("due", now - 1), ("later", now + 10**10), ("idle", None)):
            await log.leases.release_run(name, await log.leases.claim_run(name, me), wake_at)
        await log.leases.claim_run("orphan", dead)
        await log.leases.claim_run("held", other)
        fence = await log.leases.claim_run("ended", dead)
        await log.append([runs["ended"]("RunCancelled")], fence=fence)
        await log.leases.release(dead)
        assert sorted(await log.leases.claim_due(me)) == ["due", "orphan"]
        assert await log.leases.claim_due(me) == []
        await log.append([runs["orphan"]("RunPaused")], fence=rw.Fence(me.owner, me.epoch))


async def test_claims_need_a_live_lease_and_an_existing_run(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        lease = await log.leases.acquire("one", ttl=30)
        assert await code_of(log.leases.claim_run("nothing", lease)) == "RUN_NOT_FOUND"
        await log.leases.release(lease)
        assert await code_of(log.leases.claim_run("run-1", lease)) == "LEASE_LOST"
        assert await code_of(log.leases.claim_due(lease)) == "LEASE_LOST"


async def test_ended_run_has_no_owner(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        lease = await log.leases.acquire("me", ttl=30)
        fence = rw.Fence(lease.owner, lease.epoch)
        await log.create_run(event.run, event.started(), fence=fence)
        assert (await log.find_run("run-1")).owner == "me"
        await log.append([event("RunCompleted")], fence=fence)
        row = await log.find_run("run-1")
        assert (row.owner, row.epoch, row.wake_at) == (None, None, None)
        receipts = await log.append([event("RunCompleted")], fence=fence)  # repeats an append whose answer was lost
        assert [receipt.status for receipt in receipts] == ["duplicate"]


async def test_signalled_runs_are_found_since_a_cursor(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("SignalAccepted", "signal/before")])
        cursor = await log.end_cursor()
        assert await log.runs_signalled_since(cursor) == ([], cursor)
        await log.append([event("StepStarted", "a"), event("SignalAccepted", "signal/after")])
        runs, cursor = await log.runs_signalled_since(cursor)
        assert runs == ["run-1"]
        await log.append([event("StepCompleted", "a")])
        assert (await log.runs_signalled_since(cursor))[0] == []


async def test_event_is_found_by_type_step_and_attempt(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append([*event.started(), event("StepStarted", "a"), event("StepFailed", "a")])
        found = await log.find_event("run-1", "StepFailed", "a")
        assert found is not None
        assert found.run_seq == 4
        assert await log.find_event("run-1", "StepFailed", "a", attempt=2) is None


async def test_plan_is_stored_under_its_hash(make_log: MakeLog) -> None:
    body = b'{"steps":[]}'
    digest = sha256(body).hexdigest()
    async with make_log() as log:
        await log.store_plan(digest, body)
        await log.store_plan(digest, body)
        assert await log.plan(digest) == body
        with pytest.raises(rw.RunwrightError, match="PLAN_NOT_FOUND"):
            await log.plan("0" * 64)
        await log.store_plan("1" * 64, body)
        with pytest.raises(rw.RunwrightError, match="PLAN_INTEGRITY_VALIDATION_FAILED"):
            await log.plan("1" * 64)
