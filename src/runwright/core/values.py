"""What the expressions of a plan see: parameters, results of earlier steps, the run itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.transitions import StepStatus

from .expressions import evaluate, fill, mentioned_steps
from .loopwork import StoredResult
from .net import Net
from .node import Node
from .refer import gathered_ref
from .state import RunState
from .workings import Workings


class Missing(Exception):
    """A value that was put aside is needed: fetch it and ask again."""

    def __init__(self, ref: dict[str, Any]) -> None:
        super().__init__(ref)
        self.ref = ref


class Values:
    def __init__(self, net: Net, state: RunState, work: Workings, run: RunIdentity) -> None:
        self._net = net
        self._state = state
        self._work = work
        self._run = {"id": run.run_id, "planId": run.plan_id, "planVersion": run.plan_version}
        self.fetched: dict[str, Any] = {}  # what was put aside, by SHA-256
        self.lost: dict[str, RunwrightError] = {}  # what could not be fetched

    def scope(self, node: Node, **more: Any) -> dict[str, Any]:
        own = self._state.steps.get(node.step.step_id)
        step = {"id": node.step.step_id, "attempt": 1 if own is None else own.attempt}
        return {**self._scope(node.mentions), "step": step, **more}

    def result(self) -> Any:
        """What the whole run gives back. Of a playbook: the result of its final step, or of the last that ended."""
        play = self._work.play
        if play is not None:
            name = (play.final or play.last or "").partition("@")[0]
            stored = self._work.results.get(name)
            return None if stored is None else self.of(stored)
        result = self._net.plan.result
        return fill(result, self._scope(mentioned_steps([result])))

    def _scope(self, mentions: frozenset[str] | None) -> dict[str, Any]:
        names: Iterable[str] = self._work.results if mentions is None else mentions
        steps: dict[str, Any] = {}
        for name in names:
            cell = self._state.steps.get(name)
            status = StepStatus.PENDING if cell is None else cell.status
            stored = self._work.results.get(name)
            value = None if stored is None else self.of(stored)
            node_of = self._net.node(name)
            if node_of is not None and node_of.step.foreach is not None and isinstance(value, list):
                value = [self.part(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
            steps[name] = {"status": str(status), "result": value}
        return {"params": self._work.params, "steps": steps, "run": self._run}

    def of(self, stored: StoredResult) -> Any:
        if stored.ref is None:
            return None if stored.raw is None else msgspec.json.decode(stored.raw)
        digest = str(stored.ref.get("sha256"))
        if digest in self.lost:
            raise self.lost[digest]
        if digest not in self.fetched:
            raise Missing(stored.ref)
        return self.fetched[digest]

    def part(self, part: Any) -> Any:
        """One of a loop's gathered results: itself, or what its reference names."""
        ref = gathered_ref(part)
        return part if ref is None else self.of(StoredResult(ref=ref))

    def inputs(self, node: Node, **more: Any) -> Any:
        """A step's inputs, overrides applied and expressions filled in."""
        override = self._work.overrides.get(node.step.step_id)
        if override is None and node.constant:
            return fill(node.step.inputs, {})  # a copy: what the step does to it is its own business
        raw = {**node.step.inputs, **(override or {})}
        return fill(raw, self.scope(node, **more))

    def items(self, node: Node) -> Any:
        """What a foreach step goes over."""
        assert node.step.foreach is not None
        items = node.step.foreach.items
        return evaluate(items, self.scope(node)) if isinstance(items, str) else fill(items, self.scope(node))
