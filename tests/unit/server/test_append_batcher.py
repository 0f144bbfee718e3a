"""Single events from many callers: gathered on their way to the log, and each with an answer of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import runwright as rw
from runwright.server.append_batcher import AppendBatcher


def line(run: int, event_type: str = "RunQueued") -> bytes:
    return msgspec.json.encode(rw.new_event(event_type, rw.new_run(f"run-{run}", "p")))


async def test_each_of_many_gets_its_own_answer(store: str) -> None:
    async with rw.open_log(store) as log:
        gathering = AppendBatcher(log)
        sent = [b"{" if number % 10 == 3 else line(number) for number in range(200)]
        outcomes = await asyncio.gather(*map(gathering.append, sent))
        assert [outcome.status for outcome in outcomes] == [
            "refused" if number % 10 == 3 else "appended" for number in range(200)
        ]
        again = await asyncio.gather(*(gathering.append(sent[0]) for _ in range(40)))
        assert {outcome.status for outcome in again} == {"duplicate"}
        assert (await log.store.counts())["runs"] == {"PENDING": 180}


async def test_a_refusal_keeps_nobody_else_out(store: str) -> None:
    """Callers have nothing to do with each other, even if they speak of the same run."""
    async with rw.open_log(store) as log:
        gathering = AppendBatcher(log)
        run = rw.new_run("r", "p")
        bad = msgspec.json.encode(rw.new_event("StepCompleted", run, step_id="a"))
        good = [msgspec.json.encode(rw.new_event(kind, run)) for kind in ("RunQueued", "RunStarted")]
        outcomes = await asyncio.gather(*map(gathering.append, [good[0], bad, good[1]]))
        assert [outcome.status for outcome in outcomes] == ["appended", "refused", "appended"]


async def test_a_caller_that_leaves_and_a_store_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rw.open_log("memory://") as log:
        gathering = AppendBatcher(log)
        kept = [asyncio.create_task(gathering.append(line(number))) for number in range(30)]
        await asyncio.sleep(0)
        kept[7].cancel()
        outcomes = await asyncio.gather(*kept, return_exceptions=True)
        assert isinstance(outcomes[7], asyncio.CancelledError)
        assert all(outcome.status == "appended" for number, outcome in enumerate(outcomes) if number != 7)

        async def fail(_: Any) -> Any:
            raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "Away.")

        monkeypatch.setattr(log, "append_independent", fail)
        outcomes = await asyncio.gather(*(gathering.append(line(9)) for _ in range(3)), return_exceptions=True)
        assert [outcome.code for outcome in outcomes] == ["STORE_UNAVAILABLE"] * 3
        monkeypatch.undo()
        assert (await gathering.append(line(100))).status == "appended"
