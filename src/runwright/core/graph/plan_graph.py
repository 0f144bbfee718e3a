"""The graph of a plan: nodes and their dependencies. It is the same for every run of the plan.

A `needs` edge is a dependency: how its source ended matters. A `follows` edge only orders the steps of a sequential
plan: its source must have ended.
"""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.paths import parse_path
from runwright.contract.plan import ExecutionPlan, Order, Step
from runwright.core.expressions.template import mentioned_steps

from .node import Node, QueueOf, constant_body, names_secret, no_queue
from .playbook_graph import PlaybookGraph


class NodeAddress(msgspec.Struct, frozen=True):
    """A node and the indexes of the iteration that a path names."""

    node: Node
    indexes: tuple[int, ...] = ()


class PlanGraph:
    def __init__(self, plan: ExecutionPlan, queue_of: QueueOf = no_queue, store: str = "local") -> None:
        self.plan = plan
        self.store = store  # the default store of large task results
        self.index = {step.step_id: number for number, step in enumerate(plan.steps)}
        self.nodes: list[Node] = []
        for number, step in enumerate(plan.steps):
            needs = tuple(dict.fromkeys(self.index[name] for name in step.depends_on))
            mentions = mentioned_steps(_texts(step))
            body = constant_body(step.inputs)
            secrets = bool(step.secret_refs) or names_secret(step.inputs)
            queue = queue_of(step) if step.route is None else None  # in a playbook the tasks have queues
            self.nodes.append(Node(number, step, needs, mentions, body, secrets, queue))
        for node in self.nodes:
            for source in node.needs:
                self.nodes[source].needed_by.append(node.index)
        if plan.order is Order.SEQUENTIAL:
            for earlier, later in zip(self.nodes, self.nodes[1:], strict=False):
                later.follows = earlier.index
                earlier.followed_by = later.index
        self.playbook = None if plan.playbook is None else PlaybookGraph(plan, self.nodes, queue_of)
        self.mentioned_steps = self._mentioned_steps() if self.playbook is None else self.playbook.mentioned_steps
        has_queues = any(node.queue is not None for node in self.nodes)
        self.has_queues = has_queues or (self.playbook is not None and self.playbook.has_queues)

    def _mentioned_steps(self) -> frozenset[str] | None:
        """The steps whose results expressions use; None for all of them."""
        wanted: set[str] = set()
        for node in self.nodes:
            if node.mentions is None:
                return None
            wanted |= node.mentions
        return frozenset(wanted)

    @property
    def runs_steps_once(self) -> bool:
        """Whether every step runs exactly once. A step of a playbook can be visited many times, or never."""
        return self.playbook is None

    @property
    def result_steps(self) -> frozenset[str] | None:
        """The steps that the result of the run is made from; None for all of them."""
        return mentioned_steps([self.plan.result]) if self.playbook is None else self.playbook.result_steps

    @property
    def result_stores(self) -> frozenset[str]:
        """The stores that tasks name for their results."""
        return frozenset() if self.playbook is None else self.playbook.result_stores

    def node(self, step_id: str) -> Node | None:
        number = self.index.get(step_id)
        return None if number is None else self.nodes[number]

    def find(self, path_text: str) -> NodeAddress | None:
        """The node that executes a path: a step, an iteration of a step, or a task of a playbook."""
        if (node := self.node(path_text)) is not None:
            return NodeAddress(node)
        path = parse_path(path_text)
        if path is None:
            return None
        if self.playbook is not None and path.task is not None:
            step = self.playbook.steps.get(path.step)
            node = None if step is None else step.nodes.get(path.task)
        else:
            node = self.node(path.step)
        return None if node is None else NodeAddress(node, path.indexes)


def _texts(step: Step) -> list[Any]:
    when = step.when if isinstance(step.when, str) else None
    if when is not None and "{{" not in when:
        when = "{{ " + when + " }}"
    return [step.inputs, when, None if step.foreach is None else step.foreach.items]
