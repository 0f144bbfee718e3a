"""What happened outside the log and belongs into it: a step ended, a checkpoint was written, a wait began.

A fact is kept until it is durable. It may be applied again, to a state that was folded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import StepStatus
from runwright.core.decide import Decider
from runwright.core.pipeline import is_at_task, task_ended
from runwright.core.refer import placed


class Fact(Protocol):
    def apply(self, decider: Decider) -> None:
        """Draft it, unless it no longer applies."""
        ...

    def durable(self) -> None:
        """It is in the log."""
        ...

    def give_up(self, error: RunwrightError) -> None:
        """The store did not take it in time."""
        ...


def is_under_way(decider: Decider, path: str, attempt: int) -> bool:
    """Whether the log has this attempt as running."""
    if decider.net.routes is not None:
        return is_at_task(decider, path, attempt)
    cell = decider.state.steps.get(path)
    if cell is not None:
        return (cell.attempt, cell.status) == (attempt, StepStatus.RUNNING)
    place = parse_path(path)
    loop = None if place is None else decider.work.loops.get(place.step)
    if place is None or loop is None or not place.indexes or loop.attempt != place.attempt:
        return False
    return place.indexes[0] in loop.running and loop.attempts.get(place.indexes[0], 1) == attempt


class StepEnded:
    def __init__(
        self,
        path: str,
        attempt: int,
        took_ms: float,
        result: bytes | None,
        error: ErrorInfo | None,
        artifacts: Sequence[ArtifactRef] = (),
    ) -> None:
        self.path = path
        self.attempt = attempt
        self.took_ms = took_ms
        self.result = result
        self.error = error
        self.artifacts = list(dict.fromkeys(artifacts))

    def apply(self, decider: Decider) -> None:
        if decider.net.routes is not None:
            task_ended(decider, self.path, self.attempt, self.result, self.error, self.took_ms, self.artifacts)
            return
        if self.path not in decider.net.index:
            self._end_iteration(decider, parse_path(self.path))
            return
        if not is_under_way(decider, self.path, self.attempt):
            return  # it was ended otherwise, by a cancel or a deadline
        if self.error is not None:
            failed = payloads.StepFailed(self.error, self.took_ms, self.artifacts or None)
            decider.say("StepFailed", self.path, self.attempt, failed)
            return
        decider.say("StepCompleted", self.path, self.attempt, self._good_end(decider))

    def _good_end(self, decider: Decider) -> dict[str, Any]:
        name, where = placed("result", b"null" if self.result is None else self.result, decider.blobs)
        good: dict[str, Any] = {name: msgspec.Raw(where), "durationMs": self.took_ms}
        if self.artifacts:
            good["artifactRefs"] = self.artifacts
        return good

    def _end_iteration(self, decider: Decider, place: EntityPath | None) -> None:
        if place is None or not is_under_way(decider, self.path, self.attempt):
            return
        index = place.indexes[0]
        if self.error is not None:
            failed = payloads.LoopIteration(index, duration_ms=self.took_ms, error=self.error)
            decider.say("LoopIterationFailed", self.path, self.attempt, failed)
            return
        payload = {"index": index, **self._good_end(decider)}
        decider.say("LoopIterationDone", self.path, self.attempt, payload)

    def is_among(self, bodies: Collection[bytes]) -> bool:
        """Whether its result, or what came with its error, is one of these."""
        if self.error is None:
            return self.result in bodies
        facts = self.error.facts or {}
        return "result" in facts and msgspec.json.encode(facts["result"]) in bodies

    def lose_result(self) -> None:
        """The run ends, and the store that its result belongs into does not answer."""
        if self.error is not None:
            facts = {name: fact for name, fact in (self.error.facts or {}).items() if name != "result"}
            self.error = msgspec.structs.replace(self.error, facts=facts)
            return
        message = "It ended, but its result could not be kept: the store for it does not answer."
        self.result = None
        self.error = ErrorInfo(ErrorCode.STORE_UNAVAILABLE, message, retryable=True, category="store")

    def durable(self) -> None: ...

    def give_up(self, error: RunwrightError) -> None:
        if "/" in self.path:
            return  # a task's outcome waits for the store: a short outage must not undo hours of a playbook's work
        self.result = None
        self.error = ErrorInfo(ErrorCode.STORE_WRITE_BUDGET_EXCEEDED, error.detail, retryable=True, category="store")


class WaitBegan:
    """A step that only waits: from here on its time is in the log, and nobody has to hold it in memory."""

    def __init__(self, path: str, attempt: int, due: int, *, late: bool) -> None:
        self.path = path
        self.attempt = attempt
        self.due = due
        self.reason = "timeout" if late else "wait"  # which of the two comes first

    def apply(self, decider: Decider) -> None:
        if self.path not in decider.work.due_at:
            delayed = payloads.StepDelayed(from_micros(self.due), self.reason)
            decider.say("StepDelayed", self.path, self.attempt, delayed)

    def durable(self) -> None: ...

    def give_up(self, error: RunwrightError) -> None: ...


class Asked:
    """A step that waits for somebody: what for is in the log from here on."""

    def __init__(self, path: str, attempt: int, event_type: str, question: msgspec.Struct) -> None:
        self.path = path
        self.attempt = attempt
        self.event_type = event_type
        self.question = question

    def apply(self, decider: Decider) -> None:
        if self.path not in decider.work.awaits and is_under_way(decider, self.path, self.attempt):
            decider.say(self.event_type, self.path, self.attempt, self.question)

    def durable(self) -> None: ...

    def give_up(self, error: RunwrightError) -> None: ...


class CheckpointAsked:
    def __init__(self, path: str, attempt: int, state: bytes, answer: Callable[[Exception | None], None]) -> None:
        self.path = path
        self.attempt = attempt
        self.state = state
        self._answer: Callable[[Exception | None], None] | None = answer

    def apply(self, decider: Decider) -> None:
        if self._answer is None:
            return  # given up
        if not is_under_way(decider, self.path, self.attempt):
            self.give_up(RunwrightError(ErrorCode.STEP_TERMINAL, "This attempt has ended: it was stopped or given up."))
            return
        place = parse_path(self.path)
        entity = self.path
        if place is not None and not place.indexes and place.task is None:
            entity = str(EntityPath(place.step, place.visit, self.attempt))
        ordinal = decider.work.checkpoint_count.get(entity, 0) + 1
        decider.say("CheckpointWritten", entity, ordinal, {"state": msgspec.Raw(self.state)})

    def durable(self) -> None:
        self._settle(None)

    def give_up(self, error: RunwrightError) -> None:
        self._settle(error)

    def _settle(self, error: Exception | None) -> None:
        """Tell the step, which waits for it, once."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(error)
