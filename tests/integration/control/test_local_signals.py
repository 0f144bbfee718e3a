"""Signals on a store: an engine is built only if no live process drives the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runwright.control import bootstrap
from runwright.control.local_signals import open_signals
from support.engine import engine, wait_for_event

WAITING = {"plan": "p", "steps": [{"id": "a", "wait": {"event": "go"}}, {"id": "b", "noop": {}}]}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """URLs of the stores for which an engine was built."""
    built: list[str] = []
    build = bootstrap.open_engine

    def counted(log: Any, url: str, *arguments: Any) -> Any:
        built.append(url)
        return build(log, url, *arguments)

    monkeypatch.setattr(bootstrap, "open_engine", counted)
    return built


async def test_pause_builds_no_engine_while_a_process_drives_the_run(url: str, engines: list[str]) -> None:
    async with engine(url, park_after=3600.0) as operations:
        run_id = await operations.start(operations.load(WAITING))
        await wait_for_event(operations, run_id, "StepDelayed", "a")
        engines.clear()
        async with open_signals(url) as signals:
            decision = await signals.signal(run_id, "PAUSE", reason="test")
            assert (decision.decision, decision.engine_result) == ("ACCEPTED", "PAUSED")
            assert (await signals.signal(run_id, "RESUME")).engine_result == "RESUMED"
    assert engines == []


async def test_a_run_that_no_process_drives_is_paused_by_an_engine(url: str, engines: list[str]) -> None:
    async with engine(url) as operations:
        run_id = await operations.start(operations.load(WAITING))
        await wait_for_event(operations, run_id, "StepDelayed", "a")
    engines.clear()
    async with open_signals(url) as signals:
        assert (await signals.signal(run_id, "PAUSE")).engine_result == "PAUSED"
        assert (await signals.log.find_run(run_id)).status == "PAUSED"
    assert engines == [url]


async def test_retry_run_makes_a_new_run(url: str) -> None:
    async with engine(url) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [{"id": "a", "noop": {}}]}))
        await operations.wait(run_id)
    async with open_signals(url) as signals:
        decision = await signals.signal(run_id, "RETRY_RUN", {"force": True})
        assert decision.engine_result == "NEW_RUN"
        assert decision.new_run_id is not None
        assert (await signals.log.find_run(decision.new_run_id)).identity.plan_id == "p"


async def test_an_override_is_checked_against_the_inputs_of_the_tool(url: str) -> None:
    async with engine(url) as operations:
        run_id = await operations.start(operations.load(WAITING))
        await wait_for_event(operations, run_id, "StepDelayed", "a")
    async with open_signals(url) as signals:
        payload = {"stepId": "b", "override": {"nonsense": 1}}
        decision = await signals.signal(run_id, "INJECT_OVERRIDE", payload, reason="test")
        assert (decision.decision, decision.code) == ("REJECTED", "SIGNAL_INVALID_PAYLOAD")
