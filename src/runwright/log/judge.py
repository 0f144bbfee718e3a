"""The judgement: what becomes of each event of a group of appends, without any I/O.

A store opens the runs of a group, answers the group's questions about keys, lets it judge, and commits
what it decided, all in one transaction. The order of the checks is part of the contract:
context, duplicate, event id, payload, fence, expected sequence, transition.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal
from runwright.contract.snapshot import Alert, RunSummary
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import Enforcement, InvalidTransition
from runwright.core.chain import StoredEvent, link, payload_digest
from runwright.core.evolve import approval_ref, evolve, transition
from runwright.core.projector import invalid_transition_alert
from runwright.core.state import StepCell

from .openrun import APPROVALS, Found, OpenRun
from .prepare import Context, Prepared, identity, uuid_text

logger = logging.getLogger("runwright.log")

NOT_ATTEMPTED = Refusal(
    "not_attempted", ErrorCode.NOT_ATTEMPTED, "Another event of this run was refused; this one was not written."
)


class Fence(msgspec.Struct, frozen=True):
    """Who appends: the owner and epoch of a process lease."""

    owner: str
    epoch: int


class Unit(msgspec.Struct, eq=False):
    """The events of one run within one append."""

    run_id: str
    events: Sequence[Prepared]
    atomic: bool = True  # all or nothing; otherwise: up to the first refusal
    expected_seq: int | None = None
    fence: Fence | None = None
    create: tuple[Context, Enforcement] | None = None
    enforcement: Enforcement = Enforcement.STRICT  # of a run that its first event makes
    results: list[Receipt | Refusal] = []


class Question(msgspec.Struct, frozen=True):
    """Does this run hold this key, or this event id?"""

    run_key: int
    key: bytes
    entity: str = ""  # of a key: what its event is about


class Tally:
    """Counts for operators, over the life of a log object."""

    def __init__(self) -> None:
        self.appended = 0
        self.duplicates = 0
        self.payload_mismatches = 0
        self.refused = 0


class Group:
    """Appends that will be committed together."""

    def __init__(self, units: Sequence[Unit], tally: Tally) -> None:
        self.units = units
        self.runs: dict[str, OpenRun] = {}
        self.alerts: list[Alert] = []
        self._tally = tally
        self._found: dict[tuple[int, bytes], Found] = {}
        self._taken_ids: set[tuple[int, bytes]] = set()
        self._now_text = ""
        self._ask_live: Callable[[str, int], bool] = _nobody_lives
        self._lives: dict[tuple[str, int], bool] = {}

    def run_ids(self) -> list[str]:
        return list(dict.fromkeys(unit.run_id for unit in self.units))

    def open(self, run: OpenRun) -> None:
        self.runs[run.run_id] = run

    # Questions and answers

    def key_questions(self) -> list[Question]:
        asked: dict[Question, None] = {}
        for unit in self.units:
            run = self.runs.get(unit.run_id)
            if run is None or not run.exists:
                continue
            for event in unit.events:
                key = event.stored.idempotency_key
                entity = event.stored.step_id or ""
                if run.keys is None:
                    asked[Question(run.run_key, key, entity)] = None
                    for entity, other in run.entity_keys(event.stored):
                        asked[Question(run.run_key, other, entity)] = None
                elif key in run.keys:
                    asked[Question(run.run_key, key, entity)] = None
        return list(asked)

    def id_questions(self) -> list[Question]:
        return [
            Question(run.run_key, event.stored.event_id)
            for unit in self.units
            if (run := self.runs.get(unit.run_id)) is not None and run.exists and run.keys is None
            for event in unit.events
        ]

    def answer_key(self, run_key: int, key: bytes, found: Found) -> None:
        self._found[run_key, key] = found

    def answer_id(self, run_key: int, event_id: bytes) -> None:
        self._taken_ids.add((run_key, event_id))

    def owners_in_question(self) -> set[tuple[str, int]]:
        """Leases whose life decides something here: of runs that somebody without a fence wants to change."""
        owners: set[tuple[str, int]] = set()
        for unit in self.units:
            run = self.runs.get(unit.run_id)
            if unit.fence is None and run is not None and run.owner is not None and run.epoch is not None:
                owners.add((run.owner, run.epoch))
            elif unit.fence is not None and run is None:
                owners.add((unit.fence.owner, unit.fence.epoch))  # it will own the run that this unit makes
        return owners

    def answer_live(self, live: Callable[[str, int], bool]) -> None:
        self._ask_live = live

    def _live(self, owner: str, epoch: int) -> bool:
        """Whether a lease is held; within one transaction it stays what it was."""
        known = self._lives.get((owner, epoch))
        if known is None:
            known = self._lives[owner, epoch] = self._ask_live(owner, epoch)
        return known

    # Judging

    def judge(self, now: int) -> list[OpenRun]:
        """Decide every unit; give back the runs that have something to be written."""
        changed: dict[str, OpenRun] = {}
        self._now_text = from_micros(now)
        for unit in self.units:
            run = self.runs.get(unit.run_id)
            if run is None:
                run = self._new_run(unit)
                if run is None:
                    continue
                self.runs[unit.run_id] = run
            elif unit.create is not None and (run.exists or run.run_id in changed):
                unit.results = _refuse_all(unit, 0, [], _refusal(_already_exists(unit.run_id)))
                continue
            if not unit.events and unit.fence is not None and not self._live(unit.fence.owner, unit.fence.epoch):
                unit.results = [_refusal(_stale_fence())]
                del self.runs[unit.run_id]
                continue
            self._judge_unit(run, unit, now)
            if run.fresh or (unit.create is not None and not unit.events):
                changed[run.run_id] = run
            elif not run.exists and run.run_id not in changed:
                del self.runs[unit.run_id]  # refused: the run it would have made does not exist
        return list(changed.values())

    def _new_run(self, unit: Unit) -> OpenRun | None:
        if unit.create is not None:
            context, enforcement = unit.create
            run = OpenRun(context, enforcement)
        elif unit.events:
            run = OpenRun(unit.events[0].run, unit.enforcement)
        else:
            return None
        if unit.fence is not None:
            run.owner, run.epoch = unit.fence.owner, unit.fence.epoch
        return run

    def _judge_unit(self, run: OpenRun, unit: Unit, now: int) -> None:
        backup = _Backup(run, unit) if unit.atomic and len(unit.events) > 1 else None
        alerts = len(self.alerts)
        results: list[Receipt | Refusal] = []
        was_fresh = len(run.fresh)
        seq_before = run.seq
        for number, event in enumerate(unit.events):
            result = self._judge_event(run, unit, event, seq_before, now)
            if isinstance(result, Refusal):
                self._tally.refused += 1
                if backup is not None:
                    backup.restore()
                    del self.alerts[alerts:]
                    results = [kept if _was_there(kept, seq_before) else NOT_ATTEMPTED for kept in results]
                unit.results = _refuse_all(unit, number, results, result)
                return
            results.append(result)
        unit.results = results
        self._tally.appended += len(run.fresh) - was_fresh

    def _judge_event(self, run: OpenRun, unit: Unit, event: Prepared, seq_before: int, now: int) -> Receipt | Refusal:
        stored = event.stored
        if event.run is not run.context and event.run != run.context:
            return _refusal(_context_mismatch(event, run))
        receipt = self._duplicate(run, event)
        if receipt is not None:
            return receipt
        if self._id_is_taken(run, stored):
            return _refusal(
                RunwrightError(
                    ErrorCode.EVENT_ID_REUSED,
                    f"eventId {event.event_id} already names another event of this run. Draw a new UUID v4.",
                )
            )
        if event.payload_problem is not None:
            return _refusal(event.payload_problem)
        problem = self._fence_problem(run, unit, event) or _seq_problem(unit, seq_before)
        if problem is not None:
            return _refusal(problem)
        return self._append(run, event, now)

    def _duplicate(self, run: OpenRun, event: Prepared) -> Receipt | None:
        key = event.stored.idempotency_key
        if run.keys is not None and key not in run.keys:
            return None
        found = self._found.get((run.run_key, key)) if run.exists else None
        if found is None and (fresh := run.fresh.get(key)) is not None:
            found = Found(fresh.run_seq, fresh.event_id, fresh.persisted_at, fresh.raw_payload, None)
        if found is None:
            return None
        self._tally.duplicates += 1
        digest = found.payload_digest or payload_digest(found.raw_payload)
        if digest != payload_digest(event.stored.raw_payload):
            self._tally.payload_mismatches += 1
            logger.warning(
                "%s: run %s event %s was appended before with another payload; the first one stays",
                ErrorCode.DUPLICATE_PAYLOAD_MISMATCH,
                run.run_id,
                found.run_seq,
            )
        return Receipt(
            "duplicate", uuid_text(found.event_id), found.run_seq, from_micros(found.persisted_at), True, False
        )

    def _id_is_taken(self, run: OpenRun, event: StoredEvent) -> bool:
        return run.id_is_taken(event.event_id) or (run.run_key, event.event_id) in self._taken_ids

    def _fence_problem(self, run: OpenRun, unit: Unit, event: Prepared) -> RunwrightError | None:
        if unit.fence is not None:
            holds = (run.owner, run.epoch) == (unit.fence.owner, unit.fence.epoch)
            if holds and (run.exists or self._live(unit.fence.owner, unit.fence.epoch)):
                return None
            return _stale_fence()
        if event.drives and run.owner is not None and run.epoch is not None and self._live(run.owner, run.epoch):
            return RunwrightError(
                ErrorCode.RUN_OWNED,
                "A live process drives this run, and only it may change the run's state. Send a signal instead.",
            )
        return None

    def _append(self, run: OpenRun, event: Prepared, now: int) -> Receipt | Refusal:
        stored = event.stored
        stored.run_seq = run.seq + 1
        stored.persisted_at = max(now, run.persisted_at)
        status = run.state.summary.status
        if run.enforcement is Enforcement.STRICT:
            recalled = not run.whole and run.recall_entity(stored, lambda key: self._seq_of(run, key))
            invalid = transition(run.state, stored)
            if recalled:
                run.doubt_step(stored, legal=invalid is None)
            if invalid is not None:
                return _refusal(_illegal(invalid))
            run.state.summary.last_event_seq = stored.run_seq
        else:
            invalid = evolve(run.state, stored)
            if invalid is not None:
                self._alert(run, event, invalid, status)
        stored.hash = link(run.head, run.part, stored)
        run.head = stored.hash
        run.persisted_at = stored.persisted_at
        run.remember(stored)
        text = self._now_text if stored.persisted_at == now else from_micros(stored.persisted_at)
        return Receipt("appended", event.event_id, stored.run_seq, text, False, True)

    def _seq_of(self, run: OpenRun, key: bytes) -> int | None:
        if run.keys is not None:
            return run.keys.get(key)
        found = self._found.get((run.run_key, key)) or run.fresh.get(key)
        return None if found is None else found.run_seq

    def _alert(self, run: OpenRun, event: Prepared, invalid: InvalidTransition, status: str) -> None:
        stored = event.stored
        persisted_at = from_micros(stored.persisted_at)
        self.alerts.append(
            invalid_transition_alert(
                identity(run.context), invalid, event.event_id, stored.run_seq, persisted_at, status, stored.step_id
            )
        )


def _was_there(result: Receipt | Refusal, seq_before: int) -> bool:
    """Whether a receipt still holds after a roll-back: not if it is for a twin in the same batch."""
    return isinstance(result, Receipt) and result.status == "duplicate" and result.run_seq <= seq_before


def _nobody_lives(_owner: str, _epoch: int) -> bool:
    return False


_RUN_ENDS = frozenset({"RunCompleted", "RunFailed", "RunCancelled"})


class _Backup:
    """What a unit may touch, to be put back if it is refused half-way."""

    def __init__(self, run: OpenRun, unit: Unit) -> None:
        self._run = run
        self._fresh = len(run.fresh)
        self._head, self._persisted_at = run.head, run.persisted_at
        state = run.state
        self._summary: RunSummary = copy.copy(state.summary)
        self._applied, self._signals = dict(state.applied), dict(state.signals)
        self._steps: dict[str, StepCell | None] = {}
        self._approvals: dict[str, bool | None] = {}
        ends = state.summary.retrying_steps and any(event.stored.event_type in _RUN_ENDS for event in unit.events)
        if ends:  # that calls all retries off
            self._steps = {step_id: copy.copy(cell) for step_id, cell in state.steps.items() if cell.retry}
        for event in unit.events:
            step_id = event.stored.step_id
            if step_id is None:
                continue
            if step_id not in self._steps:
                cell = state.steps.get(step_id)
                self._steps[step_id] = None if cell is None else copy.copy(cell)
            if event.stored.event_type in APPROVALS:
                ref = approval_ref(event.stored)
                self._approvals[ref] = state.approvals.get(ref)

    def restore(self) -> None:
        run, state = self._run, self._run.state
        run.forget_after(self._fresh)
        run.head, run.persisted_at = self._head, self._persisted_at
        state.summary, state.applied, state.signals = self._summary, self._applied, self._signals
        _put_back(state.steps, self._steps)
        _put_back(state.approvals, self._approvals)


def _put_back(target: dict[str, Any], saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = value


def _refuse_all(
    unit: Unit, number: int, before: Sequence[Receipt | Refusal], refusal: Refusal
) -> list[Receipt | Refusal]:
    """The refused event gets the reason, those after it were not tried."""
    if not unit.events:
        return [refusal]
    return [*before, refusal, *[NOT_ATTEMPTED] * (len(unit.events) - number - 1)]


def _refusal(error: RunwrightError) -> Refusal:
    return Refusal("refused", error.code, error.detail, error.facts)


def _already_exists(run_id: str) -> RunwrightError:
    return RunwrightError(
        ErrorCode.RUN_ALREADY_EXISTS, f"There is a run {run_id!r} already. Append to it, or pick another id."
    )


def _context_mismatch(event: Prepared, run: OpenRun) -> RunwrightError:
    names = ("runId", "tenantId", "projectId", "environmentId", "planId", "planVersion")
    wrong = [name for name, given, known in zip(names, event.run, run.context, strict=True) if given != known]
    return RunwrightError(
        ErrorCode.RUN_CONTEXT_MISMATCH,
        f"{' and '.join(wrong)} differ from what this run was created with. A run keeps its context for life.",
        fields=wrong,
    )


def _stale_fence() -> RunwrightError:
    return RunwrightError(
        ErrorCode.STALE_FENCE, "This process no longer drives the run. Stop driving it; whoever holds it now goes on."
    )


def _seq_problem(unit: Unit, seq_before: int) -> RunwrightError | None:
    if unit.expected_seq is None or unit.expected_seq == seq_before:
        return None
    return RunwrightError(
        ErrorCode.SEQ_CONFLICT,
        f"The run is at event {seq_before}, not {unit.expected_seq}. Read what came since, and decide again.",
        lastEventSeq=seq_before,
    )


def _illegal(invalid: InvalidTransition) -> RunwrightError:
    return RunwrightError(
        ErrorCode.INVALID_TRANSITION,
        invalid.detail,
        attemptedEventType=invalid.attempted_event_type,
        expectedState=invalid.expected_state,
        actualState=invalid.actual_state,
    )
