"""Expression scope of a playbook: workload, `ctx`, arguments, results of steps and tasks, the iteration."""

from __future__ import annotations

from typing import Any

from runwright.contract.events import RunIdentity
from runwright.contract.paths import EntityPath
from runwright.contract.playbook import HTTP, ManifestStrategy
from runwright.contract.refs import ErrorInfo
from runwright.core.expressions.budget import CostMeter, ExpressionScope
from runwright.core.fold.execution_state import ExecutionState
from runwright.core.fold.payload_reader import StoredResult
from runwright.core.fold.playbook_state import AttemptOutcome, ManifestState, PipelineState, PlaybookState
from runwright.core.graph.playbook_graph import Mentions, PlaybookGraph, PlaybookStep, reads_result
from runwright.core.scheduling.loops import loop_items
from runwright.core.scheduling.result_refs import value_at_path
from runwright.core.scheduling.stored_values import StoredValues

RESERVED_NAMES = frozenset(
    {"workload", "ctx", "iter", "args", "execution_id", "_prev", "_task", "_attempt", "outcome", "output", "event"}
)
"""Names with a fixed meaning in every playbook."""

NO_NAMES = RESERVED_NAMES | {
    *("none", "None", "true", "True", "false", "False"),
    *("and", "or", "not", "in", "is", "if", "else"),
}
"""Names that steps and tasks cannot have: expressions could not refer to them."""


def workload_scope(workload: dict[str, Any], run_id: str) -> dict[str, Any]:
    """The workload by its keys and as a whole, and the run id under its current name and that of older playbooks."""
    job = {"uuid": run_id, "id": run_id, "execution_id": run_id}
    return {"job": job, **workload, "workload": workload, "execution_id": run_id}


class PlaybookScope:
    def __init__(
        self,
        graph: PlaybookGraph,
        values: StoredValues,
        execution: ExecutionState,
        run: RunIdentity,
        cost: CostMeter,
    ) -> None:
        self._graph = graph
        self._cost = cost
        self._values = values
        self._execution = execution
        self._run = run

    @property
    def _state(self) -> PlaybookState:
        assert self._execution.playbook is not None
        return self._execution.playbook

    def of_step(
        self, mentions: Mentions, args: dict[str, Any], own: tuple[str, StoredResult | None] | None = None
    ) -> ExpressionScope:
        """Workload, `ctx`, and the results of the mentioned steps. `own`: a step and the result of the current visit,
        which takes the place of its newest result. Raises MissingValues to have values fetched, RunwrightError if one
        is not available."""
        scope = self.of_workload()
        for name in mentions:
            if own is not None and name == own[0]:
                if own[1] is not None:
                    scope[name] = self._result(name, own[1], mentions[name], step_ended=False)
            elif name in self._graph.steps and (stored := self._execution.results.get(name)) is not None:
                scope[name] = self._result(name, stored, mentions[name], step_ended=True)
        scope.update(ctx=self._state.ctx, args=args)
        scope.setdefault("input", args)
        return scope

    def of_workload(self) -> ExpressionScope:
        """The scope before any step has run."""
        names = workload_scope(self._execution.params, self._run.run_id)
        return ExpressionScope(names, self._cost.new_budget())

    def _result(self, name: str, stored: StoredResult, fields: frozenset[str] | None, *, step_ended: bool) -> Any:
        if self._graph.steps[name].route.loop is None:
            return self._values.playbook_view(stored, fields, step_ended=step_ended)
        return self._values.load_items(self._values.load(stored), step_ended=step_ended)

    def of_task(
        self, mentions: Mentions, step: PlaybookStep, path: EntityPath, pipeline: PipelineState
    ) -> ExpressionScope:
        """The scope of a task: that of its step, the results of earlier tasks of the pipeline, and the iteration."""
        visit = self._state.visits[path.owner]
        scope = self.of_step(mentions, visit.args)
        for name, value in pipeline.iter_vars.items():
            scope.setdefault(name, value)
        for label, stored in pipeline.results.items():
            if label in mentions:
                scope[label] = self._values.playbook_view(stored, mentions[label])
        for name, manifest in pipeline.manifests.items():
            if name in mentions:
                scope[name] = self._manifest(manifest)
        scope["_task"] = pipeline.task
        scope["_attempt"] = pipeline.attempt
        if "_prev" in mentions:
            scope["_prev"] = self._values.playbook_view(pipeline.previous, mentions["_prev"])
        scope["iter"] = own = self.iteration(step, path, pipeline)
        if step.route.loop is not None and path.indexes:
            scope.setdefault(step.route.loop.iterator, own[step.route.loop.iterator])
        if "step" in mentions:
            scope.setdefault("step", {**visit.args, **pipeline.iter_vars})
        return scope

    def _manifest(self, manifest: ManifestState) -> Any:
        values = [self._values.load(part) for part in manifest.parts]
        if manifest.merge_path is not None:
            values = [value_at_path(value, manifest.merge_path) for value in values]
        if manifest.strategy == ManifestStrategy.REPLACE:
            return values[-1]
        if manifest.strategy == ManifestStrategy.CONCAT:
            return [each for value in values for each in (value if isinstance(value, list) else [value])]  # pyright: ignore[reportUnknownVariableType]
        if manifest.strategy == ManifestStrategy.MERGE:
            return _merged(values)
        return values

    def iteration(self, step: PlaybookStep, path: EntityPath, pipeline: PipelineState) -> dict[str, Any]:
        """The variables of an iteration: its item, its index, that of the parent run, and what its tasks set."""
        found: dict[str, Any] = {}
        if step.route.loop is not None and path.indexes:
            loop = self._execution.loops[path.owner]
            index = path.indexes[0]
            found.update({step.route.loop.iterator: loop_items(self._values, loop)[index], "index": index})
        if self._execution.parent_iter is not None:
            found["parent"] = self._execution.parent_iter
        return found | pipeline.iter_vars  # variables set by tasks take precedence

    def outcome(self, mentions: Mentions, ended: AttemptOutcome) -> dict[str, Any]:
        """The outcome as the policy of a task sees it. Absent parts are present and empty."""
        value = self._values.load(ended.result) if reads_result(mentions) else None
        parts: dict[str, Any] = {name: {**none, **(ended.details.get(name) or {})} for name, none in _NO_PARTS.items()}
        return {"result": value, "data": value, **parts, "status": ended.status}


def output_of(error: ErrorInfo | None, value: Any, kind: str | None) -> dict[str, Any]:
    """The end of a step as its arcs see it in `output`. `kind` is that of its last task."""
    outcome = {"status": "ok", "result": value, "data": value, **_NO_PARTS}
    if error is not None:
        described = {"kind": error.category, "retryable": bool(error.retryable), "code": error.code}
        outcome.update(status="error", error={**described, "message": error.message})
        outcome["http"] = {**_NO_PARTS["http"], "status": (error.facts or {}).get("status")}
    elif kind == HTTP and isinstance(value, dict):
        outcome["http"] = {**_NO_PARTS["http"], **value}
    return as_output(outcome)


def _merged(values: list[Any]) -> Any:
    """Merge mappings, later ones over earlier ones; of other values, the last."""
    merged: Any = None
    for value in values:
        both = isinstance(merged, dict) and isinstance(value, dict)
        merged = {**merged, **value} if both else value  # pyright: ignore[reportUnknownVariableType]
    return merged  # pyright: ignore[reportUnknownVariableType]


_NO_PARTS: dict[str, Any] = {
    "error": {"kind": None, "retryable": False, "code": None, "message": None},
    "http": {"status": None, "headers": {}},
    "pg": {"code": None, "sqlstate": None},
    "py": {"exception_type": None},
    "meta": {},
}


def as_output(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome as `output`: errors of HTTP have finer kinds, and `data` is the body of the response."""
    status: Any = outcome["http"]["status"]
    error: dict[str, Any] = outcome["error"]
    if not isinstance(status, int):
        return outcome
    value: Any = outcome["data"]
    data: Any = value["data"] if isinstance(value, dict) and "data" in value else value  # pyright: ignore[reportUnknownVariableType]
    kind = next((kind for limit, kind in _KINDS if status >= limit), error["kind"])
    finer = {**error, "kind": _SINGLE.get(status, kind)} if outcome["status"] == "error" else error
    return {**outcome, "data": data, "error": finer}


_SINGLE = {401: "auth", 403: "auth", 404: "not_found", 429: "rate_limit"}
_KINDS = ((500, "server_error"), (400, "client_error"))
