"""Pipelines: tasks one after another, each with a policy that says what its outcome means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from runwright.contract import payloads
from runwright.contract.envelope import value_trouble
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.playbook import HTTP, LARGEST_SET, Do, Rule, Scope, Spacing, Task
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.contract.resultref import ResultAddress, result_address
from runwright.contract.timestamps import from_micros

from .expressions import evaluate, fill, is_true
from .keeping import Kept, keep
from .loopwork import CTX_CONFLICT
from .playnet import Station
from .playscope import later_spelling
from .playwork import Pipe, Visit, pipe_key, size_of

if TYPE_CHECKING:
    from .decide import Decider

LONGEST_DELAY = 7 * 24 * 3600.0
MOST_ATTEMPTS = 10_000
LARGEST_HELPER = 32 * 1024  # bytes


def task_path(place: EntityPath, label: str, visit: int) -> str:
    return str(replace(place, task=label, task_visit=visit))


# What a tool came to


def task_ended(
    decider: Decider,
    path: str,
    attempt: int,
    result: bytes | None,
    error: ErrorInfo | None,
    took_ms: float,
    artifacts: Sequence[ArtifactRef] = (),
) -> None:
    """A try has ended; what follows from it is decided next."""
    place = parse_path(path)
    if place is None or not is_at_task(decider, path, attempt):
        return
    assert place.task is not None
    task = decider.station(place.step).tasks[place.task]
    outcome, body = _outcome(error, result, attempt, took_ms, task.kind)
    try:
        kept = _keep(decider, task, place, attempt, body)
    except RunwrightError as trouble:
        error = ErrorInfo(trouble.code, trouble.detail, retryable=False, category="plan")
        outcome, body = _outcome(error, None, attempt, took_ms, task.kind)
        kept = Kept(body)
    payload: dict[str, Any] = {"outcome": outcome}
    if kept.ref is not None:
        payload["result_ref"] = kept.ref
        decider.say("ResultStored", path, attempt, payloads.ResultStored(msgspec.to_builtins(kept.ref), kept.extracted))
    else:
        outcome["result"] = msgspec.Raw(kept.body)
        payload |= {"extracted": kept.extracted} if kept.extracted else {}
    if artifacts:
        payload["artifactRefs"] = list(artifacts)
    if task.rules is not None:
        decider.say("TaskAttemptDone" if error is None else "TaskAttemptFailed", path, attempt, payload)
    elif error is None:
        decider.say("TaskDone", path, attempt, payload)
        _add_to_manifest(decider, task, place, attempt)
    else:
        decider.say("TaskFailed", path, attempt, {**payload, "error": _error(outcome)})
    decider.seam()


def _keep(decider: Decider, task: Task, place: EntityPath, attempt: int, body: bytes) -> Kept:
    """Where the result goes; if elsewhere, it is put there before any of this is in the log."""
    address = ResultAddress(decider.run.run_id, place, attempt)
    keeping = task.result
    if decider.work.is_child and keeping.store.scope is Scope.EXECUTION:
        store = replace(keeping.store, scope=Scope.WORKFLOW)  # its parent reads the result once it has ended
        keeping = replace(keeping, store=store)
    kept = keep(keeping, address, body, decider.net.store, decider.now)
    if kept.ref is not None and kept.spot is not None:
        decider.blobs[kept.spot] = body
        decider.values.at_hand.add(kept.ref.meta.sha256, msgspec.json.decode(body), len(body))
    return kept


def _add_to_manifest(decider: Decider, task: Task, place: EntityPath, attempt: int) -> None:
    manifest, play = task.result.manifest, decider.work.play
    if manifest is None or play is None:
        return
    pipe = play.pipes[pipe_key(place)]
    before = pipe.manifests.get(manifest.name)
    part = pipe.results[task.label]
    described: dict[str, Any] = {
        "kind": "manifest",
        "name": manifest.name,
        "strategy": manifest.strategy,
        "part": {"ref": result_address(decider.run.run_id, place, attempt)},
        "total_parts": 1 + (0 if before is None else len(before.parts)),
        "total_bytes": size_of(part) + (0 if before is None else before.size),
    }
    if manifest.path is not None:
        described["merge_path"] = manifest.path
    decider.say("ResultManifestUpdated", str(place), attempt, payloads.ResultStored(described))


def is_at_task(decider: Decider, path: str, attempt: int) -> bool:
    """Whether the log has this attempt of a task as running."""
    place, play = parse_path(path), decider.work.play
    pipe = None if place is None or play is None else play.pipes.get(pipe_key(place))
    if place is None or pipe is None or place.task is None or not pipe.running:
        return False
    return (pipe.task, pipe.visits.get(place.task), pipe.attempt) == (place.task, place.task_visit, attempt)


def _outcome(
    error: ErrorInfo | None, result: bytes | None, attempt: int, took_ms: float, kind: str
) -> tuple[dict[str, Any], bytes]:
    """The canonical outcome, and its result apart from it."""
    facts = dict((error.facts if error is not None else None) or {})
    body = b"null" if result is None else result
    outcome: dict[str, Any] = {"status": "ok" if error is None else "error"}
    if error is None:
        facts = _helpers(body) if kind == HTTP else {}
    elif "result" in facts:
        body = msgspec.json.encode(facts.pop("result"))
    for name in ("http", "pg", "py"):
        if (part := _helper(facts.get(name))) is not None:
            outcome[name] = part
    if error is not None:
        outcome["error"] = {
            "kind": facts["kind"] if isinstance(facts.get("kind"), str) else error.category,
            "retryable": error.retryable,
            "code": error.code,
            "message": error.message,
        }
        if (wait := facts.get("retryAfter")) is not None:
            outcome["error"]["retry_after"] = wait
    outcome["meta"] = {"attempt": attempt, "duration_ms": took_ms}
    return outcome, body


def _helper(part: Any) -> dict[str, Any] | None:
    """What a policy is told beside the outcome, if it can stand in an event. A tool may say anything."""
    if not isinstance(part, dict):
        return None
    given = cast("dict[str, Any]", part)
    body = msgspec.json.encode(given)
    if len(body) > LARGEST_HELPER:
        given = {name: value for name, value in given.items() if isinstance(value, int | bool)}
    return None if value_trouble(body) is not None else given


class _Answer(msgspec.Struct):
    """An answer over HTTP, as its tool gives it back."""

    status: int
    headers: dict[str, Any]
    data: msgspec.Raw


def _helpers(body: bytes) -> dict[str, Any]:
    if b'"status"' not in body[:64]:
        return {}
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError:
        return {}
    return {"http": {"status": answer.status, "headers": answer.headers}}


# What follows from it


class Verdict(msgspec.Struct):
    """What a policy makes of an outcome."""

    rule: int | None
    action: dict[str, Any]
    do: Do
    ctx: dict[str, Any] = {}
    iter: dict[str, Any] = {}
    due: int | None = None
    error: ErrorInfo | None = None
    is_broken: bool = False  # it could not be evaluated, which is the error


def judge(
    decider: Decider, station: Station, place: EntityPath, pipe: Pipe, over: ErrorInfo | None, deadline: int | None
) -> None:
    """Ask the policy of the task at hand about its outcome, and say what it says. May want values fetched.
    `over`: whatever it says, nothing is tried again; nor is it after the deadline."""
    assert pipe.task is not None
    assert pipe.ended is not None
    rules = station.tasks[pipe.task].rules or ()
    path = task_path(place, pipe.task, pipe.visits[pipe.task])
    try:
        verdict = _verdict(decider, station, place, pipe, rules)
        if over is not None and verdict.do is Do.RETRY:
            verdict = Verdict(verdict.rule, {"do": Do.FAIL}, Do.FAIL, error=over)
        if verdict.due is not None and deadline is not None:
            verdict.due = min(verdict.due, deadline)
    except RunwrightError as error:
        failed = ErrorInfo(error.code, error.detail, retryable=False, category="plan")
        verdict = Verdict(None, {"do": Do.FAIL}, Do.FAIL, error=failed, is_broken=True)
    evaluated: dict[str, Any] = {"matched_rule_index": verdict.rule, "action": verdict.action}
    evaluated |= {name: value for name, value in (("ctx", verdict.ctx), ("iter", verdict.iter)) if value}
    if verdict.due is not None:
        evaluated["next_attempt_at"] = from_micros(verdict.due)
    if verdict.is_broken:
        evaluated["error"] = verdict.error
    outcome = {"status": pipe.ended.status, **pipe.ended.outcome}
    decider.say("PolicyTaskEvaluated", path, pipe.attempt, evaluated)
    if verdict.do is Do.RETRY:
        decider.look_at_retry(path)
        return
    ended: dict[str, Any] = {"outcome": outcome}
    if (ref := pipe.ended.result.ref) is not None:
        ended["result_ref"] = {name: part for name, part in ref.items() if name != "preview"}
    if verdict.do is Do.FAIL:
        decider.say("TaskFailed", path, pipe.attempt, {**ended, "error": verdict.error})
        return
    task, attempt, is_good = station.tasks[pipe.task], pipe.attempt, pipe.ended.status == "ok"
    decider.say("TaskDone", path, attempt, ended)
    at = parse_path(path)
    if is_good and at is not None:
        _add_to_manifest(decider, task, at, attempt)


def _verdict(decider: Decider, station: Station, place: EntityPath, pipe: Pipe, rules: tuple[Rule, ...]) -> Verdict:
    assert pipe.ended is not None
    assert pipe.task is not None
    mentions = station.rules[pipe.task]
    outcome = decider.scope.outcome(mentions, pipe.ended)
    scope = decider.scope.of_pipe(mentions, station, place, pipe)
    scope |= {"outcome": outcome, "output": later_spelling(outcome)}
    index = next((at for at, rule in enumerate(rules) if rule.when is None or is_true(rule.when, scope)), None)
    if index is None:
        return Verdict(None, {"do": Do.CONTINUE}, Do.CONTINUE)
    try:
        return _carried_out(decider, station, place, pipe, index, rules[index], scope)
    except RunwrightError as error:
        failed = ErrorInfo(error.code, error.detail, retryable=False, category="plan")
        return Verdict(index, {"do": Do.FAIL}, Do.FAIL, error=failed, is_broken=True)


def _carried_out(
    decider: Decider,
    station: Station,
    place: EntityPath,
    pipe: Pipe,
    index: int,
    rule: Rule,
    scope: dict[str, Any],
) -> Verdict:
    """What the rule that matched says, with its values filled in."""
    assert pipe.ended is not None
    visit = _visit(decider, place)
    ctx, own = fill(rule.set_ctx, scope), fill(rule.set_iter, scope)
    check_said("What this rule sets", ctx, own)
    if (conflict := _conflict(station, place, visit, ctx)) is not None:
        return Verdict(index, {"do": Do.FAIL}, Do.FAIL, error=conflict, is_broken=True)
    verdict = Verdict(index, {"do": rule.do}, rule.do, ctx, own)
    if rule.do is Do.JUMP:
        verdict.action["to"] = rule.to
    elif rule.do is Do.RETRY:
        _retry(decider, pipe, rule, scope, verdict)
    if verdict.do is Do.FAIL:
        verdict.error = _error(pipe.ended.outcome)
    return verdict


def check_said(what: str, *values: Any) -> None:
    """Refuse to put into an event what cannot stand there."""
    if not any(values):
        return
    body = msgspec.json.encode(values)
    if len(body) > LARGEST_SET:
        raise RunwrightError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"{what} has {len(body):,} bytes, and may have {LARGEST_SET:,}. Leave it a result and read it by its name.",
        )
    if (trouble := value_trouble(body)) is not None:
        raise RunwrightError(ErrorCode.RESULT_NOT_STORABLE, f"{what} {trouble}.")


def _visit(decider: Decider, place: EntityPath) -> Visit:
    assert decider.work.play is not None
    return decider.work.play.visits[place.owner]


def _conflict(station: Station, place: EntityPath, visit: Visit, ctx: dict[str, Any]) -> ErrorInfo | None:
    """In a parallel loop a key of `ctx` is written once: nobody could say which of two iterations came last."""
    if station.route.loop is None or not station.route.loop.parallel:
        return None
    for key in ctx:
        by = visit.written.get(key)
        if by is not None and by != place.indexes:
            message = f"Iterations {by[0]} and {place.indexes[0]} of a parallel loop both set ctx.{key}."
            return ErrorInfo(CTX_CONFLICT, message, retryable=False, category="plan")
    return None


def _retry(decider: Decider, pipe: Pipe, rule: Rule, scope: dict[str, Any], verdict: Verdict) -> None:
    attempts = int(_number(rule.attempts, scope, "attempts", 1, MOST_ATTEMPTS))
    wait = _number(rule.delay, scope, "delay", 0, LONGEST_DELAY)
    verdict.action |= {"attempts": attempts, "backoff": rule.backoff, "delay": wait}
    if pipe.attempt >= attempts:
        verdict.do = Do.FAIL
        verdict.action |= {"do": Do.FAIL, "exhausted": True}
        return
    if rule.backoff is Spacing.LINEAR:
        wait *= pipe.attempt
    elif rule.backoff is Spacing.EXPONENTIAL:
        wait *= 2.0 ** min(pipe.attempt - 1, 64)
    assert pipe.ended is not None
    error: dict[str, Any] = pipe.ended.outcome.get("error") or {}
    told = error.get("retry_after")
    least = float(told) if isinstance(told, int | float) and 0 < told <= LONGEST_DELAY else 0.0
    verdict.due = decider.now + int(min(max(wait, least), LONGEST_DELAY) * 1e6)


def _number(given: Any, scope: dict[str, Any], name: str, least: float, most: float) -> float:
    value = evaluate(given, scope) if isinstance(given, str) else given
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not least <= number <= most:
        raise RunwrightError(ErrorCode.EXPRESSION_ERROR, f"`{name}` must be a number from {least:g} to {most:g}.")
    return number


def _error(outcome: dict[str, Any]) -> ErrorInfo:
    """How a step says that its task failed, with a policy or without."""
    error: dict[str, Any] = outcome.get("error") or {}
    answer: dict[str, Any] = outcome.get("http") or {}
    return ErrorInfo(
        str(error.get("code") or "TASK_FAILED"),
        str(error.get("message") or "Its policy says that the task failed."),
        retryable=bool(error.get("retryable")),
        category=str(error.get("kind") or "user"),
        facts={"status": answer["status"]} if isinstance(answer.get("status"), int) else None,
    )


def next_label(station: Station, pipe: Pipe) -> str | None:
    """The task to start now; None if the pipeline is done."""
    if pipe.task is None:
        return station.labels[0] if station.labels else None
    if pipe.do is Do.JUMP:
        return pipe.to
    return None if pipe.do is Do.BREAK else station.after(pipe.task)


def start_task(
    decider: Decider, station: Station, place: EntityPath, pipe: Pipe, label: str, worker: str | None = None
) -> None:
    path, started = task_path(place, label, pipe.visits.get(label, 0) + 1), payloads.TaskStarted(worker)
    decider.say("TaskStarted", path, 1, started)
    if station.tasks[label].rules is not None:
        decider.say("TaskAttemptStarted", path, 1, started)


# All pipelines of a run


def stop_tasks(decider: Decider, error: ErrorInfo) -> None:
    """The run ends now: tasks that were begun end with it, also those that were to be tried again."""
    outcome = {"status": "error", "error": {"kind": "cancelled", "code": error.code, "retryable": False}}
    for path, pipe in _at_tasks(decider):
        if pipe.do is not None:
            continue
        if pipe.running and _has_policy(decider, path):
            decider.say("TaskAttemptFailed", path, pipe.attempt, {"outcome": outcome})
        idle = {} if pipe.running else {"idle": True}  # the end of its try was the end of its work
        decider.say("TaskFailed", path, pipe.attempt, {"outcome": outcome, "error": error, **idle})


def _has_policy(decider: Decider, path: str) -> bool:
    place = parse_path(path)
    return place is not None and decider.station(place.step).tasks[place.task or ""].rules is not None


def tasks_under_way(decider: Decider) -> list[tuple[str, int]]:
    """Tasks that were at work, and their attempts."""
    return [(path, pipe.attempt) for path, pipe in _at_tasks(decider) if pipe.running]


def _at_tasks(decider: Decider) -> list[tuple[str, Pipe]]:
    """The pipelines that are at a task, and its path."""
    pipes = {} if decider.work.play is None else decider.work.play.pipes
    return [
        (task_path(place, pipe.task, pipe.visits[pipe.task]), pipe)
        for key, pipe in pipes.items()
        if pipe.task is not None and (place := parse_path(key)) is not None
    ]
