"""What a log has told so far of an execution: its steps, their loops, and the tasks in them."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from .said import Said


class TaskRun(msgspec.Struct, eq=False):
    """One run of a task. Its tries are counted; of the last one it is known how it stands."""

    task_run_id: str
    label: str | None
    index: int | None = None  # of the iteration that it is part of
    ended: str | None = None  # done, failed
    tries: int = 0
    last_try: str | None = None  # started, done, failed
    judged: Said | None = None  # by its policy, since the last try
    action: str | None = None

    @property
    def is_awaiting(self) -> bool:
        """Whether a try has ended, and no policy was asked about it."""
        return self.last_try in ("done", "failed") and self.judged is None


class Pipeline(msgspec.Struct, eq=False):
    """The tasks of a step's run, or of one iteration of it: one after another."""

    tasks: dict[str, TaskRun] = {}
    by_label: dict[str, TaskRun] = {}  # the newest run of each
    current: TaskRun | None = None  # the one that began last
    under_way: int = 0

    @property
    def is_open(self) -> bool:
        return self.under_way > 0

    @property
    def is_failed(self) -> bool:
        """Whether its last word was that a task failed, and no policy said to go on."""
        last = self.current
        return last is not None and last.ended == "failed" and last.action not in ("continue", "break", "jump")

    @property
    def is_jumping(self) -> bool:
        """Whether its last word was to go on at another task."""
        last = self.current
        return last is not None and last.ended is not None and last.action == "jump"


class Round(msgspec.Struct, eq=False):
    """One iteration of a loop."""

    iteration_id: str
    index: int | None
    visit: Visit
    state: str | None = None  # scheduled, started, done, failed
    is_named: bool = True  # its id was given, and not made up
    pipeline: Pipeline = msgspec.field(default_factory=Pipeline)


class Loop(msgspec.Struct, eq=False):
    state: str | None = None  # started, done
    entity_id: str | None = None
    is_vague: bool = False  # some iterations cannot be told apart
    total: int | None = None
    most: int | None = None  # iterations at once
    rounds: dict[str, Round] = {}
    by_index: dict[int, Round] = {}
    states: Counter[str | None] = msgspec.field(default_factory=Counter[str | None])

    def move(self, each: Round, state: str) -> None:
        self.states[each.state] -= 1
        self.states[state] += 1
        each.state = state

    @property
    def ended(self) -> int:
        return self.states["done"] + self.states["failed"]

    @property
    def expected(self) -> int:
        """How many iterations there must be, as far as anybody can tell."""
        if self.total is not None:
            return self.total
        return max(len(self.rounds), max(self.by_index, default=-1) + 1)


class Visit(msgspec.Struct, eq=False):
    """One run of a step."""

    step_run_id: str
    name: str | None
    admitted: bool | None = None
    scheduled: bool = False
    started: bool = False
    ended: Said | None = None
    routed: bool = False
    loop: Loop | None = None
    pipeline: Pipeline = msgspec.field(default_factory=Pipeline)
    server_start: Said | None = None  # it was the server that said it started

    @property
    def is_running(self) -> bool:
        return self.started and self.ended is None

    @property
    def may_end(self) -> bool:
        """Whether nothing in it is under way."""
        return self.is_running and not self.pipeline.is_open and (self.loop is None or self.loop.state == "done")

    @property
    def may_route(self) -> bool:
        """Arcs are asked when a step has ended, or its loop."""
        return self.ended is not None or (self.loop is not None and self.loop.state == "done")

    @property
    def is_over(self) -> bool:
        return self.ended is not None and self.routed


class Execution(msgspec.Struct, eq=False):
    execution_id: str
    event_ids: set[str] = set()
    seq: int = -1
    seen: Counter[str] = msgspec.field(default_factory=Counter[str])
    reached: int = -1  # how far it is on its way from request to end
    is_playbook: bool = False
    is_refused: bool = False
    workflow_end: Said | None = None
    finished: Said | None = None
    has_parents: bool = False
    has_step_parents: bool = False
    entities: dict[str, str] = {}  # what the playbook and the workflow are called
    workflow_ids: set[str] = set()
    workflow_run_id: str | None = None
    visits: dict[str, Visit] = {}
    rounds: dict[str, Round] = {}
    by_name: dict[str, deque[Visit]] = {}  # those that are not over; the first are looked at first
    newest: dict[str, Visit] = {}
    counts: Counter[str] = msgspec.field(default_factory=Counter[str])
    live: dict[Visit, None] = {}  # scheduled and not over
    open_tasks: dict[str, dict[TaskRun, None]] = {}  # by id and by label: those that name no step are looked for here
    task_ids: set[str] = set()
    vague_tasks: set[str] = set()  # labels of tasks whose runs cannot be told apart
    tokens: Counter[str] = msgspec.field(default_factory=Counter[str])  # as many as can be there
    fresh: Counter[str] = msgspec.field(default_factory=Counter[str])  # of those, what nothing can have taken
    has_free_token: bool = False  # where it begins was not said
    denied: set[str] = set()
    final: Visit | None = None
    nameless: bool = False  # some steps cannot be told apart
    unjudged: list[Said] = []  # what went on without asking a policy
    named_refs: set[str] = set()  # results that an event spoke of

    def visit(self, step_run_id: str, name: str | None) -> Visit:
        found = self.visits.get(step_run_id)
        if found is None:
            found = self.visits[step_run_id] = Visit(step_run_id, name)
            self._count(found)
        elif found.name is None and name is not None:
            found.name = name
            self._count(found)
        return found

    def next_visit(self, name: str) -> Visit:
        """One more of a step whose runs have no ids of their own."""
        number = self.counts[name] + 1
        while f"step:{name}:run:{number}" in self.visits:
            number += 1
        return self.visit(f"step:{name}:run:{number}", name)

    def _count(self, visit: Visit) -> None:
        if visit.name is not None:
            self.counts[visit.name] += 1
            self.by_name.setdefault(visit.name, deque()).append(visit)
            self.newest[visit.name] = visit

    def under_way(self, name: str) -> deque[Visit]:
        """Runs of a step that are not over, the earliest first."""
        found = self.by_name.get(name)
        if found is None:
            return deque()
        while found and found[0].is_over:
            found.popleft()
        return found

    def begin_task(self, task: TaskRun) -> None:
        for key in (task.task_run_id, task.label):
            if key is not None:
                self.open_tasks.setdefault(key, {})[task] = None
                self.task_ids.add(key)

    def end_task(self, task: TaskRun) -> None:
        for key in (task.task_run_id, task.label):
            if key is not None:
                self.open_tasks.get(key, {}).pop(task, None)
