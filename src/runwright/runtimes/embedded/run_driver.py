"""RunDriver: the loop around one run. Collects facts, takes turns of its session, and launches what became durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.graph.node import Node
from runwright.core.scheduling.context import Violation
from runwright.core.scheduling.signals import Stop
from runwright.runtimes.facts import Fact, StepEnded
from runwright.runtimes.run_session import RunSession
from runwright.runtimes.step_runner import StepRunner

from .capacity import CapacityPool
from .dispatcher import Dispatcher
from .worker_offers import WorkerOffers

logger = logging.getLogger("runwright.runtimes")

CREATION_UNKNOWN = "The lease expired while the run was created. Retry with the same id or key: it is created once."
OWNERSHIP_LOST = frozenset({ErrorCode.STALE_FENCE, ErrorCode.RUN_OWNED})


class RunDriver:
    """Drives one run in this process. `park` is called with the next due time when the run is idle."""

    def __init__(
        self,
        session: RunSession,
        capacity: CapacityPool,
        dispatcher: Dispatcher | None,
        park: Callable[[RunSession, int | None], None],
    ) -> None:
        services = session.services
        self.session = session
        self.run = session.run
        self._services = services
        self._capacity = capacity
        self._park = park
        self.offers = WorkerOffers(session, dispatcher)
        self.runner = StepRunner(session, self.report, self.wake, self._on_slot_free, self.offers)
        self.created: asyncio.Future[None] = services.loop.create_future()
        if session.exists:
            self.created.set_result(None)
        self._inbox: list[Fact] = []
        self._appending: list[Fact] = []
        self.lost_ownership = False  # it stopped because the run may belong to another process
        self.must_release = False  # it stopped because it cannot continue the run
        self.waits_for_capacity = False
        self._has_work = False
        self._sleep: asyncio.Future[None] | None = None
        self._armed: int | None = None  # the time of the alarm that is set
        self._stopping: Stop | None = None
        self._is_done = False

    # From outside

    def report(self, fact: Fact) -> None:
        if self._is_done:
            fact.on_abandoned(_not_driven())
            return
        self._inbox.append(fact)
        self.wake()

    def wake(self) -> None:
        self._has_work = True
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    def stop_driving(self) -> None:
        """Another process has claimed the run."""
        self.runner.abandon()
        self.session.is_lost = True
        self.wake()

    def request_refold(self) -> None:
        """A signal was accepted: read the log."""
        self.session.request_refold()
        self.wake()

    @property
    def needs_refold(self) -> bool:
        """Whether the log has events that this driver was notified of and has not read."""
        return self.session.needs_refold

    @property
    def status(self) -> RunStatus:
        return self.session.status

    # For the dispatcher

    @property
    def log_extra(self) -> dict[str, Any]:
        return self.session.log_extra

    @property
    def can_start_steps(self) -> bool:
        return self.status is RunStatus.RUNNING and self.session.decider.stop is None

    def is_running(self, path: str, attempt: int) -> bool:
        return self.session.decider.scheduler.is_running(path, attempt)

    def is_offered(self, path: str, attempt: int) -> bool:
        return self.offers.is_offered(path, attempt)

    def last_checkpoint(self, path: str) -> Any:
        return self.runner.last_checkpoint(path)

    def increment_engine_attempt(self) -> int:
        """A worker was lost. After a crash `recovery.begin_engine_attempt` does this."""
        self.session.decider.engine_attempt += 1
        return self.session.decider.engine_attempt

    # The loop

    async def drive(self) -> None:
        """Drive until the run ends or is parked."""
        try:
            while not await self._run_cycle():
                if not self._has_work:
                    self._sleep = self._services.loop.create_future()
                    await self._sleep
        except Violation as violation:  # about the run itself: no event can be emitted for it any more
            self.runner.abandon()
            self._fail_creation(violation)
            self.session.report_violation(violation)
            self.must_release = True
        except asyncio.CancelledError:
            self._fail_creation(_creation_unknown())
            raise
        except Exception as error:
            self.runner.abandon()
            lost = error if isinstance(error, RunwrightError) and error.code in OWNERSHIP_LOST else None
            if not self.created.done():
                # The caller of start holds no fence: it can only start the run again.
                self._fail_creation(error if lost is None else _creation_unknown())
            elif lost is not None:
                self._on_ownership_lost(lost)
            else:
                raise
        finally:
            self._is_done = True
            for fact in (*self._appending, *self._inbox):
                fact.on_abandoned(_not_driven())

    def _on_ownership_lost(self, error: RunwrightError) -> None:
        logger.warning("Stopped driving run %s: %s", self.run.run_id, error, extra=self.log_extra)
        self.lost_ownership = True
        for fact in (*self._appending, *self._inbox):
            if isinstance(fact, StepEnded):
                self.runner.report_late_result(fact.path, fact.attempt, fact.result, fact.error)

    def _fail_creation(self, error: Exception) -> None:
        """Raise the error in the caller that creates the run, if it still waits."""
        if not self.created.done():
            self.created.set_exception(error)
            self.created.exception()

    async def _run_cycle(self) -> bool:
        """Take one turn and act on it. True when there is nothing more to drive."""
        self._has_work = False
        facts, self._inbox = self._inbox, []
        self._appending = facts
        capacity = await self.session.turn(facts, self._capacity, lambda: self.runner.is_idle, self.runner.launch)
        for fact in facts:
            fact.on_durable()
        self._appending = []
        if not self.created.done():
            self.created.set_result(None)
        decider = self.session.decider
        if decider.missing_values or self.runner.missing:
            await self.runner.fetch()
            self._has_work = True
        else:
            decider.values.cache.trim()
            self.runner.launch_deferred()
        if decider.is_deferred:
            self._has_work = True
            await self._services.next_slice()
        self._capacity.wait(self, capacity.short)
        if self.session.graph.has_queues and not self.runner.is_closed:
            self.offers.sync()
        if decider.status in ENDED:
            return True
        if decider.stop is not None:
            self._stop(decider.stop)
        return self._park_or_arm_timer(may_park=not capacity.refused)

    def _on_slot_free(self, node: Node) -> None:
        self._capacity.on_slot_free(node.step.step_class)

    def _stop(self, stop: Stop) -> None:
        if stop != self._stopping:
            self._stopping = stop
            self.runner.stop(by_force=stop.by_force)
        if self.runner.is_idle:
            self._has_work = True

    def _park_or_arm_timer(self, *, may_park: bool) -> bool:
        """Nothing to do now. Set an alarm for the next due time; True if it is far enough away to park the run."""
        services, decider = self._services, self.session.decider
        at = decider.next_wake()
        is_idle = self.runner.is_idle and not self._inbox and not self._has_work and not self.needs_refold
        is_soon = at is not None and at <= services.clock.now() + int(services.settings.park_after * 1e6)
        if is_idle and may_park and decider.stop is None and not is_soon and self.offers.is_empty:
            self._park(self.session, at)
            return True
        if at is not None and at != self._armed:
            self._armed = at
            services.wall_timers.set(at, self._on_alarm)
        return False

    def _on_alarm(self) -> None:
        self._armed = None
        self.wake()


def _creation_unknown() -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_UNAVAILABLE, CREATION_UNKNOWN)


def _not_driven() -> RunwrightError:
    return RunwrightError(ErrorCode.STALE_FENCE, "The run is not driven by this process any more.")
