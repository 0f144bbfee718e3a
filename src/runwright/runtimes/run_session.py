"""RunSession: one run that is open in this process. Facts in, decisions out, both in one append.

It holds nothing that the log does not: after a crash another session folds the log and continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Protocol

from runwright.contract.catalog import CATALOG
from runwright.contract.clock import Ids
from runwright.contract.errors import RETRYABLE_STORE_CODES, ErrorCode, RunwrightError
from runwright.contract.events import Receipt, RunIdentity
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.decider import Decider
from runwright.core.fold.run_state import inflight_count
from runwright.core.graph.plan_graph import PlanGraph
from runwright.core.scheduling.context import Capacity, Draft, Violation
from runwright.core.scheduling.result_refs import StorageKey
from runwright.log.append.authority import Fence
from runwright.log.append.prepare import PreparedEvent, prepare_own
from runwright.log.lease_liveness import stale_fence

from .alerts import drain_timed_out, emergency_stop, invalid_transition
from .commands import Execute
from .facts import Fact, StepEnded
from .recovery import restore_decider
from .result_cleanup import delete_results_out_of_scope
from .services import RunServices

logger = logging.getLogger("runwright.runtimes")

SLICE = 1000
"""Events per append, or a few more: a larger append would delay those of other runs."""

OnExecute = Callable[[Execute], None]


class RunLease(Protocol):
    """The lease under which a run is owned."""

    @property
    def is_valid(self) -> bool:
        """Whether no other process can have claimed the run. Thread-safe."""
        ...

    def remaining(self) -> float:
        """Seconds in which no other process can claim the run; negative if the lease may have expired. Thread-safe."""
        ...

    async def wait(self, fence: Fence) -> None:
        """Wait until the lease is valid. Raises STALE_FENCE if it was replaced by another one."""
        ...


class CapacitySource(Protocol):
    def now(self) -> Capacity:
        """The slots that a decision may use now."""
        ...

    def reserve(self, capacity: Capacity, change: int = 1) -> None:
        """Reserve the acquired slots until the executor counts them; with -1, release the reservation."""
        ...


class NoCapacity:
    """Nothing may start."""

    def now(self) -> Capacity:
        return Capacity({}, closed=True)

    def reserve(self, capacity: Capacity, change: int = 1) -> None: ...


class RunSession:
    def __init__(
        self,
        services: RunServices,
        graph: PlanGraph,
        decider: Decider,
        seq: int,
        fence: Fence,
        lease: RunLease,
        *,
        exists: bool,
        source: str | None = None,
        working_directory: str | None = None,
    ) -> None:
        self.services = services
        self.graph = graph
        self.decider = decider
        self.seq = seq
        self.fence = fence
        self.exists = exists  # the run is in the log
        self.source = source  # the file next to which the modules of the plan are
        self.working_directory = working_directory  # where relative paths of its steps begin; None: that of the process
        self.run: RunIdentity = decider.run
        self.lease = lease
        self.is_lost = False  # another process has claimed the run
        self._event_ids = EventIdRegistry(services.ids, self.run, services.provider)
        self.needs_refold = False  # another process wrote into the run
        self.clock_total = services.clock_jumps.total()  # steps of the clock that its due times allow for
        self._interrupt: asyncio.Future[None] | None = None

    @property
    def log_extra(self) -> dict[str, Any]:
        """Structured fields for log records about this run."""
        return {"facts": {"run": self.run.run_id, "tenant": self.run.tenant_id}}

    @property
    def status(self) -> RunStatus:
        return self.decider.status

    def request_refold(self) -> None:
        """A signal was accepted: read the log before the next decision."""
        self.needs_refold = True
        if self._interrupt is not None and not self._interrupt.done():
            self._interrupt.set_result(None)

    async def turn(
        self, facts: list[Fact], capacity: CapacitySource, is_stopped: Callable[[], bool], execute: OnExecute
    ) -> Capacity:
        """Apply facts, decide, and append both. `execute` is called for every attempt whose start became durable.
        `is_stopped`: whether no attempt of the run is executed any more. Returns the capacity of the last decision."""
        while True:
            if self.is_lost:
                raise stale_fence()
            if self.needs_refold:
                self.needs_refold = False
                await self._refold()
            self._apply_clock_jumps()
            decider = self.decider
            decider.set_time(self.services.clock.now())
            for fact in facts:
                fact.apply(decider)
            slots = capacity.now()
            decider.decide(slots, stopped=is_stopped())
            drafts, values = decider.drain_drafts()
            self._report_violations()
            if not drafts:
                return slots
            capacity.reserve(slots)
            try:
                if values and not await self._store_values(values):
                    await self._drop_unstorable_results(facts, values)
                    continue
                if await self._append(drafts, facts, execute):
                    return slots  # else the log has moved on: the facts stay, the decisions are made again
            finally:
                capacity.reserve(slots, -1)

    def _apply_clock_jumps(self) -> None:
        total = self.services.clock_jumps.total()
        if total != self.clock_total:
            self.decider.scheduler.due_times.shift(total - self.clock_total)
            self.clock_total = total

    async def apply_signals(self) -> None:
        """Apply pending signals, and execute nothing."""
        while True:
            self.decider.set_time(self.services.clock.now())
            self.decider.decide(NoCapacity().now(), stopped=True)
            drafts, values = self.decider.drain_drafts()
            self._report_violations()
            while not await self._store_values(values):
                self.needs_refold = False  # no other process applies signals meanwhile
            if drafts and not await self._append(drafts, [], lambda _: None):
                continue
            if not self.decider.is_deferred:
                return
            await self.services.next_slice()

    # Large values

    async def _store_values(self, values: dict[str | StorageKey, bytes]) -> bool:
        """Store large values before the events that refer to them, retrying while the store is unavailable. False if
        a signal arrived before that was done."""
        for key, body in values.items():
            while True:
                try:
                    if not await self._unless_signalled(self.services.results.put(self.run, key, body)):
                        return False
                    break
                except RunwrightError as error:
                    message = "Run %s: storing a large value failed, retrying: %s"
                    logger.warning(message, self.run.run_id, error, extra=self.log_extra)
                    await self._wait_for_lease()
                    if self.needs_refold:
                        return False
                    await self.services.wait_for_store()
        return True

    async def _unless_signalled(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await something slow. False if it was cancelled because a signal arrived."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if self.needs_refold:
                    return False
                self._interrupt = self.services.loop.create_future()
                await asyncio.wait((task, self._interrupt), return_when=asyncio.FIRST_COMPLETED)
            task.result()
            return True
        finally:
            self._interrupt = None
            task.cancel()

    async def _drop_unstorable_results(self, facts: list[Fact], values: dict[str | StorageKey, bytes]) -> None:
        """A signal arrived while values waited for their store. A run that is to end ends without them."""
        self.needs_refold = False
        await self._refold()
        if self.decider.is_ending():
            for fact in facts:
                if isinstance(fact, StepEnded) and fact.is_among(values.values()):
                    fact.lose_result()

    # Appending

    async def _append(self, drafts: list[Draft], facts: list[Fact], execute: OnExecute) -> bool:
        """Append drafts, in slices if there are many. False if the log had moved on and the run was refolded."""
        start = 0
        while start < len(drafts):
            end = _end_of_slice(drafts, start)
            part, start = drafts[start:end], end
            events = [self._event_ids.prepare(event) for event in part]
            try:
                await self._append_until_durable(events)
            except RunwrightError as error:
                self._event_ids.remember(events)
                if error.code == ErrorCode.SEQ_CONFLICT:
                    await self._refold()
                    return False
                if error.code == ErrorCode.STORE_WRITE_BUDGET_EXCEEDED:
                    await self._refold()
                    for fact in facts:
                        fact.on_abandoned(error)
                    return False
                raise
            self._on_durable(part, execute)
        self._delete_results_out_of_scope(drafts)
        return True

    async def _append_until_durable(self, events: list[PreparedEvent]) -> None:
        """Append events, retrying until the outcome is known. Raises STORE_WRITE_BUDGET_EXCEEDED only if they were
        certainly not written."""
        clock, log = self.services.clock, self.services.log
        started, pause = clock.monotonic(), 0.05
        is_unknown = False
        while True:
            await self._wait_for_lease()
            try:
                if self.exists:
                    receipts = await log.append_prepared(events, expected_seq=self.seq, fence=self.fence)
                else:
                    receipts = await log.create_run(self.run, events, fence=self.fence)
                break
            except RunwrightError as error:
                if error.code == ErrorCode.RUN_ALREADY_EXISTS and is_unknown:
                    self.exists = True  # an earlier try of ours created it
                    continue
                if error.code not in RETRYABLE_STORE_CODES:
                    raise
                is_unknown = is_unknown or error.facts.get("outcome") == "unknown"
                is_over_budget = clock.monotonic() - started > self.services.write_budget
                if not is_unknown and is_over_budget and self.exists:
                    raise RunwrightError(ErrorCode.STORE_WRITE_BUDGET_EXCEEDED, error.detail) from None
                message = "Run %s: the store is unavailable, retrying: %s"
                logger.warning(message, self.run.run_id, error, extra=self.log_extra)
                await clock.sleep(pause)
                pause = min(pause * 2, 1.0)
        self.exists = True
        if any(receipt.idempotent for receipt in receipts):
            await self._check_ownership()  # a duplicate is acknowledged to every caller, also to a replaced owner
        foreign = self._event_ids.on_appended(events, receipts)
        if foreign and not is_unknown:
            types = ", ".join(sorted(set(foreign)))
            message = "Run %s: %s was already in the log; the first event counts"
            logger.warning(message, self.run.run_id, types, extra=self.log_extra)
        self.seq = max(self.seq, receipts[-1].run_seq)
        self.decider.state.summary.last_event_seq = self.seq

    async def _wait_for_lease(self) -> None:
        """Wait while the lease may have expired. Raises STALE_FENCE if the run was lost, or does not exist yet: then
        the caller that creates it gets an error, and can repeat the request."""
        if not self.lease.is_valid:
            if not self.exists:
                raise stale_fence()
            await self.lease.wait(self.fence)
        if self.is_lost:
            raise stale_fence()

    async def _check_ownership(self) -> None:
        row = await self.services.log.find_run(self.run.run_id)
        if row.status not in ENDED and (row.owner, row.epoch) != (self.fence.owner, self.fence.epoch):
            raise stale_fence()

    async def _refold(self) -> None:
        """Fold the log again because another process wrote into the run; retry while the store is unavailable."""
        drain_timeout = self.services.settings.drain_timeout
        while True:
            await self._wait_for_lease()
            try:
                restored = await restore_decider(self.services.log, self.run, self.graph, drain_timeout, self.decider)
            except RunwrightError as error:
                if error.code not in RETRYABLE_STORE_CODES:
                    raise
                await self.services.wait_for_store()
            else:
                self.decider, self.seq = restored
                return

    # After an append

    def _on_durable(self, drafts: list[Draft], execute: OnExecute) -> None:
        for event in drafts:
            if self.decider.scheduler.starts_execution(event):
                execute(Execute(event.step_id or "", event.logical_attempt_id))
            elif event.event_type == "RunDrainTimedOut":
                summary = self.decider.state.summary
                alert = drain_timed_out(self.run, inflight_count(summary), summary.pauses)
                logger.warning("Run %s: %s", self.run.run_id, alert.detail, extra=self.log_extra)
                self.services.alert(alert)
            elif event.event_type == "SignalProcessed" and b'"EMERGENCY_STOP"' in (event.raw_payload or b""):
                self.services.alert(emergency_stop(self.run, event))

    def _delete_results_out_of_scope(self, drafts: list[Draft]) -> None:
        """Delete results whose scope these events end. They are in the log: no recovery needs the results."""
        for prefix in self.decider.scheduler.results_out_of_scope(drafts):
            self.services.spawn(delete_results_out_of_scope(self.services.results.tiers, self.run, prefix))

    def _report_violations(self) -> None:
        while self.decider.violations:
            self.report_violation(self.decider.violations.pop())

    def report_violation(self, violation: Violation) -> None:
        """Log and alert that a forbidden event was not emitted. The log of the run stays as it is."""
        extra = {**violation.facts, "facts": {**self.log_extra["facts"], **violation.facts}}
        logger.error("Run %s, %s: %s", self.run.run_id, violation.entity, violation, extra=extra)
        self.services.alert(invalid_transition(self.run, violation))


def _end_of_slice(drafts: list[Draft], start: int) -> int:
    """A slice ends at an append boundary: another process may have to continue from there."""
    if len(drafts) - start <= SLICE:
        return len(drafts)
    most = start + SLICE
    ends = (*range(most, start, -1), *range(most + 1, len(drafts)))
    return next((end for end in ends if drafts[end - 1].is_append_boundary), len(drafts))


_EventKey = tuple[str, str | None, int]
"""Event type, step id, logical attempt id."""


class EventIdRegistry:
    """Ids of events whose append has not been confirmed. Confirmed events are in the log and found there by key."""

    def __init__(self, ids: Ids, run: RunIdentity, runtime: str) -> None:
        self._ids = ids
        self._context = run.context
        self._emitters = _emitters(runtime)
        self._unconfirmed: dict[_EventKey, str] = {}

    def prepare(self, draft: Draft) -> PreparedEvent:
        """Prepare a draft for the append, with the id of an earlier attempt to append it if there was one."""
        event_id = None
        if self._unconfirmed:
            event_id = self._unconfirmed.get((draft.event_type, draft.step_id, draft.logical_attempt_id))
        if event_id is None:
            event_id = self._ids.event_id()
        return prepare_own(
            self._context,
            event_id,
            draft.event_type,
            draft.step_id,
            (draft.engine_attempt_id, draft.logical_attempt_id),
            draft.emitted_at,
            self._emitters[draft.event_type],
            draft.raw_payload,
        )

    def remember(self, events: list[PreparedEvent]) -> None:
        """Store the ids of events whose append is not confirmed: if they are drafted again, they get the same ids."""
        for event in events:
            self._unconfirmed[_key(event)] = event.event_id

    def on_appended(self, events: list[PreparedEvent], receipts: list[Receipt]) -> list[str]:
        """Forget the ids of appended events. Returns the types of those that the log already had under another id."""
        foreign: list[str] = []
        for event, receipt in zip(events, receipts, strict=True):
            if self._unconfirmed:
                self._unconfirmed.pop(_key(event), None)
            if receipt.event_id != event.event_id:
                foreign.append(event.stored.event_type)
        return foreign


@cache
def _emitters(runtime: str) -> dict[str, str]:
    """Map each event type to the emitter of its events."""
    return {name: f"{runtime}/{kind.role}" for name, kind in CATALOG.items()}


def _key(event: PreparedEvent) -> _EventKey:
    stored = event.stored
    return (stored.event_type, stored.step_id, stored.logical_attempt_id)
