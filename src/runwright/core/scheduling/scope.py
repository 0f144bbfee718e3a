"""Expression scope of a plan: parameters, results of earlier steps, the run itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.transitions import StepStatus
from runwright.core.expressions.budget import CostMeter, ExpressionScope
from runwright.core.expressions.template import evaluate_all, evaluate_copy, mentioned_steps
from runwright.core.fold.execution_state import ExecutionState
from runwright.core.fold.run_state import RunState
from runwright.core.graph.node import Node
from runwright.core.graph.plan_graph import PlanGraph

from .stored_values import StoredValues


def raw_inputs(execution: ExecutionState, node: Node) -> dict[str, Any]:
    """A step's inputs before expressions are evaluated: those of the plan, with the overrides of operators."""
    override = execution.overrides.get(node.step.step_id)
    return node.step.inputs if override is None else {**node.step.inputs, **override}


class PlanScope:
    def __init__(
        self,
        graph: PlanGraph,
        state: RunState,
        execution: ExecutionState,
        run: RunIdentity,
        values: StoredValues,
        cost: CostMeter,
    ) -> None:
        self._graph = graph
        self._cost = cost
        self._state = state
        self._execution = execution
        self._values = values
        self._run = {"id": run.run_id, "planId": run.plan_id, "planVersion": run.plan_version}

    def of_node(self, node: Node, **more: Any) -> ExpressionScope:
        """The names that the expressions of a step can use."""
        own = self._state.steps.get(node.step.step_id)
        step = {"id": node.step.step_id, "attempt": 1 if own is None else own.attempt}
        scope = self._scope(node.mentions)
        scope.update({"step": step, **more})
        return scope

    def _scope(self, mentions: frozenset[str] | None) -> ExpressionScope:
        mentioned: Iterable[str] = self._execution.results if mentions is None else mentions
        steps: dict[str, Any] = {}
        for name in mentioned:
            step_state = self._state.steps.get(name)
            status = StepStatus.PENDING if step_state is None else step_state.status
            stored = self._execution.results.get(name)
            value = None if stored is None else self._values.load(stored)
            node = self._graph.node(name)
            if node is not None and node.step.foreach is not None:
                value = self._values.load_items(value)
            steps[name] = {"status": str(status), "result": value}
        names = {"params": self._execution.params, "steps": steps, "run": self._run}
        return ExpressionScope(names, self._cost.new_budget())

    def result(self) -> Any:
        """The result of the run, as the plan defines it."""
        result = self._graph.plan.result
        return evaluate_all(result, self._scope(mentioned_steps([result])))

    def inputs(self, node: Node, **more: Any) -> Any:
        """A step's inputs with overrides applied and expressions evaluated."""
        raw = raw_inputs(self._execution, node)
        if raw is node.step.inputs and node.body is not None:
            return msgspec.json.decode(node.body)  # a copy: the step may modify it
        return evaluate_copy(raw, self.of_node(node, **more))

    def items(self, node: Node) -> Any:
        """The items of a foreach step."""
        assert node.step.foreach is not None
        return evaluate_all(node.step.foreach.items, self.of_node(node))
