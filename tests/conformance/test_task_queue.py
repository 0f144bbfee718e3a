"""The task queue for workers, the same on every store."""

from __future__ import annotations

from collections.abc import Callable

import runwright as rw
from runwright.contract.plan import Step
from runwright.log.memory import MemoryStore
from runwright.runtimes.embedded.task_queue import StepAssignment, TaskQueue
from support.events import History

MakeLog = Callable[..., rw.RunLog]


def assignment_for(run: rw.RunIdentity) -> StepAssignment:
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


async def test_starting_a_task_twice_counts_once(make_log: MakeLog, event: History) -> None:
    """A dispatcher repeats a start whose answer it did not receive."""
    async with make_log() as log:
        queue = TaskQueue(log.store)
        task = await queue.offer(event.run, "a", 1, "default", "me")
        assert [task.state, task.lease_no] == ["OFFERED", 0]
        [(task_id, lease_no)] = await queue.claim("w1", ["default"], None, 5)
        [claimed] = await queue.pending_changes("me")
        assert await queue.start(claimed, assignment_for(event.run))
        assert await queue.start(claimed, assignment_for(event.run))
        ready, gone = await queue.load_assignments("w1", {task_id: lease_no})
        assert (set(ready), gone) == ({task_id}, set())
        assert await queue.requeue(claimed, lost=True)
        assert not await queue.start(claimed, assignment_for(event.run))
        assert not await queue.store_outcome(task_id, lease_no, "w1", b"{}")


async def test_tasks_of_ended_runs_are_deleted(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        queue = TaskQueue(log.store)
        await log.append(event.started())
        await queue.offer(event.run, "a", 1, "default", "me")
        [(task_id, lease_no)] = await queue.claim("w1", ["default"], None, 5)
        await queue.add_report(task_id, lease_no, b"{}")
        await queue.delete_leftovers()
        assert await queue.find(task_id) is not None
        await log.append([event("RunCancelled")])
        await queue.delete_leftovers()
        if not isinstance(log.store, MemoryStore):  # a store in memory has only one process
            assert await queue.find(task_id) is None
            assert await queue.pending_reports("me") == []
