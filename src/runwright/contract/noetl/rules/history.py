"""State of a checked execution up to the current event: visits of its steps, their loops and tasks."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from .event import CheckedEvent


class CheckedTask(msgspec.Struct, eq=False):
    """One run of a task: the number of its attempts and the state of the last one."""

    task_run_id: str
    label: str | None
    index: int | None = None  # iteration that the task belongs to
    end: str | None = None  # done, failed
    attempts: int = 0
    last_attempt: str | None = None  # started, done, failed
    policy_event: CheckedEvent | None = None  # policy evaluation of the last attempt
    action: str | None = None

    @property
    def is_awaiting_policy(self) -> bool:
        """Whether the last attempt has ended and its policy was not evaluated yet."""
        return self.last_attempt in ("done", "failed") and self.policy_event is None


class CheckedPipeline(msgspec.Struct, eq=False):
    """The tasks of one visit of a step or of one iteration; they run one after another."""

    tasks: dict[str, CheckedTask] = {}
    by_label: dict[str, CheckedTask] = {}  # the newest run of each task
    current: CheckedTask | None = None  # the task that started last
    running_tasks: int = 0

    @property
    def is_open(self) -> bool:
        return self.running_tasks > 0

    @property
    def is_failed(self) -> bool:
        """Whether the last task failed and no policy continues after it."""
        last = self.current
        return last is not None and last.end == "failed" and last.action not in ("continue", "break", "jump")

    @property
    def has_pending_jump(self) -> bool:
        """Whether the last policy action is a jump to another task that has not started yet."""
        last = self.current
        return last is not None and last.end is not None and last.action == "jump"


class CheckedIteration(msgspec.Struct, eq=False):
    """One iteration of a loop."""

    iteration_id: str
    index: int | None
    visit: CheckedVisit
    state: str | None = None  # scheduled, started, done, failed
    has_id: bool = True  # the log specifies its id; otherwise the id is derived from the index
    pipeline: CheckedPipeline = msgspec.field(default_factory=CheckedPipeline)


class CheckedLoop(msgspec.Struct, eq=False):
    state: str | None = None  # started, done
    entity_id: str | None = None
    is_ambiguous: bool = False  # some iterations have neither id nor index
    total: int | None = None
    max_in_flight: int | None = None
    iterations: dict[str, CheckedIteration] = {}
    by_index: dict[int, CheckedIteration] = {}
    state_counts: Counter[str | None] = msgspec.field(default_factory=Counter[str | None])

    def set_state(self, iteration: CheckedIteration, state: str) -> None:
        self.state_counts[iteration.state] -= 1
        self.state_counts[state] += 1
        iteration.state = state

    @property
    def ended_count(self) -> int:
        return self.state_counts["done"] + self.state_counts["failed"]

    @property
    def expected_count(self) -> int:
        """The declared number of iterations; otherwise a lower bound from ids and indexes."""
        if self.total is not None:
            return self.total
        return max(len(self.iterations), max(self.by_index, default=-1) + 1)


class CheckedVisit(msgspec.Struct, eq=False):
    """One visit of a step: a run of it that a token started."""

    step_run_id: str
    name: str | None
    is_admitted: bool | None = None
    is_scheduled: bool = False
    is_started: bool = False
    end_event: CheckedEvent | None = None
    is_routed: bool = False
    loop: CheckedLoop | None = None
    pipeline: CheckedPipeline = msgspec.field(default_factory=CheckedPipeline)
    server_start_event: CheckedEvent | None = None  # step.started, if the server emitted it

    @property
    def is_running(self) -> bool:
        return self.is_started and self.end_event is None

    @property
    def may_end(self) -> bool:
        """Whether the visit is running and none of its tasks or iterations is."""
        return self.is_running and not self.pipeline.is_open and (self.loop is None or self.loop.state == "done")

    @property
    def may_route(self) -> bool:
        """Whether arcs may be evaluated: the step or its loop has ended."""
        return self.end_event is not None or (self.loop is not None and self.loop.state == "done")

    @property
    def is_over(self) -> bool:
        return self.end_event is not None and self.is_routed


class CheckedExecution(msgspec.Struct, eq=False):
    execution_id: str
    event_ids: set[str] = set()
    seq: int = -1
    event_counts: Counter[str] = msgspec.field(default_factory=Counter[str])
    phase: int = -1  # index of the latest phase that was reached
    is_playbook: bool = False
    is_refused: bool = False
    workflow_end_event: CheckedEvent | None = None
    finished_event: CheckedEvent | None = None
    has_parents: bool = False
    has_step_parents: bool = False
    entities: dict[str, str] = {}  # names of the playbook and the workflow
    workflow_ids: set[str] = set()
    workflow_run_id: str | None = None
    visits: dict[str, CheckedVisit] = {}
    iterations: dict[str, CheckedIteration] = {}
    visits_by_name: dict[str, deque[CheckedVisit]] = {}  # visits that are not over, oldest first
    newest_visits: dict[str, CheckedVisit] = {}
    visit_counts: Counter[str] = msgspec.field(default_factory=Counter[str])
    open_visits: dict[CheckedVisit, None] = {}  # scheduled and not over
    open_tasks: dict[str, dict[CheckedTask, None]] = {}  # by id and by label, for events without a step
    task_ids: set[str] = set()
    ambiguous_tasks: set[str] = set()  # labels of tasks whose runs cannot be distinguished
    max_tokens: Counter[str] = msgspec.field(default_factory=Counter[str])  # upper bound of unused tokens by step
    min_tokens: Counter[str] = msgspec.field(default_factory=Counter[str])  # lower bound of unused tokens by step
    has_unassigned_token: bool = False  # the log does not specify the entry step, so the first step gets the token
    denied_steps: set[str] = set()
    final_visit: CheckedVisit | None = None
    has_unnamed_steps: bool = False  # some step.scheduled events name no step
    events_without_policy: list[CheckedEvent] = []  # events that followed an attempt without a policy evaluation
    referenced_results: set[str] = set()  # addresses of results that earlier events refer to

    def ensure_visit(self, step_run_id: str, name: str | None) -> CheckedVisit:
        """Return the visit with this id; create it, or add its name, if it is not known yet."""
        found = self.visits.get(step_run_id)
        if found is None:
            found = self.visits[step_run_id] = CheckedVisit(step_run_id, name)
            self._index_visit(found)
        elif found.name is None and name is not None:
            found.name = name
            self._index_visit(found)
        return found

    def add_visit(self, name: str) -> CheckedVisit:
        """Add a visit of a step for which the log specifies no id."""
        number = self.visit_counts[name] + 1
        while f"step:{name}:run:{number}" in self.visits:
            number += 1
        return self.ensure_visit(f"step:{name}:run:{number}", name)

    def _index_visit(self, visit: CheckedVisit) -> None:
        if visit.name is not None:
            self.visit_counts[visit.name] += 1
            self.visits_by_name.setdefault(visit.name, deque()).append(visit)
            self.newest_visits[visit.name] = visit

    def unfinished_visits(self, name: str) -> deque[CheckedVisit]:
        """Return the visits of a step that are not over, oldest first."""
        found = self.visits_by_name.get(name)
        if found is None:
            return deque()
        while found and found[0].is_over:
            found.popleft()
        return found

    def add_open_task(self, task: CheckedTask) -> None:
        for key in (task.task_run_id, task.label):
            if key is not None:
                self.open_tasks.setdefault(key, {})[task] = None
                self.task_ids.add(key)

    def remove_open_task(self, task: CheckedTask) -> None:
        for key in (task.task_run_id, task.label):
            if key is not None:
                self.open_tasks.get(key, {}).pop(task, None)
