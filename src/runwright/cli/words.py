"""Events in words: one plain line each, for logs and pipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runwright.contract.events import RunEventRecord
from runwright.contract.plan import ExecutionPlan

from .render import clock_time, duration, plain, plural

Payload = dict[str, Any]


class Narrator:
    """Knows the plan, so that it can say `attempt 2 of 3`."""

    def __init__(self, plan: ExecutionPlan | None) -> None:
        steps = () if plan is None else plan.steps
        self._most = {step.step_id: step.retry.max_attempts for step in steps if step.retry.max_attempts > 1}
        self._loops = {step.step_id for step in steps if step.foreach is not None}  # their iterations are retried

    def line(self, record: RunEventRecord, *, named: bool = False) -> str:
        """`named`: say also which run this is about."""
        run = f"{record.run_id}  " if named else ""
        return plain(f"{clock_time(record.emitted_at)}  {run}{self.sentence(record)}")

    def sentence(self, record: RunEventRecord) -> str:
        words = _WORDS.get(record.event_type)
        payload = record.payload or {}
        if words is None:
            return f"{self._subject(record)}: {record.event_type}"
        try:
            return words(self._subject(record), payload, record)
        except (AttributeError, KeyError, TypeError, ValueError):  # a payload from elsewhere may hold anything
            return f"{self._subject(record)}: {record.event_type}"

    def _subject(self, record: RunEventRecord) -> str:
        if record.step_id is None:
            return f"run {record.run_id}"
        if record.step_id.startswith("signal/"):
            return f"signal {record.step_id.removeprefix('signal/')}"
        attempt = record.logical_attempt_id
        if "/" in record.step_id:  # a step's own name holds none
            return f"task {record.step_id}{'' if attempt == 1 else f' (attempt {attempt})'}"
        most = self._most.get(record.step_id.partition("[")[0].partition("~")[0])
        most = None if record.step_id in self._loops else most
        if record.event_type not in _WITH_ATTEMPT or (attempt == 1 and most is None):
            return f"step {record.step_id}"
        return f"step {record.step_id} (attempt {attempt}{'' if most is None else f' of {max(most, attempt)}'})"


_WITH_ATTEMPT = frozenset(
    ("StepStarted", "StepCompleted", "StepFailed", "LoopIterationStarted", "LoopIterationDone", "LoopIterationFailed")
)

Words = Callable[[str, Payload, RunEventRecord], str]


def _just(words: str) -> Words:
    return lambda who, _payload, _record: f"{who} {words}"


def _begun(words: str) -> Words:
    def begun(who: str, payload: Payload, _record: RunEventRecord) -> str:
        worker = payload.get("worker")
        return f"{who} {words} at {worker}" if worker else f"{who} {words}"

    return begun


def _scheduled(who: str, payload: Payload, _record: RunEventRecord) -> str:
    queue = payload.get("queue")
    return f"{who} waits for a worker of {queue}" if queue else f"{who} is to run"


def _took(payload: Payload) -> str:
    millis = payload.get("durationMs")
    return f" in {duration(float(millis))}" if isinstance(millis, (int, float)) else ""


def _error(payload: Payload) -> str:
    error: Payload = payload.get("error") or payload.get("rootCause") or {}
    said = " ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    cause: Payload = payload.get("rootCause") or {}
    where = f" in step {cause['stepId']}" if cause.get("stepId") else ""
    return f"{where}: {said}" if said else where


def _because(payload: Payload) -> str:
    reason = payload.get("reason")
    return f": {reason}" if reason else ""


def _ended(words: str) -> Words:
    return lambda who, payload, _record: f"{who} {words}{_took(payload)}"


def _failed(words: str) -> Words:
    return lambda who, payload, _record: f"{who} {words}{_took(payload)}{_error(payload)}"


def _steered(words: str) -> Words:
    return lambda who, payload, _record: f"{who} {words}{_because(payload)}"


def _queued(who: str, payload: Payload, record: RunEventRecord) -> str:
    origin = payload.get("originRunId")
    return f"{who} of plan {record.plan_id} was asked for" + (f", made from run {origin}" if origin else "")


def _skipped(who: str, payload: Payload, _record: RunEventRecord) -> str:
    return f"{who} skipped: {' '.join(filter(None, (payload.get('reasonCode'), payload.get('reason'))))}"


def _retry(who: str, payload: Payload, record: RunEventRecord) -> str:
    attempt = payload.get("attempt") or record.logical_attempt_id + 1
    return f"{who} will be tried again at {clock_time(payload.get('nextAttemptAt'))} (attempt {attempt})"


def _delayed(who: str, payload: Payload, _record: RunEventRecord) -> str:
    if payload.get("event"):
        key = f" with key {payload['key']}" if payload.get("key") else ""
        until = f" until {clock_time(payload['scheduledAt'])}" if payload.get("scheduledAt") else ""
        return f"{who} waits for the event {payload['event']}{key}{until}"
    return f"{who} waits until {clock_time(payload.get('scheduledAt'))}"


def _asks(who: str, payload: Payload, _record: RunEventRecord) -> str:
    names = ", ".join(payload.get("fields") or {})
    return f"{who} asks: {payload.get('prompt')}" + (f" (fields: {names})" if names else "")


def _answered(words: str) -> Words:
    def tell(who: str, payload: Payload, _record: RunEventRecord) -> str:
        by = f" by {payload['by']}" if payload.get("by") else ""
        return f"{who} {words}{by}{_because(payload)}"

    return tell


def _loop_started(who: str, payload: Payload, _record: RunEventRecord) -> str:
    carried = payload.get("carriedOver")
    before = f", {carried:,} of them done before" if carried else ""
    return f"{who} has {payload.get('total', 0):,} iterations{before}"


def _loop_done(who: str, payload: Payload, _record: RunEventRecord) -> str:
    done, failed = payload.get("done") or 0, payload.get("failed") or 0
    return f"{who} has gone through its iterations: {done:,} of {payload.get('total', 0):,} done, {failed:,} failed"


def _accepted(who: str, payload: Payload, _record: RunEventRecord) -> str:
    content: Payload = payload.get("payload") or {}
    step = content.get("stepId")
    about = f" for step {step}" if step else ""
    return f"{who}: {payload.get('signalType')}{about} accepted from {payload.get('actorId')}{_because(payload)}"


def _rejected(who: str, payload: Payload, _record: RunEventRecord) -> str:
    return f"{who}: {payload.get('signalType')} rejected: {payload.get('code')}{_because(payload)}"


def _processed(who: str, payload: Payload, _record: RunEventRecord) -> str:
    made = payload.get("newRunId")
    return f"{who}: {payload.get('signalType')} done, {payload.get('engineResult')}" + (f", run {made}" if made else "")


def _admitted(who: str, payload: Payload, _record: RunEventRecord) -> str:
    if payload.get("error"):
        return f"{who} could not be judged{_error(payload)}"
    return f"{who} was {'' if payload.get('allow') else 'not '}admitted"


def _policy(who: str, payload: Payload, _record: RunEventRecord) -> str:
    action: Payload = payload.get("action") or {}
    rule = payload.get("matched_rule_index")
    by = "no rule matched" if rule is None else f"rule {rule + 1}"
    to = f" to {action['to']}" if action.get("to") else ""
    at = f" at {clock_time(payload['next_attempt_at'])}" if payload.get("next_attempt_at") else ""
    return f"{who}: {action.get('do')}{to}{at} ({by})"


def _next(who: str, payload: Payload, _record: RunEventRecord) -> str:
    arcs: list[Payload] = payload.get("selected") or []
    names = ", ".join(str(arc.get("step")) for arc in arcs)
    return f"{who} leads to {names or 'nothing more'}{_error(payload)}"


def _task_failed(who: str, payload: Payload, _record: RunEventRecord) -> str:
    outcome: Payload = payload.get("outcome") or {}
    return f"{who} failed{_error(payload) or _error(outcome)}"


def _stored(who: str, payload: Payload, _record: RunEventRecord) -> str:
    ref: Payload = payload.get("result_ref") or {}
    meta: Payload = ref.get("meta") or {}
    return f"{who}: its result, {int(meta.get('bytes') or 0):,} bytes, is in the store {ref.get('store')}"


def _gathered(who: str, payload: Payload, _record: RunEventRecord) -> str:
    manifest: Payload = payload.get("result_ref") or {}
    name = manifest.get("name")
    parts, size = int(manifest.get("total_parts") or 0), int(manifest.get("total_bytes") or 0)
    return f"{who}: {f'{name} has' if name else 'its results are'} {plural(parts, 'part')}, {size:,} bytes"


_WORDS: dict[str, Words] = {
    "RunQueued": _queued,
    "AdmissionEvaluated": lambda who, payload, _record: f"{who}: {payload.get('decision')}",
    "WorkflowStarted": lambda _who, payload, _record: f"the playbook begins at step {payload['entry']}",
    "WorkflowFinished": lambda _who, _payload, _record: "nothing of the playbook is left to do",
    "RunProcessed": _just("closed its books"),
    "PolicyAdmitEvaluated": _admitted,
    "StepScheduled": _scheduled,
    "TaskStarted": _begun("began"),
    "TaskDone": _just("is done"),
    "TaskFailed": _task_failed,
    "TaskAttemptStarted": _begun("is tried"),
    "TaskAttemptDone": _just("went well"),
    "TaskAttemptFailed": _task_failed,
    "PolicyTaskEvaluated": _policy,
    "NextEvaluated": _next,
    "ResultStored": _stored,
    "ResultManifestUpdated": _gathered,
    "LoopIterationScheduled": _scheduled,
    "RunApproved": _just("approved"),
    "RunStarted": _just("started"),
    "RunPaused": _steered("paused"),
    "RunResumed": _steered("resumed"),
    "RunDrainTimedOut": _steered("is paused, but not all of it came to rest"),
    "RunParamsUpdated": _just("has new parameters"),
    "RunCompleted": _ended("completed"),
    "RunFailed": _failed("failed"),
    "RunCancelled": lambda who, payload, _record: f"{who} cancelled{_took(payload)}{_because(payload)}",
    "StepStarted": _begun("started"),
    "StepCompleted": _ended("completed"),
    "StepFailed": _failed("failed"),
    "StepSkipped": _skipped,
    "StepRetryScheduled": _retry,
    "StepDelayed": _delayed,
    "ApprovalRequested": _asks,
    "ApprovalGranted": _answered("was approved"),
    "ApprovalDenied": _answered("was not approved"),
    "StepOverridden": _just("has other inputs now"),
    "CheckpointWritten": _just("wrote a checkpoint"),
    "LoopStarted": _loop_started,
    "LoopDone": _loop_done,
    "LoopIterationStarted": _begun("started"),
    "LoopIterationDone": _ended("completed"),
    "LoopIterationFailed": _failed("failed"),
    "SignalAccepted": _accepted,
    "SignalRejected": _rejected,
    "SignalProcessed": _processed,
}
