"""Appends that are committed together must be validated as if each were committed alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

import runwright as rw
from support.events import History

MakeLog = Callable[..., rw.RunLog]


async def run_concurrently(*calls: object) -> list[object]:
    """Start the calls at once, so that they are queued in order."""
    return await asyncio.gather(*calls, return_exceptions=True)


def code_of(result: object) -> str:
    return str(result.code) if isinstance(result, rw.RunwrightError) else "ok"


async def test_a_refusal_does_not_undo_the_creation_before_it(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(History("warm-up").started())
        results = await run_concurrently(
            log.create_run(event.run, enforcement=rw.Enforcement.OBSERVE),
            log.append([History(plan_id="other")("RunStarted")]),
            log.append([event("RunStarted")]),
            log.create_run(event.run),
        )
        assert [code_of(result) for result in results] == ["ok", "RUN_CONTEXT_MISMATCH", "ok", "RUN_ALREADY_EXISTS"]
        assert (await log.find_run("run-1")).enforcement == "observe"


async def test_duplicate_in_a_refused_batch_gets_no_receipt(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        with pytest.raises(rw.AppendRefused) as caught:
            await log.append([event("RunStarted"), event("RunStarted"), event("RunResumed")])
        assert [result.status for result in caught.value.results] == ["not_attempted", "not_attempted", "refused"]
        with pytest.raises(rw.RunwrightError):
            await log.find_run("run-1")


async def test_run_created_with_a_fence_is_owned_at_once(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        lease = await log.leases.acquire("one", ttl=30)
        fence = rw.Fence(lease.owner, lease.epoch)
        results = await run_concurrently(
            log.create_run(event.run, event.started(), fence=fence), log.append([event("RunCancelled")])
        )
        assert [code_of(result) for result in results] == ["ok", "RUN_OWNED"]


async def test_stale_fence_creates_no_run(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        old = await log.leases.acquire("one", ttl=30)
        await log.leases.acquire("one", ttl=30)
        for fence in (rw.Fence("nobody", 1), rw.Fence(old.owner, old.epoch)):
            for events in ([], event.started()):
                with pytest.raises(rw.RunwrightError) as caught:
                    await log.create_run(event.run, events, fence=fence)
                assert caught.value.code == "STALE_FENCE"
        with pytest.raises(rw.RunwrightError):
            await log.find_run("run-1")


async def test_a_refused_batch_raises_no_alert(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.create_run(event.run, enforcement=rw.Enforcement.OBSERVE)
        broken = msgspec.structs.replace(event("StepFailed", "a"), raw_payload=msgspec.Raw(b"[]"))
        results = await run_concurrently(
            log.append([event("RunCompleted"), broken]), log.append(History("beside").started())
        )
        assert code_of(results[0]) == "SCHEMA_VALIDATION_FAILED"
        assert await log.alerts() == []


async def test_long_engine_names_do_not_fail_other_appends(make_log: MakeLog) -> None:
    """The content of one append must not fail others in the same commit."""
    names = {"provider": "p" * 1000, "workflowId": "w" * 1000, "runId": "r" * 1000}
    async with make_log() as log:
        histories = [History(f"run-{number}") for number in range(20)]
        long = History("long")
        results = await run_concurrently(
            log.append([long("RunQueued"), long("RunStarted", engineRun=names)]),
            *(log.append(history.started()) for history in histories),
        )
        assert {code_of(result) for result in results} == {"ok"}
        assert (await log.find_engine_run("p" * 1000, "w" * 1000, "r" * 1000)).identity.run_id == "long"


async def test_invalid_arguments_are_refused_with_codes(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        await log.append(event.started())
        for call in (
            log.read("run-1", after=2**70),
            log.read("run-1", limit=-1),
            log.read_all(limit=0),
            log.list_runs(limit=0),
        ):
            with pytest.raises(rw.RunwrightError) as caught:
                await call
            assert caught.value.code == "INVALID_ARGUMENT"
        for name in ("\udcff", "a\0b", "x" * 5000):
            with pytest.raises(rw.RunwrightError) as caught:
                await log.resolve_run(name)
            assert caught.value.code == "RUN_NOT_FOUND"
