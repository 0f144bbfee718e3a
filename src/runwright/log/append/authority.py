"""Validate a batch of appends without I/O.

A store adds the runs of a batch, answers its key lookups, has it validated and commits the result, all in one
transaction. Order of checks (part of the contract): context, duplicate, event id, payload, fence, expected sequence,
transition.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal, RunConstants
from runwright.contract.snapshot import Alert, RunSummary
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import Enforcement, InvalidTransition
from runwright.core.fold.evolve import approval_key, evolve, transition
from runwright.core.fold.run_state import StepState
from runwright.core.integrity.chain import StoredEvent, link, payload_digest
from runwright.core.projector import invalid_transition_alert
from runwright.log.lease_liveness import stale_fence

from .aggregate import APPROVALS, RunAggregate, StoredKey
from .prepare import PreparedEvent, run_identity_of, uuid_text

logger = logging.getLogger("runwright.log")

NOT_ATTEMPTED = Refusal(
    "not_attempted", ErrorCode.NOT_ATTEMPTED, "Another event of this run was refused; this one was not written."
)


class Fence(msgspec.Struct, frozen=True):
    """The writer of an append: owner and epoch of its process lease."""

    owner: str
    epoch: int


class RunAppend(msgspec.Struct, eq=False):
    """The events of one run within one append."""

    run_id: str
    events: Sequence[PreparedEvent]
    atomic: bool = True  # all or nothing; otherwise: up to the first refusal
    expected_seq: int | None = None
    fence: Fence | None = None
    create: tuple[RunConstants, Enforcement] | None = None
    enforcement: Enforcement = Enforcement.STRICT  # of a run that its first event creates
    results: list[Receipt | Refusal] = []


class KeyLookup(msgspec.Struct, frozen=True):
    """A question to the store: whether a run contains an idempotency key or an event id."""

    run_key: int
    key: bytes
    entity: str = ""  # the entity of the event, if this is an idempotency key


class AppendCounters:
    """Counters for operators, since the log object was created."""

    def __init__(self) -> None:
        self.appended = 0
        self.duplicates = 0
        self.payload_mismatches = 0
        self.refused = 0


class AppendBatch:
    """Appends that are validated and committed together."""

    def __init__(self, appends: Sequence[RunAppend], counters: AppendCounters) -> None:
        self.appends = appends
        self.runs: dict[str, RunAggregate] = {}
        self.alerts: list[Alert] = []
        self._counters = counters
        self._stored_keys: dict[tuple[int, bytes], StoredKey] = {}
        self._stored_ids: set[tuple[int, bytes]] = set()
        self._now_text = ""
        self._check_liveness: Callable[[str, int], bool] = _never_live
        self._liveness: dict[tuple[str, int], bool] = {}

    def run_ids(self) -> list[str]:
        return list(dict.fromkeys(append.run_id for append in self.appends))

    def add_run(self, run: RunAggregate) -> None:
        self.runs[run.run_id] = run

    # Lookups, answered by the store before validation

    def key_lookups(self) -> list[KeyLookup]:
        lookups: dict[KeyLookup, None] = {}
        for append in self.appends:
            run = self.runs.get(append.run_id)
            if run is None or not run.exists:
                continue
            for event in append.events:
                key = event.stored.idempotency_key
                entity = event.stored.step_id or ""
                if run.keys is None:
                    lookups[KeyLookup(run.run_key, key, entity)] = None
                    for entity, other in run.entity_keys(event.stored):
                        lookups[KeyLookup(run.run_key, other, entity)] = None
                elif key in run.keys:
                    lookups[KeyLookup(run.run_key, key, entity)] = None
        return list(lookups)

    def id_lookups(self) -> list[KeyLookup]:
        return [
            KeyLookup(run.run_key, event.stored.event_id)
            for append in self.appends
            if (run := self.runs.get(append.run_id)) is not None and run.exists and run.keys is None
            for event in append.events
        ]

    def add_key(self, run_key: int, key: bytes, found: StoredKey) -> None:
        self._stored_keys[run_key, key] = found

    def add_id(self, run_key: int, event_id: bytes) -> None:
        self._stored_ids.add((run_key, event_id))

    def owners_to_check(self) -> set[tuple[str, int]]:
        """Return the leases whose liveness the checks depend on.

        These are the owners of runs that are appended to without a fence, and the fences of runs to be created.
        """
        owners: set[tuple[str, int]] = set()
        for append in self.appends:
            run = self.runs.get(append.run_id)
            if append.fence is None and run is not None and run.owner is not None and run.epoch is not None:
                owners.add((run.owner, run.epoch))
            elif append.fence is not None and run is None:
                owners.add((append.fence.owner, append.fence.epoch))  # the owner of the run that this append creates
        return owners

    def set_liveness(self, check_liveness: Callable[[str, int], bool]) -> None:
        """Set the function that reports whether an owner is live in an epoch."""
        self._check_liveness = check_liveness

    def _is_live(self, owner: str, epoch: int) -> bool:
        """Whether a lease is held. Cached, so that the answer is the same within one transaction."""
        known = self._liveness.get((owner, epoch))
        if known is None:
            known = self._liveness[owner, epoch] = self._check_liveness(owner, epoch)
        return known

    # Validation

    def validate(self, now: int) -> list[RunAggregate]:
        """Set the results of every append; return the runs with events or a row to be written."""
        changed: dict[str, RunAggregate] = {}
        self._now_text = from_micros(now)
        for append in self.appends:
            run = self.runs.get(append.run_id)
            if run is None:
                run = self._new_run(append)
                if run is None:
                    continue
                self.runs[append.run_id] = run
            elif append.create is not None and (run.exists or run.run_id in changed):
                append.results = _refuse_all(append, 0, [], _refusal(_already_exists(append.run_id)))
                continue
            fence = append.fence
            if not append.events and fence is not None and not self._is_live(fence.owner, fence.epoch):
                append.results = [_refusal(stale_fence())]
                del self.runs[append.run_id]
                continue
            self._validate_run(run, append, now)
            if run.uncommitted or (append.create is not None and not append.events):
                changed[run.run_id] = run
            elif not run.exists and run.run_id not in changed:
                del self.runs[append.run_id]  # It was refused, so the run was not created.
        return list(changed.values())

    def _new_run(self, append: RunAppend) -> RunAggregate | None:
        if append.create is not None:
            context, enforcement = append.create
            run = RunAggregate(context, enforcement)
        elif append.events:
            run = RunAggregate(append.events[0].run, append.enforcement)
        else:
            return None
        if append.fence is not None:
            run.owner, run.epoch = append.fence.owner, append.fence.epoch
        return run

    def _validate_run(self, run: RunAggregate, append: RunAppend, now: int) -> None:
        savepoint = _Savepoint(run, append) if append.atomic and len(append.events) > 1 else None
        alerts = len(self.alerts)
        results: list[Receipt | Refusal] = []
        uncommitted_before = len(run.uncommitted)
        seq_before = run.seq
        for number, event in enumerate(append.events):
            result = self._validate_event(run, append, event, seq_before, now)
            if isinstance(result, Refusal):
                self._counters.refused += 1
                if savepoint is not None:
                    savepoint.restore()
                    del self.alerts[alerts:]
                    results = [
                        earlier if _precedes_append(earlier, seq_before) else NOT_ATTEMPTED for earlier in results
                    ]
                append.results = _refuse_all(append, number, results, result)
                return
            results.append(result)
        append.results = results
        self._counters.appended += len(run.uncommitted) - uncommitted_before

    def _validate_event(
        self, run: RunAggregate, append: RunAppend, event: PreparedEvent, seq_before: int, now: int
    ) -> Receipt | Refusal:
        stored = event.stored
        if event.run is not run.context and event.run != run.context:
            return _refusal(_context_mismatch())
        receipt = self._duplicate(run, event)
        if receipt is not None:
            return receipt
        if self._has_event_id(run, stored):
            return _refusal(
                RunwrightError(
                    ErrorCode.EVENT_ID_REUSED,
                    f"eventId {event.event_id} is already used by another event of this run. Generate a new UUID v4.",
                )
            )
        if event.payload_problem is not None:
            return _refusal(event.payload_problem)
        problem = self._fence_problem(run, append, event) or _seq_problem(append, seq_before)
        if problem is not None:
            return _refusal(problem)
        return self._append(run, event, now)

    def _duplicate(self, run: RunAggregate, event: PreparedEvent) -> Receipt | None:
        key = event.stored.idempotency_key
        if run.keys is not None and key not in run.keys:
            return None
        found = self._stored_keys.get((run.run_key, key)) if run.exists else None
        if found is None and (fresh := run.uncommitted.get(key)) is not None:
            found = StoredKey(fresh.run_seq, fresh.event_id, fresh.persisted_at, fresh.raw_payload, None)
        if found is None:
            return None
        self._counters.duplicates += 1
        digest = found.payload_digest or payload_digest(found.raw_payload)
        if digest != payload_digest(event.stored.raw_payload):
            self._counters.payload_mismatches += 1
            logger.warning(
                "%s: run %s event %s was already appended with another payload; the first payload is unchanged",
                ErrorCode.DUPLICATE_PAYLOAD_MISMATCH,
                run.run_id,
                found.run_seq,
            )
        return Receipt(
            "duplicate", uuid_text(found.event_id), found.run_seq, from_micros(found.persisted_at), True, False
        )

    def _has_event_id(self, run: RunAggregate, event: StoredEvent) -> bool:
        return run.has_event_id(event.event_id) or (run.run_key, event.event_id) in self._stored_ids

    def _fence_problem(self, run: RunAggregate, append: RunAppend, event: PreparedEvent) -> RunwrightError | None:
        if append.fence is not None:
            holds = (run.owner, run.epoch) == (append.fence.owner, append.fence.epoch)
            if holds and (run.exists or self._is_live(append.fence.owner, append.fence.epoch)):
                return None
            return stale_fence()
        if event.drives and run.owner is not None and run.epoch is not None and self._is_live(run.owner, run.epoch):
            return RunwrightError(
                ErrorCode.RUN_OWNED,
                "A live process drives this run, and only that process may change its state. Send a signal instead.",
            )
        return None

    def _append(self, run: RunAggregate, event: PreparedEvent, now: int) -> Receipt | Refusal:
        stored = event.stored
        stored.run_seq = run.seq + 1
        stored.persisted_at = max(now, run.persisted_at)
        status = run.state.summary.status
        if run.enforcement is Enforcement.STRICT:
            is_loaded = not run.is_complete and run.load_entity(stored, lambda key: self._seq_of(run, key))
            invalid = transition(run.state, stored)
            if is_loaded:
                run.evict_step_unless_newest(stored, legal=invalid is None)
            if invalid is not None:
                return _refusal(_transition_refused(invalid))
            run.state.summary.last_event_seq = stored.run_seq
        else:
            invalid = evolve(run.state, stored)
            if invalid is not None:
                self._alert(run, event, invalid, status)
        stored.hash = link(run.head, run.part, stored)
        run.head = stored.hash
        run.persisted_at = stored.persisted_at
        run.add(stored)
        text = self._now_text if stored.persisted_at == now else from_micros(stored.persisted_at)
        return Receipt("appended", event.event_id, stored.run_seq, text, False, True)

    def _seq_of(self, run: RunAggregate, key: bytes) -> int | None:
        if run.keys is not None:
            return run.keys.get(key)
        found = self._stored_keys.get((run.run_key, key)) or run.uncommitted.get(key)
        return None if found is None else found.run_seq

    def _alert(self, run: RunAggregate, event: PreparedEvent, invalid: InvalidTransition, status: str) -> None:
        stored = event.stored
        persisted_at = from_micros(stored.persisted_at)
        self.alerts.append(
            invalid_transition_alert(
                run_identity_of(run.context),
                invalid,
                event.event_id,
                stored.run_seq,
                persisted_at,
                status,
                stored.step_id,
            )
        )


def _precedes_append(result: Receipt | Refusal, seq_before: int) -> bool:
    """Whether a receipt remains valid after a rollback, which it does not if its original is in the same append."""
    return isinstance(result, Receipt) and result.status == "duplicate" and result.run_seq <= seq_before


def _never_live(_owner: str, _epoch: int) -> bool:
    return False


_RUN_ENDS = frozenset({"RunCompleted", "RunFailed", "RunCancelled"})


class _Savepoint:
    """The state that an append may change, to be restored if one of its events is refused."""

    def __init__(self, run: RunAggregate, append: RunAppend) -> None:
        self._run = run
        self._uncommitted = len(run.uncommitted)
        self._head, self._persisted_at = run.head, run.persisted_at
        state = run.state
        self._summary: RunSummary = copy.copy(state.summary)
        self._applied, self._signals = dict(state.applied), dict(state.signals)
        self._steps: dict[str, StepState | None] = {}
        self._approvals: dict[str, bool | None] = {}
        ends = state.summary.retrying_steps and any(event.stored.event_type in _RUN_ENDS for event in append.events)
        if ends:  # The end of a run cancels all retries.
            self._steps = {step_id: copy.copy(step) for step_id, step in state.steps.items() if step.retry}
        for event in append.events:
            step_id = event.stored.step_id
            if step_id is None:
                continue
            if step_id not in self._steps:
                step = state.steps.get(step_id)
                self._steps[step_id] = None if step is None else copy.copy(step)
            if event.stored.event_type in APPROVALS:
                ref = approval_key(event.stored)
                self._approvals[ref] = state.approvals.get(ref)

    def restore(self) -> None:
        run, state = self._run, self._run.state
        run.truncate(self._uncommitted)
        run.head, run.persisted_at = self._head, self._persisted_at
        state.summary, state.applied, state.signals = self._summary, self._applied, self._signals
        _restore_entries(state.steps, self._steps)
        _restore_entries(state.approvals, self._approvals)


def _restore_entries(target: dict[str, Any], saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = value


def _refuse_all(
    append: RunAppend, number: int, before: Sequence[Receipt | Refusal], refusal: Refusal
) -> list[Receipt | Refusal]:
    """Return the results of an append whose event `number` was refused; later events were not attempted."""
    if not append.events:
        return [refusal]
    return [*before, refusal, *[NOT_ATTEMPTED] * (len(append.events) - number - 1)]


def _refusal(error: RunwrightError) -> Refusal:
    return Refusal("refused", error.code, error.detail, error.facts)


def _already_exists(run_id: str) -> RunwrightError:
    return RunwrightError(
        ErrorCode.RUN_ALREADY_EXISTS, f"Run {run_id!r} already exists. Append to it, or choose another id."
    )


def _context_mismatch() -> RunwrightError:
    """The refusal of an event whose tenant, project, environment, plan or version is not that of its run.

    It does not name the field: otherwise a caller could find out the context of another tenant's run.
    """
    message = "The run id belongs to a run with another tenant, project, environment or plan. Choose another run id."
    return RunwrightError(ErrorCode.RUN_CONTEXT_MISMATCH, message)


def _seq_problem(append: RunAppend, seq_before: int) -> RunwrightError | None:
    if append.expected_seq is None or append.expected_seq == seq_before:
        return None
    return RunwrightError(
        ErrorCode.SEQ_CONFLICT,
        f"The run is at event {seq_before}, not {append.expected_seq}. Read the new events and decide again.",
        lastEventSeq=seq_before,
    )


def _transition_refused(invalid: InvalidTransition) -> RunwrightError:
    return RunwrightError(
        ErrorCode.INVALID_TRANSITION,
        invalid.detail,
        attemptedEventType=invalid.attempted_event_type,
        expectedState=invalid.expected_state,
        actualState=invalid.actual_state,
    )
