"""What a playbook adds to a plan: pipelines of tasks with policies, loops of them, and arcs from step to step."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from .part import Part

MOST_JUMPS = 10_000
"""Jumps within one pipeline; more than these are taken for a circle without end."""

MOST_VISITS = 10_000
"""Visits of one step in a run."""

SECRETS = "noetl.secrets"
"""The kind of the tasks that give references to secrets."""
HTTP = "noetl.http"
"""The kind of the tasks whose result has what was sent back in its `data`."""
HTTP_IDLE = 60.0
"""Seconds that a call waits for a sign of life, if nothing is said."""
LARGEST_SET = 256 * 1024
"""Bytes that one decision may set in `ctx` and `iter`, or pass on along arcs: they are in its event."""


class Do(StrEnum):
    """What a policy makes of a task's outcome."""

    CONTINUE = "continue"  # with the next task
    RETRY = "retry"  # this one
    JUMP = "jump"  # to the task that is named
    BREAK = "break"  # the pipeline is done, and well
    FAIL = "fail"


class Spacing(StrEnum):
    """How the delay before a retry grows."""

    NONE = "none"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Mode(StrEnum):
    EXCLUSIVE = "exclusive"  # the first arc that matches
    INCLUSIVE = "inclusive"  # every arc that matches


class Join(StrEnum):
    BARRIER = "barrier"  # once for all tokens that can still come
    ANY = "any"  # once for each token


class FailureMode(StrEnum):
    FAIL_FAST = "fail_fast"
    BEST_EFFORT = "best_effort"


class Rule(Part, frozen=True, kw_only=True):
    when: str | bool | None = None  # None: whatever the outcome
    do: Do
    attempts: int | str = 1  # in all, the first included
    backoff: Spacing = Spacing.NONE
    delay: float | str = 0.0
    to: str | None = None
    set_ctx: dict[str, Any] = {}
    set_iter: dict[str, Any] = {}


class Scope(StrEnum):
    """How long a result that is kept outside the log may be read."""

    STEP = "step"  # until the visit of its step is over
    EXECUTION = "execution"  # until the run has ended
    WORKFLOW = "workflow"  # until the run has ended that this one is a part of
    PERMANENT = "permanent"  # as long as the log


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"


class Strategy(StrEnum):
    """How the parts of a manifest become one value."""

    APPEND = "append"  # a list of them
    CONCAT = "concat"  # they are lists: one after another
    MERGE = "merge"  # they are mappings: one over the other
    REPLACE = "replace"  # the last


class Select(Part, frozen=True):
    """A field of a large result that expressions can read without fetching it."""

    path: str
    name: str = msgspec.field(name="as")


class Manifest(Part, frozen=True, kw_only=True):
    """The results of all visits of a task in one pipeline, gathered under a name."""

    name: str = msgspec.field(name="as")
    strategy: Strategy = Strategy.APPEND
    path: str | None = None  # of each result, only what lies there


class Storing(Part, frozen=True, kw_only=True):
    """Where a large result goes, and for how long."""

    kind: str | None = None  # None: wherever this installation keeps them
    ttl: float | None = None  # seconds
    scope: Scope = Scope.PERMANENT
    compression: Compression = Compression.NONE


class Keeping(Part, frozen=True, kw_only=True):
    """What becomes of a task's result."""

    inline_max_bytes: int | None = None
    preview_max_bytes: int | None = None
    store: Storing = Storing()
    select: tuple[Select, ...] = ()
    manifest: Manifest | None = None


class Task(Part, frozen=True, kw_only=True):
    label: str
    kind: str
    inputs: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="with")
    timeout: float | None = None
    rules: tuple[Rule, ...] | None = None  # None: no policy, which is not the same as one without rules
    result: Keeping = Keeping()
    dispatch: dict[str, str] | None = None  # where workers find it


class PipelineLoop(Part, frozen=True, kw_only=True):
    items: Any = msgspec.field(name="in")
    iterator: str
    parallel: bool = False
    max_in_flight: int | str = 1  # or an expression


class Arc(Part, frozen=True):
    step: str
    when: str | bool | None = None
    args: dict[str, Any] = {}
    set_ctx: dict[str, Any] = {}  # when it fires


class AdmitRule(Part, frozen=True):
    allow: bool
    when: str | bool | None = None  # None: whatever


class Route(Part, frozen=True, kw_only=True):
    """What a step of a playbook does, and what comes after it."""

    tasks: tuple[Task, ...] = ()
    loop: PipelineLoop | None = None
    admit: tuple[AdmitRule, ...] = ()
    mode: Mode = Mode.EXCLUSIVE
    arcs: tuple[Arc, ...] = ()
    join: Join = Join.BARRIER
    failure: FailureMode = FailureMode.FAIL_FAST
    set_ctx: dict[str, Any] = {}  # once the step is done


class Playbook(Part, frozen=True, kw_only=True):
    """What holds for the whole of a playbook."""

    entry: str
    final_step: str | None = None
    no_next_is_error: bool = False
    ctx: dict[str, Any] = {}
