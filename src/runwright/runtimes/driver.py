"""A driver takes one run from event to event: facts in, decisions out, both in one append, then the steps.

It holds nothing that the log does not: killed at any moment, another driver folds the log and goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from runwright.contract.errors import STORE_CODES_TO_WAIT_FOR, ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.paths import parse_path
from runwright.contract.playbook import Scope
from runwright.contract.snapshot import Alert
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.decide import Decider
from runwright.core.draft import Draft, Violation
from runwright.core.keeping import Spot, key_prefix
from runwright.core.net import Net
from runwright.core.room import Room
from runwright.core.state import at_work
from runwright.core.steering import Stop, is_ending, next_deadline
from runwright.log.judge import Fence
from runwright.log.prepare import Prepared

from .facts import Fact, StepEnded
from .launch import Launcher
from .registry import EventIdRegistry
from .restore import restore

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger("runwright.engine")

SLICE = 1000  # events an append, or a little more: very many would keep everybody else waiting
STEPS = frozenset({"StepStarted", "LoopIterationStarted"})
CLOSING = frozenset({"StepCompleted", "StepFailed", "NextEvaluated", "RunCompleted", "RunFailed", "RunCancelled"})
UNSURE = "The lease ended while the run was being made. Ask again with the same id or key: it is made once."
NO_LONGER_OURS = frozenset({ErrorCode.STALE_FENCE, ErrorCode.RUN_OWNED})


class RunDriver:
    def __init__(
        self,
        engine: Engine,
        net: Net,
        decider: Decider,
        seq: int,
        fence: Fence,
        *,
        exists: bool,
        source: str | None = None,
    ) -> None:
        self.engine = engine
        self.source = source  # the file that the plan's code lies beside
        self.net = net
        self.decider = decider
        self.seq = seq
        self.fence = fence
        self.exists = exists
        self.run: RunIdentity = decider.run
        self.launcher = Launcher(self)
        self.registry = EventIdRegistry(engine.ids, self.run, engine.provider)
        self.created: asyncio.Future[None] = engine.loop.create_future()
        if exists:
            self.created.set_result(None)
        self._inbox: list[Fact] = []
        self._under_way: list[Fact] = []  # being appended
        self.was_lost = False  # it was left because it may not be ours any more
        self.room_matters = False  # it waits for room, or was told that there is some
        self._awake = False  # there is something to do
        self._sleep: asyncio.Future[None] | None = None
        self._look_again = False  # others wrote into the run
        self._armed: int | None = None
        self._stopping: Stop | None = None
        self._is_over = False

    @property
    def about(self) -> dict[str, Any]:
        """What the process's own log has beside the words."""
        return {"facts": {"run": self.run.run_id, "tenant": self.run.tenant_id}}

    # From outside

    def tell(self, fact: Fact) -> None:
        if self._is_over:
            fact.give_up(_left())
            return
        self._inbox.append(fact)
        self.poke()

    def poke(self) -> None:
        self._awake = True
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    def look_again(self) -> None:
        """A signal was accepted: read what is new."""
        self._look_again = True
        self.poke()

    @property
    def is_behind(self) -> bool:
        """Whether there is something new in the log that it was told of, and has not read."""
        return self._look_again

    # The loop

    async def drive(self) -> None:
        """Drive until the run ends, or has nothing to do for a while."""
        try:
            while not await self._turn():
                if not self._awake:
                    self._sleep = self.engine.loop.create_future()
                    await self._sleep
        except Violation as violation:  # of the run itself: nothing can be said of it any more
            self.launcher.abandon()
            self._not_created(violation)
            self._report(violation)
            self.engine.leave(self)
        except asyncio.CancelledError:
            self._not_created(RunwrightError(ErrorCode.STORE_UNAVAILABLE, UNSURE))
            raise
        except Exception as error:
            self.launcher.abandon()
            if not self.created.done():
                self._not_created(error)
            elif isinstance(error, RunwrightError) and error.code in NO_LONGER_OURS:
                logger.warning("Run %s is left: %s", self.run.run_id, error, extra=self.about)
                self.was_lost = True
                for fact in (*self._under_way, *self._inbox):
                    if isinstance(fact, StepEnded):
                        self.engine.late(self, fact.path, fact.attempt, fact.result, fact.error)
            else:
                raise
        finally:
            self._is_over = True
            for fact in (*self._under_way, *self._inbox):
                fact.give_up(_left())

    def _not_created(self, error: Exception) -> None:
        """Whoever wanted the run made is told, if they are still there."""
        if not self.created.done():
            self.created.set_exception(error)
            self.created.exception()

    async def apply_only(self) -> None:
        """Act on what was signalled, and carry nothing out."""
        self.launcher.close()
        while True:
            self.decider.at(self.engine.clock.now())
            self.decider.decide(Room({}, closed=True), stopped=True)
            drafts, blobs = self.decider.take()
            self._report_violations()
            while not await self._put_aside(blobs):
                self._look_again = False  # nobody else acts on signals while it does
            if not drafts or await self._append(drafts, []):
                return

    async def _turn(self) -> bool:
        """One round: what happened, what follows, appended, carried out. True when there is nothing more to do."""
        self._awake = False
        facts, self._inbox = self._inbox, []
        self._under_way = facts
        while True:
            if self._look_again:
                self._look_again = False
                await self._catch_up()
            decider = self.decider
            decider.at(self.engine.clock.now())
            for fact in facts:
                fact.apply(decider)
            room = self.engine.rooms.now()
            decider.decide(room, stopped=self.launcher.idle)
            drafts, blobs = decider.take()
            self._report_violations()
            if not drafts:
                break
            self.engine.rooms.reserve(room)  # until the executor counts them
            try:
                if blobs and not await self._put_aside(blobs):
                    await self._give_up_values(facts, blobs)
                    continue
                if await self._append(drafts, facts):
                    break  # otherwise the log has moved on: the facts stay, the decisions are made anew
            finally:
                self.engine.rooms.reserve(room, -1)
        for fact in facts:
            fact.durable()
        self._under_way = []
        if not self.created.done():
            self.created.set_result(None)
        if decider.missing or self.launcher.missing:
            await self.launcher.fetch()
            self._awake = True
        else:
            decider.values.at_hand.trim()
        self.engine.rooms.wait(self, room.short)
        self.launcher.sync_offers()
        if decider.status in ENDED:
            return True
        if decider.stop is not None:
            self._stop()
        return self._rest(may_park=not room.refused)

    async def _put_aside(self, blobs: dict[str | Spot, bytes]) -> bool:
        """Keep large values before the events that refer to them; the disk may have to be freed first. False if there
        was a signal before that was done."""
        for where, body in blobs.items():
            while True:
                try:
                    if not await self._unless_signalled(self.engine.results.put(self.run, where, body)):
                        return False
                    break
                except RunwrightError as error:
                    logger.warning("Run %s waits to put a value aside: %s", self.run.run_id, error, extra=self.about)
                    self.engine.check_lease()
                    if self._look_again:
                        return False
                    await self.engine.clock.sleep(0.5)
        return True

    async def _unless_signalled(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do this, which may take long; False if it was given up for a signal."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if self._look_again:
                    return False
                self._sleep = self.engine.loop.create_future()
                await asyncio.wait((task, self._sleep), return_when=asyncio.FIRST_COMPLETED)
            task.result()
            return True
        finally:
            task.cancel()

    async def _give_up_values(self, facts: list[Fact], blobs: dict[str | Spot, bytes]) -> None:
        """A signal came while values waited for their store. If the run is to end, it does so without them."""
        self._look_again = False
        await self._catch_up()
        if is_ending(self.decider):
            for fact in facts:
                if isinstance(fact, StepEnded) and fact.is_among(blobs.values()):
                    fact.lose_result()

    def _carry_out(self, drafts: list[Draft]) -> None:
        """They are durable: let the steps run."""
        for made in drafts:
            if self._is_launch(made):
                self.launcher.launch(made.step_id or "", made.logical_attempt_id)
            elif made.event_type == "RunDrainTimedOut":
                alert = _drain_alert(self.run, self.decider)
                logger.warning("Run %s: %s", self.run.run_id, alert.detail, extra=self.about)
                self.engine.alert(alert)
            elif made.event_type == "SignalProcessed" and b'"EMERGENCY_STOP"' in (made.raw_payload or b""):
                self.engine.alert(_stop_alert(self.run, made))

    def _is_launch(self, made: Draft) -> bool:
        """Whether something is carried out from here on: a step of a plan; a task's only try, or each."""
        routes = self.net.routes
        if routes is None:
            return made.event_type in STEPS
        if made.event_type != "TaskStarted":
            return made.event_type == "TaskAttemptStarted"
        place = parse_path(made.step_id or "")
        return place is not None and routes.stations[place.step].tasks[place.task or ""].rules is None

    def _tidy_after(self, drafts: list[Draft]) -> None:
        """All of it is in the log, so nobody who takes over has to look at them again."""
        if self.net.routes is not None and self.net.routes.passing:
            for made in drafts:
                if made.event_type in CLOSING:
                    self._tidy(made)

    def _tidy(self, made: Draft) -> None:
        """Delete results that were only wanted until now. What is left behind by a crash is found by `prune`."""
        assert self.net.routes is not None
        play, place = self.decider.work.play, parse_path(made.step_id or "")
        if place is not None and (play is None or place.owner in play.visits):
            return  # its arcs have not been looked at
        prefixes: dict[tuple[str, str], None] = {}
        for passing in self.net.routes.passing:
            store = passing.store or self.net.store
            if place is None or (passing.scope is Scope.STEP and passing.step == place.step):
                prefix = key_prefix(passing.scope, self.run.run_id, place)
                prefixes[store, prefix] = None
        for store, prefix in prefixes:
            self.engine.do(self._collect(store, prefix))

    async def _collect(self, store: str, prefix: str) -> None:
        try:
            await self.engine.results.tiers.collect(store, prefix)
        except (RunwrightError, OSError) as error:
            logger.warning("Run %s: results were left in %s: %s", self.run.run_id, store, error, extra=self.about)

    def _stop(self) -> None:
        stop = self.decider.stop
        assert stop is not None
        if stop != self._stopping:
            self._stopping = stop
            self.launcher.stop(by_force=stop.by_force)
        if self.launcher.idle:
            self._awake = True

    def _rest(self, *, may_park: bool) -> bool:
        """Nothing to do now. Set the alarm; True if it is far enough away to be forgotten until then."""
        times = (self.decider.next_due(), next_deadline(self.decider))
        at = min((time for time in times if time is not None and time > self.decider.now), default=None)
        idle = self.launcher.idle and not self._inbox and not self._awake and not self._look_again
        soon = at is not None and at <= self.engine.clock.now() + self.engine.park_after
        if idle and may_park and self.decider.stop is None and not soon and not self.launcher.has_offers:
            self.engine.park(self.run.run_id, at)
            return True
        if at is not None and at != self._armed:
            self._armed = at
            self.engine.timers.set(at, self._alarm)
        return False

    def _alarm(self) -> None:
        self._armed = None
        self.poke()

    # Appending

    async def _append(self, drafts: list[Draft], facts: list[Fact]) -> bool:
        """Append, in slices if there is much. False if the log had moved on, and all was folded anew."""
        begin = 0
        while begin < len(drafts):
            end = _end_of_slice(drafts, begin)
            part, begin = drafts[begin:end], end
            events = [self.registry.event(made) for made in part]
            try:
                await self._offer(events)
            except RunwrightError as error:
                self.registry.keep(events)
                if error.code == ErrorCode.SEQ_CONFLICT:
                    await self._catch_up()
                    return False
                if error.code == ErrorCode.STORE_WRITE_BUDGET_EXCEEDED:
                    await self._catch_up()
                    for fact in facts:
                        fact.give_up(error)
                    return False
                raise
            self._carry_out(part)
        self._tidy_after(drafts)
        return True

    async def _offer(self, events: list[Prepared]) -> None:
        """Offer the same events until they are in. What certainly did not get in within the write budget
        is given up with STORE_WRITE_BUDGET_EXCEEDED; what may have got in is offered again, for ever."""
        log, started, waited = self.engine.log, self.engine.clock.monotonic(), 0.05
        unknown = False
        while True:
            self.engine.check_lease()
            try:
                if self.exists:
                    receipts = await log.append_own(events, expected_seq=self.seq, fence=self.fence)
                else:
                    receipts = await log.create_run(self.run, events, fence=self.fence)
                break
            except RunwrightError as error:
                if error.code == ErrorCode.RUN_ALREADY_EXISTS and unknown:
                    self.exists = True  # it was our own try that made it
                    continue
                if error.code not in STORE_CODES_TO_WAIT_FOR:
                    raise
                unknown = unknown or error.facts.get("outcome") == "unknown"
                if not unknown and self.engine.clock.monotonic() - started > self.engine.write_budget and self.exists:
                    raise RunwrightError(ErrorCode.STORE_WRITE_BUDGET_EXCEEDED, error.detail) from None
                logger.warning("Run %s waits for the store: %s", self.run.run_id, error, extra=self.about)
                await self.engine.clock.sleep(waited)
                waited = min(waited * 2, 1.0)
        self.exists = True
        if any(receipt.idempotent for receipt in receipts):
            await self._check_ownership()  # a duplicate is acknowledged to anybody, also to one who was replaced
        self.engine.check_lease()
        foreign = self.registry.settled(events, receipts)
        if foreign and not unknown:
            types = ", ".join(sorted(set(foreign)))
            logger.warning(
                "Run %s: %s was in the log already; the first stays", self.run.run_id, types, extra=self.about
            )
        self.seq = max(self.seq, receipts[-1].run_seq)
        self.decider.state.summary.last_event_seq = self.seq

    async def _check_ownership(self) -> None:
        row = await self.engine.log.find_run(self.run.run_id)
        if row.status not in ENDED and (row.owner, row.epoch) != (self.fence.owner, self.fence.epoch):
            raise RunwrightError(ErrorCode.STALE_FENCE, "Another process drives the run now.")

    async def _catch_up(self) -> None:
        """Fold the log anew: somebody else has written into the run. The store may have to come back first."""
        engine = self.engine
        while True:
            engine.check_lease()
            try:
                self.decider, self.seq = await restore(
                    engine.log, self.run, self.net, self.decider.engine_attempt, engine.drain_timeout, self.decider
                )
                return
            except RunwrightError as error:
                if error.code not in STORE_CODES_TO_WAIT_FOR:
                    raise
                await engine.clock.sleep(0.5)

    def _report_violations(self) -> None:
        while self.decider.violations:
            self._report(self.decider.violations.pop())

    def _report(self, violation: Violation) -> None:
        """Nothing more is said about this entity by this process; the log stays as it is, and people are told."""
        about = {**violation.facts, "facts": {**self.about["facts"], **violation.facts}}
        logger.error("Run %s, %s: %s", self.run.run_id, violation.entity, violation, extra=about)
        self.engine.alert(
            Alert(
                code="INVALID_TRANSITION",
                severity="P2",
                detail=str(violation),
                run_id=self.run.run_id,
                subject=f"{violation.entity}|{violation.facts['attemptedEventType']}",
                facts=violation.facts,
            )
        )

    @property
    def status(self) -> RunStatus:
        return self.decider.status


def _left() -> RunwrightError:
    return RunwrightError(ErrorCode.STALE_FENCE, "The run is not driven here any more.")


def _drain_alert(run: RunIdentity, decider: Decider) -> Alert:
    count = at_work(decider.state.summary)
    return Alert(
        code="PAUSE_DRAIN_TIMEOUT",
        severity="P2",
        detail=f"The run was paused, and {count} steps did not end in time.",
        run_id=run.run_id,
        subject=str(decider.state.summary.pauses),
    )


def _stop_alert(run: RunIdentity, processed: Draft) -> Alert:
    return Alert(
        code="EMERGENCY_STOP",
        severity="P1",
        detail="The run was stopped by force.",
        run_id=run.run_id,
        subject=processed.step_id or "",
    )


def _end_of_slice(drafts: list[Draft], begin: int) -> int:
    """A slice ends where a decision does: somebody else may have to go on from there."""
    if len(drafts) - begin <= SLICE:
        return len(drafts)
    most = begin + SLICE
    ends = (*range(most, begin, -1), *range(most + 1, len(drafts)))
    return next((end for end in ends if drafts[end - 1].is_whole), len(drafts))
