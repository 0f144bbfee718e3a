"""The graph of a playbook: steps with pipelines, and arcs between them. It is the same for every run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from runwright.contract.plan import ExecutionPlan, Step
from runwright.contract.playbook import SECRETS, Join, Playbook, PolicyRule, ResultScope, Route, Task
from runwright.core.expressions.template import condition_text, mentioned_fields, mentioned_names

from .node import Node, QueueOf, constant_body, names_secret, no_queue

Mentions = dict[str, frozenset[str] | None]
"""The names that expressions use, and the fields of each; None: all of it."""

_RESULT = frozenset({"result", "data"})  # of an outcome


class PlaybookStep(msgspec.Struct):
    """A compiled step of a playbook: tasks, policies, arcs, and the names that its expressions use."""

    node: Node
    route: Route
    labels: list[str]
    tasks: dict[str, Task]
    nodes: dict[str, Node]  # of its tasks
    input_mentions: dict[str, Mentions]
    policy_mentions: dict[str, Mentions]
    arc_mentions: Mentions
    loop_mentions: Mentions
    admit_mentions: Mentions
    queue: str | None  # the task queue of its first task, with which a visit or an iteration starts
    inherited_secrets: frozenset[str] = frozenset()  # names under which its tasks find secret references
    join_upstream: frozenset[str] = frozenset()  # steps from which a token can still reach its barrier

    @property
    def names(self) -> frozenset[str]:
        """All names that its expressions use."""
        parts = (
            *self.input_mentions.values(),
            *self.policy_mentions.values(),
            self.arc_mentions,
            self.loop_mentions,
            self.admit_mentions,
        )
        return frozenset(name for part in parts for name in part)

    def after(self, label: str) -> str | None:
        """The task that follows in the pipeline."""
        position = self.labels.index(label) + 1
        return self.labels[position] if position < len(self.labels) else None


class PlaybookGraph:
    def __init__(self, plan: ExecutionPlan, nodes: Iterable[Node], queue_of: QueueOf = no_queue) -> None:
        assert plan.playbook is not None
        self.playbook: Playbook = plan.playbook
        self.steps: dict[str, PlaybookStep] = {}
        for node in nodes:
            assert node.step.route is not None
            self.steps[node.step.step_id] = _compile_step(node, node.step.route, queue_of)
        self.has_queues = any(node.queue for step in self.steps.values() for node in step.nodes.values())
        steps = frozenset(self.steps)
        mentioned = frozenset[str]().union(*(step.names for step in self.steps.values()))
        final = self.playbook.final_step
        self.mentioned_steps = steps & (mentioned | {final})  # the result of a final loop is the list, not its counts
        self.temporary_stores = _temporary_stores(self.steps)
        tasks = [task for step in self.steps.values() for task in step.route.tasks]
        self.result_stores = frozenset(task.result.store.kind for task in tasks if task.result.store.kind is not None)
        self.result_steps = frozenset(self.steps) if final is None else frozenset({final})
        """The steps that may produce the result of the run."""
        providers = {name for name, step in self.steps.items() if _is_secrets(*step.route.tasks)}
        for step in self.steps.values():
            own = {label for label, task in step.tasks.items() if _is_secrets(task)}
            step.inherited_secrets = frozenset(providers - step.tasks.keys() - plan.params.keys() | own)
        self.positions = {name: position for position, name in enumerate(self.steps)}
        """The order in which steps are declared."""
        sources: dict[str, list[str]] = {name: [] for name in self.steps}
        for source, target in forward_arcs(self.playbook.entry, targets_of(plan)):
            sources[target].append(source)
        for name, step in self.steps.items():
            if len(sources[name]) > 1 and step.route.join is Join.BARRIER:
                step.join_upstream = _ancestors(name, sources)


def _is_secrets(*tasks: Task) -> bool:
    return bool(tasks) and all(task.kind == SECRETS for task in tasks)


class TemporaryStore(msgspec.Struct, frozen=True):
    """A store whose results are deleted when a step or a run ends."""

    scope: ResultScope
    step: str
    store: str | None


def _temporary_stores(steps: dict[str, PlaybookStep]) -> list[TemporaryStore]:
    return [
        TemporaryStore(task.result.store.scope, name, task.result.store.kind)
        for name, step in steps.items()
        for task in step.route.tasks
        if task.result.store.scope in (ResultScope.STEP, ResultScope.EXECUTION)
    ]


def _compile_step(node: Node, route: Route, queue_of: QueueOf) -> PlaybookStep:
    nodes = {task.label: _task_node(node, task, queue_of) for task in route.tasks}
    return PlaybookStep(
        node,
        route,
        list(nodes),
        {task.label: task for task in route.tasks},
        nodes,
        input_mentions={task.label: _mentions(task.inputs) for task in route.tasks},
        policy_mentions={task.label: _mentions([_texts(rule) for rule in task.rules or ()]) for task in route.tasks},
        arc_mentions=_after(node, route),
        loop_mentions=_mentions(None if route.loop is None else [route.loop.items, route.loop.max_in_flight]),
        admit_mentions=_mentions([_condition(rule.when) for rule in route.admit]),
        queue=next((node.queue for node in nodes.values()), None),
    )


def _after(node: Node, route: Route) -> Mentions:
    """Names used after the end of a step. `output` includes its own result, and the HTTP response."""
    arcs = _mentions([route.set_ctx, [(_condition(arc.when), arc.args, arc.set_ctx) for arc in route.arcs]])
    return {**arcs, node.step.step_id: None} if _reads(arcs, "output", _RESULT | {"http"}) else arcs


def reads_result(mentions: Mentions) -> bool:
    """Whether expressions use the result of a task, not only its status."""
    return any(_reads(mentions, name, _RESULT) for name in ("outcome", "output"))


def _reads(mentions: Mentions, name: str, wanted: Collection[str]) -> bool:
    fields = mentions.get(name, frozenset())
    return fields is None or not fields.isdisjoint(wanted)


def _mentions(texts: Any) -> Mentions:
    return {name: mentioned_fields(name, [texts]) for name in mentioned_names(texts)}


def _task_node(node: Node, task: Task, queue_of: QueueOf) -> Node:
    """The node of a task."""
    step = Step(
        step_id=f"{node.step.step_id}/{task.label}",
        kind=task.kind,
        inputs=task.inputs,
        timeout=task.timeout,
        dispatch=task.dispatch,
    )
    body = constant_body(task.inputs)
    secrets = body is None or names_secret(task.inputs)
    return Node(node.index, step, (), None, body, secrets, queue_of(step), is_task=True)


def _texts(rule: PolicyRule) -> tuple[Any, ...]:
    return (_condition(rule.when), rule.attempts, rule.delay, rule.set_ctx, rule.set_iter)


def _condition(when: str | bool | None) -> str | None:
    return condition_text(when) if isinstance(when, str) else None


def targets_of(plan: ExecutionPlan) -> dict[str, list[str]]:
    """The targets of the arcs of each step."""
    return {step.step_id: [arc.step for arc in step.route.arcs] for step in plan.steps if step.route is not None}


def forward_arcs(entry: str, targets: dict[str, list[str]]) -> list[tuple[str, str]]:
    """The arcs without back edges: seen from the entry, the remaining graph has no cycle."""
    forward: list[tuple[str, str]] = []
    on_stack: set[str] = set()
    seen: set[str] = set()
    for root in (entry, *targets):
        if root in seen:
            continue
        seen.add(root)
        on_stack.add(root)
        stack = [(root, iter(targets[root]))]
        while stack:
            name, rest = stack[-1]
            target = next(rest, None)
            if target is None:
                on_stack.discard(name)
                stack.pop()
            elif target not in on_stack:
                forward.append((name, target))
                if target not in seen:
                    seen.add(target)
                    on_stack.add(target)
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
