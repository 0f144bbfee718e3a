"""Steps that are left to workers: scheduled by us, started when one takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runwright.contract import payloads
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.transitions import RunStatus

from .net import Net
from .workings import Workings

if TYPE_CHECKING:
    from .decide import Decider


def scheduled(decider: Decider) -> dict[str, int]:
    """Everything that workers may take, and none has: its path and attempt."""
    if decider.router is not None:
        return decider.router.offers.open
    found = steps_scheduled(decider)
    for step_id, loop in decider.work.loops.items():
        if not loop.failed:
            for index, attempt in loop.scheduled.items():
                found[str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))] = attempt
    return found


def steps_scheduled(decider: Decider) -> dict[str, int]:
    """After a failure that halts the run, only what an operator asked for starts; loops under way go on."""
    work = decider.work
    return {
        path: attempt for path, attempt in work.scheduled.items() if not decider.halted or path in work.retry_signal
    }


def is_scheduled(decider: Decider, path: str, attempt: int) -> bool:
    if path in decider.work.scheduled:
        return steps_scheduled(decider).get(path) == attempt
    place = parse_path(path)
    loop = None if place is None else decider.work.loops.get(place.step)
    if place is None or loop is None or not place.indexes or loop.attempt != place.attempt or loop.failed:
        return False
    return loop.scheduled.get(place.indexes[0]) == attempt


def hand_over(decider: Decider, path: str, attempt: int, worker: str) -> bool:
    """A worker wants to carry this out: then it starts. False if it may not, or not now."""
    if decider.status is not RunStatus.RUNNING or decider.stop is not None:
        return False
    if decider.work.is_told("PAUSE", "CANCEL", "EMERGENCY_STOP"):
        return False  # once such a signal is in the log nothing starts, also before it is acted on
    if decider.router is not None:
        return decider.router.offers.hand_over(path, attempt, worker)
    if not is_scheduled(decider, path, attempt):
        return False
    place = parse_path(path)
    if place is not None and place.indexes:
        payload = payloads.LoopIteration(place.indexes[0], worker=worker)
        decider.say("LoopIterationStarted", path, attempt, payload)
    else:
        signal = decider.work.retry_signal.get(path)
        decider.say("StepStarted", path, attempt, payloads.StepStarted(signal, worker))
    return True


def take_back(net: Net, work: Workings) -> None:
    """What was left to workers by an engine that has some, and is driven on by one that has none: it is ours."""
    if net.routes is not None:
        return  # what is on offer there follows from the rest
    for step_id, attempt in list(work.scheduled.items()):
        node = net.node(step_id)
        if node is not None and node.queue is None:
            del work.scheduled[step_id]
            if attempt > 1:
                work.retry_at[step_id] = 0
    for step_id, loop in work.loops.items():
        node = net.node(step_id)
        if node is None or node.queue is not None:
            continue
        for index, attempt in loop.scheduled.items():
            loop.states[index] = 0
            loop.next_index = min(loop.next_index, index)
            if attempt > 1:
                work.retry_at[str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))] = 0
        loop.scheduled.clear()
