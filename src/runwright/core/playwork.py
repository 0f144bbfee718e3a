"""A playbook under way, folded from its log: tokens, visits, pipelines and `ctx`. What only its driver needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.playbook import Do
from runwright.contract.refs import ArtifactRef, ErrorInfo

from .loopwork import NOTHING, StoredResult, moment, result_of, stored_result
from .reading import may_name, read_payload

if TYPE_CHECKING:
    from .workings import Workings


class Token(msgspec.Struct, frozen=True):
    """A step is to be visited."""

    args: dict[str, Any]
    event: str | None = None  # what led here
    source: str | None = None  # at which step


class Ended(msgspec.Struct, frozen=True):
    """What a try of a task came to, before its policy was asked."""

    status: str
    result: StoredResult
    outcome: dict[str, Any]  # all but the result


class Gathering(msgspec.Struct):
    """A manifest as it grows."""

    strategy: str
    path: str | None
    parts: list[StoredResult] = []
    size: int = 0  # bytes


def size_of(stored: StoredResult) -> int:
    return len(stored.raw or b"") if stored.ref is None else int(stored.ref["meta"]["bytes"])


class Pipe(msgspec.Struct):
    """The pipeline of a visit, or of an iteration, under way."""

    began: int  # microseconds since 1970
    task: str | None = None  # the one at hand, or the last
    visits: dict[str, int] = {}
    attempt: int = 0
    running: bool = False
    since: int = 0  # when that attempt began
    over_at: int = 0  # when it ended
    ended: Ended | None = None  # its policy has not been asked yet
    do: Do | None = None  # what is to be done after the task at hand; None while it goes on
    to: str | None = None
    jumps: int = 0
    results: dict[str, StoredResult] = {}
    previous: StoredResult = StoredResult(b"null")
    iter: dict[str, Any] = {}
    manifests: dict[str, Gathering] = {}
    error: ErrorInfo | None = None  # the pipeline failed


class Visit(msgspec.Struct):
    """One visit of a step, from its token to the arcs that fired."""

    args: dict[str, Any]
    is_started: bool = False
    ended: str | None = None  # by which event
    is_routed: bool = False
    error: ErrorInfo | None = None
    result: StoredResult | None = None  # its own: others of the same step may end at the same time
    label: str | None = None  # the task that it ended with
    own: dict[str, Any] = {}  # what its tasks set for themselves
    written: dict[str, tuple[int, ...]] = {}  # which iteration wrote which key of `ctx`


class Denied(msgspec.Struct, frozen=True):
    """Tokens that were not admitted: they are judged again when `ctx` has changed, or others have come."""

    changes: int  # how far `ctx` was
    tokens: int  # the last so many of those that wait


class PlayWork(msgspec.Struct):
    ctx: dict[str, Any] = {}
    changes: int = 0  # of `ctx`
    tokens: dict[str, list[Token]] = {}
    counts: dict[str, int] = {}  # visits so far
    visits: dict[str, Visit] = {}  # those under way, by path
    pipes: dict[str, Pipe] = {}
    denied: dict[str, Denied] = {}  # steps with tokens that were not admitted
    admissions: dict[str, int] = {}  # how often each visit was judged
    unhandled: dict[str, ErrorInfo | None] = {}  # failures that no arc took up
    final: str | None = None  # the path of the final step's visit
    last: str | None = None  # the visit whose result is the run's
    artifacts: dict[ArtifactRef, None] = {}  # what tasks made
    ended: dict[str, int] = {}  # of each step, the newest visit that has ended


class _Outcome(msgspec.Struct, frozen=True):
    status: str = "ok"
    result: msgspec.Raw = NOTHING
    error: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    http: dict[str, Any] | None = None
    pg: dict[str, Any] | None = None
    py: dict[str, Any] | None = None


class _TaskEnd(msgspec.Struct, frozen=True):
    outcome: _Outcome = _Outcome()
    result_ref: dict[str, Any] | None = None
    extracted: dict[str, Any] = {}


class _Made(msgspec.Struct, frozen=True, rename="camel"):
    artifact_refs: list[ArtifactRef] = []


_ACTIONS = frozenset(map(str, Do))
_PARTS = ("error", "meta", "http", "pg", "py")


def ended_of(event: FoldableEvent) -> Ended:
    end = read_payload(_TaskEnd, event)
    outcome = end.outcome
    parts = {name: part for name in _PARTS if (part := getattr(outcome, name)) is not None}
    stored = stored_result(bytes(outcome.result) or None, end.result_ref, end.extracted)
    return Ended(outcome.status, stored, parts)


def keep_result(work: Workings, event: FoldableEvent, path: str, *, is_good: bool) -> None:
    """What expressions see of a step is what its newest visit gave. One that failed gave nothing."""
    name, _, number = path.partition("@")
    visit = int(number) if number.isdecimal() else 1
    assert work.play is not None
    if visit < work.play.ended.get(name, 0):
        return
    work.play.ended[name] = visit
    if is_good and work.wants(name):
        work.results[name] = result_of(event)
    elif not is_good:
        work.results.pop(name, None)


def pipe_key(place: EntityPath) -> str:
    """What a task is part of: a visit, or one iteration of it."""
    return str(EntityPath(place.step, place.visit, place.attempt, place.indexes))


def note_play(work: Workings, event: FoldableEvent) -> None:
    if event.event_type == "WorkflowStarted":
        started = read_payload(payloads.WorkflowStarted, event)
        if started.entry is not None:
            work.play = PlayWork(ctx=dict(started.ctx or {}), tokens={started.entry: [Token({}, "workflow.started")]})
        return
    play, handler = work.play, _NOTES.get(event.event_type)
    if play is not None and event.event_type.startswith("Task") and may_name(event, b"artifactRefs"):
        play.artifacts.update(dict.fromkeys(read_payload(_Made, event).artifact_refs))
    place = parse_path(event.step_id or "") if handler is not None else None
    if play is not None and handler is not None and place is not None:
        handler(work, play, place, event)


def _admitted(_work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    play.admissions[str(place)] = event.logical_attempt_id
    judged = read_payload(payloads.PolicyAdmitEvaluated, event)
    if judged.error is not None:
        play.unhandled[str(place)] = judged.error
    if judged.allow is not False:
        return
    waiting, before = play.tokens.get(place.step, []), play.denied.get(place.step)
    count = len(waiting) if judged.tokens is None else judged.tokens
    waiting[:] = waiting[count:] + waiting[:count]  # the others have their turn
    so_far = before.tokens if before is not None and before.changes == play.changes else 0
    play.denied[place.step] = Denied(play.changes, so_far + count)


def _scheduled(_work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    payload = read_payload(payloads.StepScheduled, event)
    path = str(place)
    play.counts[place.step] = place.visit
    play.admissions.pop(path, None)
    waiting = play.tokens.get(place.step, [])
    del waiting[: payload.tokens or 0]
    if not waiting:
        play.tokens.pop(place.step, None)
    play.visits[path] = Visit(payload.args or {})
    if payload.final:
        play.final = path


def _started(_work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    visit = play.visits.get(str(place))
    if visit is not None:
        visit.is_started = True
        play.pipes[str(place)] = Pipe(moment(event.emitted_at))


def _iteration_started(_work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    play.pipes[str(place)] = Pipe(moment(event.emitted_at))


def _iteration_ended(_work: Workings, play: PlayWork, place: EntityPath, _event: FoldableEvent) -> None:
    play.pipes.pop(str(place), None)


def _task_started(_work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    pipe = play.pipes.get(pipe_key(place))
    if pipe is not None and place.task is not None:
        pipe.task, pipe.attempt, pipe.running = place.task, 1, True
        pipe.visits[place.task] = place.task_visit
        pipe.since = moment(event.emitted_at)
        pipe.do = pipe.to = pipe.ended = None


def _attempt_started(work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    pipe = play.pipes.get(pipe_key(place))
    if pipe is not None:
        pipe.attempt, pipe.running, pipe.do = event.logical_attempt_id, True, None
        pipe.since = moment(event.emitted_at)
    work.retry_at.pop(event.step_id or "", None)


def _attempt_ended(_work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    pipe = play.pipes.get(pipe_key(place))
    if pipe is not None:
        pipe.running = False
        pipe.over_at = moment(event.emitted_at)
        pipe.ended = ended_of(event)


def _policy(work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    payload = read_payload(payloads.PolicyTaskEvaluated, event)
    pipe = play.pipes.get(pipe_key(place))
    if payload.ctx:
        play.ctx.update(payload.ctx)
        play.changes += 1
        visit = play.visits.get(place.owner)
        if visit is not None and place.indexes:
            visit.written.update(dict.fromkeys(payload.ctx, place.indexes))
    if pipe is None:
        return
    pipe.iter.update(payload.iter or {})
    action = payload.action or {}
    do = action.get("do")
    if do == Do.RETRY:
        pipe.ended = None
        work.retry_at[event.step_id or ""] = moment(payload.next_attempt_at)
    elif do in _ACTIONS:
        pipe.do, pipe.to = Do(do), action.get("to")


def _task_ended(_work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    pipe = play.pipes.get(pipe_key(place))
    if pipe is None or place.task is None:
        return
    pipe.running = False
    if pipe.ended is None:
        pipe.over_at = moment(event.emitted_at)
    ended = pipe.ended or ended_of(event)
    pipe.ended = None
    pipe.results[place.task] = pipe.previous = ended.result
    if event.event_type == "TaskFailed":
        pipe.do = Do.FAIL
        pipe.error = read_payload(payloads.TaskEnded, event).error or ErrorInfo("TASK_FAILED", "A task failed.")
    else:
        pipe.do = pipe.do or Do.CONTINUE
        pipe.jumps += pipe.do is Do.JUMP


def _gathered(_work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    """Another part of a manifest: what the task has just come to."""
    pipe = play.pipes.get(pipe_key(place))
    manifest = read_payload(payloads.ResultStored, event).result_ref or {}
    if pipe is None or place.task is None or (part := pipe.results.get(place.task)) is None:
        return
    name = str(manifest.get("name"))
    gathering = pipe.manifests.get(name)
    if gathering is None:
        gathering = pipe.manifests[name] = Gathering(str(manifest.get("strategy")), manifest.get("merge_path"))
    gathering.parts.append(part)
    gathering.size += size_of(part)


def _step_ended(work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    path = str(place)
    pipe, visit = play.pipes.pop(path, None), play.visits.get(path)
    if visit is None:
        return
    is_failed = event.event_type == "StepFailed"
    visit.ended = "step.failed" if is_failed else "step.done"
    visit.label = None if pipe is None else pipe.task
    visit.own = {} if pipe is None else pipe.iter
    is_newest = play.ended.get(place.step) == place.visit  # then its result has just been put there
    if not is_failed and work.wants(place.step):
        visit.result = work.results.get(place.step) if is_newest else result_of(event)
    if is_failed:
        visit.error = read_payload(payloads.StepFailed, event).error
        for times in (work.retry_at, work.due_at):
            for late in [late for late in times if late.startswith((f"{path}[", f"{path}/"))]:
                del times[late]
    _close(play, path, visit)


def _next(_work: Workings, play: PlayWork, place: EntityPath, event: FoldableEvent) -> None:
    payload, path = read_payload(payloads.NextEvaluated, event), str(place)
    visit = play.visits.get(path)
    selected = payload.selected or []
    if payload.ctx:
        play.ctx.update(payload.ctx)
        play.changes += 1
    name = "loop.done" if visit is None or visit.ended is None else visit.ended  # a loop is routed before it ends
    for arc in selected:
        target = str(arc.get("step"))
        play.tokens.setdefault(target, []).append(Token(arc.get("args") or {}, name, place.step))
        play.denied.pop(target, None)
    if visit is None:
        return
    visit.is_routed = True
    if payload.error is not None:
        # Where the step had failed before its arcs did, that is the cause; nothing can be passed over either way.
        cause = None if visit.ended != "step.failed" else visit.error
        play.unhandled[path] = payload.error if cause is None else msgspec.structs.replace(cause, category="plan")
    elif not selected:
        play.last = path
        if visit.ended == "step.failed":
            play.unhandled[path] = visit.error
    _close(play, path, visit)


def _close(play: PlayWork, path: str, visit: Visit) -> None:
    if visit.ended is not None and visit.is_routed:
        del play.visits[path]


_NOTES: dict[str, Callable[[Workings, PlayWork, EntityPath, FoldableEvent], None]] = {
    "PolicyAdmitEvaluated": _admitted,
    "StepScheduled": _scheduled,
    "StepStarted": _started,
    "LoopIterationStarted": _iteration_started,
    "LoopIterationDone": _iteration_ended,
    "LoopIterationFailed": _iteration_ended,
    "TaskStarted": _task_started,
    "TaskAttemptStarted": _attempt_started,
    "TaskAttemptDone": _attempt_ended,
    "TaskAttemptFailed": _attempt_ended,
    "PolicyTaskEvaluated": _policy,
    "TaskDone": _task_ended,
    "TaskFailed": _task_ended,
    "ResultManifestUpdated": _gathered,
    "StepCompleted": _step_ended,
    "StepFailed": _step_ended,
    "NextEvaluated": _next,
}
