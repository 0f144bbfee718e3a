"""Whether a log in the words of the NoETL event model is one that the model allows.

Goes through the events once, in their order, and tells everything that is wrong: names, envelopes, who emitted what,
what came before its cause, what is missing. It knows nothing of the engine that wrote them, and needs nothing that the
model leaves open. Runs of plans are held to names and causes; playbooks to all that the model asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from .noetl_rules import loop as loops
from .noetl_rules import step as steps
from .noetl_rules import task as tasks
from .noetl_rules.findings import Findings, NoetlFinding
from .noetl_rules.kin import check_entity, check_parent, check_source
from .noetl_rules.place import Place, place_of
from .noetl_rules.run import close, take_station
from .noetl_rules.said import Said, number, read_said, text
from .noetl_rules.story import Execution
from .noetl_rules.words import CANONICAL, check_fields, check_words

__all__ = ["CANONICAL", "NoetlChecker", "NoetlFinding", "Unreadable"]

_RULES: dict[str, Callable[[Findings, Execution, Place, Said], None]] = {
    "workflow.started": steps.workflow_started,
    "policy.admit.evaluated": steps.admitted,
    "step.scheduled": steps.scheduled,
    "step.started": steps.started,
    "step.done": steps.ended,
    "step.failed": steps.ended,
    "next.evaluated": steps.routed,
    "task.started": tasks.started,
    "task.attempt.started": tasks.attempt_started,
    "task.attempt.done": tasks.attempt_ended,
    "task.attempt.failed": tasks.attempt_ended,
    "policy.task.evaluated": tasks.judged,
    "task.done": tasks.ended,
    "task.failed": tasks.ended,
    "loop.started": loops.loop_started,
    "loop.iteration.scheduled": loops.iteration_scheduled,
    "loop.iteration.started": loops.iteration_started,
    "loop.iteration.done": loops.iteration_ended,
    "loop.iteration.failed": loops.iteration_ended,
    "loop.done": loops.loop_done,
    "result.stored": tasks.result_stored,
    "result.manifest.updated": tasks.result_of,
}


class Unreadable(msgspec.Struct, frozen=True):
    """What stands in a log where an event should, and is no JSON."""

    line: int
    why: str


class NoetlChecker:
    def __init__(self) -> None:
        self._findings = Findings()
        self._runs: dict[str, Execution] = {}

    def check(self, events: Iterable[Any]) -> list[NoetlFinding]:
        for place, event in enumerate(events, 1):
            self._look(place, event)
        self._findings.turn_to(None, None)
        for run in self._runs.values():
            close(self._findings, run)
        return self._findings.told

    def _look(self, place: int, given: Any) -> None:
        findings = self._findings
        if isinstance(given, Unreadable):
            findings.turn_to(None, None)
            findings.tell("NOT_JSON", f"Line {given.line} is not JSON: {given.why}.")
            return
        if not isinstance(given, dict):
            findings.turn_to(None, place)
            findings.tell("ENVELOPE", "An event is an object.")
            return
        event = cast("dict[str, Any]", given)
        findings.turn_to(text(event, "event_id"), number(event, "seq", 0))
        check_fields(findings, event)
        said = read_said(event)
        if said is None:
            return
        run = self._runs.get(said.execution_id)
        if run is None:
            run = self._runs[said.execution_id] = Execution(said.execution_id)
        if said.event_id in run.event_ids:
            findings.tell("DUPLICATE_EVENT", f"The id {said.event_id} is there twice.")
            return
        run.event_ids.add(said.event_id)
        check_words(findings, said, event)
        self._judge(run, said)

    def _judge(self, run: Execution, said: Said) -> None:
        findings = self._findings
        if said.seq is not None:
            if said.seq <= run.seq:
                findings.tell("SEQUENCE", f"seq {said.seq} does not follow {run.seq}.")
            run.seq = max(run.seq, said.seq)
        take_station(findings, run, said)
        run.seen[said.name] += 1
        if said.family == "workflow" and said.entity_id is not None:
            run.workflow_ids |= {said.entity_id, f"workflow:{said.entity_id}"}
        place = place_of(run, said)
        check_source(findings, place, said)
        check_entity(findings, run, place, said)
        loops.check_iteration(findings, place.round, said)
        rule = _RULES.get(said.name)
        if rule is not None:
            rule(findings, run, place, said)
        check_parent(findings, self._runs, run, place, said)
