"""The table of steps that workers carry out, the same on every store."""

from __future__ import annotations

from collections.abc import Callable

import runwright as rw
from runwright.contract.plan import Step
from runwright.log.memory import MemoryStore
from runwright.runtimes.embedded.task_queue import StepAssignment, TaskQueue
from support.events import History

MakeLog = Callable[..., rw.RunLog]


def order_of(run: rw.RunIdentity) -> StepAssignment:
    return StepAssignment(
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
        table = TaskQueue(log.store)
        task = await table.offer(event.run, "a", 1, "default", "me")
        assert [task.state, task.lease_no] == ["OFFERED", 0]
        [(task_id, lease_no)] = await table.claim("w1", ["default"], None, 5)
        [taken] = await table.pending_changes("me")
        assert await table.start(taken, order_of(event.run))
        assert await table.start(taken, order_of(event.run))
        ready, gone = await table.load_assignments("w1", {task_id: lease_no})
        assert (set(ready), gone) == ({task_id}, set())
        assert await table.requeue(taken, lost=True)
        assert not await table.start(taken, order_of(event.run))
        assert not await table.store_outcome(task_id, lease_no, "w1", b"{}")


async def test_what_a_dead_driver_left_of_an_ended_run_is_cleared_up(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        table = TaskQueue(log.store)
        await log.append(event.started())
        await table.offer(event.run, "a", 1, "default", "me")
        [(task_id, lease_no)] = await table.claim("w1", ["default"], None, 5)
        await table.add_report(task_id, lease_no, b"{}")
        await table.delete_leftovers()
        assert await table.find(task_id) is not None
        await log.append([event("RunCancelled")])
        await table.delete_leftovers()
        if not isinstance(log.store, MemoryStore):  # a log in memory has no other process that could die
            assert await table.find(task_id) is None
            assert await table.pending_reports("me") == []
