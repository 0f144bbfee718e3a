"""Whether a log in the words of the NoETL event model is one that the model allows.

Goes through the events once, in their order, and tells everything that is wrong: names, envelopes, who emitted what,
what came before its cause, what is missing. It knows nothing of the engine that wrote them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from .catalog import CATALOG, Role
from .envelope import LEGACY
from .noetl import ENTITIES, NAME, STATUSES
from .timestamps import is_utc

_ROLES: dict[str, Role] = {kind.dotted: kind.role for kind in CATALOG.values()}
CANONICAL = frozenset(_ROLES)


class NoetlFinding(msgspec.Struct, frozen=True):
    code: str
    sentence: str
    event_id: str | None = None
    seq: int | None = None
    is_warning: bool = False


class _Step(msgspec.Struct):
    """One run of a step."""

    scheduled: bool = False
    started: bool = False
    ended: str | None = None
    routed: bool = False
    admitted: bool = False
    loop: str | None = None  # started, done
    iterations: dict[str, str] = {}  # scheduled, started, ended
    tasks: dict[str, str] = {}  # by iteration and run: started, ended
    attempts: dict[str, list[str]] = {}  # how the tries of a task stand


class _Run(msgspec.Struct):
    ids: set[str] = set()
    seq: int = 0
    root: bool = False
    ended: bool = False
    seen: Counter[str] = msgspec.field(default_factory=Counter[str])
    steps: dict[str, _Step] = {}
    tokens: Counter[str] = msgspec.field(default_factory=Counter[str])
    known: set[str] = set()  # ids that others may have as parents
    routed: bool = False  # whether arcs put tokens onto steps


class NoetlChecker:
    def __init__(self) -> None:
        self.findings: list[NoetlFinding] = []
        self._runs: dict[str, _Run] = {}
        self._event: dict[str, Any] = {}
        self._handlers: dict[str, Callable[[_Run, _Step, dict[str, Any]], None]] = {
            "policy.admit.evaluated": self._admitted,
            "step.scheduled": self._scheduled,
            "step.started": self._step_started,
            "step.done": self._step_ended,
            "step.failed": self._step_ended,
            "task.started": self._task_started,
            "task.done": self._task_ended,
            "task.failed": self._task_ended,
            "task.attempt.started": self._attempt_started,
            "task.attempt.done": self._attempt_ended,
            "task.attempt.failed": self._attempt_ended,
            "policy.task.evaluated": self._judged,
            "loop.started": self._loop_started,
            "loop.iteration.scheduled": self._iteration,
            "loop.iteration.started": self._iteration,
            "loop.iteration.done": self._iteration,
            "loop.iteration.failed": self._iteration,
            "loop.done": self._loop_done,
            "next.evaluated": self._next,
        }

    def check(self, events: Iterable[Any]) -> list[NoetlFinding]:
        for number, event in enumerate(events, 1):
            self._look(number, event)
        for name, run in self._runs.items():
            self._close(name, run)
        return self.findings

    def _tell(self, code: str, sentence: str, *, warning: bool = False) -> None:
        event_id, seq = self._event.get("event_id"), self._event.get("seq")
        self.findings.append(
            NoetlFinding(
                code,
                sentence,
                event_id if isinstance(event_id, str) else None,
                seq if isinstance(seq, int) else None,
                warning,
            )
        )

    # One event

    def _look(self, number: int, given: Any) -> None:
        if not isinstance(given, dict):
            self._event = {"seq": number}
            self._tell("ENVELOPE", "An event is an object.")
            return
        event = self._event = cast("dict[str, Any]", given)
        if not self._envelope(event):
            return
        run = self._runs.setdefault(event["execution_id"], _Run())
        name: str = event["event_type"]
        if event["event_id"] in run.ids:
            self._tell("DUPLICATE_EVENT", f"The id {event['event_id']} is there twice.")
            return
        run.ids.add(event["event_id"])
        self._name(name, event)
        seq = event.get("seq")
        if isinstance(seq, int):
            if seq <= run.seq:
                self._tell("SEQUENCE", f"seq {seq} does not follow {run.seq}.")
            run.seq = max(run.seq, seq)
        self._order_of_run(run, name)
        run.seen[name] += 1
        self._causes(run, name, event)
        self._parent(run, event)

    def _envelope(self, event: dict[str, Any]) -> bool:
        good = True
        for field in ("event_id", "event_type", "timestamp", "execution_id"):
            value = event.get(field)
            if not isinstance(value, str) or not value:
                self._tell("ENVELOPE", f"`{field}` is missing, or no text.")
                good = False
        if good and not is_utc(event["timestamp"]):
            self._tell("ENVELOPE", "`timestamp` is no time in UTC, as 2026-02-05T23:11:22Z.")
        for field, allowed in (("source", ("server", "worker")), ("entity_type", ENTITIES), ("status", STATUSES)):
            if field in event and event[field] not in allowed:
                self._tell("ENVELOPE", f"`{field}` is one of {', '.join(allowed)}.")
        for field, least in (("attempt", 1), ("iteration", 0), ("duration_ms", 0), ("seq", 1)):
            value = event.get(field, least)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                self._tell("ENVELOPE", f"`{field}` is a whole number from {least}.")
        if not isinstance(event.get("payload", {}), dict):
            self._tell("ENVELOPE", "`payload` is an object.")
            good = False
        return good

    def _name(self, name: str, event: dict[str, Any]) -> None:
        if LEGACY.fullmatch(name):
            self._tell("LEGACY_NAME", f"{name} is a name of an earlier model.")
        elif NAME.fullmatch(name) is None:
            self._tell("NAME", f"{name!r} is no name: lowercase words with dots between them.")
        elif name not in CANONICAL:
            self._tell("UNKNOWN_NAME", f"{name} is not in the catalogue.", warning=True)
        elif event.get("source") == "worker" and _ROLES[name] is Role.SERVER:
            self._tell("EMISSION_RIGHT", f"A worker may not emit {name}.")

    def _order_of_run(self, run: _Run, name: str) -> None:
        if name == "playbook.execution.requested":
            if run.root:
                self._tell("TWO_ROOTS", "The execution was requested before.")
            elif run.seen:
                self._tell("ROOT_NOT_FIRST", "The request is not the first event.")
            run.root = True
        if run.ended and name.partition(".")[0] in ("step", "task", "loop", "next", "policy", "workflow"):
            self._tell("AFTER_THE_END", f"{name} after playbook.finished.")
        if name == "playbook.finished":
            if run.ended:
                self._tell("TWO_TERMINALS", "The playbook was finished before.")
            run.ended = True

    # Causes

    def _causes(self, run: _Run, name: str, event: dict[str, Any]) -> None:
        run.known |= {event["execution_id"], str(event.get("workflow_run_id"))}
        run.routed = run.routed or name in _OF_PLAYBOOKS
        if name == "workflow.started":
            entry = _part(event, "payload", "meta").get("entry")
            if isinstance(entry, str):
                run.tokens[entry] += 1
        where = event.get("step_run_id")
        if not isinstance(where, str):
            return
        step = run.steps.setdefault(where, _Step())
        run.known.add(where)
        if isinstance(event.get("iteration_id"), str):
            run.known.add(event["iteration_id"])
        if isinstance(event.get("task_run_id"), str):
            run.known.add(event["task_run_id"])
        handler = self._handlers.get(name)
        if handler is not None:
            handler(run, step, event)

    def _parent(self, run: _Run, event: dict[str, Any]) -> None:
        parent = event.get("parent_id")
        if parent is not None and parent not in run.known:
            self._tell("PARENT_UNKNOWN", f"Its parent {parent!r} was never heard of.")

    def _admitted(self, _run: _Run, step: _Step, event: dict[str, Any]) -> None:
        step.admitted = step.admitted or _part(event, "payload").get("allow") is not False

    def _scheduled(self, run: _Run, step: _Step, event: dict[str, Any]) -> None:
        if step.scheduled and not step.ended:
            self._tell("SCHEDULED_TWICE", "The run of the step was scheduled before.")
        step.scheduled = True
        if not run.routed:
            return
        if not step.admitted:
            self._tell("NOT_ADMITTED", "The step was scheduled without an admission.")
        meta = _part(event, "payload", "meta")
        name, given = str(event.get("entity_id")), meta.get("tokens")
        taken = given if isinstance(given, int) else 1
        if meta.get("final"):
            return
        if run.tokens[name] < max(taken, 1):
            self._tell("NO_TOKEN", f"No arc leads to {name} that was not used up.")
        run.tokens[name] -= taken

    def _step_started(self, run: _Run, step: _Step, _event: dict[str, Any]) -> None:
        if run.routed and not step.scheduled:
            self._tell("NOT_SCHEDULED", "The step started without being scheduled: workers start no steps.")
        if step.started and step.ended is None:
            self._tell("STARTED_TWICE", "The run of the step has started before.")
        step.started, step.ended = True, None

    def _step_ended(self, run: _Run, step: _Step, event: dict[str, Any]) -> None:
        if not step.started:
            self._tell("NOT_STARTED", "The step ended without a start.")
        if step.ended is not None:
            self._tell("ENDED_TWICE", f"The run of the step had ended before, with {step.ended}.")
        step.ended = event["event_type"]
        if run.routed and any(state == "started" for state in step.tasks.values()):
            self._tell("TASK_OPEN", "The step ended while one of its tasks had not.")
        if step.loop == "started":
            self._tell("LOOP_OPEN", "The step ended while its loop had not.")

    def _task_started(self, _run: _Run, step: _Step, event: dict[str, Any]) -> None:
        if not step.started or step.ended is not None:
            self._tell("TASK_OUTSIDE", "The task started outside of a running step.")
        iteration = event.get("iteration_id")
        if iteration is not None and step.iterations.get(iteration) != "started":
            self._tell("TASK_OUTSIDE", "The task started outside of a running iteration.")
        key = _task(event)
        if key in step.tasks:
            self._tell("STARTED_TWICE", "This run of the task has started before.")
        step.tasks[key] = "started"

    def _task_ended(self, _run: _Run, step: _Step, event: dict[str, Any]) -> None:
        key = _task(event)
        state = step.tasks.get(key)
        if state is None:
            self._tell("NOT_STARTED", "The task ended without a start.")
        elif state == "ended":
            self._tell("ENDED_TWICE", "This run of the task had ended before.")
        step.tasks[key] = "ended"

    def _attempt_started(self, _run: _Run, step: _Step, event: dict[str, Any]) -> None:
        key, number = _task(event), event.get("attempt", 1)
        tries = step.attempts.setdefault(key, [])
        if step.tasks.get(key) != "started":
            self._tell("NOT_STARTED", "A try began of a task that is not under way.")
        if number != len(tries) + 1 or (tries and tries[-1] != "judged"):
            self._tell("ATTEMPT_ORDER", f"Try {number} does not follow from what came before.")
        tries.append("started")

    def _attempt_ended(self, _run: _Run, step: _Step, event: dict[str, Any]) -> None:
        tries = step.attempts.get(_task(event), [])
        if len(tries) != event.get("attempt", 1) or not tries or tries[-1] != "started":
            self._tell("ATTEMPT_ORDER", "A try ended that is not under way.")
        else:
            tries[-1] = "ended"

    def _judged(self, _run: _Run, step: _Step, event: dict[str, Any]) -> None:
        tries = step.attempts.get(_task(event), [])
        if not tries or tries[-1] != "ended":
            self._tell("POLICY_ORDER", "A policy was evaluated without an outcome.")
        else:
            tries[-1] = "judged"
        if "do" not in _part(event, "payload", "action"):
            self._tell("PAYLOAD", "policy.task.evaluated has an action with `do`.")

    def _loop_started(self, _run: _Run, step: _Step, _event: dict[str, Any]) -> None:
        if not step.started:
            self._tell("NOT_STARTED", "A loop began in a step that had not started.")
        step.loop = "started"

    def _iteration(self, run: _Run, step: _Step, event: dict[str, Any]) -> None:
        key, verb = str(event.get("iteration_id")), event["event_type"].rpartition(".")[2]
        before = step.iterations.get(key)
        if step.loop != "started":
            self._tell("ITERATION_OUTSIDE", "An iteration outside of a running loop.")
        if verb == "scheduled":
            step.iterations[key] = "scheduled"
        elif verb == "started":
            if before == "started":
                self._tell("STARTED_TWICE", "The iteration has started before.")
            elif before is None and run.routed:
                self._tell("NOT_SCHEDULED", "The iteration started without being scheduled.")
            step.iterations[key] = "started"
        else:
            if before != "started":
                self._tell("NOT_STARTED", "An iteration ended that is not under way.")
            step.iterations[key] = "ended"

    def _loop_done(self, _run: _Run, step: _Step, _event: dict[str, Any]) -> None:
        if step.loop == "done":
            self._tell("LOOP_DONE_TWICE", "The loop was done before.")
        elif step.loop is None:
            self._tell("NOT_STARTED", "A loop was done that never began.")
        if any(state == "started" for state in step.iterations.values()):
            self._tell("LOOP_OPEN", "The loop was done while one of its iterations was not.")
        step.loop = "done"

    def _next(self, run: _Run, step: _Step, event: dict[str, Any]) -> None:
        payload = _part(event, "payload")
        if step.ended is None and step.loop != "done":
            self._tell("ROUTED_EARLY", "Arcs were evaluated before the step, or its loop, had ended.")
        if step.routed:
            self._tell("ROUTED_TWICE", "The arcs of this run of the step were evaluated before.")
        step.routed = True
        if payload.get("mode") not in ("exclusive", "inclusive"):
            self._tell("PAYLOAD", "next.evaluated has a mode: exclusive or inclusive.")
        given = payload.get("selected")
        selected = cast("list[Any]", given) if isinstance(given, list) else []
        if payload.get("mode") == "exclusive" and len(selected) > 1:
            self._tell("PAYLOAD", "An exclusive `next` selects one arc at most.")
        for arc in selected:
            run.tokens[str(_mapping(arc).get("step"))] += 1

    # What is missing

    def _close(self, name: str, run: _Run) -> None:
        self._event = {}
        if not run.root:
            self._tell("NO_ROOT", f"Execution {name} was never requested.")
        if not run.ended:
            self._tell(
                "NO_TERMINAL", f"Execution {name} has no playbook.finished: it may still be running.", warning=True
            )
        if not run.routed:
            return
        missing = [each for each in _MUST if not run.seen[each]]
        if run.ended:
            missing += [each for each in _MUST_AT_END if not run.seen[each]]
        for each in missing:
            self._tell("MISSING", f"Execution {name} has no {each}.")
        for step_name, step in run.steps.items():
            if run.ended and step.started and step.ended is None:
                self._tell("STEP_OPEN", f"Execution {name} ended while {step_name} had not.")
            if run.ended and step.ended == "step.done" and not step.routed:
                self._tell("NOT_ROUTED", f"The arcs of {step_name} were never evaluated.")


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _part(event: dict[str, Any], *names: str) -> dict[str, Any]:
    """A mapping inside an event; an empty one where there is none."""
    found = event
    for name in names:
        found = _mapping(found.get(name))
    return found


def _task(event: dict[str, Any]) -> str:
    """A run of a task, within its step."""
    return f"{event.get('iteration_id', '')}/{event.get('task_run_id')}"


_MUST = ("playbook.request.evaluated", "playbook.started", "workflow.started")
_OF_PLAYBOOKS = frozenset(
    {
        *("playbook.request.evaluated", "workflow.started", "workflow.finished", "playbook.processed"),
        *("policy.admit.evaluated", "policy.task.evaluated", "next.evaluated"),
        *("task.started", "task.done", "task.failed"),
    }
)
"""Whoever says one of these runs a playbook, and must say all that the model asks for."""
_MUST_AT_END = ("workflow.finished", "playbook.processed")
