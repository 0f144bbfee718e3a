"""Rules for tasks: they run in order, each attempt has a policy evaluation, and its action decides what follows."""

from __future__ import annotations

from .event import STOP_CODES, CheckedEvent, FindingCollector
from .history import CheckedExecution, CheckedPipeline, CheckedTask
from .locate import EventLocation, task_label

_ACTIONS = ("retry", "jump", "continue", "break", "fail")


def check_started(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    visit, pipeline = location.visit, location.pipeline
    if location.is_ambiguous and event.entity_id is not None:
        execution.ambiguous_tasks.add(event.entity_id)
    if visit is None or pipeline is None or location.is_ambiguous:
        return
    if not visit.is_running:
        findings.add("TASK_OUTSIDE", "The task started outside of a running step.")
    if location.iteration is not None and location.iteration.state != "started":
        findings.add("TASK_OUTSIDE", "The task started outside of a running iteration.")
    if location.task is not None:
        findings.add("STARTED_TWICE", "This task run was already started.")
        return
    if not location.lacks_iteration:
        _check_task_order(findings, pipeline, event)
    _check_attempt(findings, 1, event)
    if visit.loop is None and visit.server_start_event is not None:
        sentence = "The server may not start a step that a worker executes."
        findings.add("EMISSION_RIGHT", sentence, about=visit.server_start_event)
        visit.server_start_event = None
    _start_task(execution, location, pipeline, event)


def _start_task(
    execution: CheckedExecution, location: EventLocation, pipeline: CheckedPipeline, event: CheckedEvent
) -> None:
    label, index = event.entity_id, None if location.iteration is None else location.iteration.index
    key = event.task_run_id or f"{label}#{len(pipeline.tasks) + 1}"
    task = pipeline.tasks[key] = pipeline.current = CheckedTask(key, label, index)
    pipeline.running_tasks += 1
    if label is not None:
        pipeline.by_label[label] = task
    execution.add_open_task(task)


def _check_task_order(findings: FindingCollector, pipeline: CheckedPipeline, event: CheckedEvent) -> None:
    """Check that the pipeline may continue with this task."""
    last = pipeline.current
    if last is None:
        return
    if last.end is None:
        findings.add("TASK_ORDER", "The task started while another task of its pipeline was still running.")
    elif pipeline.is_failed:
        findings.add("TASK_ORDER", "The task started after a failed task had ended its pipeline.")
    elif last.action == "break":
        findings.add("TASK_ORDER", "The task started after a policy had ended its pipeline with break.")
    elif last.action == "jump" and last.policy_event is not None:
        target = last.policy_event.part("action").get("to")
        if isinstance(target, str) and event.entity_id is not None and target != event.entity_id:
            findings.add("ACTION", f"The policy action was a jump to {target}, but {event.entity_id} started.")


def check_attempt_started(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    if (task := _running_task(findings, location, "The attempt started, but its task is not running.")) is None:
        return
    number = event.attempt or task.attempts + 1
    limit = None if task.policy_event is None else task.policy_event.part("action").get("attempts")
    if number != task.attempts + 1 or task.last_attempt == "started":
        findings.add("ATTEMPT_ORDER", f"Attempt {number} does not follow attempt {task.attempts}.")
    elif task.policy_event is not None and task.action != "retry":
        findings.add("ACTION", f"The policy action was {task.action}, but the task was retried.")
    elif type(limit) is int and number > limit:
        findings.add("ACTION", f"The policy allows {limit} attempts; this is attempt {number}.")
    elif task.is_awaiting_policy:
        execution.events_without_policy.append(event)
    task.attempts, task.last_attempt, task.policy_event, task.action = number, "started", None, None


def check_attempt_ended(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    if (task := _running_task(findings, location, "The attempt ended, but its task is not running.")) is None:
        return
    if task.last_attempt != "started" or (event.attempt or task.attempts) != task.attempts:
        findings.add("ATTEMPT_ORDER", "The attempt ended but was not running.")
    task.last_attempt = event.verb
    _record_result_ref(execution, event)


def check_policy(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    action = event.part("action").get("do")
    _check_action(findings, event, action)
    task = location.task
    if location.is_ambiguous or task_label(event) in execution.ambiguous_tasks:
        return
    if task is None:
        if location.visit is not None or event.task_run_id is not None or event.parent_id is not None:
            findings.add("POLICY_ORDER", "A policy was evaluated for a task that is not running.")
        return
    if task.end is not None:
        findings.add("POLICY_ORDER", "A policy was evaluated after its task had ended.")
        return
    if task.policy_event is not None or task.last_attempt == "started":
        findings.add("POLICY_ORDER", "A policy was evaluated without an outcome.")
    _check_attempt(findings, max(1, task.attempts), event)
    task.policy_event, task.action = event, action if isinstance(action, str) else None


def _check_action(findings: FindingCollector, event: CheckedEvent, action: object) -> None:
    index = event.payload.get("matched_rule_index")
    if action not in _ACTIONS:
        sentence = f"`action.do` of policy.task.evaluated must be one of {', '.join(_ACTIONS)}."
        findings.add("PAYLOAD", sentence, warning=not event.payload)
    elif action == "jump" and not isinstance(event.part("action").get("to"), str):
        findings.add("PAYLOAD", "A jump must name its target task in `action.to`.")
    if index is not None and (type(index) is not int or index < 0):
        findings.add("PAYLOAD", "`matched_rule_index` must be the index of a rule, from 0, or null.")


def check_ended(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    if location.visit is None or location.is_ambiguous:
        return
    task = location.task
    if task is None:
        findings.add("NOT_STARTED", "The task ended but was never started.")
        return
    if task.end is not None:
        findings.add("ENDED_TWICE", "This task run had already ended.")
        return
    _check_attempt(findings, max(1, task.attempts), event)
    if event.name == "task.done":
        _check_done(findings, task)
    if task.is_awaiting_policy and not (event.verb == "failed" and STOP_CODES & event.error_codes):
        execution.events_without_policy.append(event)
    _check_outcome(findings, task, event)
    task.end = event.verb
    execution.remove_open_task(task)
    if location.pipeline is not None:
        location.pipeline.running_tasks -= 1
    _record_result_ref(execution, event)


def _check_done(findings: FindingCollector, task: CheckedTask) -> None:
    if task.last_attempt == "started":
        findings.add("ATTEMPT_ORDER", "The task ended while an attempt was still running.")
    if task.action in ("retry", "fail"):
        findings.add("ACTION", f"The policy action was {task.action}, but the task succeeded.")


def _check_outcome(findings: FindingCollector, task: CheckedTask, event: CheckedEvent) -> None:
    """Check the outcome: only a policy may turn an error into a success, or a success into a failure."""
    if event.outcome is None or task.is_awaiting_policy:
        return
    last = {"done": True, "failed": False}.get(task.last_attempt or "")
    if task.last_attempt == "started" and event.outcome is False:
        return  # the running attempt was stopped
    if last is not None and last is not event.outcome:
        findings.add("OUTCOME", f"The outcome of {event.name} differs from that of the last attempt.")
    elif task.policy_event is None and event.outcome is not (event.verb == "done"):
        findings.add("OUTCOME", f"The outcome of {event.name} contradicts the event, and no policy was evaluated.")


def _check_attempt(findings: FindingCollector, expected: int, event: CheckedEvent) -> None:
    if event.attempt is not None and event.attempt != expected:
        findings.add(
            "ATTEMPT_ORDER", f"`attempt` of {event.name} is {event.attempt}, but the current attempt is {expected}."
        )


def _running_task(findings: FindingCollector, location: EventLocation, sentence: str) -> CheckedTask | None:
    if location.visit is None or location.is_ambiguous:
        return None
    if location.task is None or location.task.end is not None:
        findings.add("NOT_STARTED", sentence)
        return None
    return location.task


# Results


def _record_result_ref(execution: CheckedExecution, event: CheckedEvent) -> None:
    ref = event.part("result_ref").get("ref")
    if isinstance(ref, str):
        execution.referenced_results.add(ref)


def check_result_stored(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    address = event.part("result_ref").get("ref")
    if not isinstance(address, str) or not address:
        findings.add("PAYLOAD", "result.stored must have a `result_ref` with a `ref`.")
    if isinstance(address, str) and address in execution.referenced_results:
        findings.add("RESULT_ORDER", "The result was stored after an event that refers to it.")
    check_result(findings, execution, location, event)


def check_result(
    findings: FindingCollector, _execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    """Check that the step run, iteration, task run and attempt of a result are known."""
    if event.step_run_id is not None and location.visit is None:
        findings.add("ID_UNKNOWN", f"Unknown step run {event.step_run_id!r}.")
    elif location.iteration is not None and location.iteration.state is None:
        findings.add("ID_UNKNOWN", "Unknown iteration.")
    elif event.task_run_id is not None and location.visit is not None and location.task is None:
        findings.add("ID_UNKNOWN", f"Unknown task run {event.task_run_id!r}.")
    elif location.task is not None and event.attempt is not None and event.attempt > max(1, location.task.attempts):
        findings.add("ATTEMPT_ORDER", f"The result belongs to attempt {event.attempt}, which has not started.")
