"""Reruns: a new run that carries over the successful steps of an ended one, with the same plan or a corrected one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.contract.transitions import StepStatus
from runwright.core.decider import Decider
from runwright.core.expressions.template import condition_text, mentioned_fields, mentioned_names
from runwright.core.fold.run_state import RunState
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
        plan_version: str,
        working_directory: str | None,
    ) -> None:
        self.origin_run_id = origin_run_id
        self.origin_plan_version = plan_version
        self.seq = seq
        self.working_directory = working_directory
        self.source = source
        self.files = files  # of its sub-plans, by hash
        self._carried = carried

    @property
    def carried_over(self) -> int:
        """The number of steps that are not run again."""
        return len(self._carried)

    def emit_carried_over(self, decider: Decider) -> None:
        """Emit the carried-over steps as skipped, with their results."""
        for step_id, payload in self._carried.items():
            decider.emit("StepSkipped", step_id, 1, {**payload, "originRunId": self.origin_run_id})


class PlanChange(msgspec.Struct, frozen=True):
    """The difference between the plan of an ended run and that of a new one, beyond the steps themselves."""

    params: frozenset[str] = frozenset()  # whose values differ
    calls: frozenset[str] = frozenset()  # functions whose code differs


def changed_params(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(
        name
        for name in before.keys() | after.keys()
        if name not in before or name not in after or before[name] != after[name]
    )


def changed_calls(before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> frozenset[str]:
    """The functions of steps whose code differs, as far as both fingerprints are known."""
    old, new = before or {}, after or {}
    return frozenset(call for call in old.keys() & new.keys() if old[call] != new[call])


def reasons_to_run(
    old: PlanGraph, new: PlanGraph, succeeded: Collection[str], change: PlanChange, from_step: str | None = None
) -> dict[str, str]:
    """Why each step of the new plan has to run; the others are carried over.

    A step is carried over if it succeeded, and its definition, its inputs and all steps before it are unchanged. How a
    step is executed (retries, timeout, class, queue) is not part of its definition. Of a playbook all steps run: its
    tokens may take another way.
    """
    if not (old.runs_steps_once and new.runs_steps_once):
        return {node.step.step_id: "a playbook starts from the beginning" for node in new.nodes}
    reasons: dict[int, str] = {}
    for node in new.nodes:
        reason = _own_reason(old, node.step, change)
        if node.step.step_id == from_step:
            reason = reason or "--from names it"
        if reason is not None:
            reasons[node.index] = reason
    for index in _with_successors(new, reasons):
        reasons.setdefault(index, "a step before it runs again")
    for node in new.nodes:
        if node.step.step_id not in succeeded:
            reasons.setdefault(node.index, "it did not succeed")
    return {new.nodes[index].step.step_id: reasons[index] for index in sorted(reasons)}


def _own_reason(old: PlanGraph, step: Step, change: PlanChange) -> str | None:
    before = old.node(step.step_id)
    if before is None:
        return "it is new"
    if _definition(before.step) != _definition(step):
        return "its definition changed"
    values = [step.inputs, None if step.foreach is None else step.foreach.items]
    values.append(condition_text(step.when) if isinstance(step.when, str) else None)
    if change.params and any("params" in mentioned_names(value) for value in values):
        used = mentioned_fields("params", values)
        if used is None or used & change.params:
            return "its parameters changed"
    return "its code changed" if step.inputs.get("call") in change.calls else None


def _definition(step: Step) -> tuple[Any, ...]:
    return (step.kind, step.inputs, step.when, step.foreach, step.secret_refs, step.needs_approval)


def succeeded_steps(state: RunState) -> set[str]:
    """The steps whose result a new run can use."""
    return {
        step_id
        for step_id, step_state in state.steps.items()
        if step_state.status is StepStatus.SUCCESS or step_state.reason_code == "CARRIED_OVER"
    }


def carried_steps(graph: PlanGraph, state: RunState, reasons: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The payloads of the steps of an ended run that a new run carries over: those without a reason to run."""
    carried: dict[str, dict[str, Any]] = {}
    assert state.execution is not None
    for node in graph.nodes:
        step_id = node.step.step_id
        if step_id in reasons:
            continue
        payload: dict[str, Any] = {"reasonCode": "CARRIED_OVER", "reason": "The step succeeded in the original run."}
        stored = state.execution.results.get(step_id)
        if stored is not None and stored.ref is not None:
            payload["resultRef"] = stored.ref
        elif stored is not None and stored.raw is not None:
            payload["result"] = msgspec.Raw(stored.raw)
        if artifacts := state.steps[step_id].artifacts:
            payload["artifactRefs"] = list(artifacts)
        carried[step_id] = payload
    return carried


def _with_successors(graph: PlanGraph, indexes: Iterable[int]) -> set[int]:
    """Steps and all their successors, by dependency or by order."""
    reached = set(indexes)
    frontier = list(reached)
    while frontier:
        node = graph.nodes[frontier.pop()]
        following = [] if node.followed_by is None else [node.followed_by]
        for target in (*node.needed_by, *following):
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    return reached
