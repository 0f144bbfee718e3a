"""Runs of other engines, damaged plans, unknown settings and too many signals: the engine refuses them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright.control.run_scope import RunScope
from runwright.log.append.authority import Fence
from runwright.log.builders import new_event
from support.engine import (
    engine,
    event_lines,
    lines_of_types,
    run_plan,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)

SMALL = {"plan": "p", "steps": [{"id": "a", "noop": {}}]}
WAITS = {"plan": "p", "params": {"x": ""}, "steps": [{"id": "w", "wait": "100s"}, {"id": "a", "noop": {}}]}
BODY = b'{"metadata":{"planId":"p"},"order":"sequential","steps":[{"kind":"noop","stepId":"a"}]}'


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/runs.db"


async def create_abandoned_run(
    log: rw.RunLog, run_id: str, body: bytes = BODY, digest: str | None = None, **ref: str
) -> None:
    """Create a started run with this plan whose process has ended."""
    digest = digest or sha256(body).hexdigest()
    await log.store_plan(digest, body)
    lease = await log.leases.acquire(f"gone-{run_id}", 5.0, None)
    made = rw.new_run(run_id, "p", "1")
    reference = {
        "uri": f"plan:sha256:{digest}",
        "sha256": digest,
        "schemaVersion": "v1.0",
        "planId": "p",
        "planVersion": "1",
        **ref,
    }
    events = [
        new_event("RunQueued", made, payload={"params": {}}),
        new_event("RunStarted", made, payload={"planRef": reference}),
    ]
    await log.create_run(made, events, fence=Fence(lease.owner, lease.epoch))
    await log.leases.release(lease)


async def test_an_abandoned_run_is_recovered(store: str) -> None:
    async with engine(store, recover=True) as operations:
        await create_abandoned_run(operations.log, "good")
        assert (await wait_for_end(operations, "good")).status == "COMPLETED"


async def test_unreadable_plan_does_not_stop_recovery_of_others(store: str) -> None:
    async with rw.open_log(store) as log:
        await create_abandoned_run(
            log, "newer", BODY.replace(b'"order"', b'"somethingNew":1,"order"'), schemaVersion="v1.9"
        )
    async with engine(store, recover=True) as operations:
        await asyncio.sleep(0.5)
        await create_abandoned_run(operations.log, "good")
        assert (await operations.wait("good", 5)).status == "COMPLETED"


@pytest.mark.parametrize("ref", [{"schemaVersion": "v9.0"}, {"planId": "another"}, {"planVersion": "7"}], ids=str)
async def test_unknown_or_mismatching_plan_reference_is_refused(store: str, ref: dict[str, str]) -> None:
    async with engine(store) as operations:
        await create_abandoned_run(operations.log, "r", **ref)
        with pytest.raises(rw.RunwrightError):
            await operations.resume("r")


async def test_damaged_plan_raises_p1_alert_without_a_claim(store: str) -> None:
    async with engine(store) as operations:
        await create_abandoned_run(operations.log, "r", digest="1" * 64)
        with pytest.raises(rw.RunwrightError):
            await operations.resume("r")
        await asyncio.sleep(0.2)
        found = [(alert.code, alert.severity) for alert in await operations.log.alerts("r")]
        assert (await operations.log.find_run("r")).owner == "gone-r", "no process claimed the run"
        assert found == [("PLAN_INTEGRITY_VALIDATION_FAILED", "P1")]


@pytest.mark.parametrize("act", ["signal", "take_up"])
async def test_run_of_another_engine_is_not_claimed(store: str, act: str) -> None:
    """An accepted CANCEL of a foreign run would never be applied, and would block appends of its engine."""
    async with engine(store) as operations:
        other = rw.new_run("foreign", "q", "1")
        await operations.log.append([new_event("RunQueued", other), new_event("RunStarted", other)])
        with pytest.raises(rw.RunwrightError):
            await (operations.signal("foreign", "CANCEL") if act == "signal" else operations.resume("foreign"))
        await operations.log.append([new_event("StepStarted", other, step_id="s")])  # A claim would cause RUN_OWNED.


async def test_start_does_not_return_another_tenants_run(store: str) -> None:
    async with engine(store) as operations:
        await operations.start(operations.load(SMALL), run_id="r", place=RunScope("acme"))
        with pytest.raises(rw.RunwrightError):
            await operations.start(operations.load(SMALL), run_id="r", place=RunScope("other"))


async def test_concurrent_signals_with_one_id_get_one_decision(store: str) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(WAITS))
        signal_id = operations.log.ids.event_id()
        await asyncio.gather(
            operations.signal(run_id, "PAUSE", signal_id=signal_id),
            operations.signal(run_id, "RETRY_STEP", {"stepId": "nosuch"}, signal_id=signal_id),
            return_exceptions=True,
        )
        assert len(lines_of_types(await event_lines(operations, run_id), "SignalAccepted", "SignalRejected")) == 1


async def test_a_drain_that_times_out_is_logged_as_a_warning(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine(store, drain_timeout=0.2) as operations:
        run_id = await operations.start(
            operations.load({"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(tmp_path / "go")}]})
        )
        await wait_for_event(operations, run_id, "StepStarted", "a")
        await operations.signal(run_id, "PAUSE")
        await wait_for_event(operations, run_id, "RunDrainTimedOut")
        await asyncio.sleep(0.1)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "field",
    [
        {"fallbackBehavior": "nonsense", "requiresCapabilities": ["workflow.child.workflows"]},
        {"targetAdapter": "temporal"},
        {"targetAdapter": "nosuch"},
    ],
    ids=str,
)
async def test_unknown_fallback_or_other_adapter_is_refused(store: str, field: dict[str, Any]) -> None:
    async with engine(store) as operations:
        with pytest.raises(rw.RunwrightError):
            await run_plan(operations, {**SMALL, **field})


async def test_repeated_signal_returns_the_full_earlier_decision(store: str) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(WAITS))
        first = await operations.signal(run_id, "PAUSE", reason="r")
        assert await operations.signal(run_id, "PAUSE", reason="r", signal_id=first.signal_id) == first


async def test_signal_rate_limit_ignores_other_events(store: str) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(WAITS))
        for _ in range(60):
            await operations.signal(run_id, "SKIP_STEP", {"stepId": "nosuch"})
        identity = (await operations.log.find_run(run_id)).identity
        await operations.log.append([new_event("Noise", identity, step_id=f"n{n}") for n in range(600)])
        with pytest.raises(rw.RunwrightError):
            await operations.signal(run_id, "SKIP_STEP", {"stepId": "nosuch"})


async def test_a_secret_in_a_signal_is_not_written_into_the_log(store: str) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(WAITS))
        with contextlib.suppress(rw.RunwrightError):
            await operations.signal(run_id, "UPDATE_PARAMS", {"params": {"x": "ghp_" + "a" * 40}}, reason="r")
        assert "ghp_" not in str([record.payload for record in await operations.log.read(run_id)])


async def test_a_reference_to_a_secret_is_resolved_or_refused(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOO", "s3cret")
    async with engine(store) as operations:
        step = {"id": "a", "shell": {"command": "echo $X", "env": {"X": {"secret": "FOO"}}}}
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
        assert snapshot.status == "FAILED" or "secret" not in str(await operations.result(snapshot.run_id, "a"))
