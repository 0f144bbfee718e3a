"""Check a log against the NoETL event model.

One pass over the events in their order reports invalid names and envelopes, wrong emitters, effects before their
cause, and missing events. The checker is independent of the engine that wrote the log and requires nothing that the
model leaves open. Runs of plans are checked for names and causality; playbooks for everything the model requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from runwright.contract.noetl.rules import loops, steps, tasks
from runwright.contract.noetl.rules.envelope import CANONICAL, check_fields, check_semantics
from runwright.contract.noetl.rules.event import CheckedEvent, FindingCollector, NoetlFinding, number, parse_event, text
from runwright.contract.noetl.rules.execution import check_completeness, check_phase
from runwright.contract.noetl.rules.history import CheckedExecution
from runwright.contract.noetl.rules.lineage import check_entity, check_parent, check_source
from runwright.contract.noetl.rules.locate import EventLocation, locate_event

__all__ = ["CANONICAL", "InvalidLine", "NoetlChecker", "NoetlFinding"]

_RULES: dict[str, Callable[[FindingCollector, CheckedExecution, EventLocation, CheckedEvent], None]] = {
    "workflow.started": steps.on_workflow_started,
    "policy.admit.evaluated": steps.check_admitted,
    "step.scheduled": steps.check_scheduled,
    "step.started": steps.check_started,
    "step.done": steps.check_ended,
    "step.failed": steps.check_ended,
    "next.evaluated": steps.check_routed,
    "task.started": tasks.check_started,
    "task.attempt.started": tasks.check_attempt_started,
    "task.attempt.done": tasks.check_attempt_ended,
    "task.attempt.failed": tasks.check_attempt_ended,
    "policy.task.evaluated": tasks.check_policy,
    "task.done": tasks.check_ended,
    "task.failed": tasks.check_ended,
    "loop.started": loops.check_loop_started,
    "loop.iteration.scheduled": loops.check_iteration_scheduled,
    "loop.iteration.started": loops.check_iteration_started,
    "loop.iteration.done": loops.check_iteration_ended,
    "loop.iteration.failed": loops.check_iteration_ended,
    "loop.done": loops.check_loop_done,
    "result.stored": tasks.check_result_stored,
    "result.manifest.updated": tasks.check_result,
}


class InvalidLine(msgspec.Struct, frozen=True):
    """A line of a log that is not JSON."""

    line: int
    reason: str


class NoetlChecker:
    def __init__(self) -> None:
        self._findings = FindingCollector()
        self._executions: dict[str, CheckedExecution] = {}

    def check(self, events: Iterable[Any]) -> list[NoetlFinding]:
        """Check decoded events, or `InvalidLine` where decoding failed; return all findings."""
        for position, event in enumerate(events, 1):
            self._check_event(position, event)
        self._findings.set_event(None, None)
        for execution in self._executions.values():
            check_completeness(self._findings, execution)
        return self._findings.findings

    def _check_event(self, position: int, decoded: Any) -> None:
        findings = self._findings
        if isinstance(decoded, InvalidLine):
            findings.set_event(None, None)
            findings.add("NOT_JSON", f"Line {decoded.line} is not JSON: {decoded.reason}.")
            return
        if not isinstance(decoded, dict):
            findings.set_event(None, position)
            findings.add("ENVELOPE", "An event must be an object.")
            return
        document = cast("dict[str, Any]", decoded)
        findings.set_event(text(document, "event_id"), number(document, "seq", 0))
        check_fields(findings, document)
        event = parse_event(document)
        if event is None:
            return
        execution = self._executions.get(event.execution_id)
        if execution is None:
            execution = self._executions[event.execution_id] = CheckedExecution(event.execution_id)
        if event.event_id in execution.event_ids:
            findings.add("DUPLICATE_EVENT", f"Duplicate event_id {event.event_id}.")
            return
        execution.event_ids.add(event.event_id)
        check_semantics(findings, event, document)
        self._apply_rules(execution, event)

    def _apply_rules(self, execution: CheckedExecution, event: CheckedEvent) -> None:
        findings = self._findings
        if event.seq is not None:
            if event.seq <= execution.seq:
                findings.add("SEQUENCE", f"seq {event.seq} must be greater than {execution.seq}.")
            execution.seq = max(execution.seq, event.seq)
        check_phase(findings, execution, event)
        execution.event_counts[event.name] += 1
        if event.family == "workflow" and event.entity_id is not None:
            execution.workflow_ids |= {event.entity_id, f"workflow:{event.entity_id}"}
        location = locate_event(execution, event)
        check_source(findings, location, event)
        check_entity(findings, execution, location, event)
        loops.check_iteration_ids(findings, location.iteration, event)
        rule = _RULES.get(event.name)
        if rule is not None:
            rule(findings, execution, location, event)
        check_parent(findings, self._executions, execution, location, event)
