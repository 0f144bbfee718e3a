"""A new run that begins where an old one can be trusted: what succeeded is carried over, not run again."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.transitions import StepStatus
from runwright.core.decide import Decider
from runwright.core.net import Net
from runwright.core.state import RunState


class Fork:
    """Where a run comes from. `carried` are the payloads of its steps that need not run."""

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
        self.files = files  # of the plans that its steps are runs of, by hash
        self._carried = carried

    def carry(self, decider: Decider) -> None:
        for step_id, payload in self._carried.items():
            decider.say("StepSkipped", step_id, 1, {**payload, "originRunId": self.origin_run_id})


def carried_steps(net: Net, state: RunState, from_step: str | None) -> dict[str, dict[str, Any]]:
    """What a new run takes over from an old one: steps that succeeded, unless the fork makes them run again.
    A playbook begins anew: where its tokens were says nothing about where they will be."""
    if net.routes is not None:
        return {}
    again = set[int]() if from_step is None else _beneath(net, net.index[from_step])
    carried: dict[str, dict[str, Any]] = {}
    assert state.workings is not None
    for node in net.nodes:
        step_id = node.step.step_id
        cell = state.steps.get(step_id)
        if cell is None or node.index in again:
            continue
        if cell.status is not StepStatus.SUCCESS and cell.reason_code != "CARRIED_OVER":
            continue
        payload: dict[str, Any] = {"reasonCode": "CARRIED_OVER", "reason": "It succeeded in the run before."}
        stored = state.workings.results.get(step_id)
        if stored is not None and stored.ref is not None:
            payload["resultRef"] = stored.ref
        elif stored is not None and stored.raw is not None:
            payload["result"] = msgspec.Raw(stored.raw)
        if cell.artifacts:
            payload["artifactRefs"] = list(cell.artifacts)
        carried[step_id] = payload
    return carried


def _beneath(net: Net, index: int) -> set[int]:
    """A step and all that come after it, by need or by order."""
    reached = {index}
    frontier = [index]
    while frontier:
        node = net.nodes[frontier.pop()]
        following = [] if node.followed_by is None else [node.followed_by]
        for target in (*node.needed_by, *following):
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    return reached
