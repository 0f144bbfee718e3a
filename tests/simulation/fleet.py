"""Simulated workers: they take steps from the table and carry them out; they vanish, come late, or give steps back."""

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
    """Does nothing, and lets a worker do it."""

    stays_here = False


class FaultySideTables:
    """A table that now and then does not answer: before it did what was asked, or after."""

    def __init__(self, world: World, desk: Any, reach: Callable[[], None] = lambda: None) -> None:
        self._world = world
        self._desk = desk
        self._reach = reach

    async def read(self, name: str, *values: Any) -> Any:
        self._reach()
        self._fail(0.3)
        return await self._desk.read(name, *values)

    async def write(self, name: str, *values: Any) -> Any:
        await asyncio.sleep(self._world.dice.choice((0, 0, 0.001, 0.2)))
        self._reach()
        self._fail(0.3)
        rows = await self._desk.write(name, *values)
        self._fail(0.2)
        return rows

    def _fail(self, chance: float) -> None:
        if self._world.dice.random() < self._world.faults * chance:
            raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "The table does not answer.", outcome="unknown")


class WorkerFleet:
    """As many workers as are needed: one that is lost is replaced."""

    def __init__(self, world: World, store: Any) -> None:
        self._world = world
        self._table = TaskQueue(store)
        self._names = 0
        self.heard: set[str] = set()
        """What workers were told was kept."""

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(self._replace())

    async def _replace(self) -> None:
        while True:
            self._names += 1
            try:
                await self._live(f"worker-{self._names}")
            except rw.RunwrightError:
                await asyncio.sleep(0.5)  # it could not reach the table, and gives up what it had

    async def _live(self, name: str) -> None:
        dice = self._world.dice
        while True:
            for task_id, lease_no in await self._table.claim(name, ["default"], None, dice.randint(1, 2)):
                order = await self._order(name, task_id, lease_no)
                if order is None:
                    await self._table.release(task_id, lease_no)
                    continue
                roll = dice.random()
                if roll < self._world.losses:
                    return  # and is never heard of again
                await self._carry_out(name, task_id, lease_no, order)
            await asyncio.sleep(dice.choice((0, 0.05, 0.5)))

    async def _order(self, name: str, task_id: int, lease_no: int) -> StepAssignment | None:
        for _ in range(self._world.dice.choice((5, 50))):
            ready, gone = await self._table.load_assignments(name, {task_id: lease_no})
            if ready:
                return msgspec.json.decode(ready[task_id], type=StepAssignment)
            if gone:
                return None
            await asyncio.sleep(LEASE_SECONDS / 50)
        return None

    async def _carry_out(self, name: str, task_id: int, lease_no: int, order: StepAssignment) -> None:
        dice = self._world.dice
        self._world.started(order.run_id, order.path, order.attempt, by_worker=True)
        planned = self._world.script(order.path, order.attempt)
        left = dice.choice((0, 0.001, 0.5, 3.0, 9.0))
        sleeps_through = dice.random() < self._world.faults * 0.3  # its beats are not sent
        while left > 0:
            await asyncio.sleep(min(left, 1.0))
            left -= 1.0
            if not sleeps_through and await self._table.heartbeat(task_id, lease_no, name) in (None, 1, 2):
                break
        if dice.random() < self._world.faults * 0.2:
            await self._table.release(task_id, lease_no)
            return
        token = f"{name} {order.path} {order.attempt} {lease_no}"
        outcome = StepOutcome(result=token)
        if planned is not None:
            result = None if planned.result is None else msgspec.json.decode(planned.result)
            outcome = StepOutcome(result=result, error=planned.error)
        elif dice.random() < self._world.failures:
            outcome = StepOutcome(error=ErrorInfo("BOOM", "It failed.", retryable=dice.random() < 0.8))
        self.heard.add(token)
        if not await self._table.store_outcome(task_id, lease_no, name, msgspec.json.encode(outcome)):
            self.heard.discard(token)
