"""Which steps of a plan can start: counts of open dependencies, and the turn of a sequential plan."""

from __future__ import annotations

from heapq import heappop, heappush

from runwright.contract.plan import OnFailure, Order, StepClass
from runwright.contract.transitions import StepStatus
from runwright.core.fold.run_state import RunState, StepState
from runwright.core.graph.plan_graph import PlanGraph

from .context import Capacity

NOT_RUN = frozenset({"CONDITION_FALSE", "DEPENDENCY_SKIPPED"})
"""Skip reasons that make dependents skip too."""


class Readiness:
    """Progress of one run through its plan graph. Built from the state, then updated one node at a time."""

    def __init__(self, graph: PlanGraph, state: RunState) -> None:
        self._graph = graph
        self._state = state
        size = len(graph.nodes)
        self.remaining = [len(node.needs) for node in graph.nodes]
        self.not_run = bytearray(size)  # a dependency was skipped by a condition
        self._ended = bytearray(size)
        self._blocked: set[int] = set()  # depend on a failed step; a sequential plan does not wait for them
        self._is_sequential = graph.plan.order is Order.SEQUENTIAL
        self._turn = 0 if self._is_sequential else size  # steps up to here may start
        self._continues = self._is_sequential and graph.plan.on_failure is OnFailure.CONTINUE
        self.open = size  # steps that have not ended
        self.failed: dict[int, None] = {}  # failed without a retry
        self._ready: dict[StepClass, list[int]] = {step_class: [] for step_class in StepClass}
        for node in graph.nodes:
            if not self.remaining[node.index] and node.index <= self._turn:
                self._ready[node.step.step_class].append(node.index)  # ascending, hence a heap

    @property
    def is_halted(self) -> bool:
        """Whether a failure keeps every other step from starting."""
        return bool(self.failed) and self._graph.plan.on_failure is OnFailure.FAIL

    def on_started(self, index: int) -> None:
        """The node runs. If it had ended before (a forced retry), its dependents wait for it again."""
        self.clear_failure(index)
        if not self._ended[index]:
            return
        self._ended[index] = 0
        self.open += 1
        for target in self._graph.nodes[index].needed_by:
            self.remaining[target] += 1
            self.not_run[target] = any(self._was_not_run(source) for source in self._graph.nodes[target].needs)
        self._restart_turns()

    def on_ended(self, index: int) -> None:
        """The node completed or was skipped: its dependents have one open dependency less."""
        self.clear_failure(index)
        if self._ended[index]:
            return
        self._ended[index] = 1
        self.open -= 1
        for target in self._graph.nodes[index].needed_by:
            self.not_run[target] |= self._was_not_run(index)
            self.remaining[target] -= 1
            self._make_ready_if_startable(target)
        self._advance_turn()

    def _was_not_run(self, index: int) -> bool:
        step_state = self.step_state(index)
        return step_state is not None and step_state.status is StepStatus.SKIPPED and step_state.reason_code in NOT_RUN

    def on_failed(self, index: int) -> None:
        self.failed[index] = None
        if self._continues:
            self._blocked = self.depends_on_failure()
            self._advance_turn()

    def clear_failure(self, index: int) -> None:
        """The node is retried, or was skipped after its failure."""
        if index in self.failed:
            del self.failed[index]
            if self._continues:
                self._blocked = self.depends_on_failure()
                self._restart_turns()

    # Sequential plans: a step has its turn when every step before it has ended

    def _restart_turns(self) -> None:
        if self._is_sequential:
            self._turn = 0
            self._make_ready_if_startable(0)
            self._advance_turn()

    def _advance_turn(self) -> None:
        while self._turn < len(self._ended) and self._is_passed(self._turn):
            self._turn += 1
            if self._turn < len(self._ended):
                self._make_ready_if_startable(self._turn)

    def _is_passed(self, index: int) -> bool:
        if self._ended[index]:
            return True
        return self._continues and (index in self.failed or index in self._blocked)

    def _make_ready_if_startable(self, index: int) -> None:
        if self._can_start(index):
            self.make_ready(index)

    def _can_start(self, index: int) -> bool:
        return index <= self._turn and not self.remaining[index] and self.is_pending(index)

    def make_ready(self, index: int) -> None:
        heappush(self._ready[self._graph.nodes[index].step.step_class], index)

    def pop_ready(self, capacity: Capacity) -> int | None:
        """The first step in plan order that can start and for which there is capacity."""
        if capacity.closed:
            return None
        heads: list[tuple[int, list[int]]] = []
        for step_class, heap in self._ready.items():
            while heap and not self._can_start(heap[0]):
                heappop(heap)
            if not heap:
                continue
            node = self._graph.nodes[heap[0]]
            if capacity.has(step_class) or node.step.foreach is not None or node.queue is not None:
                heads.append((heap[0], heap))
            else:
                capacity.mark_short(step_class)
        return heappop(min(heads)[1]) if heads else None

    def has_ready(self) -> bool:
        return any(self._can_start(index) for heap in self._ready.values() for index in heap)

    def is_pending(self, index: int) -> bool:
        return not self._ended[index] and self.step_state(index) is None

    def step_state(self, index: int) -> StepState | None:
        return self._state.steps.get(self._graph.nodes[index].step.step_id)

    def depends_on_failure(self) -> set[int]:
        """Every node that cannot run because a direct or indirect dependency failed."""
        reached: set[int] = set()
        frontier = list(self.failed)
        while frontier:
            for target in self._graph.nodes[frontier.pop()].needed_by:
                if target not in reached:
                    reached.add(target)
                    frontier.append(target)
        return reached
