"""A playbook as a net: stations with pipelines, and arcs along which tokens go. The same for every run of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from runwright.contract.plan import ExecutionPlan, Step
from runwright.contract.playbook import SECRETS, Join, Playbook, Route, Rule, Scope, Task

from .expressions import condition_text, mentioned_fields, mentioned_names
from .node import Node, QueueOf, constant_body, names_secret, nowhere

Mentions = dict[str, frozenset[str] | None]
"""The names that expressions mention, and which fields of each; None: all of it."""

_RESULT = frozenset({"result", "data"})  # of an outcome


class Station(msgspec.Struct):
    """A step of a playbook."""

    node: Node
    route: Route
    labels: list[str]
    tasks: dict[str, Task]
    nodes: dict[str, Node]  # of its tasks, as a launcher wants them
    inputs: dict[str, Mentions]  # what the inputs of each task mention
    rules: dict[str, Mentions]  # the policy of each task
    arcs: Mentions  # what is looked at once the step has ended
    loop: Mentions
    admit: Mentions
    queue: str | None  # where workers find its first task, with which a visit or an iteration begins
    handed_on: frozenset[str] = frozenset()  # names under which its tasks find references to secrets
    waits_for: frozenset[str] = frozenset()  # steps from which a token could still come to its barrier

    @property
    def names(self) -> frozenset[str]:
        """Everything that it mentions anywhere."""
        parts = (*self.inputs.values(), *self.rules.values(), self.arcs, self.loop, self.admit)
        return frozenset(name for part in parts for name in part)

    def after(self, label: str) -> str | None:
        """The task that follows in the pipeline."""
        place = self.labels.index(label) + 1
        return self.labels[place] if place < len(self.labels) else None


class Playnet:
    def __init__(self, plan: ExecutionPlan, nodes: Iterable[Node], queue_of: QueueOf = nowhere) -> None:
        assert plan.playbook is not None
        self.playbook: Playbook = plan.playbook
        self.stations: dict[str, Station] = {}
        for node in nodes:
            assert node.step.route is not None
            self.stations[node.step.step_id] = _station(node, node.step.route, queue_of)
        self.has_queues = any(node.queue for station in self.stations.values() for node in station.nodes.values())
        steps = frozenset(self.stations)
        mentioned = frozenset[str]().union(*(station.names for station in self.stations.values()))
        final = self.playbook.final_step
        self.wanted = steps & (mentioned | {final})  # a final loop gives its list back, and not only its counts
        self.passing = _passing(self.stations)
        tasks = [task for station in self.stations.values() for task in station.route.tasks]
        self.stores = frozenset(task.result.store.kind for task in tasks if task.result.store.kind is not None)
        self.results = frozenset(self.stations) if final is None else frozenset({final})
        """The steps that may give the run its result."""
        givers = {name for name, station in self.stations.items() if _is_secrets(*station.route.tasks)}
        for station in self.stations.values():
            own = {label for label, task in station.tasks.items() if _is_secrets(task)}
            station.handed_on = frozenset(givers - station.tasks.keys() - plan.params.keys() | own)
        self.place = {name: place for place, name in enumerate(self.stations)}
        """The order in which steps are declared."""
        sources: dict[str, list[str]] = {name: [] for name in self.stations}
        for source, target in forward_arcs(self.playbook.entry, targets_of(plan)):
            sources[target].append(source)
        for name, station in self.stations.items():
            if len(sources[name]) > 1 and station.route.join is Join.BARRIER:
                station.waits_for = _ancestors(name, sources)


def _is_secrets(*tasks: Task) -> bool:
    return bool(tasks) and all(task.kind == SECRETS for task in tasks)


class Passing(msgspec.Struct, frozen=True):
    """A store in which there are results for a while only."""

    scope: Scope
    step: str
    store: str | None


def _passing(stations: dict[str, Station]) -> list[Passing]:
    return [
        Passing(task.result.store.scope, name, task.result.store.kind)
        for name, station in stations.items()
        for task in station.route.tasks
        if task.result.store.scope in (Scope.STEP, Scope.EXECUTION)
    ]


def _station(node: Node, route: Route, queue_of: QueueOf) -> Station:
    nodes = {task.label: _task_node(node, task, queue_of) for task in route.tasks}
    return Station(
        node,
        route,
        list(nodes),
        {task.label: task for task in route.tasks},
        nodes,
        inputs={task.label: _mentions(task.inputs) for task in route.tasks},
        rules={task.label: _mentions([_texts(rule) for rule in task.rules or ()]) for task in route.tasks},
        arcs=_after(node, route),
        loop=_mentions(None if route.loop is None else [route.loop.items, route.loop.max_in_flight]),
        admit=_mentions([_condition(rule.when) for rule in route.admit]),
        queue=next((node.queue for node in nodes.values()), None),
    )


def _after(node: Node, route: Route) -> Mentions:
    """What is mentioned where a step has ended: `output` is its own result, and what the web answered is part of it."""
    arcs = _mentions([route.set_ctx, [(_condition(arc.when), arc.args, arc.set_ctx) for arc in route.arcs]])
    return {**arcs, node.step.step_id: None} if _reads(arcs, "output", _RESULT | {"http"}) else arcs


def reads_result(mentions: Mentions) -> bool:
    """Whether more of a task's outcome is looked at than how it ended."""
    return any(_reads(mentions, name, _RESULT) for name in ("outcome", "output"))


def _reads(mentions: Mentions, name: str, wanted: Collection[str]) -> bool:
    fields = mentions.get(name, frozenset())
    return fields is None or not fields.isdisjoint(wanted)


def _mentions(texts: Any) -> Mentions:
    return {name: mentioned_fields(name, [texts]) for name in mentioned_names(texts)}


def _task_node(node: Node, task: Task, queue_of: QueueOf) -> Node:
    """A task as something that can be launched."""
    step = Step(
        step_id=f"{node.step.step_id}/{task.label}",
        kind=task.kind,
        inputs=task.inputs,
        timeout=task.timeout,
        dispatch=task.dispatch,
    )
    body = constant_body(task.inputs)
    return Node(node.index, step, (), None, body, body is None or names_secret(task.inputs), queue_of(step))


def _texts(rule: Rule) -> tuple[Any, ...]:
    return (_condition(rule.when), rule.attempts, rule.delay, rule.set_ctx, rule.set_iter)


def _condition(when: str | bool | None) -> str | None:
    return condition_text(when) if isinstance(when, str) else None


def targets_of(plan: ExecutionPlan) -> dict[str, list[str]]:
    """Where the arcs of each step lead."""
    return {step.step_id: [arc.step for arc in step.route.arcs] for step in plan.steps if step.route is not None}


def forward_arcs(entry: str, targets: dict[str, list[str]]) -> list[tuple[str, str]]:
    """The arcs that do not lead back: what is left of the graph, seen from the entry, has no circles."""
    forward: list[tuple[str, str]] = []
    on_way: set[str] = set()
    seen: set[str] = set()
    for root in (entry, *targets):
        if root in seen:
            continue
        seen.add(root)
        on_way.add(root)
        stack = [(root, iter(targets[root]))]
        while stack:
            name, rest = stack[-1]
            target = next(rest, None)
            if target is None:
                on_way.discard(name)
                stack.pop()
            elif target not in on_way:
                forward.append((name, target))
                if target not in seen:
                    seen.add(target)
                    on_way.add(target)
                    stack.append((target, iter(targets[target])))
    return forward


def _ancestors(name: str, sources: dict[str, list[str]]) -> frozenset[str]:
    found: set[str] = set()
    frontier = [name]
    while frontier:
        for source in sources[frontier.pop()]:
            if source not in found:
                found.add(source)
                frontier.append(source)
    return frozenset(found)
