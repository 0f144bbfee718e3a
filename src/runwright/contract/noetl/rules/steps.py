"""Rules for steps: a visit is admitted, scheduled with a token, started, ended and routed, each once in this order."""

from __future__ import annotations

from typing import Any, cast

from .event import CheckedEvent, FindingCollector, mapping
from .history import CheckedExecution, CheckedVisit
from .locate import EventLocation


def on_workflow_started(
    _findings: FindingCollector, execution: CheckedExecution, _location: EventLocation, event: CheckedEvent
) -> None:
    """Add the first token: at the declared entry step, otherwise at the step that is scheduled first."""
    entry = event.meta.get("entry")
    if isinstance(entry, str):
        execution.max_tokens[entry] += 1
        execution.min_tokens[entry] += 1
    else:
        execution.has_unassigned_token = True


def check_admitted(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    allow = event.payload.get("allow")
    if "allow" in event.payload and not isinstance(allow, bool):
        findings.add("PAYLOAD", "`allow` of policy.admit.evaluated must be true or false.")
    elif "allow" not in event.payload:
        sentence = "policy.admit.evaluated has no `allow`."
        findings.add("PAYLOAD", sentence, warning=not event.payload)
    visit = location.visit
    if visit is None:
        return
    if visit.is_scheduled:
        findings.add("ADMITTED_LATE", "The step was admitted after it had been scheduled.")
    visit.is_admitted = allow is not False
    if visit.name is None:
        return
    if allow is False:
        execution.denied_steps.add(visit.name)
    has_token = execution.max_tokens[visit.name] or execution.has_unassigned_token
    if not has_token and not _is_idle(execution, visit, visit.name):
        findings.add("NO_TOKEN", f"Admission of {visit.name} was evaluated without an unused token for it.")


def check_scheduled(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    visit = location.visit
    if visit is None:
        execution.has_unnamed_steps = True
        return
    if visit.is_scheduled and (execution.is_playbook or visit.end_event is None):
        findings.add("SCHEDULED_TWICE", "This step run was already scheduled.")
    visit.is_scheduled = True
    if not execution.is_playbook:
        return
    if not visit.is_admitted:
        findings.add("NOT_ADMITTED", "The step was scheduled without an admission.")
    _consume_tokens(findings, execution, visit, event)
    execution.open_visits[visit] = None


def _consume_tokens(
    findings: FindingCollector, execution: CheckedExecution, visit: CheckedVisit, event: CheckedEvent
) -> None:
    """Consume the tokens of a visit, which may be several. If the event has no count, it may be all of them."""
    name = event.entity_id
    if name is None:
        execution.has_unnamed_steps = True
        return
    declared = _declared_tokens(findings, event)
    available, consumed = execution.max_tokens[name], max(1, declared or 1)
    if available == 0 and execution.has_unassigned_token:
        execution.has_unassigned_token = False
    elif available < consumed and not _is_final_step(execution, visit, name, event):
        findings.add("NO_TOKEN", f"{name} was scheduled without an unused token for it.")
    execution.max_tokens[name] = max(0, available - consumed)
    execution.min_tokens[name] = 0 if declared is None else max(0, execution.min_tokens[name] - consumed)
    execution.denied_steps.discard(name)


def _declared_tokens(findings: FindingCollector, event: CheckedEvent) -> int | None:
    tokens, final = event.meta.get("tokens"), event.meta.get("final")
    if tokens is None:
        return None
    if type(tokens) is not int or tokens < (0 if final is True else 1):
        findings.add("PAYLOAD", "`tokens` of step.scheduled must be the number of consumed tokens, at least 1.")
        return None
    return tokens


def _is_final_step(execution: CheckedExecution, visit: CheckedVisit, name: str, event: CheckedEvent) -> bool:
    """Whether the visit can be that of the playbook's final step, which needs no token.

    It runs once, when the playbook is idle. In a log that counts tokens, the event is marked `final`.
    """
    if "tokens" in event.meta and event.meta.get("final") is not True:
        return False
    if not _is_idle(execution, visit, name):
        return False
    execution.final_visit = visit
    return True


def _is_idle(execution: CheckedExecution, visit: CheckedVisit, name: str) -> bool:
    """Whether no other visit is open, no other step has an unused token, and the final step has not run."""
    if execution.final_visit is not None or any(other is not visit for other in execution.open_visits):
        return False
    return not any(unused > 0 and other != name for other, unused in execution.min_tokens.items())


def check_started(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    visit = location.visit
    if visit is None:
        return
    if execution.is_playbook and not visit.is_scheduled:
        findings.add("NOT_SCHEDULED", "The step started without being scheduled by the server.")
    if visit.is_started and (execution.is_playbook or visit.end_event is None):
        findings.add("STARTED_TWICE", "This step run was already started.")
    visit.is_started, visit.end_event = True, None
    if event.source == "server":
        visit.server_start_event = event
    if execution.is_playbook:
        execution.open_visits[visit] = None


def check_ended(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    visit = location.visit
    if visit is None:
        return
    if not visit.is_started:
        findings.add("NOT_STARTED", "The step ended but was never started.")
    if visit.end_event is not None:
        findings.add("ENDED_TWICE", f"This step run had already ended with {visit.end_event.name}.")
    visit.end_event = event
    if execution.is_playbook:
        _check_pipeline(findings, visit, event)
    if visit.loop is not None and visit.loop.state != "done":
        findings.add("LOOP_OPEN", "The step ended while its loop was still running.")
    _close_if_over(execution, visit)


def _check_pipeline(findings: FindingCollector, visit: CheckedVisit, event: CheckedEvent) -> None:
    if visit.pipeline.is_open:
        findings.add("TASK_OPEN", "The step ended while one of its tasks was still running.")
    if event.name == "step.failed":
        return
    if (loop := visit.loop) is not None:
        if loop.ended_count < loop.expected_count and not loop.is_ambiguous:
            sentence = f"The step succeeded when {loop.ended_count} of {loop.expected_count} iterations had ended."
            findings.add("LOOP_OPEN", sentence)
    elif visit.pipeline.is_failed:
        findings.add("OUTCOME", "The step succeeded although its last task failed.")
    elif visit.pipeline.has_pending_jump:
        findings.add("ACTION", "The step succeeded although its last policy action was a jump to another task.")


def _close_if_over(execution: CheckedExecution, visit: CheckedVisit) -> None:
    if visit.is_over:
        execution.open_visits.pop(visit, None)


def check_routed(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    visit = location.visit
    if visit is not None:
        if not visit.may_route:
            findings.add("ROUTED_EARLY", "Arcs were evaluated before the step or its loop had ended.")
        if visit.is_routed:
            findings.add("ROUTED_TWICE", "The arcs of this step run were already evaluated.")
        visit.is_routed = True
        _close_if_over(execution, visit)
    for name in _check_arcs(findings, event):
        execution.max_tokens[name] += 1
        execution.min_tokens[name] += 1


def _check_arcs(findings: FindingCollector, event: CheckedEvent) -> list[str]:
    """Check the arcs of next.evaluated; return the selected steps."""
    mode, payload = event.payload.get("mode"), event.payload
    matched = _steps_in(findings, payload, "matched")
    selected = _steps_in(findings, payload, "selected")
    if mode not in ("exclusive", "inclusive"):
        findings.add("PAYLOAD", "`mode` of next.evaluated must be exclusive or inclusive.")
    if mode == "exclusive" and len(selected) > 1:
        findings.add("PAYLOAD", "An exclusive next.evaluated must select at most one arc.")
    if not set(selected) <= set(matched):
        findings.add("PAYLOAD", "next.evaluated must not select an arc that did not match.")
    elif payload.get("error") is None and matched and not selected:
        findings.add("PAYLOAD", "next.evaluated must select an arc if one matched.")
    elif payload.get("error") is None and mode == "inclusive" and len(selected) != len(matched):
        findings.add("PAYLOAD", "An inclusive next.evaluated must select every arc that matched.")
    return selected


def _steps_in(findings: FindingCollector, payload: dict[str, Any], field: str) -> list[str]:
    value = payload.get(field)
    arcs = cast("list[Any]", value) if isinstance(value, list) else []
    names = [name for arc in arcs if isinstance(name := mapping(arc).get("step"), str)]
    if not isinstance(value, list) or len(names) != len(arcs):
        findings.add("PAYLOAD", f"`{field}` of next.evaluated must be a list of arcs, each with its `step`.")
    return names
