"""Simulated workers: they claim tasks from the queue and execute them; they vanish, report late, or release tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

import runwright as rw
from runwright.contract.refs import ErrorInfo
from runwright.runtimes.embedded.task_queue import LEASE_SECONDS, StepAssignment, StepOutcome, TaskQueue
from runwright.tools.noop import NoopTool

if TYPE_CHECKING:
    from simulation.world import World


class WorkerNoop(NoopTool):
    """A no-op step that is executed by a worker."""

    stays_here = False


class FaultySideTables:
    """Side tables that sometimes fail, before or after they executed a statement."""

    def __init__(self, world: World, tables: Any, check_connection: Callable[[], None] = lambda: None) -> None:
        self._world = world
        self._tables = tables
        self._check_connection = check_connection

    async def read(self, name: str, *values: Any) -> Any:
        self._check_connection()
        self._fail(0.3)
        return await self._tables.read(name, *values)

    async def write(self, name: str, *values: Any) -> Any:
        await asyncio.sleep(self._world.dice.choice((0, 0, 0.001, 0.2)))
        self._check_connection()
        self._fail(0.3)
        rows = await self._tables.write(name, *values)
        self._fail(0.2)
        return rows

    def _fail(self, chance: float) -> None:
        if self._world.dice.random() < self._world.faults * chance:
            raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "The table does not answer.", outcome="unknown")


class WorkerFleet:
    """Three workers; one that is lost is replaced."""

    def __init__(self, world: World, store: Any) -> None:
        self._world = world
        self._queue = TaskQueue(store)
        self._names = 0
        self.acknowledged: set[str] = set()
        """Results whose storage was acknowledged to a worker, or is not yet known to have failed."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(self._keep_replacing())

    async def _keep_replacing(self) -> None:
        while True:
            self._names += 1
            try:
                await self._run_worker(f"worker-{self._names}")
            except rw.RunwrightError:
                await asyncio.sleep(0.5)  # it could not reach the queue and abandons its tasks

    async def _run_worker(self, name: str) -> None:
        dice = self._world.dice
        while True:
            for task_id, lease_no in await self._queue.claim(name, ["default"], None, dice.randint(1, 2)):
                assignment = await self._wait_for_assignment(name, task_id, lease_no)
                if assignment is None:
                    await self._queue.release(task_id, lease_no)
                    continue
                roll = dice.random()
                if roll < self._world.losses:
                    return  # it vanishes without a report
                await self._execute(name, task_id, lease_no, assignment)
            await asyncio.sleep(dice.choice((0, 0.05, 0.5)))

    async def _wait_for_assignment(self, name: str, task_id: int, lease_no: int) -> StepAssignment | None:
        for _ in range(self._world.dice.choice((5, 50))):
            ready, gone = await self._queue.load_assignments(name, {task_id: lease_no})
            if ready:
                return msgspec.json.decode(ready[task_id], type=StepAssignment)
            if gone:
                return None
            await asyncio.sleep(LEASE_SECONDS / 50)
        return None

    async def _execute(self, name: str, task_id: int, lease_no: int, assignment: StepAssignment) -> None:
        dice = self._world.dice
        self._world.on_started(assignment.run_id, assignment.path, assignment.attempt, by_worker=True)
        planned = self._world.script(assignment.path, assignment.attempt)
        remaining = dice.choice((0, 0.001, 0.5, 3.0, 9.0))
        skips_heartbeats = dice.random() < self._world.faults * 0.3
        while remaining > 0:
            await asyncio.sleep(min(remaining, 1.0))
            remaining -= 1.0
            if not skips_heartbeats and await self._queue.heartbeat(task_id, lease_no, name) in (None, 1, 2):
                break
        if dice.random() < self._world.faults * 0.2:
            await self._queue.release(task_id, lease_no)
            return
        result_id = f"{name} {assignment.path} {assignment.attempt} {lease_no}"
        outcome = StepOutcome(result=result_id)
        if planned is not None:
            result = None if planned.result is None else msgspec.json.decode(planned.result)
            outcome = StepOutcome(result=result, error=planned.error)
        elif dice.random() < self._world.failures:
            outcome = StepOutcome(error=ErrorInfo("BOOM", "It failed.", retryable=dice.random() < 0.8))
        self.acknowledged.add(result_id)
        if not await self._queue.store_outcome(task_id, lease_no, name, msgspec.json.encode(outcome)):
            self.acknowledged.discard(result_id)
