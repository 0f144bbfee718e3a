"""Playbooks: tokens go from step to step along arcs; a step that has one is admitted, visited and routed from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.plan import StepClass
from runwright.contract.playbook import MOST_JUMPS, MOST_VISITS, FailureMode
from runwright.contract.refs import ErrorInfo
from runwright.contract.transitions import RunStatus

from .arcs import fired
from .draft import Draft
from .ending import completed
from .expressions import fill, fill_anew, is_true
from .node import Node
from .offering import Offers
from .pipeline import check_said, judge, next_label, start_task, task_path
from .playnet import Playnet, Station
from .playscope import output_of
from .playwork import Pipe, PlayWork, Token, Visit, pipe_key
from .refer import placed_stored
from .room import Room
from .rounds import LoopEnd, end_of, hand_out, is_stopped, own_results, start_rounds, unbegun
from .values import Missing
from .waiting import too_late

if TYPE_CHECKING:
    from .decide import Decider

_OF_PIPE = frozenset(
    {
        "StepStarted",
        "LoopIterationStarted",
        "TaskStarted",
        "TaskAttemptDone",
        "TaskAttemptFailed",
        "PolicyTaskEvaluated",
        "TaskDone",
        "TaskFailed",
    }
)
_OF_LOOP = frozenset({"LoopStarted", "LoopIterationDone", "LoopIterationFailed"})
_OF_VISIT = frozenset({"StepScheduled", "StepCompleted", "StepFailed"})


class Router:
    """One run on its way through a playbook. Looks only at what was touched."""

    def __init__(self, decider: Decider, net: Playnet) -> None:
        self._decider = decider
        self._net = net
        self._pipes: dict[str, None] = {}
        self._loops: dict[str, None] = {}
        self._visits: dict[str, None] = {}
        self.offers = Offers(decider, net)
        self._fatal: dict[str, ErrorInfo | None] = {}
        self._looked_at = 0  # failures that nothing took up
        play = decider.work.play
        if play is not None:
            self._pipes.update(dict.fromkeys(play.pipes))
            self._pipes.update(dict.fromkeys(unbegun(decider)))
            self._visits.update(dict.fromkeys(play.visits))
            self._loops.update(dict.fromkeys(path for path in decider.work.loops if path in play.visits))

    @property
    def _play(self) -> PlayWork:
        assert self._decider.work.play is not None
        return self._decider.work.play

    def said(self, made: Draft) -> None:
        path = made.step_id or ""
        if made.event_type in _OF_PIPE:
            place = parse_path(path)
            if place is not None:
                self._pipes[pipe_key(place)] = None
        elif made.event_type in _OF_LOOP:
            place = parse_path(path)
            if place is not None:
                self._loops[place.owner] = None
        elif made.event_type in _OF_VISIT:
            self._visits[path] = None

    def begin(self) -> None:
        """The playbook was loaded: its first token is where it begins."""
        playbook, decider = self._net.playbook, self._decider
        ctx: dict[str, Any] = {}
        error: ErrorInfo | None = None
        try:
            ctx = fill(playbook.ctx, decider.scope.of_workload())
        except RunwrightError as trouble:
            error = ErrorInfo(trouble.code, trouble.detail, retryable=False, category="plan")
        decider.say("WorkflowStarted", payload=payloads.WorkflowStarted(playbook.entry, ctx or None))
        if error is not None:
            cause = payloads.RootCause(None, error.code, error.message)
            took = decider.since(decider.state.summary.started_at)
            decider.end_run("RunFailed", payloads.RunEnded(root_cause=cause, error=error, duration_ms=took))

    def go_on(self, room: Room) -> None:
        """Draft all that follows from the state as it is."""
        if self._decider.work.play is None:
            self.begin()
        while self._decider.status is RunStatus.RUNNING:
            before = self._decider.drafted
            if self.offers.open and self.failures():
                self.offers.drop_unbegun_visits()
            self._give_up_offers()
            self._retry_tasks(room)
            self._see_to(self._pipes, self._see_to_pipe, room)
            self._see_to(self._loops, self._see_to_loop, room)
            self._see_to(self._visits, self._see_to_visit, room)
            if not room.closed:
                self._start_steps()
            if self._decider.drafted == before and not self._finish(room):
                return

    def let_end(self) -> None:
        """While the run is paused nothing starts, and what is done ends."""
        closed = Room({}, closed=True)
        self._see_to(self._pipes, self._see_to_pipe, closed)
        self._see_to(self._loops, self._see_to_loop, closed)

    def _see_to(self, touched: dict[str, None], look: Callable[[str, Room], bool], room: Room) -> None:
        """Look at what was touched; what waits for room or for a value is looked at again next time."""
        for key in list(touched):
            touched.pop(key, None)
            try:
                is_done = look(key, room)
            except Missing as missing:
                self._decider.missing |= missing.refs
                is_done = False
            if not is_done:
                touched[key] = None
            self._decider.seam()

    # Pipelines

    def _see_to_pipe(self, key: str, room: Room) -> bool:
        play, place = self._play, parse_path(key)
        pipe = play.pipes.get(key)
        if place is None or (pipe is not None and pipe.running):
            return True
        station = self._net.stations[place.step]
        if pipe is None:
            return self._begin_iteration(station, place, room) if place.indexes else True
        if station.route.loop is not None and not place.indexes:
            return True  # the visit itself has no pipeline: its iterations have
        if pipe.ended is not None and pipe.do is None:
            over = self._too_much(station, place, pipe, pipe.over_at)
            judge(self._decider, station, place, pipe, over, self._deadline(place))
        if pipe.task is not None and pipe.do is None:
            return True  # it is to be tried again when its time has come
        return self._go_on_with(station, place, pipe, room)

    def _begin_pipe(self, room: Room, key: str) -> None:
        self._see_to({key: None}, self._see_to_pipe, room)

    def _begin_iteration(self, station: Station, place: EntityPath, room: Room) -> bool:
        """It was handed out, now or in an earlier life of the run."""
        decider, index = self._decider, place.indexes[0]
        loop, visit = decider.work.loops.get(place.owner), self._play.visits.get(place.owner)
        if loop is None or index not in loop.scheduled or is_stopped(station, loop):
            return True
        if visit is None or visit.ended is not None:
            return True
        if room.closed:
            return False
        if station.queue is not None and not self._is_late(place):
            self._offer(place, station.labels[0], 1, 1)
            return True
        decider.say("LoopIterationStarted", str(place), 1, payloads.LoopIteration(index))
        return self._see_to_pipe(str(place), room)

    def _offer(self, place: EntityPath, label: str, visit: int, attempt: int) -> None:
        self.offers.add(task_path(place, label, visit), attempt, place.owner, self._deadline(place))

    def _give_up_offers(self) -> None:
        for path, attempt in self.offers.take_late():
            place = parse_path(path)
            if attempt > 1:
                self._decider.look_at_retry(path)
            elif place is not None:
                self._pipes[pipe_key(place)] = None

    def _go_on_with(self, station: Station, place: EntityPath, pipe: Pipe, room: Room) -> bool:
        label = next_label(station, pipe)
        when = self._decider.now if label is not None else pipe.over_at  # what was done in time stays done
        if pipe.error is None and (late := self._too_much(station, place, pipe, when)) is not None:
            pipe.error = late
        if pipe.error is not None:
            self._end_pipe(place, pipe, pipe.error)
            return True
        if label is None:
            self._end_pipe(place, pipe, None)
            return True
        if station.nodes[label].queue is not None and not room.closed:
            self._offer(place, label, pipe.visits.get(label, 0) + 1, 1)
            return True
        if room.closed or not room.take(StepClass.LIGHT):
            room.refused = True
            return False
        start_task(self._decider, station, place, pipe, label)
        return True

    def _is_late(self, place: EntityPath, when: int | None = None) -> bool:
        deadline = self._deadline(place)
        return deadline is not None and (self._decider.now if when is None else when) >= deadline

    def _too_much(self, station: Station, place: EntityPath, pipe: Pipe, when: int) -> ErrorInfo | None:
        if self._is_late(place, when):
            return self._out_of_time(station)
        if pipe.jumps > MOST_JUMPS:
            message = f"The pipeline jumped more than {MOST_JUMPS:,} times; it seems to go round in a circle."
            return ErrorInfo("JUMP_LIMIT", message, retryable=False, category="plan")
        return None

    def _out_of_time(self, station: Station) -> ErrorInfo:
        return too_late(station.node.step.timeout or 0.0, "The step")

    def _end_pipe(self, place: EntityPath, pipe: Pipe, error: ErrorInfo | None) -> None:
        decider, path = self._decider, str(place)
        took = max(0, decider.now - pipe.began) / 1000
        result = {} if error is not None else placed_stored(pipe.previous)
        if place.indexes:
            index = place.indexes[0]
            if error is not None:
                decider.say(
                    "LoopIterationFailed", path, 1, payloads.LoopIteration(index, duration_ms=took, error=error)
                )
            else:
                decider.say("LoopIterationDone", path, 1, {"index": index, **result, "durationMs": took})
        elif error is not None:
            decider.say("StepFailed", path, 1, payloads.StepFailed(error, took))
        else:
            decider.say("StepCompleted", path, 1, {**result, "durationMs": took})

    def _retry_tasks(self, room: Room) -> None:
        """Tasks whose time to be tried again has come, as far as there is room."""
        while (path := self._decider.next_retry()) is not None:
            place = parse_path(path)
            pipe = None if place is None else self._play.pipes.get(pipe_key(place))
            if pipe is None or place is None or place.task is None:
                continue
            station = self._net.stations[place.step]
            if (late := self._too_much(station, place, pipe, self._decider.now)) is not None:
                self._decider.say("TaskFailed", path, pipe.attempt, {"error": late, "idle": True})
                continue
            if station.nodes[place.task].queue is not None:
                self._offer(place, place.task, place.task_visit, pipe.attempt + 1)
                continue
            if room.closed or not room.take(StepClass.LIGHT):
                room.refused = True
                self._decider.look_at_retry(path)
                return
            self._decider.say("TaskAttemptStarted", path, pipe.attempt + 1, payloads.TaskStarted())
            self._decider.seam()

    def inputs(self, node: Node, path: str) -> Any:
        """What a task is given, with expressions filled in."""
        if node.body is not None:
            return msgspec.json.decode(node.body)  # a copy: what the task does to it is its own business
        place = parse_path(path)
        assert place is not None
        pipe = self._play.pipes[pipe_key(place)]
        station = self._net.stations[place.step]
        mentions = station.inputs[place.task or ""]
        return fill_anew(node.step.inputs, self._decider.scope.of_pipe(mentions, station, place, pipe))

    def iteration(self, path: str) -> dict[str, Any] | None:
        place = parse_path(path)
        if place is None or not place.indexes:
            return self._decider.work.parent_iter  # it is the same for whatever is further in
        pipe = self._play.pipes[pipe_key(place)]
        return self._decider.scope.iteration(self._net.stations[place.step], place, pipe)

    def time_for(self, node: Node, path: str) -> tuple[float, ErrorInfo] | None:
        """Seconds that a task may take: its own limit, or what is left of its step's; and what it failed with then."""
        place = parse_path(path)
        deadline = None if place is None else self._deadline(place)
        own = node.step.timeout
        if place is None or deadline is None:
            return None if own is None else (own, too_late(own))
        left = max(0, deadline - self._decider.now) / 1e6
        if own is not None and own < left:
            return own, too_late(own)
        return left, self._out_of_time(self._net.stations[place.step])

    def _deadline(self, place: EntityPath) -> int | None:
        """When the time of a step's visit is up."""
        limit = self._net.stations[place.step].node.step.timeout
        visit = self._play.pipes.get(place.owner)
        return None if limit is None or visit is None else visit.began + int(limit * 1e6)

    # Loops

    def _see_to_loop(self, path: str, room: Room) -> bool:
        decider, visit = self._decider, self._play.visits.get(path)
        loop = decider.work.loops.get(path)
        if visit is None or loop is None or visit.ended is not None:
            return True
        station = self._net.stations[path.partition("@")[0]]
        if self.offers.open and is_stopped(station, loop):
            self.offers.drop_unbegun(path)
        try:
            is_all_out = hand_out(decider, station, path, loop, room, partial(self._begin_pipe, room))
        except RunwrightError as error:  # what it goes over is gone
            if loop.running:
                return True
            self.offers.drop_unbegun(path)
            decider.say("LoopDone", path, 1, payloads.LoopCounts(loop.total, loop.done, loop.failed, step_failed=True))
            decider.fail(path, 1, error.code, error.detail)
            return True
        if (end := end_of(decider, station, path, loop)) is None:
            return is_all_out
        if end.error is not None and (place := parse_path(path)) is not None and self._is_late(place):
            end.error = self._out_of_time(station)
        scope = self._scope_after(station, visit, end)
        if end.manifest is not None:
            decider.say("ResultManifestUpdated", path, 1, payloads.ResultStored(end.manifest))
        decider.say("LoopDone", path, 1, payloads.LoopCounts(**end.counts, step_failed=end.error is not None))
        if end.error is not None:
            decider.say("StepFailed", path, 1, payloads.StepFailed(end.error, end.took_ms))
        else:
            self._route(station, path, "loop.done", scope)
            decider.say("StepCompleted", path, 1, {**end.result, "durationMs": end.took_ms})
        return True

    # Visits

    def _see_to_visit(self, path: str, _room: Room) -> bool:
        visit = self._play.visits.get(path)
        if visit is None:
            return True
        station = self._net.stations[path.partition("@")[0]]
        if not visit.is_started:
            self._start(station, path, visit)
        elif visit.ended is not None and not visit.is_routed:
            self._route(station, path, visit.ended, self._scope_after(station, visit))
        return True

    def _start(self, station: Station, path: str, visit: Visit) -> None:
        if station.route.loop is None and station.queue is not None:
            if not self.failures():  # else it does not begin any more
                self.offers.add(f"{path}/{station.labels[0]}", 1, path, None)
            return
        if station.route.loop is None:
            self._decider.say("StepStarted", path, 1, payloads.StepStarted())
            return
        start_rounds(self._decider, station, path, visit.args)

    def _scope_after(
        self, station: Station, visit: Visit, loop: LoopEnd | None = None
    ) -> dict[str, Any] | RunwrightError:
        """What the arcs of a step see once it has ended; or why they cannot."""
        payload = {} if loop is None else dict(loop.counts)
        if visit.error is not None:
            payload["error"] = {"code": visit.error.code, "message": visit.error.message}
        try:
            mine = (station.node.step.step_id, visit.result)
            scope = self._decider.scope.of_step(station.arcs, visit.args, mine)
            own = {} if loop is None else own_results(self._decider, station, loop)
        except RunwrightError as error:
            return error
        found = {**scope, **own, "event": {"name": "loop.done" if loop else visit.ended, "payload": payload}}
        if "step" in station.arcs:
            found.setdefault("step", {**visit.args, **visit.own})
        if "output" in station.arcs:
            value = found.get(station.node.step.step_id) if visit.error is None else None
            kind = None if visit.label is None else station.tasks[visit.label].kind
            found.setdefault("output", output_of(visit.error, value, kind))
        return found

    def _route(self, station: Station, path: str, name: str, scope: dict[str, Any] | RunwrightError) -> None:
        must_lead_on = self._net.playbook.no_next_is_error
        self._decider.say("NextEvaluated", path, 1, fired(station, name, scope, must_lead_on=must_lead_on))

    # Tokens

    def _start_steps(self) -> None:
        play = self._play
        if not play.tokens or self.failures():
            return
        live = {*play.tokens, *(path.partition("@")[0] for path in play.visits)}
        for name in sorted(play.tokens, key=self._net.place.__getitem__):
            station = self._net.stations[name]
            while (tokens := play.tokens.get(name)) and self._may_start(name, station, live):
                taken = list(tokens) if station.waits_for else tokens[:1]  # where nothing meets, each is a visit
                if not self._admit(station, name, taken):
                    break
                self._decider.seam()

    def _may_start(self, name: str, station: Station, live: set[str]) -> bool:
        if name == self._net.playbook.final_step or self._is_denied(name):
            return False
        return not station.waits_for & live

    def _is_denied(self, name: str) -> bool:
        """Whether all its tokens were judged, and nothing has changed since."""
        denied, play = self._play.denied.get(name), self._play
        return denied is not None and denied.changes == play.changes and denied.tokens >= len(play.tokens.get(name, ()))

    def _admit(self, station: Station, name: str, tokens: list[Token], *, final: bool = False) -> bool:
        """Judge whether a step may be visited, and if so commit its token. False if that cannot be said yet."""
        decider, play = self._decider, self._play
        number = play.counts.get(name, 0) + 1
        path = str(EntityPath(name, number))
        args = {key: value for token in tokens for key, value in token.args.items()}
        ordinal = play.admissions.get(path, 0) + 1
        rule: int | None = None
        allow, error = True, None
        try:
            check_said("What the arcs to this step pass on", args)
            if station.route.admit:
                scope = decider.scope.of_step(station.admit, args)
                scope["event"] = _cause(tokens)
                for index, each in enumerate(station.route.admit):
                    if each.when is None or is_true(each.when, scope):
                        rule, allow = index, each.allow
                        break
        except RunwrightError as trouble:
            allow = False
            error = ErrorInfo(trouble.code, trouble.detail, retryable=False, category="plan")
        except Missing as missing:
            decider.missing |= missing.refs
            return False
        if number > MOST_VISITS:
            message = f"The step was visited {MOST_VISITS:,} times already; the playbook seems to go round in a circle."
            allow, error = False, ErrorInfo("VISIT_LIMIT", message, retryable=False, category="plan")
        judged = payloads.PolicyAdmitEvaluated(allow, rule, error, None if allow else len(tokens))
        decider.say("PolicyAdmitEvaluated", path, ordinal, judged)
        if not allow:
            return True
        queue = station.queue if station.route.loop is None else None
        committed = payloads.StepScheduled(queue, args or None, len(tokens), final or None)
        decider.say("StepScheduled", path, 1, committed)
        return True

    # The end

    def failures(self) -> dict[str, ErrorInfo | None]:
        """Failures that end the run: those that nothing took up, of steps that are not to be passed over."""
        unhandled = self._play.unhandled
        for path, error in islice(unhandled.items(), self._looked_at, None):
            mode = self._net.stations[path.partition("@")[0]].route.failure
            if mode is FailureMode.FAIL_FAST or (error is not None and error.category == "plan"):
                self._fatal[path] = error
        self._looked_at = len(unhandled)
        return self._fatal

    def _finish(self, room: Room) -> bool:
        """End the run if nothing is left to do; True if there is more after all."""
        decider, play = self._decider, self._play
        failures = self.failures()
        at_work = any(visit.is_started for visit in play.visits.values()) if failures else bool(play.visits)
        if at_work or decider.missing or room.closed:
            return False
        final = self._net.playbook.final_step
        waiting = [name for name in play.tokens if name != final]
        if not failures and not waiting and final is not None and play.final is None and not self._is_denied(final):
            return self._admit(self._net.stations[final], final, play.tokens.get(final, []), final=True)
        took = decider.since(decider.state.summary.started_at)
        if failures:
            path, error = next(iter(failures.items()))
        elif waiting or (final is not None and play.final is None):
            denied = [name for name in waiting if name in play.denied]  # others wait for what these lead to
            names = ", ".join(denied or waiting) or str(final)
            message = f"Nothing goes on, and these steps wait to be admitted: {names}."
            path, error = waiting[0] if waiting else str(final), ErrorInfo("ADMISSION_DEADLOCK", message, False, "plan")
        else:
            decider.end_run("RunCompleted", completed(list(play.artifacts), took))
            return False
        cause = payloads.RootCause(path, *((None, None) if error is None else (error.code, error.message)))
        decider.end_run("RunFailed", payloads.RunEnded(root_cause=cause, error=error, duration_ms=took))
        return False


def _cause(tokens: list[Token]) -> dict[str, Any]:
    """What brought a step the token that it is judged for."""
    last = tokens[-1] if tokens else Token({})
    return {"name": last.event, "step": last.source, "payload": {}}
