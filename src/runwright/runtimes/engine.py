"""The embedded runtime: drives any number of runs in this process, on a loop that no user code can block."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakValueDictionary

from runwright.contract import payloads
from runwright.contract.errors import STORE_CODES_TO_WAIT_FOR, ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.refs import ErrorInfo
from runwright.contract.snapshot import Alert, RunSnapshot
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.decide import Decider
from runwright.core.net import Net
from runwright.core.state import RunState, freeze
from runwright.core.steering import is_ending
from runwright.core.workings import Workings
from runwright.log.base import RunLog
from runwright.log.judge import Fence
from runwright.plans.store import PlanStore
from runwright.results.artifacts import ArtifactStore
from runwright.results.logtable import StepLogTable
from runwright.results.steplogs import StepLogs
from runwright.results.tiers import Tiers
from runwright.results.values import KeptValues, Values
from runwright.tools.base import Tool
from runwright.tools.secrets import EnvironmentSecrets, SecretsProvider

from .dispatch import Dispatch
from .driver import RunDriver
from .late import late_result
from .launch import STORE_PAUSE
from .lease import LeaseKeeper, ends_with_loop
from .lookout import Lookout
from .restore import restore, under_way
from .rooms import Rooms
from .runplans import RunPlans
from .settings import EngineSettings
from .tasks import TaskTable
from .tidying import prune_results, tidy_for_ever
from .timers import LONGEST_SLEEP, Timers
from .work import Executing, SubRunning

logger = logging.getLogger("runwright.engine")

DRAIN_POLL = 0.05
ARRIVAL_POLL = 0.005  # seconds
ARRIVALS = 32  # parked runs that are read at once: a thousand may be due in the same second
RETRY_MICROS = 1_000_000
FOR_EVER = 1e9  # seconds


class Engine:
    def __init__(
        self,
        log: RunLog,
        executor: Executing,
        tools: dict[str, Tool],
        plans: PlanStore,
        results: Values,
        step_logs: StepLogs | StepLogTable,
        owner: str,
        settings: EngineSettings,
        secrets: SecretsProvider | None = None,
        provider: str = "embedded",
        artifacts: ArtifactStore | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self.log = log
        self.owner = owner
        self.clock = log.clock
        self.ids = log.ids
        self.executor = executor
        self.tools = tools
        self.plans = plans
        self.run_plans = RunPlans(log, plans, self.check_stores)
        self.net_of = self.run_plans.net
        self.results = KeptValues(results, tiers or Tiers({}, "local", self.clock.now))
        self.step_logs = step_logs
        self.settings = settings
        self.provider = provider
        self.artifacts = artifacts
        self.sub_runs: SubRunning | None = None  # whoever can start runs says how
        self.secrets: SecretsProvider = secrets or EnvironmentSecrets()
        self.drain_timeout = settings.drain_timeout
        self.cancel_deadline = settings.cancel_deadline
        self.park_after = int(settings.park_after * 1e6)
        self.write_budget = log.write_budget
        ttl = FOR_EVER if settings.alone else settings.lease_ttl
        self.keeper = LeaseKeeper(log, self.clock, owner, ttl, self._lease_lost)
        self.check_lease = self.keeper.check
        sleep = self._sleeping
        longest = FOR_EVER if settings.alone else LONGEST_SLEEP
        # By the wall clock: when something is due. By a clock that is never set: how long something took.
        self.timers = Timers(self.clock.now, 1e-6, sleep, longest)
        self.alarms = Timers(self.clock.monotonic, 1.0, sleep, longest)
        self._drivers: dict[str, RunDriver] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parked: dict[str, int | None] = {}
        self._ends: dict[str, list[asyncio.Future[RunSnapshot | None]]] = {}
        self.rooms = Rooms(executor)
        self.lookout = Lookout(self)
        self.dispatch = None if settings.workers == "none" else Dispatch(self, TaskTable(log))
        self._background: list[asyncio.Task[None]] = []
        self.loop = asyncio.get_running_loop()
        self._errands: set[asyncio.Task[Any]] = set()
        self.late_results = 0
        self._closing = False
        self._known: set[str] = set()  # runs that are this process's business, and have not ended
        self._applying: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._arriving: dict[str, bool] = {}  # runs being read; True if a signal came in meanwhile
        self._gate = asyncio.Semaphore(ARRIVALS)

    def _sleeping(self, seconds: float) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.clock.sleep(seconds))

    # Life

    async def open(self) -> None:
        await self.keeper.acquire()
        await self.lookout.open()
        works = [self.timers.run(), self.alarms.run()]
        if not self.settings.alone:
            works += [self.keeper.keep(), self.lookout.watch_signals(), self.lookout.claim_wanted()]
        if self.settings.recover:
            works += [self.lookout.take_over(), tidy_for_ever(self.log, self.results.tiers, self.clock)]
        if self.dispatch is not None:
            works.append(self.dispatch.watch())
        for work in works:
            task = asyncio.create_task(work)
            task.add_done_callback(ends_with_loop)
            self._background.append(task)

    async def drain(self, seconds: float) -> None:
        """Start nothing more, and let what runs here end, for so long."""
        self.rooms.is_closed = True
        deadline = self.clock.monotonic() + seconds
        while self.clock.monotonic() < deadline and any(
            driver.launcher.count_here for driver in self._drivers.values()
        ):
            await self.clock.sleep(DRAIN_POLL)

    async def close(self) -> None:
        """Hand every run over: what runs here is stopped, and whoever comes next finds it due."""
        self._closing = True
        await self._end_tasks(self._background)
        await self._end_tasks(list(self._tasks.values()))
        for driver in self._drivers.values():
            driver.launcher.abandon()
        while self._errands:  # one may lead to another
            await asyncio.gather(*self._errands, return_exceptions=True)
        try:
            await self.keeper.release()  # that frees the runs as well: nobody alive owns them
        except RunwrightError as error:
            logger.warning("The lease could not be released; it ends by itself: %s", error)
        await self.results.tiers.close()
        self.executor.close()

    @property
    def is_closing(self) -> bool:
        return self._closing

    def all_tasks(self) -> list[asyncio.Task[Any]]:
        """Everything this engine has under way."""
        return [*self._background, *self._tasks.values(), *self._errands]

    async def _end_tasks(self, tasks: list[asyncio.Task[None]]) -> None:
        """Cancel until they have ended: a cancellation can be lost on its way through other people's code."""
        pending = {task for task in tasks if not task.done()}
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=0.1)

    # For drivers and launchers

    def call(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something on the engine's loop, from any thread."""
        self.loop.call_soon_threadsafe(work, *arguments)

    def due_at(self, tool: Tool, inputs: Any) -> int:
        due: Callable[[Any, int], int] = getattr(tool, "due_at")  # noqa: B009 - only tools on the timer lane have it
        return due(inputs, self.clock.now())

    def check_stores(self, net: Net) -> None:
        """Refuse a playbook whose results cannot be kept here."""
        if net.routes is not None:
            self.results.tiers.check(net.routes.stores)

    async def prune_results(self) -> dict[str, int | RunwrightError]:
        """Delete large results that nobody can want any more; how many, by store, or why that could not be done."""
        return await prune_results(self.log, self.results.tiers)

    def alert(self, alert: Alert) -> None:
        self.do(self._raise_alert(alert))

    async def _raise_alert(self, alert: Alert) -> None:
        """There is most to tell while the store is away: it is told once that is back."""
        while True:
            try:
                await self.log.raise_alerts([alert])
                return
            except RunwrightError as error:
                if error.code not in STORE_CODES_TO_WAIT_FOR or self._closing:
                    logger.warning("The alert %s could not be kept: %s", alert.code, error)
                    return
            await self.clock.sleep(STORE_PAUSE)

    def late(self, driver: RunDriver, path: str, attempt: int, result: bytes | None, error: ErrorInfo | None) -> None:
        """A step of a run that is not ours any more has ended."""
        self.late_results += 1
        run_id, engine_attempt = driver.run.run_id, driver.decider.engine_attempt
        self.alert(late_result(run_id, path, attempt, engine_attempt, result, error))

    def do(self, work: Coroutine[Any, Any, Any]) -> None:
        """See to something beside the runs themselves."""
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        task.add_done_callback(ends_with_loop)

    def park(self, run_id: str, wake_at: int | None) -> None:
        """Nothing to do for a while: keep only the run's name, and when it is due."""
        self._parked[run_id] = wake_at
        if wake_at is not None:
            self.timers.set(wake_at, lambda: self._unpark_if_due(run_id))

    def _unpark_if_due(self, run_id: str) -> None:
        wake_at = self._parked.get(run_id)
        if wake_at is not None and wake_at <= self.clock.now():
            self._unpark(run_id)

    def _unpark(self, run_id: str) -> None:
        del self._parked[run_id]
        self._arriving[run_id] = False  # from now on: a second signal must find the run here
        self.do(self._take_up_parked(run_id))

    async def _take_up_parked(self, run_id: str) -> None:
        try:
            async with self._gate:
                await self._arrive(run_id)
        except RunwrightError as error:
            logger.warning("Run %s cannot be taken up yet: %s", run_id, error)
            self.park(run_id, self.clock.now() + RETRY_MICROS)

    # Runs

    async def start(
        self,
        run: RunIdentity,
        net: Net,
        queued: payloads.RunQueued,
        started: payloads.RunStarted,
        carried: Callable[[Decider], None] | None = None,
    ) -> None:
        """Make a run and start it. Returns once it is durable; RUN_ALREADY_EXISTS if there is one."""
        state = RunState(detailed=True, workings=Workings(wanted=net.wanted))
        decider = Decider(net, state, run, 1, self.drain_timeout)
        decider.at(self.clock.now())
        decider.say("RunQueued", payload=queued)
        if net.routes is not None:
            decider.say("AdmissionEvaluated", payload=payloads.AdmissionEvaluated("START"))
        decider.say("RunStarted", payload=started)
        if carried is not None:
            carried(decider)
        if (other := self._drivers.get(run.run_id)) is not None:
            await asyncio.wait([other.created])
            raise RunwrightError(ErrorCode.RUN_ALREADY_EXISTS, f"There is a run {run.run_id!r} already.")
        await self.keeper.ensure()  # a large plan may have kept us busy for longer than a lease lasts
        driver = RunDriver(self, net, decider, 0, self.keeper.fence, exists=False, source=started.source)
        self._drive(driver)
        await asyncio.shield(driver.created)

    async def resume(self, run_id: str) -> bool:
        """Take a run up where its log says it is. False if it has ended; RUN_OWNED if a live process drives it."""
        async with self._applying.setdefault(run_id, asyncio.Lock()):  # two drivers of one lease would collide
            return await self._resume(run_id)

    async def _resume(self, run_id: str) -> bool:
        if run_id in self._drivers:
            return True
        row = await self.log.find_run(run_id)
        if row.status in ENDED:
            return False
        await self.run_plans.to_drive(row.identity, self.provider)  # what cannot be driven here is not claimed
        await self._claim(run_id)
        self._parked.pop(run_id, None)
        return await self.take_up(run_id)

    async def _claim(self, run_id: str) -> Fence:
        """Become the run's driver; on a new lease, should the old one have ended unnoticed."""
        lease = self.keeper.lease
        assert lease is not None
        try:
            return await self.log.claim_run(run_id, lease)
        except RunwrightError as error:
            if error.code != ErrorCode.LEASE_LOST:
                raise
            if (trouble := await self.keeper.begin_anew(lease, error)) is not None:
                raise trouble from None
            assert self.keeper.lease is not None
            return await self.log.claim_run(run_id, self.keeper.lease)

    async def take_up(self, run_id: str) -> bool:
        """Drive a run that is ours already. False if it has ended."""
        if run_id in self._drivers or run_id in self._arriving:
            return True
        self._arriving[run_id] = False
        return await self._arrive(run_id)

    async def _arrive(self, run_id: str) -> bool:
        try:
            row = await self.log.find_run(run_id)
            if row.status in ENDED:
                self._finished(run_id)
                return False
            return await self._restore_and_drive(row.identity)
        finally:
            self._arriving.pop(run_id, None)

    async def _restore_and_drive(self, run: RunIdentity) -> bool:
        run_id = run.run_id
        net, started = await self.run_plans.to_drive(run, self.provider)
        decider, seq = await restore(self.log, run, net, 1, self.drain_timeout)
        decider.at(self.clock.now())
        cut_short = under_way(decider)
        if started.code is not None and run_id not in self._known:
            self.do(self.run_plans.compare_code(run_id, started.code))
        decider.engine_attempt = max(1, decider.work.engine_attempt + bool(cut_short))
        if run_id in self._drivers:  # while we read
            return True
        driver = RunDriver(self, net, decider, seq, self.keeper.fence, exists=True, source=started.source)
        if is_ending(decider):
            await driver.launcher.stop_sub_runs(cut_short)
        else:
            driver.launcher.take_up(cut_short)
        if self._arriving[run_id]:
            driver.look_again()  # a signal came in while we read
        self._drive(driver)
        return True

    def _drive(self, driver: RunDriver) -> None:
        run_id = driver.run.run_id
        self._drivers[run_id] = driver
        self._known.add(run_id)
        task = self._tasks[run_id] = asyncio.create_task(driver.drive())
        task.add_done_callback(lambda task: self._driven(run_id, driver, task))

    def _driven(self, run_id: str, driver: RunDriver, task: asyncio.Task[None]) -> None:
        self.rooms.wait(driver, ())
        if self._closing:
            return
        self._drivers.pop(run_id, None)
        self._tasks.pop(run_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(driver, error)
        elif driver.was_lost:  # what it decided last, perhaps that the run has ended, may not be in the log
            self.lookout.want(run_id)  # perhaps only our lease was in doubt, and nobody else took it up
            self._left(run_id)
        elif driver.status in ENDED and not task.cancelled():
            self._finished(run_id, driver)
        elif run_id in self._parked:
            if driver.is_behind:  # a signal was accepted while it was being parked
                self._unpark(run_id)
        else:
            self._left(run_id)

    def _broken(self, driver: RunDriver, error: BaseException) -> None:
        """A fault of ours. The run is left as its log says, for a person to look at."""
        run_id = driver.run.run_id
        logger.error("The driver of run %s failed", run_id, exc_info=error, extra=driver.about)
        detail = f"The engine failed on this run and left it: {type(error).__name__}: {error}"[:500]
        self.alert(Alert(code="ENGINE_FAILED", severity="P1", detail=detail, run_id=run_id, subject=str(driver.seq)))
        self.leave(driver)
        self._fail_waiters(run_id, error)
        self._known.discard(run_id)

    def leave(self, driver: RunDriver) -> None:
        """Drive the run no longer, and claim it no longer; it is not due either: a person takes it up."""
        self.do(self.log.release_run(driver.run.run_id, driver.fence))

    def _left(self, run_id: str) -> None:
        """The run is not ours any more. If that is because our lease ended, it may be again with the next one."""
        if self.keeper.is_good:
            self._known.discard(run_id)
        for future in self._ends.pop(run_id, []):
            if not future.done():
                future.set_result(None)  # whoever waits looks for themselves

    def _finished(self, run_id: str, driver: RunDriver | None = None) -> None:
        self._known.discard(run_id)
        waiting = self._ends.pop(run_id, [])
        snapshot = freeze(driver.run, driver.decider.state) if waiting and driver is not None else None
        for future in waiting:
            if not future.done():
                future.set_result(snapshot)

    def _fail_waiters(self, run_id: str, error: BaseException) -> None:
        for future in self._ends.pop(run_id, []):
            if not future.done():
                future.set_exception(error)

    async def ended(self, run_id: str, timeout: float | None = None) -> RunSnapshot:
        """Wait until the run has ended, whoever drives it, or the time is up; the run as it then is."""
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - self.clock.monotonic())
            if run_id in self._drivers or run_id in self._parked:
                future: asyncio.Future[RunSnapshot | None] = self.loop.create_future()
                self._ends.setdefault(run_id, []).append(future)
                if left is None:
                    await future
                else:
                    await asyncio.wait([future], timeout=left)
                if future.done() and (snapshot := future.result()) is not None:
                    return snapshot  # the driver's own fold: nothing has to be read
            is_late = deadline is not None and self.clock.monotonic() >= deadline
            try:
                row = await self.log.find_run(run_id)
                if row.status in ENDED or is_late:
                    return await self.log.snapshot(run_id)
            except RunwrightError as error:
                if error.code not in STORE_CODES_TO_WAIT_FOR or is_late:
                    raise
                await self.clock.sleep(STORE_PAUSE)  # whoever drives the run waits for the store as well
                continue
            if run_id in self._arriving:
                await self.clock.sleep(ARRIVAL_POLL)  # it will be driven in a moment
            elif not self.is_driven(run_id):
                await self.log.wait_for_news(1.0 if left is None else min(1.0, left))

    def driver(self, run_id: str) -> RunDriver | None:
        return self._drivers.get(run_id)

    def is_driven(self, run_id: str) -> bool:
        return run_id in self._drivers or run_id in self._parked or run_id in self._arriving

    @property
    def has_runs(self) -> bool:
        return bool(self._known)

    @property
    def driven(self) -> list[str]:
        return [*self._drivers, *self._parked]

    async def apply_signals(self, run_id: str) -> RunStatus:
        """Act on signals of a run that nobody drives, start nothing, and leave it. RUN_OWNED if somebody does."""
        async with self._applying.setdefault(run_id, asyncio.Lock()):
            return await self._apply_signals(run_id)

    async def _apply_signals(self, run_id: str) -> RunStatus:
        row = await self.log.find_run(run_id)
        if row.status in ENDED:
            return row.status
        if self.is_driven(run_id):
            self.signalled(run_id)
            return row.status
        net = await self.net_of(row.identity)
        fence = await self._claim(run_id)
        decider, seq = await restore(self.log, row.identity, net, 1, self.drain_timeout)
        decider.engine_attempt = max(1, decider.work.engine_attempt)
        driver = RunDriver(self, net, decider, seq, fence, exists=True)
        decider.at(self.clock.now())
        if is_ending(decider):
            await driver.launcher.stop_sub_runs(under_way(decider))
        await driver.apply_only()
        if driver.status not in ENDED:
            open_now = driver.status is RunStatus.RUNNING
            await self.log.release_run(run_id, fence, self.clock.now() if open_now else None)
        return driver.status

    # Signals, leases, runs of the dead

    def signalled(self, run_id: str) -> None:
        """A signal was accepted for this run."""
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.look_again()
        elif run_id in self._parked:
            self._unpark(run_id)
        elif run_id in self._arriving:
            self._arriving[run_id] = True

    async def _lease_lost(self) -> None:
        """Everything driven under the old lease is left; what nobody else has taken is taken up again."""
        run_ids = list(self._known)
        for driver in self._drivers.values():
            driver.launcher.abandon()
        await self._end_tasks(list(self._tasks.values()))
        self._drivers.clear()
        self._parked.clear()
        self.do(self.lookout.take_back(run_ids))  # beside the new lease, which must be renewed meanwhile

    def left_to_others(self, run_id: str) -> None:
        self._known.discard(run_id)
        self._left(run_id)
