"""Reruns: a new run that carries over the successful steps of an ended one."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.transitions import StepStatus
from runwright.core.decider import Decider
from runwright.core.fold.state import RunState
from runwright.core.graph.plan_graph import PlanGraph


class Fork:
    """The origin of a new run. `carried`: the payloads of the steps that are not run again."""

    def __init__(
        self,
        origin_run_id: str,
        seq: int,
        carried: dict[str, dict[str, Any]],
        source: str | None,
        files: dict[str, str],
    ) -> None:
        self.origin_run_id = origin_run_id
        self.seq = seq
        self.source = source
        self.files = files  # of its sub-plans, by hash
        self._carried = carried

    def emit_carried_over(self, decider: Decider) -> None:
        """Emit the carried-over steps as skipped, with their results."""
        for step_id, payload in self._carried.items():
            decider.emit("StepSkipped", step_id, 1, {**payload, "originRunId": self.origin_run_id})


def carried_steps(graph: PlanGraph, state: RunState, from_step: str | None) -> dict[str, dict[str, Any]]:
    """The steps of an ended run that a new run carries over: those that succeeded, unless they come after `from_step`.
    A playbook carries over nothing: its tokens may take another way."""
    if not graph.runs_steps_once:
        return {}
    again = set[int]() if from_step is None else _with_successors(graph, graph.index[from_step])
    carried: dict[str, dict[str, Any]] = {}
    assert state.execution is not None
    for node in graph.nodes:
        step_id = node.step.step_id
        step_state = state.steps.get(step_id)
        if step_state is None or node.index in again:
            continue
        if step_state.status is not StepStatus.SUCCESS and step_state.reason_code != "CARRIED_OVER":
            continue
        payload: dict[str, Any] = {"reasonCode": "CARRIED_OVER", "reason": "The step succeeded in the original run."}
        stored = state.execution.results.get(step_id)
        if stored is not None and stored.ref is not None:
            payload["resultRef"] = stored.ref
        elif stored is not None and stored.raw is not None:
            payload["result"] = msgspec.Raw(stored.raw)
        if step_state.artifacts:
            payload["artifactRefs"] = list(step_state.artifacts)
        carried[step_id] = payload
    return carried


def _with_successors(graph: PlanGraph, index: int) -> set[int]:
    """A step and all its successors, by dependency or by order."""
    reached = {index}
    frontier = [index]
    while frontier:
        node = graph.nodes[frontier.pop()]
        following = [] if node.followed_by is None else [node.followed_by]
        for target in (*node.needed_by, *following):
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    return reached
