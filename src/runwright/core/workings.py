"""What only a driver needs of a run: parameters, due times, results, open signals. Folded like all else.

A run that is merely looked at is folded without these; `RunState.workings` is then None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import parse_path

from .loopwork import FAILED, NOTHING, LoopWork, StoredResult, iteration, loop_started, moment, result_of
from .playwork import PlayWork, keep_result, note_play
from .reading import read_payload


class Awaited(msgspec.Struct, frozen=True):
    """What a step waits for: a person's answer, or an event that somebody sends."""

    attempt: int
    approval: payloads.Approval | None = None
    event: str | None = None
    key: str | None = None


class Workings(msgspec.Struct):
    """`wanted` names the steps whose results some expression mentions; None keeps them all."""

    wanted: frozenset[str] | None = frozenset()
    params: dict[str, Any] = {}
    started_at: int | None = None
    paused_at: int | None = None
    engine_attempt: int = 0
    plan_sha: str | None = None
    signals: dict[str, payloads.SignalDecided] = {}  # accepted, not yet acted on, in the order of the log
    retry_at: dict[str, int] = {}
    retry_signal: dict[str, str] = {}  # the signal that asked for a retry
    due_at: dict[str, int] = {}
    late: dict[str, None] = {}  # waits that end by failing: their timeout is shorter
    awaits: dict[str, Awaited] = {}  # steps that wait for somebody
    scheduled: dict[str, int] = {}  # attempts that workers may take, and none has
    granted: dict[str, None] = {}  # steps that may start because somebody said so
    results: dict[str, StoredResult] = {}
    loops: dict[str, LoopWork] = {}
    checkpoints: dict[str, bytes] = {}
    checkpoint_count: dict[str, int] = {}
    overrides: dict[str, dict[str, Any]] = {}
    override_count: dict[str, int] = {}
    params_updates: int = 0
    play: PlayWork | None = None  # of a playbook
    is_child: bool = False  # a task of another run
    parent_iter: dict[str, Any] | None = None  # the iteration that this run is a task of

    def note(self, event: FoldableEvent) -> None:
        """Fold an event that was legal."""
        if event.engine_attempt_id > self.engine_attempt:
            self.engine_attempt = event.engine_attempt_id
        handler = _NOTES.get(event.event_type)
        if handler is not None:
            handler(self, event)
        if self.play is not None or event.event_type == "WorkflowStarted":
            note_play(self, event)

    def is_told(self, *kinds: str) -> bool:
        """Whether a signal of one of these kinds was accepted, and has not been acted on yet."""
        return any(signal.signal_type in kinds for signal in self.signals.values())

    def wants(self, step_id: str) -> bool:
        return self.wanted is None or step_id in self.wanted


def _queued(work: Workings, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunQueued, event)
    work.params = payload.params or work.params
    work.is_child = payload.parent_run_id is not None or work.is_child
    work.parent_iter = payload.parent_iter or work.parent_iter


def _run_started(work: Workings, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunStarted, event)
    work.started_at = moment(payload.started_at or event.emitted_at)
    work.plan_sha = None if payload.plan_ref is None else payload.plan_ref.sha256


def _paused(work: Workings, event: FoldableEvent) -> None:
    work.paused_at = moment(event.emitted_at)


def _resumed(work: Workings, _event: FoldableEvent) -> None:
    work.paused_at = None


def _step_scheduled(work: Workings, event: FoldableEvent) -> None:
    work.scheduled[event.step_id or ""] = event.logical_attempt_id
    work.retry_at.pop(event.step_id or "", None)


def _step_started(work: Workings, event: FoldableEvent) -> None:
    work.scheduled.pop(event.step_id or "", None)
    work.retry_at.pop(event.step_id or "", None)
    work.retry_signal.pop(event.step_id or "", None)


def _step_delayed(work: Workings, event: FoldableEvent) -> None:
    path, payload = event.step_id or "", read_payload(payloads.StepDelayed, event)
    if payload.event is not None:
        work.awaits[path] = Awaited(event.logical_attempt_id, event=payload.event, key=payload.key)
    if payload.scheduled_at is not None:
        work.due_at[path] = moment(payload.scheduled_at)
    if payload.reason == "timeout" or payload.event is not None:
        work.late[path] = None
    else:
        work.late.pop(path, None)


def _step_ended(work: Workings, event: FoldableEvent) -> None:
    step_id = event.step_id or ""
    work.due_at.pop(step_id, None)
    work.awaits.pop(step_id, None)
    work.retry_at.pop(step_id, None)
    work.scheduled.pop(step_id, None)
    if step_id in work.loops:  # iterations that were to be tried again are not, in this attempt
        for times in (work.retry_at, work.due_at):
            for path in [path for path in times if path.startswith((f"{step_id}[", f"{step_id}~"))]:
                del times[path]
    is_good = event.event_type != "StepFailed"
    if is_good:
        work.checkpoints.pop(step_id, None)
        work.loops.pop(step_id, None)
    if work.play is not None:
        keep_result(work, event, step_id, is_good=is_good)
    elif is_good and work.wants(step_id):
        work.results[step_id] = result_of(event)


def _retry_scheduled(work: Workings, event: FoldableEvent) -> None:
    path = event.step_id or ""
    payload = read_payload(payloads.StepRetryScheduled, event)
    work.retry_at[path] = moment(payload.next_attempt_at)
    if payload.signal_id is not None:
        work.retry_signal[path] = payload.signal_id
    place = parse_path(path)
    if place is None or not place.indexes or (loop := work.loops.get(place.step)) is None:
        return
    index = place.indexes[0]
    if index < loop.total and loop.states[index] == FAILED:
        loop.states[index] = 0
        loop.failed -= 1
        if loop.first_failure is not None and loop.first_failure.index == index:
            loop.first_failure = None


class _Checkpoint(payloads.Payload, frozen=True):
    state: msgspec.Raw = NOTHING


def _checkpoint(work: Workings, event: FoldableEvent) -> None:
    path = event.step_id or ""
    place = parse_path(path)
    state = read_payload(_Checkpoint, event).state
    entity = path if place is None or place.task is not None else checkpoint_owner(place.step, place.indexes)
    work.checkpoints[entity] = bytes(state) or b"null"
    work.checkpoint_count[path] = max(event.logical_attempt_id, work.checkpoint_count.get(path, 0))


def checkpoint_owner(step_id: str, indexes: tuple[int, ...]) -> str:
    """Checkpoints belong to a step or iteration, whichever attempt wrote them."""
    return step_id + "".join(f"[{index}]" for index in indexes)


def _overridden(work: Workings, event: FoldableEvent) -> None:
    step_id = event.step_id or ""
    work.overrides[step_id] = {
        **work.overrides.get(step_id, {}),
        **(read_payload(payloads.StepChanged, event).override or {}),
    }
    work.override_count[step_id] = event.logical_attempt_id


def _params_updated(work: Workings, event: FoldableEvent) -> None:
    work.params = read_payload(payloads.RunParamsUpdated, event).params or work.params
    work.params_updates += 1


def _approval_requested(work: Workings, event: FoldableEvent) -> None:
    path, payload = event.step_id or "", read_payload(payloads.Approval, event)
    work.awaits[path] = Awaited(event.logical_attempt_id, payload)
    if payload.expires_at is not None:
        work.due_at[path] = moment(payload.expires_at)
        work.late[path] = None


def _approval_granted(work: Workings, event: FoldableEvent) -> None:
    work.awaits.pop(event.step_id or "", None)
    work.due_at.pop(event.step_id or "", None)
    work.granted[event.step_id or ""] = None


def _approval_denied(work: Workings, event: FoldableEvent) -> None:
    work.awaits.pop(event.step_id or "", None)
    work.due_at.pop(event.step_id or "", None)


def _signal_accepted(work: Workings, event: FoldableEvent) -> None:
    if event.logical_attempt_id == 1:
        work.signals[event.step_id or ""] = read_payload(payloads.SignalDecided, event)


def _signal_processed(work: Workings, event: FoldableEvent) -> None:
    signal = work.signals.pop(event.step_id or "", None)
    if signal is None or signal.signal_type != "RETRY_STEP":
        return
    step_id = str((signal.payload or {}).get("stepId"))
    if step_id in work.retry_at and read_payload(payloads.SignalProcessed, event).engine_result == "RETRYING":
        work.retry_at[step_id] = min(work.retry_at[step_id], moment(event.emitted_at))  # policy had put it off
        if signal.signal_id is not None:
            work.retry_signal[step_id] = signal.signal_id


_NOTES: dict[str, Callable[[Workings, FoldableEvent], None]] = {
    "RunQueued": _queued,
    "RunStarted": _run_started,
    "RunPaused": _paused,
    "RunResumed": _resumed,
    "StepScheduled": _step_scheduled,
    "StepStarted": _step_started,
    "StepDelayed": _step_delayed,
    "StepCompleted": _step_ended,
    "StepFailed": _step_ended,
    "StepSkipped": _step_ended,
    "StepRetryScheduled": _retry_scheduled,
    "LoopStarted": loop_started,
    "LoopIterationScheduled": iteration,
    "LoopIterationStarted": iteration,
    "LoopIterationDone": iteration,
    "LoopIterationFailed": iteration,
    "CheckpointWritten": _checkpoint,
    "StepOverridden": _overridden,
    "RunParamsUpdated": _params_updated,
    "ApprovalRequested": _approval_requested,
    "ApprovalGranted": _approval_granted,
    "ApprovalDenied": _approval_denied,
    "SignalAccepted": _signal_accepted,
    "SignalProcessed": _signal_processed,
}
