"""A simulator with virtual time, failing stores and dying processes. The same seed gives the same history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import runwright as rw
from runwright.auth.roles import Actor
from runwright.contract.plan import StepClass
from runwright.contract.refs import ErrorInfo
from runwright.control.operations import Operations
from runwright.log.memory import MemoryStore
from runwright.plans.store import PlanStore
from runwright.runtimes import run_session
from runwright.runtimes.embedded.dispatcher import queues_of
from runwright.runtimes.embedded.engine import Engine
from runwright.runtimes.executor.executor import Outcome, Work
from runwright.runtimes.services import RunServices
from runwright.runtimes.settings import EngineSettings
from runwright.storage.result_stores import MemoryTier, in_memory_tiers
from runwright.testing.clock import SeededIds, VirtualClock, VirtualLoop
from runwright.tools.registry import builtin_tools
from simulation.fleet import FaultySideTables, WorkerFleet, WorkerNoop


class Killed(BaseException):
    """The process was killed; none of its tasks runs any more."""


class ProcessStore:
    """One process's view of the shared store: its side tables may fail."""

    def __init__(self, world: World, check_connection: Callable[[], None]) -> None:
        self._store = world.store
        tables = world.store.side_tables
        self.side_tables = FaultySideTables(world, tables, check_connection) if world.has_workers else tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class ProcessLeases:
    """One process's view of the leases: renewals sometimes fail for longer than the lease lasts."""

    def __init__(self, world: World, process: Process, check_connection: Callable[[], None]) -> None:
        self._world = world
        self._process = process
        self._check_connection = check_connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.log.leases, name)

    async def renew(self, lease: Any) -> Any:
        if self._world.dice.random() < self._world.faults * 0.2:
            self._process.cut_off_until = self._world.clock.monotonic() + self._world.dice.uniform(1, 15)
        self._check_connection()
        return await self._world.log.leases.renew(lease)


class ProcessLog:
    """One process's view of the shared log. Its appends fail in every way that a store can fail."""

    def __init__(self, world: World, log: rw.RunLog, process: Process) -> None:
        self._world = world
        self._log = log
        self._process = process
        self.store = ProcessStore(world, self._check_connection)
        self.leases = ProcessLeases(world, process, self._check_connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def _check_connection(self) -> None:
        if self._world.clock.monotonic() < self._process.cut_off_until:
            raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "Cut off.", outcome="withdrawn")

    async def append(self, events: Any, **conditions: Any) -> Any:
        return await self._faulty(lambda: self._log.append(events, **conditions))

    async def append_prepared(self, events: Any, **conditions: Any) -> Any:
        return await self._faulty(lambda: self._log.append_prepared(events, **conditions))

    async def create_run(self, *arguments: Any, **conditions: Any) -> Any:
        return await self._faulty(lambda: self._log.create_run(*arguments, **conditions))

    async def _faulty(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        dice = self._world.dice
        await asyncio.sleep(dice.choice((0, 0, 0.001, 0.01)))
        self._check_connection()
        roll = dice.random()
        faults = self._world.faults
        if roll < faults * 0.25:
            self._process.kill()
            await asyncio.sleep(1e9)
        if roll < faults * 0.5:
            raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "It was not written.", outcome="withdrawn")
        result = await work()
        if roll > 1 - faults * 0.25:
            self._process.kill()  # it was written, but the caller gets no answer
            await asyncio.sleep(1e9)
        if roll > 1 - faults * 0.5:
            raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "Who knows.", outcome="unknown")
        return result


class WorkerStore:
    """The store as workers use it: side tables that may fail."""

    def __init__(self, world: World) -> None:
        self.side_tables = FaultySideTables(world, world.store.side_tables)
        self.notify = world.store.notify


class SimulatedExecution:
    def __init__(self, executor: SimulatedExecutor, work: Work, done: Callable[[Outcome], None]) -> None:
        self._executor = executor
        self._done = done
        self._ended = False
        self.work = work

    def finish(self, outcome: Outcome) -> None:
        if self._ended or self._executor.dead:
            return
        self._ended = True
        self._executor.running -= 1
        self._done(outcome)

    def cancel(self, grace: float) -> None:
        stopped = Outcome(error=ErrorInfo("CANCELLED", "It was stopped.", retryable=False))
        asyncio.get_running_loop().call_later(self._executor.dice.uniform(0, grace), self.finish, stopped)

    def kill(self) -> None:
        if not self._ended:
            self._ended = True
            self._executor.running -= 1

    def detach(self) -> None:
        self.kill()


class SimulatedExecutor:
    """Simulates steps: duration and failures follow from the seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = world.dice
        self.running = 0
        self.dead = False
        self.max_running = world.slots

    def free_slots(self, step_class: StepClass) -> int:
        return self.max_running - self.running

    def start(self, work: Work, done: Callable[[Outcome], None]) -> SimulatedExecution:
        self.running += 1
        context = work.context
        self.world.on_started(context.run_id, context.step_id, context.attempt)
        execution = SimulatedExecution(self, work, done)
        if work.tool.kind == "noop":
            outcome = Outcome(result=b"null")
            if self.dice.random() < self.world.failures:
                outcome = Outcome(error=ErrorInfo("BOOM", "It failed.", retryable=self.dice.random() < 0.8))
        else:
            outcome = Outcome(result=b'"done"')
        duration = self.dice.choice((0, 0.001, 0.05, 0.5, 3.0))
        asyncio.get_running_loop().call_later(duration, execution.finish, outcome)
        return execution

    def close(self) -> None: ...


class _NoOutput:
    dropped = 0

    def writer(self, *_: object) -> Any:
        return self

    def write(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def when_stored(self, call: Callable[[], None]) -> None:
        call()


class Process:
    """An engine that can be killed between any two of its appends."""

    def __init__(self, world: World, name: str, *, recover: bool = True) -> None:
        self.world = world
        self.executor = world.executor(world)
        handle: Any = ProcessLog(world, world.log, self)
        workers = "all" if world.has_workers else "none"
        settings = EngineSettings(recover=recover, park_after=world.park_after, workers=workers)
        no_output: Any = _NoOutput()
        tools = builtin_tools()
        if world.has_workers:
            tools["noop"] = WorkerNoop()
        plans = PlanStore(world.log, queues_of(workers, tools))
        tiers = in_memory_tiers(world.log.clock.now, world.tier)
        services = RunServices(handle, self.executor, tools, plans, no_output, no_output, settings, tiers=tiers)
        self.engine = Engine(services, name)
        self.operations = Operations(handle, self.engine, Actor("operator", ("Admin",)))
        self.alive = True
        self.cut_off_until = 0.0

    async def open(self) -> Process:
        await self.engine.open()
        return self

    def kill(self) -> None:
        """Cancel all tasks without releasing leases or runs."""
        if not self.alive:
            return
        self.alive = False
        self.executor.dead = True
        self.world.deaths += 1
        for task in self.engine.all_tasks():
            task.cancel()


class FlakyTier(MemoryTier):
    """A store for results that outlives every process; its writes sometimes fail."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def put(self, key: str, body: bytes) -> None:
        await self._world.clock.sleep(self._world.dice.choice((0, 0, 0.01, 0.3, 2.0)))
        if self._world.dice.random() < self._world.faults:
            raise OSError("it is away")
        await super().put(key, body)


class World:
    def __init__(self, seed: int, *, failures: float = 0.2, slots: int = 4) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.faults = self.dice.choice((0.03, 0.1, 0.3))
        self.failures = failures
        self.slots = slots
        self.park_after = self.dice.choice((0.0, 0.2, 2.0))
        self.has_workers = self.dice.random() < 0.4
        self.losses = self.dice.choice((0.0, 0.1, 0.3))
        self.without_signals = self.dice.random() < 0.4
        self.slice = self.dice.choice((1, 4, 1000))  # events per append
        self.fleet: WorkerFleet | None = None
        self.tier = FlakyTier(self)
        self.executor: Callable[[World], SimulatedExecutor] = SimulatedExecutor
        self.script: Callable[[str, int], Outcome | None] = lambda _path, _attempt: None
        """The outcome of an attempt, or None for a random one."""
        self.deaths = 0
        self.problems: list[str] = []
        self.log: rw.RunLog
        self.store: MemoryStore
        self.clock: VirtualClock
        self._names = 0

    def run(self, work: Callable[[World], Coroutine[Any, Any, Any]]) -> Any:
        loop = VirtualLoop()
        default_slice, run_session.SLICE = run_session.SLICE, self.slice
        try:
            return loop.run_until_complete(self._main(loop, work))
        finally:
            run_session.SLICE = default_slice
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))
            loop.close()

    async def _main(self, loop: VirtualLoop, work: Callable[[World], Coroutine[Any, Any, Any]]) -> Any:
        self.clock = VirtualClock(loop)
        self.store = MemoryStore(clock=self.clock)
        self.log = rw.RunLog(self.store, ids=SeededIds(random.Random(self.seed + 1)))
        async with self.log:
            if not self.has_workers:
                return await work(self)
            worker_store: Any = WorkerStore(self)
            self.fleet = WorkerFleet(self, worker_store)
            workers = asyncio.create_task(self.fleet.run())
            try:
                return await work(self)
            finally:
                workers.cancel()

    async def process(self, *, recover: bool = True) -> Process:
        self._names += 1
        return await Process(self, f"process-{self._names}", recover=recover).open()

    def _on_task_started(self, run_id: str, path: str, attempt: int, *, by_worker: bool) -> None:
        """Check the start of a playbook task as `on_started` checks that of a step."""
        events = [e for e in self.store._runs[run_id].events if e.step_id == path]
        own_types = {e.event_type for e in events if e.logical_attempt_id == attempt}
        if not own_types & {"TaskStarted", "TaskAttemptStarted"}:
            self.problems.append(f"{path} attempt {attempt} works before its start is durable")
        if {"TaskDone", "TaskFailed"} & {e.event_type for e in events} and not by_worker:
            self.problems.append(f"{path} attempt {attempt} works again after its end")

    def on_started(self, run_id: str, path: str, attempt: int, *, by_worker: bool = False) -> None:
        """Check that a step that begins has its start in the log, and not its end."""
        if "/" in path:
            self._on_task_started(run_id, path, attempt, by_worker=by_worker)
            return
        run = self.store._runs[run_id]
        ends = ("StepCompleted", "StepFailed", "LoopIterationDone", "LoopIterationFailed")
        starts = ("StepStarted", "LoopIterationStarted")
        own_types = [e.event_type for e in run.events if e.step_id == path and e.logical_attempt_id == attempt]
        if not any(kind in starts for kind in own_types):
            self.problems.append(f"{path} attempt {attempt} works before its start is durable")
        if any(kind in ends for kind in own_types) and not by_worker:  # a worker learns of the end later
            self.problems.append(f"{path} attempt {attempt} works again after its end")
