"""A plan as a net: nodes that count the inputs they still wait for, and arcs between them.

A `needs` arc is a dependency: how its source ended matters. An `after` arc only orders: its source must have
ended. The net is the same for every run of a plan; what is going on in one run is its `Marking`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from runwright.contract.plan import ExecutionPlan, OnFailure, Order, Step, StepClass
from runwright.contract.transitions import StepStatus

from .expressions import mentioned_steps
from .node import Node, QueueOf, constant_body, names_secret, nowhere
from .playnet import Playnet
from .room import Room
from .state import RunState, StepCell

NOT_RUN = frozenset({"CONDITION_FALSE", "DEPENDENCY_SKIPPED"})
"""Reasons for a skip that make dependents skip too."""


class Net:
    def __init__(self, plan: ExecutionPlan, queue_of: QueueOf = nowhere, store: str = "local") -> None:
        self.plan = plan
        self.store = store  # where large results of tasks go that do not say
        self.index = {step.step_id: number for number, step in enumerate(plan.steps)}
        self.nodes: list[Node] = []
        for number, step in enumerate(plan.steps):
            needs = tuple(dict.fromkeys(self.index[name] for name in step.depends_on))
            mentions = mentioned_steps(_texts(step))
            body = constant_body(step.inputs)
            secrets = bool(step.secret_refs) or body is None or names_secret(step.inputs)
            queue = queue_of(step) if step.route is None else None  # of a playbook, tasks have queues
            self.nodes.append(Node(number, step, needs, mentions, body, secrets, queue))
        for node in self.nodes:
            for source in node.needs:
                self.nodes[source].needed_by.append(node.index)
        if plan.order is Order.SEQUENTIAL:
            for earlier, later in zip(self.nodes, self.nodes[1:], strict=False):
                later.follows = earlier.index
                earlier.followed_by = later.index
        self.routes = None if plan.playbook is None else Playnet(plan, self.nodes, queue_of)
        self.wanted = self._wanted() if self.routes is None else self.routes.wanted
        has_queues = any(node.queue is not None for node in self.nodes)
        self.has_queues = has_queues or (self.routes is not None and self.routes.has_queues)

    def _wanted(self) -> frozenset[str] | None:
        """The steps whose results must be kept at hand; None for all of them."""
        wanted: set[str] = set()
        for node in self.nodes:
            if node.mentions is None:
                return None
            wanted |= node.mentions
        return frozenset(wanted)

    def node(self, step_id: str) -> Node | None:
        number = self.index.get(step_id)
        return None if number is None else self.nodes[number]


def _texts(step: Step) -> list[Any]:
    when = step.when if isinstance(step.when, str) else None
    if when is not None and "{{" not in when:
        when = "{{ " + when + " }}"
    return [step.inputs, when, None if step.foreach is None else step.foreach.items]


class Marking:
    """Where one run stands in its net. Built from its state; kept up to date a node at a time."""

    def __init__(self, net: Net, state: RunState) -> None:
        self._net = net
        self._state = state
        size = len(net.nodes)
        self.remaining = [len(node.needs) for node in net.nodes]
        self.not_run = bytearray(size)  # an input was skipped by a condition
        self._ended = bytearray(size)
        self._hopeless: set[int] = set()  # cannot run because of a failure, and the order does not wait for them
        self._turn = 0 if net.plan.order is Order.SEQUENTIAL else size  # all before it are done with
        self._goes_on_in_order = net.plan.order is Order.SEQUENTIAL and net.plan.on_failure is OnFailure.CONTINUE
        self.open = size
        self.failed: dict[int, None] = {}  # for good
        self._ready: dict[StepClass, list[int]] = {step_class: [] for step_class in StepClass}
        for node in net.nodes:
            if not self.remaining[node.index] and node.index <= self._turn:
                self._ready[node.step.step_class].append(node.index)  # in order, so it is a heap already

    def began(self, index: int) -> None:
        """The node is at work; perhaps again, by force, after it had ended: then what needs it waits for it anew."""
        self.not_failed(index)
        if not self._ended[index]:
            return
        self._ended[index] = 0
        self.open += 1
        for target in self._net.nodes[index].needed_by:
            self.remaining[target] += 1
            self.not_run[target] = any(self._was_not_run(source) for source in self._net.nodes[target].needs)
        self._count_turns_anew()

    def ended(self, index: int) -> None:
        """The node is done with, well or by a skip: what needs it has one input less to wait for."""
        self.not_failed(index)
        if self._ended[index]:
            return
        self._ended[index] = 1
        self.open -= 1
        for target in self._net.nodes[index].needed_by:
            self.not_run[target] |= self._was_not_run(index)
            self.remaining[target] -= 1
            self._make_ready_in_turn(target)
        self._next_turn()

    def _was_not_run(self, index: int) -> bool:
        cell = self.cell(index)
        return cell is not None and cell.status is StepStatus.SKIPPED and cell.reason_code in NOT_RUN

    def failed_for_good(self, index: int) -> None:
        self.failed[index] = None
        if self._goes_on_in_order:
            self._hopeless = self.depends_on_failure()
            self._next_turn()

    def not_failed(self, index: int) -> None:
        """It is tried again, or was skipped after all."""
        if index in self.failed:
            del self.failed[index]
            if self._goes_on_in_order:
                self._hopeless = self.depends_on_failure()
                self._count_turns_anew()

    # The order of a sequential plan: a step has its turn when all before it are done with

    def _count_turns_anew(self) -> None:
        if self._net.plan.order is Order.SEQUENTIAL:
            self._turn = 0
            self._make_ready_in_turn(0)
            self._next_turn()

    def _next_turn(self) -> None:
        while self._turn < len(self._ended) and self._is_done_with(self._turn):
            self._turn += 1
            if self._turn < len(self._ended):
                self._make_ready_in_turn(self._turn)

    def _is_done_with(self, index: int) -> bool:
        if self._ended[index]:
            return True
        return self._goes_on_in_order and (index in self.failed or index in self._hopeless)

    def _make_ready_in_turn(self, index: int) -> None:
        if self._may_start(index):
            self.make_ready(index)

    def _may_start(self, index: int) -> bool:
        return index <= self._turn and not self.remaining[index] and self.is_pending(index)

    def make_ready(self, index: int) -> None:
        heappush(self._ready[self._net.nodes[index].step.step_class], index)

    def next_ready(self, room: Room) -> int | None:
        """The first declared of the steps that can start and that there is room for."""
        if room.closed:
            return None
        heads: list[tuple[int, list[int]]] = []
        for step_class, heap in self._ready.items():
            while heap and not self._may_start(heap[0]):
                heappop(heap)
            if not heap:
                continue
            node = self._net.nodes[heap[0]]
            if room.has(step_class) or node.step.foreach is not None or node.queue is not None:
                heads.append((heap[0], heap))
            else:
                room.refuse(step_class)
        return heappop(min(heads)[1]) if heads else None

    def has_ready(self) -> bool:
        return any(self._may_start(index) for heap in self._ready.values() for index in heap)

    def is_pending(self, index: int) -> bool:
        return not self._ended[index] and self.cell(index) is None

    def cell(self, index: int) -> StepCell | None:
        return self._state.steps.get(self._net.nodes[index].step.step_id)

    def depends_on_failure(self) -> set[int]:
        """Every node that cannot run because a step it needs, directly or not, failed."""
        reached: set[int] = set()
        frontier = list(self.failed)
        while frontier:
            for target in self._net.nodes[frontier.pop()].needed_by:
                if target not in reached:
                    reached.add(target)
                    frontier.append(target)
        return reached
