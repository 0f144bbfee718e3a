"""A run on which the engine fails: shown as such, and still under control."""

from __future__ import annotations

from typing import Any

import pytest

from runwright.core.scheduling.dag_scheduler import DagScheduler
from support.server import run_path, running_server
from support.waiting import until


async def test_run_of_a_failed_driver_is_shown_and_can_be_cancelled(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DagScheduler.advance

    def broken(self: DagScheduler, capacity: Any) -> None:
        if self.readiness.open < 2:
            raise AssertionError("a fault of ours")
        real(self, capacity)

    monkeypatch.setattr(DagScheduler, "advance", broken)
    async with running_server(store) as server:
        me = server.caller()
        plan = {"plan": "p", "steps": [{"id": "a", "noop": {}}, {"id": "b", "noop": {}}]}
        path = run_path((await me.start(plan))["runId"])

        async def is_shown() -> bool:
            shown = [await me.get(path), await me.get(f"{path}/status"), (await me.get("/v1/runs"))["runs"][0]]
            return {(run["status"], run.get("substatus")) for run in shown} == {("RUNNING", "embedded/DRIVER_FAILED")}

        await until(is_shown)
        alerts = (await me.get("/v1/alerts"))["alerts"]
        assert [alert["code"] for alert in alerts] == ["DRIVER_FAILED"]
        await me.signal((await me.get(path))["runId"], "CANCEL")

        async def is_cancelled() -> bool:
            return (await me.get(path))["status"] == "CANCELLED"

        await until(is_cancelled)
