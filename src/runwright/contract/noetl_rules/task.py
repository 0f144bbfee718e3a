"""Rules for tasks: one after another in their pipeline, each try judged, and what follows is what the policy said."""

from __future__ import annotations

from .findings import Findings
from .place import Place, task_label
from .said import STOPS, Said
from .story import Execution, Pipeline, TaskRun

_ACTIONS = ("retry", "jump", "continue", "break", "fail")


def started(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    visit, pipeline = place.visit, place.pipeline
    if place.is_vague and said.entity_id is not None:
        run.vague_tasks.add(said.entity_id)
    if visit is None or pipeline is None or place.is_vague:
        return
    if not visit.is_running:
        findings.tell("TASK_OUTSIDE", "The task started outside of a running step.")
    if place.round is not None and place.round.state != "started":
        findings.tell("TASK_OUTSIDE", "The task started outside of a running iteration.")
    if place.task is not None:
        findings.tell("STARTED_TWICE", "This run of the task has started before.")
        return
    if not place.is_loose:
        _check_turn(findings, pipeline, said)
    _check_attempt(findings, 1, said)
    if visit.loop is None and visit.server_start is not None:
        sentence = "The server may not start a step that a worker carries out."
        findings.tell("EMISSION_RIGHT", sentence, about=visit.server_start)
        visit.server_start = None
    _begin(run, place, pipeline, said)


def _begin(run: Execution, place: Place, pipeline: Pipeline, said: Said) -> None:
    label, index = said.entity_id, None if place.round is None else place.round.index
    key = said.task_run_id or f"{label}#{len(pipeline.tasks) + 1}"
    task = pipeline.tasks[key] = pipeline.current = TaskRun(key, label, index)
    pipeline.under_way += 1
    if label is not None:
        pipeline.by_label[label] = task
    run.begin_task(task)


def _check_turn(findings: Findings, pipeline: Pipeline, said: Said) -> None:
    """Whether it is the turn of this task."""
    last = pipeline.current
    if last is None:
        return
    if last.ended is None:
        findings.tell("TASK_ORDER", "The task started while another of its pipeline was not done.")
    elif pipeline.is_failed:
        findings.tell("TASK_ORDER", "The task started after one had failed that ends its pipeline.")
    elif last.action == "break":
        findings.tell("TASK_ORDER", "The task started after a policy had ended its pipeline.")
    elif last.action == "jump" and last.judged is not None:
        to = last.judged.part("action").get("to")
        if isinstance(to, str) and said.entity_id is not None and to != said.entity_id:
            findings.tell("ACTION", f"A policy said to jump to {to}, and {said.entity_id} started.")


def attempt_started(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    if (task := _under_way(findings, place, "A try began of a task that is not under way.")) is None:
        return
    number = said.attempt or task.tries + 1
    if number != task.tries + 1 or task.last_try == "started":
        findings.tell("ATTEMPT_ORDER", f"Try {number} does not follow from what came before.")
    elif task.judged is not None and task.action != "retry":
        findings.tell("ACTION", f"A policy said {task.action}, and the task was tried again.")
    elif task.judged is not None and type(most := task.judged.part("action").get("attempts")) is int and number > most:
        findings.tell("ACTION", f"A policy allows {most} tries, and this is the {number}th.")
    elif task.is_awaiting:
        run.unjudged.append(said)
    task.tries, task.last_try, task.judged, task.action = number, "started", None, None


def attempt_ended(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    if (task := _under_way(findings, place, "A try ended of a task that is not under way.")) is None:
        return
    if task.last_try != "started" or (said.attempt or task.tries) != task.tries:
        findings.tell("ATTEMPT_ORDER", "A try ended that is not under way.")
    task.last_try = said.verb
    _name_result(run, said)


def judged(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    do = said.part("action").get("do")
    _check_action(findings, said, do)
    task = place.task
    if place.is_vague or task_label(said) in run.vague_tasks:
        return
    if task is None:
        if place.visit is not None or said.task_run_id is not None or said.parent_id is not None:
            findings.tell("POLICY_ORDER", "A policy was evaluated of a task that is not under way.")
        return
    if task.ended is not None:
        findings.tell("POLICY_ORDER", "A policy was evaluated after its task had ended.")
        return
    if task.judged is not None or task.last_try == "started":
        findings.tell("POLICY_ORDER", "A policy was evaluated without an outcome.")
    _check_attempt(findings, max(1, task.tries), said)
    task.judged, task.action = said, do if isinstance(do, str) else None


def _check_action(findings: Findings, said: Said, do: object) -> None:
    index = said.payload.get("matched_rule_index")
    if do not in _ACTIONS:
        sentence = f"policy.task.evaluated has an action with `do`: one of {', '.join(_ACTIONS)}."
        findings.tell("PAYLOAD", sentence, warning=not said.payload)
    elif do == "jump" and not isinstance(said.part("action").get("to"), str):
        findings.tell("PAYLOAD", "An action that is a jump says `to` which task.")
    if index is not None and (type(index) is not int or index < 0):
        findings.tell("PAYLOAD", "`matched_rule_index` is the number of a rule, from 0, or null.")


def ended(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    if place.visit is None or place.is_vague:
        return
    task = place.task
    if task is None:
        findings.tell("NOT_STARTED", "The task ended without a start.")
        return
    if task.ended is not None:
        findings.tell("ENDED_TWICE", "This run of the task had ended before.")
        return
    _check_attempt(findings, max(1, task.tries), said)
    if said.name == "task.done":
        _check_good_end(findings, task)
    if task.is_awaiting and not (said.verb == "failed" and STOPS & said.trouble):
        run.unjudged.append(said)
    _check_outcome(findings, task, said)
    task.ended = said.verb
    run.end_task(task)
    if place.pipeline is not None:
        place.pipeline.under_way -= 1
    _name_result(run, said)


def _check_good_end(findings: Findings, task: TaskRun) -> None:
    if task.last_try == "started":
        findings.tell("ATTEMPT_ORDER", "The task was done while a try of it had not ended.")
    if task.action in ("retry", "fail"):
        findings.tell("ACTION", f"A policy said {task.action}, and the task was done.")


def _check_outcome(findings: Findings, task: TaskRun, said: Said) -> None:
    """An error may be passed over, and a good outcome be refused, by a policy only."""
    if said.outcome is None or task.is_awaiting:
        return
    last = {"done": True, "failed": False}.get(task.last_try or "")
    if task.last_try == "started" and said.outcome is False:
        return  # it was stopped
    if last is not None and last is not said.outcome:
        findings.tell("OUTCOME", f"The outcome of {said.name} is not that of the last try.")
    elif task.judged is None and said.outcome is not (said.verb == "done"):
        findings.tell("OUTCOME", f"The outcome of {said.name} says the opposite.")


def _check_attempt(findings: Findings, expected: int, said: Said) -> None:
    if said.attempt is not None and said.attempt != expected:
        findings.tell("ATTEMPT_ORDER", f"{said.name} speaks of try {said.attempt}, and it is {expected}.")


def _under_way(findings: Findings, place: Place, sentence: str) -> TaskRun | None:
    if place.visit is None or place.is_vague:
        return None
    if place.task is None or place.task.ended is not None:
        findings.tell("NOT_STARTED", sentence)
        return None
    return place.task


# Results


def _name_result(run: Execution, said: Said) -> None:
    ref = said.part("result_ref").get("ref")
    if isinstance(ref, str):
        run.named_refs.add(ref)


def result_stored(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    address = said.part("result_ref").get("ref")
    if not isinstance(address, str) or not address:
        findings.tell("PAYLOAD", "result.stored has a `result_ref`, and that a `ref`.")
    if isinstance(address, str) and address in run.named_refs:
        findings.tell("RESULT_ORDER", "The result was stored after an event that speaks of it.")
    result_of(findings, run, place, said)


def result_of(findings: Findings, _run: Execution, place: Place, said: Said) -> None:
    """A result is of something that was heard of."""
    if said.step_run_id is not None and place.visit is None:
        findings.tell("ID_UNKNOWN", f"The step {said.step_run_id!r} was never heard of.")
    elif place.round is not None and place.round.state is None:
        findings.tell("ID_UNKNOWN", "Its iteration was never heard of.")
    elif said.task_run_id is not None and place.visit is not None and place.task is None:
        findings.tell("ID_UNKNOWN", f"The task {said.task_run_id!r} was never heard of.")
    elif place.task is not None and said.attempt is not None and said.attempt > max(1, place.task.tries):
        findings.tell("ATTEMPT_ORDER", f"A result of try {said.attempt}, which has not begun.")
