"""What the expressions of a playbook see."""

from __future__ import annotations

from typing import Any

from runwright.contract.events import RunIdentity
from runwright.contract.paths import EntityPath
from runwright.contract.playbook import HTTP, Strategy
from runwright.contract.refs import ErrorInfo

from .keeping import at_path
from .loopwork import LoopWork, StoredResult
from .playnet import Mentions, Playnet, Station, reads_result
from .playwork import Ended, Gathering, Pipe, PlayWork
from .values import Values
from .workings import Workings

RESERVED_NAMES = frozenset(
    {"workload", "ctx", "iter", "args", "execution_id", "_prev", "_task", "_attempt", "outcome", "output", "event"}
)
"""Names that mean the same in every playbook, whatever its steps and tasks are called."""

NO_NAMES = RESERVED_NAMES | {
    *("none", "None", "true", "True", "false", "False"),
    *("and", "or", "not", "in", "is", "if", "else"),
}
"""What steps and tasks cannot be called, for no expression could name them."""


def workload_scope(workload: dict[str, Any], run_id: str) -> dict[str, Any]:
    """The workload by its keys and as a whole, and what the run is called: today, and in older playbooks."""
    job = {"uuid": run_id, "id": run_id, "execution_id": run_id}
    return {"job": job, **workload, "workload": workload, "execution_id": run_id}


class PlayScope:
    def __init__(self, net: Playnet, values: Values, work: Workings, run: RunIdentity) -> None:
        self._net = net
        self._values = values
        self._work = work
        self._run = run

    @property
    def _play(self) -> PlayWork:
        assert self._work.play is not None
        return self._work.play

    def of_step(
        self, mentions: Mentions, args: dict[str, Any], own: tuple[str, StoredResult | None] | None = None
    ) -> dict[str, Any]:
        """Workload, `ctx`, and the results of the steps that are mentioned; of one of them that of this very visit, if
        there is one. May want values fetched, or find that they are gone."""
        scope = self.of_workload()
        for name in mentions:
            if own is not None and name == own[0]:
                if own[1] is not None:
                    scope[name] = self._result(name, own[1], mentions[name], is_over=False)
            elif name in self._net.stations and (stored := self._work.results.get(name)) is not None:
                scope[name] = self._result(name, stored, mentions[name], is_over=True)
        scope.update(ctx=self._play.ctx, args=args)
        scope.setdefault("input", args)
        return scope

    def of_workload(self) -> dict[str, Any]:
        """What there is from the start."""
        return workload_scope(self._work.params, self._run.run_id)

    def _result(self, name: str, stored: StoredResult, fields: frozenset[str] | None, *, is_over: bool) -> Any:
        if self._net.stations[name].route.loop is None:
            return self._values.view(stored, fields, is_over=is_over)
        return self._values.parts(self._values.of(stored), is_over=is_over)

    def of_pipe(self, mentions: Mentions, station: Station, place: EntityPath, pipe: Pipe) -> dict[str, Any]:
        """And the results of the tasks before, and the iteration."""
        visit = self._play.visits[place.owner]
        scope = {**pipe.iter, **self.of_step(mentions, visit.args)}
        for label, stored in pipe.results.items():
            if label in mentions:
                scope[label] = self._values.view(stored, mentions[label])
        for name, gathering in pipe.manifests.items():
            if name in mentions:
                scope[name] = self._manifest(gathering)
        scope["_task"] = pipe.task
        scope["_attempt"] = pipe.attempt
        if "_prev" in mentions:
            scope["_prev"] = self._values.view(pipe.previous, mentions["_prev"])
        scope["iter"] = own = self.iteration(station, place, pipe)
        if station.route.loop is not None and place.indexes:
            scope.setdefault(station.route.loop.iterator, own[station.route.loop.iterator])
        if "step" in mentions:
            scope.setdefault("step", {**visit.args, **pipe.iter})
        return scope

    def _manifest(self, gathering: Gathering) -> Any:
        values = [self._values.of(part) for part in gathering.parts]
        if gathering.path is not None:
            values = [at_path(value, gathering.path) for value in values]
        if gathering.strategy == Strategy.REPLACE:
            return values[-1]
        if gathering.strategy == Strategy.CONCAT:
            return [each for value in values for each in (value if isinstance(value, list) else [value])]  # pyright: ignore[reportUnknownVariableType]
        if gathering.strategy == Strategy.MERGE:
            return _merged(values)
        return values

    def iteration(self, station: Station, place: EntityPath, pipe: Pipe) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if station.route.loop is not None and place.indexes:
            loop = self._work.loops[place.owner]
            index = place.indexes[0]
            found.update({station.route.loop.iterator: self.items(loop)[index], "index": index})
        if self._work.parent_iter is not None:
            found["parent"] = self._work.parent_iter
        return found | pipe.iter  # whoever sets one of these means it

    def items(self, loop: LoopWork) -> list[Any]:
        if loop.listed is None:
            loop.listed = self._values.of(loop.items)
        return loop.listed or []

    def outcome(self, mentions: Mentions, ended: Ended) -> dict[str, Any]:
        """What a task's policy sees. What there is none of is there all the same, and empty."""
        value = self._values.of(ended.result) if reads_result(mentions) else None
        parts: dict[str, Any] = {name: {**none, **(ended.outcome.get(name) or {})} for name, none in _NO_PARTS.items()}
        return {"result": value, "data": value, **parts, "status": ended.status}


def output_of(error: ErrorInfo | None, value: Any, kind: str | None) -> dict[str, Any]:
    """How a step ended, as its arcs see it in the later spelling. `kind` is that of the task it ended with."""
    outcome = {"status": "ok", "result": value, "data": value, **_NO_PARTS}
    if error is not None:
        told = {"kind": error.category, "retryable": bool(error.retryable), "code": error.code}
        outcome.update(status="error", error={**told, "message": error.message})
        outcome["http"] = {**_NO_PARTS["http"], "status": (error.facts or {}).get("status")}
    elif kind == HTTP and isinstance(value, dict):
        outcome["http"] = {**_NO_PARTS["http"], **value}
    return later_spelling(outcome)


def _merged(values: list[Any]) -> Any:
    """Mappings, one over the other; of anything else, the last."""
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


def later_spelling(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome as `output`: there, what the web answers has finer kinds, and `data` is what was sent back."""
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
