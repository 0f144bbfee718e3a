"""One line of text per event, for logs and pipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runwright.cli.terminal.formatting import format_duration, format_time, plural, printable
from runwright.contract.events import RunEventRecord
from runwright.contract.plan import ExecutionPlan

Payload = dict[str, Any]


class EventFormatter:
    """Formats events. If the plan is known, the text includes the maximum of attempts: `attempt 2 of 3`."""

    def __init__(self, plan: ExecutionPlan | None) -> None:
        steps = () if plan is None else plan.steps
        self._max_attempts = {step.step_id: step.retry.max_attempts for step in steps if step.retry.max_attempts > 1}
        self._loops = {step.step_id for step in steps if step.foreach is not None}  # Their iterations are retried.

    def line(self, record: RunEventRecord, *, with_run_id: bool = False) -> str:
        run_id = f"{record.run_id}  " if with_run_id else ""
        return printable(f"{format_time(record.emitted_at)}  {run_id}{self.sentence(record)}")

    def sentence(self, record: RunEventRecord) -> str:
        formatter = _FORMATTERS.get(record.event_type)
        payload = record.payload or {}
        if formatter is None:
            return f"{self._subject(record)}: {record.event_type}"
        try:
            return formatter(self._subject(record), payload, record)
        except (AttributeError, KeyError, TypeError, ValueError):  # Payloads of other engines have any shape.
            return f"{self._subject(record)}: {record.event_type}"

    def _subject(self, record: RunEventRecord) -> str:
        if record.step_id is None:
            return f"run {record.run_id}"
        if record.step_id.startswith("signal/"):
            return f"signal {record.step_id.removeprefix('signal/')}"
        attempt = record.logical_attempt_id
        if "/" in record.step_id:  # Step names do not contain a slash.
            return f"task {record.step_id}{'' if attempt == 1 else f' (attempt {attempt})'}"
        max_attempts = self._max_attempts.get(record.step_id.partition("[")[0].partition("~")[0])
        max_attempts = None if record.step_id in self._loops else max_attempts
        if record.event_type not in _WITH_ATTEMPT or (attempt == 1 and max_attempts is None):
            return f"step {record.step_id}"
        limit = "" if max_attempts is None else f" of {max(max_attempts, attempt)}"
        return f"step {record.step_id} (attempt {attempt}{limit})"


_WITH_ATTEMPT = frozenset(
    ("StepStarted", "StepCompleted", "StepFailed", "LoopIterationStarted", "LoopIterationDone", "LoopIterationFailed")
)

Formatter = Callable[[str, Payload, RunEventRecord], str]
"""Formats an event, from its subject, its payload and the record."""


# Parts of a sentence


def _duration(payload: Payload) -> str:
    millis = payload.get("durationMs")
    return f" in {format_duration(float(millis))}" if isinstance(millis, (int, float)) else ""


def _error(payload: Payload) -> str:
    error: Payload = payload.get("error") or payload.get("rootCause") or {}
    text = " ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    cause: Payload = payload.get("rootCause") or {}
    step = f" in step {cause['stepId']}" if cause.get("stepId") else ""
    return f"{step}: {text}" if text else step


def _reason(payload: Payload) -> str:
    reason = payload.get("reason")
    return f": {reason}" if reason else ""


# Formatters for several event types


def _text(text: str) -> Formatter:
    return lambda subject, _payload, _record: f"{subject} {text}"


def _with_worker(text: str) -> Formatter:
    def format_event(subject: str, payload: Payload, _record: RunEventRecord) -> str:
        worker = payload.get("worker")
        return f"{subject} {text} on {worker}" if worker else f"{subject} {text}"

    return format_event


def _with_duration(text: str) -> Formatter:
    return lambda subject, payload, _record: f"{subject} {text}{_duration(payload)}"


def _with_error(text: str) -> Formatter:
    return lambda subject, payload, _record: f"{subject} {text}{_duration(payload)}{_error(payload)}"


def _with_reason(text: str) -> Formatter:
    return lambda subject, payload, _record: f"{subject} {text}{_reason(payload)}"


def _with_actor(text: str) -> Formatter:
    def format_event(subject: str, payload: Payload, _record: RunEventRecord) -> str:
        actor = f" by {payload['by']}" if payload.get("by") else ""
        return f"{subject} {text}{actor}{_reason(payload)}"

    return format_event


# Formatters for one event type


def _scheduled(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    queue = payload.get("queue")
    return f"{subject} waits for a worker on queue {queue}" if queue else f"{subject} scheduled"


def _queued(subject: str, payload: Payload, record: RunEventRecord) -> str:
    origin = payload.get("originRunId")
    return f"{subject} of plan {record.plan_id} queued" + (f", rerun of {origin}" if origin else "")


def _skipped(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    return f"{subject} skipped: {' '.join(filter(None, (payload.get('reasonCode'), payload.get('reason'))))}"


def _retry_scheduled(subject: str, payload: Payload, record: RunEventRecord) -> str:
    attempt = payload.get("attempt") or record.logical_attempt_id + 1
    return f"{subject} retries at {format_time(payload.get('nextAttemptAt'))} (attempt {attempt})"


def _delayed(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    if payload.get("event"):
        key = f" with key {payload['key']}" if payload.get("key") else ""
        until = f" until {format_time(payload['scheduledAt'])}" if payload.get("scheduledAt") else ""
        return f"{subject} waits for event {payload['event']}{key}{until}"
    return f"{subject} waits until {format_time(payload.get('scheduledAt'))}"


def _approval_requested(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    fields = ", ".join(payload.get("fields") or {})
    return f"{subject} requests approval: {payload.get('prompt')}" + (f" (fields: {fields})" if fields else "")


def _child_run(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    return f"{subject} is the run {payload.get('childRunId')}"


def _loop_started(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    reused = payload.get("carriedOver")
    return f"{subject} has {payload.get('total', 0):,} iterations" + (f", {reused:,} of them reused" if reused else "")


def _loop_done(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    done, failed = payload.get("done") or 0, payload.get("failed") or 0
    return f"{subject} finished its iterations: {done:,} of {payload.get('total', 0):,} done, {failed:,} failed"


def _accepted(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    content: Payload = payload.get("payload") or {}
    step = f" for step {content['stepId']}" if content.get("stepId") else ""
    return f"{subject}: {payload.get('signalType')}{step} accepted from {payload.get('actorId')}{_reason(payload)}"


def _rejected(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    return f"{subject}: {payload.get('signalType')} rejected: {payload.get('code')}{_reason(payload)}"


def _processed(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    new_run = f", run {payload['newRunId']}" if payload.get("newRunId") else ""
    return f"{subject}: {payload.get('signalType')} processed, {payload.get('engineResult')}{new_run}"


def _admission(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    if payload.get("error"):
        return f"{subject} admission failed{_error(payload)}"
    return f"{subject} {'' if payload.get('allow') else 'not '}admitted"


def _task_policy(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    action: Payload = payload.get("action") or {}
    index = payload.get("matched_rule_index")
    rule = "no rule matched" if index is None else f"rule {index + 1}"
    to = f" to {action['to']}" if action.get("to") else ""
    at = f" at {format_time(payload['next_attempt_at'])}" if payload.get("next_attempt_at") else ""
    return f"{subject}: {action.get('do')}{to}{at} ({rule})"


def _next_steps(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    arcs: list[Payload] = payload.get("selected") or []
    names = ", ".join(str(arc.get("step")) for arc in arcs)
    return f"{subject} next: {names or 'none'}{_error(payload)}"


def _task_failed(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    outcome: Payload = payload.get("outcome") or {}
    return f"{subject} failed{_error(payload) or _error(outcome)}"


def _result_stored(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    ref: Payload = payload.get("result_ref") or {}
    meta: Payload = ref.get("meta") or {}
    return f"{subject}: result of {int(meta.get('bytes') or 0):,} bytes stored in {ref.get('store')}"


def _manifest_updated(subject: str, payload: Payload, _record: RunEventRecord) -> str:
    manifest: Payload = payload.get("result_ref") or {}
    name = manifest.get("name") or "result manifest"
    parts, size = int(manifest.get("total_parts") or 0), int(manifest.get("total_bytes") or 0)
    return f"{subject}: {name} has {plural(parts, 'part')}, {size:,} bytes"


_FORMATTERS: dict[str, Formatter] = {
    "RunQueued": _queued,
    "AdmissionEvaluated": lambda subject, payload, _record: f"{subject}: {payload.get('decision')}",
    "WorkflowStarted": lambda _subject, payload, _record: f"playbook started at step {payload['entry']}",
    "WorkflowFinished": lambda _subject, _payload, _record: "playbook finished",
    "RunProcessed": _text("processed"),
    "PolicyAdmitEvaluated": _admission,
    "StepScheduled": _scheduled,
    "TaskStarted": _with_worker("started"),
    "TaskDone": _text("completed"),
    "TaskFailed": _task_failed,
    "TaskAttemptStarted": _with_worker("attempt started"),
    "TaskAttemptDone": _text("attempt completed"),
    "TaskAttemptFailed": _task_failed,
    "PolicyTaskEvaluated": _task_policy,
    "NextEvaluated": _next_steps,
    "ResultStored": _result_stored,
    "ResultManifestUpdated": _manifest_updated,
    "LoopIterationScheduled": _scheduled,
    "RunApproved": _text("approved"),
    "RunStarted": _text("started"),
    "RunPaused": _with_reason("paused"),
    "RunResumed": _with_reason("resumed"),
    "RunDrainTimedOut": _with_reason("paused, but draining timed out"),
    "RunParamsUpdated": _text("parameters updated"),
    "RunCompleted": _with_duration("completed"),
    "RunFailed": _with_error("failed"),
    "RunCancelled": lambda subject, payload, _record: f"{subject} cancelled{_duration(payload)}{_reason(payload)}",
    "StepStarted": _with_worker("started"),
    "StepCompleted": _with_duration("completed"),
    "StepFailed": _with_error("failed"),
    "StepSkipped": _skipped,
    "StepRetryScheduled": _retry_scheduled,
    "StepDelayed": _delayed,
    "ApprovalRequested": _approval_requested,
    "ApprovalGranted": _with_actor("approved"),
    "ApprovalDenied": _with_actor("denied"),
    "StepOverridden": _text("inputs overridden"),
    "ChildRunInitiated": _child_run,
    "CheckpointWritten": _text("wrote a checkpoint"),
    "LoopStarted": _loop_started,
    "LoopDone": _loop_done,
    "LoopIterationStarted": _with_worker("started"),
    "LoopIterationDone": _with_duration("completed"),
    "LoopIterationFailed": _with_error("failed"),
    "SignalAccepted": _accepted,
    "SignalRejected": _rejected,
    "SignalProcessed": _processed,
}
