"""Tasks of a playbook that are left to workers: on offer until one is taken, and begun in the log by that alone.

What is on offer follows from the log: whoever drives the run next offers the same. A visit or an iteration whose
first task is for workers begins with it; until then it is scheduled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runwright.contract import payloads
from runwright.contract.paths import EntityPath, parse_path

from .pipeline import next_label, start_task
from .playnet import Playnet, Station
from .playwork import Pipe, PlayWork, pipe_key
from .rounds import is_stopped

if TYPE_CHECKING:
    from .decide import Decider


class Offers:
    def __init__(self, decider: Decider, net: Playnet) -> None:
        self._decider = decider
        self._net = net
        self.open: dict[str, int] = {}
        """The paths and attempts that workers may take."""
        self._deadlines: dict[str, int] = {}  # when the time is up of visits that have something on offer

    @property
    def _play(self) -> PlayWork:
        assert self._decider.work.play is not None
        return self._decider.work.play

    def add(self, path: str, attempt: int, owner: str, deadline: int | None) -> None:
        self.open[path] = attempt
        if deadline is not None:
            self._deadlines[owner] = deadline

    def next_deadline(self) -> int | None:
        return min(self._deadlines.values(), default=None)

    def take_late(self) -> list[tuple[str, int]]:
        """What nobody took in the time of its step: it is on offer no longer."""
        now = self._decider.now
        over = {owner for owner, deadline in self._deadlines.items() if deadline <= now}
        if not over:
            return []
        for owner in over:
            del self._deadlines[owner]
        return [(path, self.open.pop(path)) for path in list(self.open) if _owner(path) in over]

    def drop_unbegun_visits(self) -> None:
        """The run has failed: what has not begun does not begin any more."""
        visits = self._play.visits
        for path in list(self.open):
            visit = visits.get(_owner(path) or "")
            if visit is not None and not visit.is_started:
                del self.open[path]

    def drop_unbegun(self, visit: str) -> None:
        """No more iterations of this loop are to begin."""
        pipes = self._play.pipes
        for path in [path for path in self.open if _owner(path) == visit]:
            place = parse_path(path)
            if place is not None and pipe_key(place) not in pipes:
                del self.open[path]

    def hand_over(self, path: str, attempt: int, worker: str) -> bool:
        """A worker wants to carry this out: then it begins. False if it is not on offer."""
        place, decider = parse_path(path), self._decider
        station = None if place is None else self._net.stations.get(place.step)
        if place is None or station is None or place.task is None or not self._is_open(station, place, attempt):
            return False
        self.open.pop(path, None)
        key = pipe_key(place)
        if key not in self._play.pipes and place.indexes:
            begun = payloads.LoopIteration(place.indexes[0], worker=worker)
            decider.say("LoopIterationStarted", key, 1, begun)
        elif key not in self._play.pipes:
            decider.say("StepStarted", key, 1, payloads.StepStarted(worker=worker))
        if attempt == 1:
            start_task(decider, station, place, self._play.pipes[key], place.task, worker)
        else:
            decider.say("TaskAttemptStarted", path, attempt, payloads.TaskStarted(worker))
        decider.seam()
        return True

    def _is_open(self, station: Station, place: EntityPath, attempt: int) -> bool:
        """Asked of the log alone: a fact may be applied to a state that was folded a moment ago."""
        node = station.nodes.get(place.task or "")
        if node is None or node.queue is None:
            return False
        pipe = self._play.pipes.get(pipe_key(place))
        if pipe is None:
            return attempt == 1 and place.task_visit == 1 and self._may_begin(station, place)
        if pipe.running or pipe.ended is not None or pipe.error is not None:
            return False
        return _is_next(station, pipe, place) if attempt == 1 else self._is_due_again(pipe, place, attempt)

    def _may_begin(self, station: Station, place: EntityPath) -> bool:
        visit = self._play.visits.get(place.owner)
        if visit is None or visit.ended is not None or place.task != station.labels[0]:
            return False
        if not place.indexes:
            router = self._decider.router
            has_failed = router is not None and bool(router.failures())
            return station.route.loop is None and not visit.is_started and not has_failed
        loop = self._decider.work.loops.get(place.owner)
        return loop is not None and place.indexes[0] in loop.scheduled and not is_stopped(station, loop)

    def _is_due_again(self, pipe: Pipe, place: EntityPath, attempt: int) -> bool:
        if (pipe.task, pipe.visits.get(place.task or ""), pipe.attempt + 1) != (place.task, place.task_visit, attempt):
            return False
        return pipe.do is None and str(place) in self._decider.work.retry_at  # due when it was offered: clocks are set


def _is_next(station: Station, pipe: Pipe, place: EntityPath) -> bool:
    if pipe.task is not None and pipe.do is None:
        return False
    label = next_label(station, pipe)
    return label == place.task and pipe.visits.get(label or "", 0) + 1 == place.task_visit


def _owner(path: str) -> str | None:
    place = parse_path(path)
    return None if place is None else place.owner
