"""Events that no step of a run can wait for are refused; others are accepted, also before a step waits."""

from __future__ import annotations

from typing import Any

import pytest

from support.engine import engine, wait_for_end

HOLD = {"id": "hold", "wait": "1h"}


@pytest.mark.parametrize(
    ("steps", "advice"),
    [
        ([HOLD], "Expected events: none."),
        ([HOLD, {"id": "paid", "wait": {"event": "paid"}}], "Expected events: paid."),
    ],
)
async def test_event_that_no_step_can_wait_for_is_refused(store: str, steps: list[Any], advice: str) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": steps}))
        decision = await operations.signal(run_id, "EVENT", {"name": "pait"})
        assert (decision.decision, decision.code) == ("REJECTED", "EVENT_NOT_EXPECTED")
        assert advice in (decision.reason or "")
        await operations.signal(run_id, "CANCEL")


@pytest.mark.parametrize("name", ["paid", "{{ params.name }}"])
async def test_event_that_a_later_step_waits_for_is_accepted(store: str, name: str) -> None:
    """The name may be computed: then every event is accepted."""
    plan = {
        "plan": "p",
        "params": {"name": "paid"},
        "steps": [{"id": "first", "wait": "200ms"}, {"id": "paid", "wait": {"event": name}}],
    }
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(plan))
        await operations.signal(run_id, "EVENT", {"name": "paid"})
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
