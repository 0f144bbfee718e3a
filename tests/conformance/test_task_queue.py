"""The task queue for workers, the same on every store."""

from __future__ import annotations

from collections.abc import Callable

import runwright as rw
from runwright.contract.plan import Step
from runwright.log.memory import MemoryStore
from runwright.runtimes.embedded.task_queue import KILL, StepAssignment, TaskQueue
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
        assert task is not None
        assert [task.state, task.lease_no] == ["OFFERED", 0]
        [(task_id, lease_no)] = await queue.claim("w1", ["default"], None, 5)
        [claimed] = await queue.pending_changes("me")
        assert await queue.start(claimed, assignment_for(event.run), "me")
        assert await queue.start(claimed, assignment_for(event.run), "me")
        ready, gone = await queue.load_assignments("w1", {task_id: lease_no})
        assert (set(ready), gone) == ({task_id}, set())
        assert await queue.requeue(claimed, "me", lost=True)
        assert not await queue.start(claimed, assignment_for(event.run), "me")
        assert not await queue.store_outcome(task_id, lease_no, "w1", b"{}")


async def test_earlier_driver_does_not_change_a_task(make_log: MakeLog, event: History) -> None:
    """A process that was stopped, and continues after another one has claimed its run."""
    async with make_log() as log:
        if isinstance(log.store, MemoryStore):
            return  # it has one process
        queue = TaskQueue(log.store)
        await log.append(event.started())
        lease = await log.leases.acquire("earlier", ttl=30)
        await log.leases.claim_run(event.run.run_id, lease)
        assert await queue.offer(event.run, "a", 1, "default", "earlier") is not None
        await log.leases.release(lease)
        await log.leases.claim_run(event.run.run_id, await log.leases.acquire("me", ttl=30))
        offered = await queue.offer(event.run, "a", 1, "default", "me")
        assert await queue.offer(event.run, "a", 1, "default", "earlier") is None
        await queue.hold(event.run.run_id, "earlier")
        await queue.drop(event.run.run_id, "a", 1, "earlier")
        [(task_id, lease_no)] = await queue.claim("w", ["default"], None, 5)
        [claimed] = await queue.pending_changes("me")
        assert offered is not None
        assert claimed.task_id == offered.task_id
        assert not await queue.start(claimed, assignment_for(event.run), "earlier")
        assert not await queue.requeue(claimed, "earlier", lost=True)
        assert await queue.start(claimed, assignment_for(event.run), "me")
        await queue.stop(task_id, "earlier", KILL)
        assert await queue.heartbeat(task_id, lease_no, "w") == 0
        assert await queue.requeue(claimed, "me", lost=True)


async def test_heartbeats_are_counted(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        queue = TaskQueue(log.store)
        await queue.offer(event.run, "a", 1, "default", "me")
        [(task_id, lease_no)] = await queue.claim("w1", ["default"], None, 5)
        [claimed] = await queue.pending_changes("me")
        assert await queue.list_started("me") == []
        assert await queue.start(claimed, assignment_for(event.run), "me")
        [before] = await queue.list_started("me")
        assert await queue.heartbeat(task_id, lease_no, "w1") == 0
        assert await queue.heartbeat(task_id, lease_no, "other") is None
        [after] = await queue.list_started("me")
        assert after.renewals == before.renewals + 1
        assert await queue.list_started("other") == []


async def test_tasks_of_ended_runs_are_deleted(make_log: MakeLog, event: History) -> None:
    async with make_log() as log:
        queue = TaskQueue(log.store)
        await log.append(event.started())
        fence = await log.leases.claim_run(event.run.run_id, await log.leases.acquire("me", ttl=30))
        await queue.offer(event.run, "a", 1, "default", "me")
        [(task_id, lease_no)] = await queue.claim("w1", ["default"], None, 5)
        await queue.add_report(task_id, lease_no, b"{}")
        await queue.delete_leftovers()
        assert await queue.find(task_id) is not None
        await log.append([event("RunCancelled")], fence=fence)
        await queue.delete_leftovers()
        if not isinstance(log.store, MemoryStore):  # a store in memory has only one process
            assert await queue.find(task_id) is None
            assert await queue.pending_reports("me") == []
