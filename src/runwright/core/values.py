"""What the expressions of a plan see: parameters, results of earlier steps, the run itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.playbook import Scope
from runwright.contract.resultref import digest_in
from runwright.contract.timestamps import is_utc, to_micros
from runwright.contract.transitions import StepStatus

from .expressions import evaluate, fill, fill_anew, mentioned_steps
from .loopwork import StoredResult
from .net import Net
from .node import Node
from .refer import part_of
from .sandbox.kinds import beside
from .state import RunState
from .workings import Workings

MOST_AT_HAND = 32 * 1024 * 1024
"""Bytes of JSON; as Python's values they take several times as much."""


class Missing(Exception):
    """Values that were put aside are needed: fetch them and ask again."""

    def __init__(self, *refs: dict[str, Any]) -> None:
        super().__init__(*refs)
        self.refs = {name_of(ref): ref for ref in refs}


def name_of(ref: dict[str, Any]) -> str:
    """What tells one reference from another: two may name the same bytes, and one of them be gone."""
    return str(ref.get("ref") or digest_in(ref))


class AtHand:
    """Values that were put aside and fetched, by SHA-256. Not all of a long run's stay in memory."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Any, int]] = {}
        self._size = 0

    def __contains__(self, digest: str) -> bool:
        return digest in self._values

    def __getitem__(self, digest: str) -> Any:
        return self._values[digest][0]

    def add(self, digest: str, value: Any, size: int) -> None:
        if digest not in self._values:
            self._values[digest] = (value, size)
            self._size += size

    def trim(self) -> None:
        """Let go of the oldest. Only between decisions: one may need several at once."""
        while self._size > MOST_AT_HAND:
            digest = next(iter(self._values))
            self._size -= self._values.pop(digest)[1]


class Values:
    def __init__(self, net: Net, state: RunState, work: Workings, run: RunIdentity) -> None:
        self._net = net
        self._state = state
        self._work = work
        self._run = {"id": run.run_id, "planId": run.plan_id, "planVersion": run.plan_version}
        self.now = 0
        self.at_hand = AtHand()
        self.lost: dict[str, RunwrightError] = {}  # what could not be fetched, by reference

    def scope(self, node: Node, **more: Any) -> dict[str, Any]:
        own = self._state.steps.get(node.step.step_id)
        step = {"id": node.step.step_id, "attempt": 1 if own is None else own.attempt}
        return {**self._scope(node.mentions), "step": step, **more}

    def result(self) -> Any:
        """What the whole run gives back. Of a playbook: the result of its final step, or of the last that ended."""
        play = self._work.play
        if play is not None and self._net.routes is not None:
            name = (play.final or play.last or "").partition("@")[0]
            stored = self._work.results.get(name)
            if stored is None:
                return None
            value = self.of(stored)
            return value if self._net.routes.stations[name].route.loop is None else self.parts(value)
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
            if node_of is not None and node_of.step.foreach is not None:
                value = self.parts(value)
            steps[name] = {"status": str(status), "result": value}
        return {"params": self._work.params, "steps": steps, "run": self._run}

    def of(self, stored: StoredResult) -> Any:
        if stored.ref is None:
            return None if stored.raw is None else msgspec.json.decode(stored.raw)
        digest, name = digest_in(stored.ref), name_of(stored.ref)
        if name in self.lost:
            raise self.lost[name]
        if digest not in self.at_hand or self._has_expired(stored.ref):
            raise Missing(stored.ref)
        return self.at_hand[digest]

    def _has_expired(self, ref: dict[str, Any]) -> bool:
        """Also while it is at hand: whoever takes over would not have it."""
        until = ref.get("expires_at")
        return isinstance(until, str) and is_utc(until) and to_micros(until) <= self.now

    def view(self, stored: StoredResult, fields: frozenset[str] | None, *, is_over: bool = False) -> Any:
        """A result as a playbook's expressions see it: itself, with the selected fields and its reference beside it.
        Where they read only these, the rest of it stays where it is. `is_over`: its step has been left."""
        known = dict(stored.extracted)
        if stored.ref is not None:
            ref, preview = stored.ref, stored.ref.get("preview")
            known |= {"_ref": ref, "_preview": preview, "_store": ref.get("store")}
            known |= {"__ref__": ref, "__preview__": preview}
        if known and fields is not None and fields <= known.keys():
            return known
        if is_over:
            _check_kept(stored)
        value = self.of(stored)
        return beside(value, known) if known else value

    def part(self, part: Any) -> Any:
        """One of a loop's gathered results: itself, or what its reference names."""
        stored = part_of(part)
        return part if stored is None else self.of(stored)

    def parts(self, value: Any, *, is_over: bool = False) -> Any:
        """A loop's gathered results; all that must be fetched for that is asked for at once."""
        if not isinstance(value, list):
            return value
        found: list[Any] = []
        missing = Missing()
        for part in cast("list[Any]", value):
            if is_over and (stored := part_of(part)) is not None:
                _check_kept(stored)
            try:
                found.append(self.part(part))
            except Missing as one:
                missing.refs |= one.refs
        if missing.refs:
            raise missing
        return found

    def inputs(self, node: Node, **more: Any) -> Any:
        """A step's inputs, overrides applied and expressions filled in."""
        written = self.written(node)
        if written is node.step.inputs and node.body is not None:
            return msgspec.json.decode(node.body)  # a copy: what the step does to it is its own business
        return fill_anew(written, self.scope(node, **more))

    def written(self, node: Node) -> dict[str, Any]:
        """A step's inputs as somebody wrote them: the plan's author, and whoever overrode some of them."""
        override = self._work.overrides.get(node.step.step_id)
        return node.step.inputs if override is None else {**node.step.inputs, **override}

    def items(self, node: Node) -> Any:
        """What a foreach step goes over."""
        assert node.step.foreach is not None
        items = node.step.foreach.items
        return evaluate(items, self.scope(node)) if isinstance(items, str) else fill(items, self.scope(node))


def _check_kept(stored: StoredResult) -> None:
    """Refuse what is deleted with its step, also while it is at hand: whoever takes over would not have it."""
    if stored.ref is not None and stored.ref.get("scope") == Scope.STEP:
        raise RunwrightError(
            ErrorCode.REFERENCE_NOT_AVAILABLE,
            "The result was kept for its step only, and that has ended. Give its store another scope.",
        )
