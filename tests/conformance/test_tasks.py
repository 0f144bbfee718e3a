"""The table of steps that workers carry out, the same on every store."""

from __future__ import annotations

from collections.abc import Callable

import runwright as rw
from conftest import History
from runwright.contract.plan import Step
from runwright.log.memory import MemoryLog
from runwright.runtimes.tasks import StepOrder, TaskTable

MakeLog = Callable[..., rw.RunLog]


def order_of(run: rw.RunIdentity) -> StepOrder:
    return StepOrder(
        run_id=run.run_id,
        tenant_id=run.tenant_id,
        environment_id=run.environment_id,
        path="a",
        attempt=1,
        engine_attempt=1,
        step=Step(step_id="a", kind="noop"),
        inputs={},
    )


async def test_an_order_may_be_given_twice_and_counts_once(make_log: MakeLog, event: History) -> None:
    """Whoever gave it may not have heard that it was taken."""
    async with make_log() as log:
        table = TaskTable(log)
        task = await table.offer(event.run, "a", 1, "default", "me")
        assert [task.state, task.lease_no] == ["OFFERED", 0]
        [(task_id, lease_no)] = await table.claim("w1", ["default"], None, 5)
        [taken] = await table.to_see_to("me")
        assert await table.start(taken, order_of(event.run))
        assert await table.start(taken, order_of(event.run))
        ready, gone = await table.orders("w1", {task_id: lease_no})
        assert (set(ready), gone) == ({task_id}, set())
        assert await table.put_back(taken, lost=True)
        assert not await table.start(taken, order_of(event.run))
        assert not await table.end(task_id, lease_no, "w1", b"{}")


async def test_what_a_dead_driver_left_of_an_ended_run_is_cleared_up(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        table = TaskTable(log)
        await log.append(event.started())
        await table.offer(event.run, "a", 1, "default", "me")
        [(task_id, lease_no)] = await table.claim("w1", ["default"], None, 5)
        await table.report(task_id, lease_no, b"{}")
        await table.sweep()
        assert await table.find(task_id) is not None
        await log.append([event("RunCancelled")])
        await table.sweep()
        if not isinstance(log, MemoryLog):  # a log in memory has no other process that could die
            assert await table.find(task_id) is None
            assert await table.reports("me") == []
