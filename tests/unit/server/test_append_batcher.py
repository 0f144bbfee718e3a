"""Batching of single events from many callers: each caller gets the outcome of its own event."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import runwright as rw
from runwright.server.append_batcher import AppendBatcher


def line(run: int, event_type: str = "RunQueued") -> bytes:
    return msgspec.json.encode(rw.new_event(event_type, rw.new_run(f"run-{run}", "p")))


async def test_each_caller_gets_the_outcome_of_its_own_event(store: str) -> None:
    async with rw.open_log(store) as log:
        batcher = AppendBatcher(log)
        sent = [b"{" if number % 10 == 3 else line(number) for number in range(200)]
        outcomes = await asyncio.gather(*map(batcher.append, sent))
        assert [outcome.status for outcome in outcomes] == [
            "refused" if number % 10 == 3 else "appended" for number in range(200)
        ]
        again = await asyncio.gather(*(batcher.append(sent[0]) for _ in range(40)))
        assert {outcome.status for outcome in again} == {"duplicate"}
        assert (await log.store.counts())["runs"] == {"PENDING": 180}


async def test_a_refusal_does_not_affect_other_callers(store: str) -> None:
    """Callers are independent of each other, even if their events belong to the same run."""
    async with rw.open_log(store) as log:
        batcher = AppendBatcher(log)
        run = rw.new_run("r", "p")
        bad = msgspec.json.encode(rw.new_event("StepCompleted", run, step_id="a"))
        good = [msgspec.json.encode(rw.new_event(kind, run)) for kind in ("RunQueued", "RunStarted")]
        outcomes = await asyncio.gather(*map(batcher.append, [good[0], bad, good[1]]))
        assert [outcome.status for outcome in outcomes] == ["appended", "refused", "appended"]


async def test_a_cancelled_caller_or_a_failed_store_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rw.open_log("memory://") as log:
        batcher = AppendBatcher(log)
        appends = [asyncio.create_task(batcher.append(line(number))) for number in range(30)]
        await asyncio.sleep(0)
        appends[7].cancel()
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert isinstance(outcomes[7], asyncio.CancelledError)
        assert all(outcome.status == "appended" for number, outcome in enumerate(outcomes) if number != 7)

        async def fail(_: Any) -> Any:
            raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "Away.")

        monkeypatch.setattr(log, "append_independent", fail)
        outcomes = await asyncio.gather(*(batcher.append(line(9)) for _ in range(3)), return_exceptions=True)
        assert [outcome.code for outcome in outcomes] == ["STORE_UNAVAILABLE"] * 3
        monkeypatch.undo()
        assert (await batcher.append(line(100))).status == "appended"
