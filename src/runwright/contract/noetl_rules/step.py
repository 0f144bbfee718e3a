"""Rules for steps: admitted, scheduled with a token, started, ended, routed from; each once, in this order."""

from __future__ import annotations

from typing import Any, cast

from .findings import Findings
from .place import Place
from .said import Said, mapping
from .story import Execution, Visit


def workflow_started(_findings: Findings, run: Execution, _place: Place, said: Said) -> None:
    """It may say where it begins; if it does not, the first step is the one."""
    entry = said.meta.get("entry")
    if isinstance(entry, str):
        run.tokens[entry] += 1
        run.fresh[entry] += 1
    else:
        run.has_free_token = True


def admitted(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    allow = said.payload.get("allow")
    if "allow" in said.payload and not isinstance(allow, bool):
        findings.tell("PAYLOAD", "`allow` of policy.admit.evaluated is true or false.")
    elif "allow" not in said.payload:
        sentence = "policy.admit.evaluated does not say whether the step was allowed."
        findings.tell("PAYLOAD", sentence, warning=not said.payload)
    visit = place.visit
    if visit is None:
        return
    if visit.scheduled:
        findings.tell("ADMITTED_LATE", "The step was judged after it had been scheduled.")
    visit.admitted = allow is not False
    if visit.name is None:
        return
    if allow is False:
        run.denied.add(visit.name)
    if not run.tokens[visit.name] and not run.has_free_token and not _is_quiet(run, visit, visit.name):
        findings.tell("NO_TOKEN", f"{visit.name} was judged, and no arc leads to it that was not used up.")


def scheduled(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    visit = place.visit
    if visit is None:
        run.nameless = True
        return
    if visit.scheduled and (run.is_playbook or visit.ended is None):
        findings.tell("SCHEDULED_TWICE", "This run of the step was scheduled before.")
    visit.scheduled = True
    if not run.is_playbook:
        return
    if not visit.admitted:
        findings.tell("NOT_ADMITTED", "The step was scheduled without an admission.")
    _take_tokens(findings, run, visit, said)
    run.live[visit] = None


def _take_tokens(findings: Findings, run: Execution, visit: Visit, said: Said) -> None:
    """Several tokens may become one run. If it does not say how many, it may be all that there are."""
    name = said.entity_id
    if name is None:
        run.nameless = True
        return
    taken = _told_tokens(findings, said)
    there, needed = run.tokens[name], max(1, taken or 1)
    if there == 0 and run.has_free_token:
        run.has_free_token = False
    elif there < needed and not _is_final(run, visit, name, said):
        findings.tell("NO_TOKEN", f"No arc leads to {name} that was not used up.")
    run.tokens[name] = max(0, there - needed)
    run.fresh[name] = 0 if taken is None else max(0, run.fresh[name] - needed)
    run.denied.discard(name)


def _told_tokens(findings: Findings, said: Said) -> int | None:
    given, final = said.meta.get("tokens"), said.meta.get("final")
    if given is None:
        return None
    if type(given) is not int or given < (0 if final is True else 1):
        findings.tell("PAYLOAD", "`tokens` of step.scheduled says how many became this run of the step: one at least.")
        return None
    return given


def _is_final(run: Execution, visit: Visit, name: str, said: Said) -> bool:
    """A playbook's final step needs no token. It is run once, when nothing else is left to do; a log that counts tokens
    says so."""
    if "tokens" in said.meta and said.meta.get("final") is not True:
        return False
    if not _is_quiet(run, visit, name):
        return False
    run.final = visit
    return True


def _is_quiet(run: Execution, visit: Visit, name: str) -> bool:
    """Whether nothing else is left to do, and no final step has run."""
    if run.final is not None or any(other is not visit for other in run.live):
        return False
    return not any(left > 0 and other != name for other, left in run.fresh.items())


def started(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    visit = place.visit
    if visit is None:
        return
    if run.is_playbook and not visit.scheduled:
        findings.tell("NOT_SCHEDULED", "The step started without being scheduled: workers start no steps.")
    if visit.started and (run.is_playbook or visit.ended is None):
        findings.tell("STARTED_TWICE", "This run of the step has started before.")
    visit.started, visit.ended = True, None
    if said.source == "server":
        visit.server_start = said
    if run.is_playbook:
        run.live[visit] = None


def ended(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    visit = place.visit
    if visit is None:
        return
    if not visit.started:
        findings.tell("NOT_STARTED", "The step ended without a start.")
    if visit.ended is not None:
        findings.tell("ENDED_TWICE", f"This run of the step had ended before, with {visit.ended.name}.")
    visit.ended = said
    if run.is_playbook:
        _check_inside(findings, visit, said)
    if visit.loop is not None and visit.loop.state != "done":
        findings.tell("LOOP_OPEN", "The step ended while its loop had not.")
    _settle(run, visit)


def _check_inside(findings: Findings, visit: Visit, said: Said) -> None:
    if visit.pipeline.is_open:
        findings.tell("TASK_OPEN", "The step ended while one of its tasks had not.")
    if said.name == "step.failed":
        return
    if (loop := visit.loop) is not None:
        if loop.ended < loop.expected and not loop.is_vague:
            findings.tell(
                "LOOP_OPEN", f"The step ended well, and {loop.ended} of {loop.expected} iterations had ended."
            )
    elif visit.pipeline.is_failed:
        findings.tell("OUTCOME", "The step ended well, and its last task failed.")
    elif visit.pipeline.is_jumping:
        findings.tell("ACTION", "The step ended well, and its last policy said to jump to another task.")


def _settle(run: Execution, visit: Visit) -> None:
    if visit.is_over:
        run.live.pop(visit, None)


def routed(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    visit = place.visit
    if visit is not None:
        if not visit.may_route:
            findings.tell("ROUTED_EARLY", "Arcs were evaluated before the step, or its loop, had ended.")
        if visit.routed:
            findings.tell("ROUTED_TWICE", "The arcs of this run of the step were evaluated before.")
        visit.routed = True
        _settle(run, visit)
    for name in _check_arcs(findings, said):
        run.tokens[name] += 1
        run.fresh[name] += 1


def _check_arcs(findings: Findings, said: Said) -> list[str]:
    """The steps that were selected."""
    mode, payload = said.payload.get("mode"), said.payload
    matched = _steps_in(findings, payload, "matched")
    selected = _steps_in(findings, payload, "selected")
    if mode not in ("exclusive", "inclusive"):
        findings.tell("PAYLOAD", "next.evaluated has a mode: exclusive or inclusive.")
    if mode == "exclusive" and len(selected) > 1:
        findings.tell("PAYLOAD", "An exclusive `next` selects one arc at most.")
    if not set(selected) <= set(matched):
        findings.tell("PAYLOAD", "next.evaluated selects an arc that did not match.")
    elif payload.get("error") is None and matched and not selected:
        findings.tell("PAYLOAD", "An arc matched, and next.evaluated selects none.")
    elif payload.get("error") is None and mode == "inclusive" and len(selected) != len(matched):
        findings.tell("PAYLOAD", "An inclusive `next` selects every arc that matches.")
    return selected


def _steps_in(findings: Findings, payload: dict[str, Any], field: str) -> list[str]:
    given = payload.get(field)
    arcs = cast("list[Any]", given) if isinstance(given, list) else []
    names = [name for arc in arcs if isinstance(name := mapping(arc).get("step"), str)]
    if not isinstance(given, list) or len(names) != len(arcs):
        findings.tell("PAYLOAD", f"`{field}` of next.evaluated is a list of arcs, each with its step.")
    return names
