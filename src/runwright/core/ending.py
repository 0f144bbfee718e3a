"""How a run ends by itself: well, when nothing is left to do; badly, when a failure keeps the rest from being done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runwright.contract import payloads
from runwright.contract.plan import OnFailure
from runwright.contract.refs import ArtifactRef

from .asking import close_approval, stop_waiting
from .handing import steps_scheduled
from .room import Room

if TYPE_CHECKING:
    from .decide import Decider


LARGEST_LIST = 512 * 1024  # bytes of artifacts in a run's end


def finish_if_done(decider: Decider, room: Room) -> None:
    summary, marking, work = decider.state.summary, decider.marking, decider.work
    if decider.halted and work.awaits:
        stop_waiting(decider)
        decider.settle()
    if summary.running_steps or decider.missing or room.refused:
        return
    took = decider.since(summary.started_at)
    if not marking.open and not marking.failed and not work.retry_at:
        artifacts = [artifact for cell in decider.state.steps.values() for artifact in cell.artifacts]
        decider.end_run("RunCompleted", completed(artifacts, took))
        return
    if not marking.failed or decider.net.plan.on_failure is OnFailure.WAIT:
        return
    if steps_scheduled(decider) or (not decider.halted and (work.retry_at or marking.has_ready())):
        return
    first = _first_failed(decider)
    skip_the_rest(decider, "RUN_FAILED", "The run failed before this step could start.")
    error = decider.state.steps[first].error
    cause = payloads.RootCause(first, *((None, None) if error is None else (error.code, error.message)))
    decider.end_run("RunFailed", payloads.RunEnded(root_cause=cause, error=error, duration_ms=took))


def completed(artifacts: list[ArtifactRef], took_ms: float | None) -> payloads.RunEnded:
    """A good end, with what was made on the way; where that is too much for an event, its steps' ends have the rest."""
    listed, size = 0, 0
    for artifact in artifacts:
        size += len(msgspec.json.encode(artifact)) + 1
        if size > LARGEST_LIST:
            break
        listed += 1
    left_out = len(artifacts) - listed
    return payloads.RunEnded(
        artifact_refs=artifacts[:listed] or None, artifacts_left_out=left_out or None, duration_ms=took_ms
    )


def _first_failed(decider: Decider) -> str:
    """By the log, so that whoever takes the run over names the same cause."""
    names = [decider.net.nodes[index].step.step_id for index in sorted(decider.marking.failed)]
    return min(names, key=lambda name: decider.state.steps[name].completed_at or "")


def skip_the_rest(decider: Decider, code: str, reason: str) -> None:
    """Steps that never started, when the run ends. Those of a playbook that had no token were never to run."""
    if decider.router is not None:
        return
    dependents = decider.marking.depends_on_failure() if code == "RUN_FAILED" else ()
    for node in decider.net.nodes:
        if not decider.marking.is_pending(node.index):
            continue
        close_approval(decider, node.step.step_id, reason)
        if node.index in dependents:
            why = payloads.StepSkipped("DEPENDENCY_FAILED", "A step it needs failed.")
        else:
            why = payloads.StepSkipped(code, reason)
        decider.say("StepSkipped", node.step.step_id, 1, why)
        decider.seam()
