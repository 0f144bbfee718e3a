"""The embedded runtime: drives any number of runs in this process, on an event loop that user code cannot block."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from runwright.contract import payloads
from runwright.contract.clock import Clock
from runwright.contract.errors import RETRYABLE_STORE_CODES, ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.decider import Decider
from runwright.core.fold.execution_state import ExecutionState
from runwright.core.fold.run_state import RunState, freeze
from runwright.core.graph.plan_graph import PlanGraph
from runwright.core.scheduling.due_times import Alarm
from runwright.log.append.authority import Fence
from runwright.log.model import Lease
from runwright.log.run_log import RunLog
from runwright.runtimes.alerts import driver_failed
from runwright.runtimes.background import cancel_all, log_failure
from runwright.runtimes.clock_jumps import POLL_SECONDS
from runwright.runtimes.commands import commands_of
from runwright.runtimes.recovery import begin_engine_attempt, restore_decider
from runwright.runtimes.result_cleanup import prune_periodically, prune_results
from runwright.runtimes.run_session import RunSession
from runwright.runtimes.services import FOREVER, RunServices
from runwright.storage.output.files import StepLogs
from runwright.storage.output.log_table import StepLogTable

from .capacity import CapacityPool
from .dispatcher import Dispatcher
from .lease_keeper import LeaseKeeper
from .run_driver import RunDriver
from .supervisor import Supervisor
from .task_queue import TaskQueue

logger = logging.getLogger("runwright.runtimes")

DRAIN_POLL = 0.05  # seconds
LOADING_POLL = 0.005
LOADED_AT_ONCE = 32  # parked runs: a thousand may be due in the same second
RETRY_MICROS = 1_000_000


class ParkedRun(NamedTuple):
    """A run that is not in memory. Its next due time, and the corrections of its due times."""

    wake_at: int | None
    clock_total: int
    shifts: dict[Alarm, int]


class Engine:
    def __init__(self, services: RunServices, owner: str) -> None:
        settings = services.settings
        self.services = services
        self.owner = owner
        ttl = FOREVER if settings.alone else settings.lease_ttl
        self.keeper = LeaseKeeper(
            services.log,
            services.clock,
            owner,
            ttl,
            settings.loop_timeout,
            on_regained=self._on_lease_regained,
            on_lost=self._on_lease_lost,
        )
        self.capacity = CapacityPool(services.executor)
        self.supervisor = Supervisor(self)
        self.dispatcher: Dispatcher | None = None
        if settings.workers != "none":
            self.dispatcher = Dispatcher(services, TaskQueue(services.log.store), owner, self._drivers_get)
        self._drivers: dict[str, RunDriver] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parked: dict[str, ParkedRun] = {}  # idle runs
        self._loading: dict[str, bool] = {}  # runs being read; True if a signal arrived meanwhile
        self._known: set[str] = set()  # runs that this process drives or parks, and that have not ended
        self._waiters: dict[str, list[asyncio.Future[RunSnapshot | None]]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._resuming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._load_slots = asyncio.Semaphore(LOADED_AT_ONCE)

    @property
    def log(self) -> RunLog:
        return self.services.log

    @property
    def clock(self) -> Clock:
        return self.services.clock

    @property
    def step_logs(self) -> StepLogs | StepLogTable:
        return self.services.step_logs

    @property
    def is_closing(self) -> bool:
        return self.services.is_closing

    # Life cycle

    async def open(self) -> None:
        services, settings = self.services, self.services.settings
        await self.keeper.acquire()
        await self.supervisor.open()
        loops = [services.wall_timers.run(), services.monotonic_timers.run()]
        if not settings.alone:
            self.keeper.start_thread()
            loops += [
                self._watch_clock(),
                self.keeper.renew_loop(),
                self.supervisor.watch_signals(),
                self.supervisor.resume_loop(),
            ]
        if settings.recover:
            loops += [
                self.supervisor.recovery_loop(),
                prune_periodically(services.log, services.results.tiers, services.clock),
            ]
        if self.dispatcher is not None:
            loops.append(self.dispatcher.watch())
        for loop in loops:
            task = asyncio.create_task(loop)
            task.add_done_callback(log_failure)
            self._loops.append(task)

    async def drain(self, seconds: float) -> None:
        """Start nothing more, and wait up to so many seconds for what runs here."""
        self.capacity.is_closed = True
        deadline = self.clock.monotonic() + seconds
        while self.clock.monotonic() < deadline and any(driver.runner.count_local for driver in self._drivers.values()):
            await self.clock.sleep(DRAIN_POLL)

    async def close(self) -> None:
        """Stop what runs here and release every run: the next process finds it due."""
        self.services.is_closing = True
        await cancel_all(self._loops)
        await cancel_all(list(self._tasks.values()))
        for driver in self._drivers.values():
            driver.runner.abandon()
        await self.services.background.wait()
        await self.keeper.stop_thread()
        try:
            await self.keeper.release()  # this releases the runs as well: their owner is not alive
        except RunwrightError as error:
            logger.warning("Releasing the lease failed; it expires by itself: %s", error)
        await self.services.close()

    def all_tasks(self) -> list[asyncio.Task[Any]]:
        return [*self._loops, *self._tasks.values(), *self.services.background.all()]

    async def prune_results(self) -> dict[str, int | RunwrightError]:
        """Delete expired results. Returns the number by store, or the error of a store that is unavailable."""
        return await prune_results(self.log, self.services.results.tiers)

    # Parked runs

    def _park(self, session: RunSession, wake_at: int | None) -> None:
        """Evict an idle run from memory, but for its id and due time."""
        shifts = session.decider.scheduler.due_times.shifts
        self._set_parked(session.run.run_id, ParkedRun(wake_at, session.clock_total, shifts))

    def _set_parked(self, run_id: str, parked: ParkedRun) -> None:
        self._parked[run_id] = parked
        if parked.wake_at is not None:
            self.services.wall_timers.set(parked.wake_at, lambda: self._unpark_if_due(run_id))

    def _unpark_if_due(self, run_id: str) -> None:
        parked = self._parked.get(run_id)
        if parked is not None and parked.wake_at is not None and parked.wake_at <= self.clock.now():
            self._unpark(run_id)

    async def _watch_clock(self) -> None:
        """Compute all waits again when the system clock was set."""
        seen = self.services.clock_jumps.total()
        while True:
            await self.clock.sleep(POLL_SECONDS)
            if (total := self.services.clock_jumps.total()) != seen:
                seen = total
                for driver in list(self._drivers.values()):
                    driver.wake()
                for run_id in list(self._parked):
                    self._unpark(run_id)

    def _unpark(self, run_id: str) -> None:
        parked = self._parked.pop(run_id)
        self._loading[run_id] = False  # from now on: a second signal must find the run here
        self.services.spawn(self._load_parked(run_id, parked))

    async def _load_parked(self, run_id: str, parked: ParkedRun) -> None:
        try:
            async with self._load_slots:
                await self._load(run_id, parked)
        except RunwrightError as error:
            logger.warning("Loading run %s failed, retrying: %s", run_id, error)
            self._set_parked(run_id, parked._replace(wake_at=self.clock.now() + RETRY_MICROS))

    # Runs

    async def start(
        self,
        run: RunIdentity,
        graph: PlanGraph,
        queued: payloads.RunQueued,
        started: payloads.RunStarted,
        carry_over: Callable[[Decider], None] | None = None,
    ) -> None:
        """Create a run and start it. Returns once it is durable; raises RUN_ALREADY_EXISTS if there is one."""
        state = RunState(detailed=True, execution=ExecutionState(mentioned_steps=graph.mentioned_steps))
        decider = Decider(graph, state, run, 1, self.services.settings.drain_timeout)
        decider.set_time(self.clock.now())
        decider.start_run(queued, started)
        if carry_over is not None:
            carry_over(decider)
        if (other := self._drivers.get(run.run_id)) is not None:
            await asyncio.wait([other.created])
            raise RunwrightError(ErrorCode.RUN_ALREADY_EXISTS, f"There is a run {run.run_id!r} already.")
        await self.keeper.ensure()  # compiling a large plan may have taken longer than the lease
        session = self._session(graph, decider, 0, self.keeper.fence, started, exists=False)
        driver = self._driver(session)
        self._drive(driver)
        await asyncio.shield(driver.created)

    def _session(
        self,
        graph: PlanGraph,
        decider: Decider,
        seq: int,
        fence: Fence,
        started: payloads.RunStarted,
        *,
        exists: bool,
    ) -> RunSession:
        return RunSession(
            self.services,
            graph,
            decider,
            seq,
            fence,
            self.keeper,
            exists=exists,
            source=started.source,
            working_directory=started.working_directory,
        )

    def _driver(self, session: RunSession) -> RunDriver:
        return RunDriver(session, self.capacity, self.dispatcher, self._park)

    async def resume(self, run_id: str) -> bool:
        """Claim a run and drive it. False if it has ended; raises RUN_OWNED if a live process drives it."""
        async with self._resuming.setdefault(run_id, asyncio.Lock()):  # two drivers under one lease would conflict
            return await self._resume(run_id)

    async def _resume(self, run_id: str) -> bool:
        if run_id in self._drivers:
            return True
        row = await self.log.find_run(run_id)
        if row.status in ENDED:
            return False
        await self.services.run_plans.to_drive(row.identity, self.services.provider)  # before the run is claimed
        await self._claim(run_id)
        self._parked.pop(run_id, None)
        return await self.drive_claimed(run_id)

    async def _claim(self, run_id: str) -> Fence:
        """Claim a run; after extending the lease, if it has expired unnoticed."""
        lease = self.keeper.lease
        assert lease is not None
        try:
            return await self.log.leases.claim_run(run_id, lease)
        except RunwrightError as error:
            if error.code != ErrorCode.LEASE_LOST:
                raise
            await self.keeper.renew_or_replace(lease)
            assert self.keeper.lease is not None
            return await self.log.leases.claim_run(run_id, self.keeper.lease)

    async def drive_claimed(self, run_id: str) -> bool:
        """Drive a run that this process owns. False if it has ended."""
        if run_id in self._drivers or run_id in self._loading:
            return True
        self._loading[run_id] = False
        return await self._load(run_id)

    async def _load(self, run_id: str, parked: ParkedRun | None = None) -> bool:
        try:
            row = await self.log.find_run(run_id)
            if row.status in ENDED:
                self._on_ended(run_id)
                return False
            return await self._recover_and_drive(row.identity, parked)
        finally:
            self._loading.pop(run_id, None)

    async def _recover_and_drive(self, run: RunIdentity, parked: ParkedRun | None) -> bool:
        run_id, services = run.run_id, self.services
        graph, started = await services.run_plans.to_drive(run, services.provider)
        decider, seq = await restore_decider(self.log, run, graph, services.settings.drain_timeout)
        decider.set_time(self.clock.now())
        interrupted = commands_of(decider).execute
        if started.code is not None and run_id not in self._known:
            services.spawn(services.run_plans.compare_code(run_id, started.code))
        if interrupted:
            begin_engine_attempt(decider)
        if run_id in self._drivers:  # another call was faster
            return True
        session = self._session(graph, decider, seq, self.keeper.fence, started, exists=True)
        if parked is not None:
            session.clock_total = parked.clock_total
            decider.scheduler.due_times.restore_shifts(parked.shifts)
        driver = self._driver(session)
        if decider.is_ending():
            await driver.runner.stop_sub_runs(interrupted)
        else:
            for command in interrupted:
                driver.runner.launch(command)
        if self._loading[run_id]:
            driver.request_refold()  # a signal arrived while the run was read
        self._drive(driver)
        return True

    def _drive(self, driver: RunDriver) -> None:
        run_id = driver.run.run_id
        self._drivers[run_id] = driver
        self._known.add(run_id)
        task = self._tasks[run_id] = asyncio.create_task(driver.drive())
        task.add_done_callback(lambda task: self._on_driver_done(run_id, driver, task))

    def _on_driver_done(self, run_id: str, driver: RunDriver, task: asyncio.Task[None]) -> None:
        self.capacity.wait(driver, ())
        if self.is_closing:
            return
        self._drivers.pop(run_id, None)
        self._tasks.pop(run_id, None)
        if not driver.session.exists:  # its creation failed, and may be in the log
            self.supervisor.on_ownership_unknown()
        elif driver.must_release:
            self.services.spawn(self.supervisor.release(run_id, driver.session.fence))
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_driver_failed(driver, error)
        elif driver.lost_ownership:  # its last decision, perhaps the end of the run, may not be in the log
            self.supervisor.watch_run(run_id)  # if only our lease was in doubt, the run is still unclaimed
            self._notify_not_driven(run_id)
        elif driver.status in ENDED and not task.cancelled():
            self._on_ended(run_id, driver)
        elif run_id in self._parked:
            if driver.needs_refold:  # a signal was accepted while it was being parked
                self._unpark(run_id)
        else:
            self._notify_not_driven(run_id)

    def _on_driver_failed(self, driver: RunDriver, error: BaseException) -> None:
        """A bug of the engine. The run stays as its log has it; an operator has to look at it."""
        run_id = driver.run.run_id
        logger.error("The driver of run %s failed", run_id, exc_info=error, extra=driver.log_extra)
        self.services.alert(driver_failed(driver.run, error, driver.session.seq))
        self.services.spawn(self.supervisor.release(run_id, driver.session.fence))
        for future in self._waiters.pop(run_id, []):
            if not future.done():
                future.set_exception(error)
        self._known.discard(run_id)

    def _notify_not_driven(self, run_id: str) -> None:
        """The run is not driven here. With the next lease it may be again, so it stays known if the lease was lost."""
        if self.keeper.is_valid:
            self._known.discard(run_id)
        for future in self._waiters.pop(run_id, []):
            if not future.done():
                future.set_result(None)  # waiters read the log themselves

    def _on_ended(self, run_id: str, driver: RunDriver | None = None) -> None:
        self._known.discard(run_id)
        waiting = self._waiters.pop(run_id, [])
        snapshot = freeze(driver.run, driver.session.decider.state) if waiting and driver is not None else None
        for future in waiting:
            if not future.done():
                future.set_result(snapshot)

    async def wait_until_ended(self, run_id: str, timeout: float | None = None) -> RunSnapshot:
        """Wait until the run has ended, in this process or another, or the timeout has passed. Return its snapshot."""
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        while True:
            rest = None if deadline is None else max(0.0, deadline - self.clock.monotonic())
            snapshot = await self._wait_for_driver(run_id, rest)
            if snapshot is not None:
                return snapshot
            is_late = deadline is not None and self.clock.monotonic() >= deadline
            try:
                row = await self.log.find_run(run_id)
                if row.status in ENDED or is_late:
                    return await self.log.snapshot(run_id)
            except RunwrightError as error:
                if error.code not in RETRYABLE_STORE_CODES or is_late:
                    raise
                await self.services.wait_for_store()
                continue
            if run_id in self._loading:
                await self.clock.sleep(LOADING_POLL)
            elif not self.is_driven(run_id):
                await self.log.wait_for_events(1.0 if rest is None else min(1.0, rest))

    async def _wait_for_driver(self, run_id: str, timeout: float | None) -> RunSnapshot | None:
        """Wait for a run that is driven here. Its snapshot is the driver's own: nothing has to be read."""
        if run_id not in self._drivers and run_id not in self._parked:
            return None
        future: asyncio.Future[RunSnapshot | None] = self.services.loop.create_future()
        self._waiters.setdefault(run_id, []).append(future)
        if timeout is None:
            await future
        else:
            await asyncio.wait([future], timeout=timeout)
        return future.result() if future.done() else None

    def _drivers_get(self, run_id: str) -> RunDriver | None:
        return self._drivers.get(run_id)

    def is_driven(self, run_id: str) -> bool:
        return run_id in self._drivers or run_id in self._parked or run_id in self._loading

    @property
    def has_runs(self) -> bool:
        return bool(self._known)

    @property
    def driven(self) -> list[str]:
        return [*self._drivers, *self._parked]

    # Signals and leases

    async def apply_signals(self, run_id: str) -> RunStatus:
        """Apply the signals of a run that no process drives, start nothing, and release it. Raises RUN_OWNED if a
        process drives it."""
        async with self._resuming.setdefault(run_id, asyncio.Lock()):
            return await self._apply_signals(run_id)

    async def _apply_signals(self, run_id: str) -> RunStatus:
        row = await self.log.find_run(run_id)
        if row.status in ENDED:
            return row.status
        if self.is_driven(run_id):
            self.on_signal(run_id)
            return row.status
        graph, started = await self.services.run_plans.find(row.identity)
        fence = await self._claim(run_id)
        decider, seq = await restore_decider(self.log, row.identity, graph, self.services.settings.drain_timeout)
        session = self._session(graph, decider, seq, fence, started, exists=True)
        decider.set_time(self.clock.now())
        if decider.is_ending():
            await self._driver(session).runner.stop_sub_runs(commands_of(decider).execute)
        await session.apply_signals()
        if session.status not in ENDED:
            is_open = session.status is RunStatus.RUNNING
            await self.log.leases.release_run(run_id, fence, self.clock.now() if is_open else None)
        return session.status

    def on_signal(self, run_id: str) -> None:
        """A signal was accepted for this run."""
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.request_refold()
        elif run_id in self._parked:
            self._unpark(run_id)
        elif run_id in self._loading:
            self._loading[run_id] = True

    async def _on_lease_regained(self, lease: Lease) -> None:
        """The lease had expired. Stop driving the runs that other processes have claimed meanwhile."""
        owned = await self.log.leases.owned_runs(lease)
        for run_id, driver in list(self._drivers.items()):
            if driver.session.exists and run_id not in owned:
                driver.stop_driving()
        for run_id in [run_id for run_id in self._parked if run_id not in owned]:
            del self._parked[run_id]
            self.on_ownership_lost(run_id)

    async def _on_lease_lost(self) -> None:
        """Stop driving everything under the old lease; resume what no other process has claimed."""
        run_ids = list(self._known)
        for driver in self._drivers.values():
            driver.runner.abandon()
        await cancel_all(list(self._tasks.values()))
        self._drivers.clear()
        self._parked.clear()
        self.services.spawn(self.supervisor.reclaim(run_ids))  # in the background: the new lease must be renewed

    def on_ownership_lost(self, run_id: str) -> None:
        self._known.discard(run_id)
        self._notify_not_driven(run_id)
