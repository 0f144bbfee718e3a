"""Playbook parts of a plan: pipelines of tasks with policies, loops, and arcs between steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from .plan_struct import PlanStruct

MAX_JUMPS = 10_000
"""Maximum number of jumps in one pipeline; more are treated as an endless cycle."""

MAX_VISITS = 10_000
"""Maximum number of visits of one step in a run."""

SECRETS = "noetl.secrets"
"""Kind of the tasks that return references to secrets."""
HTTP = "noetl.http"
"""Kind of the tasks whose result has the body of the response in `data`."""
HTTP_IDLE_TIMEOUT = 60.0
"""Default idle timeout of an HTTP request, in seconds."""
MAX_SET_BYTES = 256 * 1024
"""Maximum bytes that one decision may set in `ctx` and `iter` or pass along arcs, because its event contains them."""


class PolicyAction(StrEnum):
    """Action of a policy after the outcome of a task."""

    CONTINUE = "continue"  # run the next task
    RETRY = "retry"  # run this task again
    JUMP = "jump"  # run the task named in `to`
    BREAK = "break"  # end the pipeline with success
    FAIL = "fail"


class RetrySpacing(StrEnum):
    """How the delay before a retry grows."""

    NONE = "none"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class ArcMode(StrEnum):
    EXCLUSIVE = "exclusive"  # only the first arc that matches fires
    INCLUSIVE = "inclusive"  # every arc that matches fires


class Join(StrEnum):
    BARRIER = "barrier"  # one visit, once no further token can arrive
    ANY = "any"  # one visit per token


class FailureMode(StrEnum):
    FAIL_FAST = "fail_fast"
    BEST_EFFORT = "best_effort"


class PolicyRule(PlanStruct, frozen=True, kw_only=True):
    when: str | bool | None = None  # None: any outcome
    do: PolicyAction
    attempts: int | str = 1  # total, including the first
    backoff: RetrySpacing = RetrySpacing.NONE
    delay: float | str = 0.0
    to: str | None = None
    set_ctx: dict[str, Any] = {}
    set_iter: dict[str, Any] = {}


class ResultScope(StrEnum):
    """Lifetime of a result that is stored outside of the log."""

    STEP = "step"  # until the visit of its step is over
    EXECUTION = "execution"  # until the run has ended
    WORKFLOW = "workflow"  # until the run and all of its parent runs have ended
    PERMANENT = "permanent"  # as long as the log exists


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"


class ManifestStrategy(StrEnum):
    """Combination of the parts of a manifest into one value."""

    APPEND = "append"  # a list of the parts
    CONCAT = "concat"  # the parts are lists, which are concatenated
    MERGE = "merge"  # the parts are mappings; later keys replace earlier ones
    REPLACE = "replace"  # only the last part


class SelectedField(PlanStruct, frozen=True):
    """A field of a large result that expressions can read without fetching it."""

    path: str
    name: str = msgspec.field(name="as")


class Manifest(PlanStruct, frozen=True, kw_only=True):
    """Collects the results of all visits of a task in one pipeline under a name."""

    name: str = msgspec.field(name="as")
    strategy: ManifestStrategy = ManifestStrategy.APPEND
    path: str | None = None  # collect only this part of each result


class StoragePolicy(PlanStruct, frozen=True, kw_only=True):
    """Storage and lifetime of a large result."""

    kind: str | None = None  # None: the default store of the installation
    ttl: float | None = None  # seconds
    scope: ResultScope = ResultScope.PERMANENT
    compression: Compression = Compression.NONE


class ResultPolicy(PlanStruct, frozen=True, kw_only=True):
    """Handling of a task's result: inline or stored, preview, selected fields, manifest."""

    inline_max_bytes: int | None = None
    preview_max_bytes: int | None = None
    store: StoragePolicy = StoragePolicy()
    select: tuple[SelectedField, ...] = ()
    manifest: Manifest | None = None


class Task(PlanStruct, frozen=True, kw_only=True):
    label: str
    kind: str
    inputs: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="with")
    timeout: float | None = None
    rules: tuple[PolicyRule, ...] | None = None  # None: no policy, which differs from a policy without rules
    result: ResultPolicy = ResultPolicy()
    dispatch: dict[str, str] | None = None  # task queue for workers


class PipelineLoop(PlanStruct, frozen=True, kw_only=True):
    items: Any = msgspec.field(name="in")
    iterator: str
    parallel: bool = False
    max_in_flight: int | str = 1  # a number or an expression


class Arc(PlanStruct, frozen=True):
    step: str
    when: str | bool | None = None
    args: dict[str, Any] = {}
    set_ctx: dict[str, Any] = {}  # set when the arc fires


class AdmitRule(PlanStruct, frozen=True):
    allow: bool
    when: str | bool | None = None  # None: always


class Route(PlanStruct, frozen=True, kw_only=True):
    """The tasks, loop, admission rules and outgoing arcs of a playbook's step."""

    tasks: tuple[Task, ...] = ()
    loop: PipelineLoop | None = None
    admit: tuple[AdmitRule, ...] = ()
    mode: ArcMode = ArcMode.EXCLUSIVE
    arcs: tuple[Arc, ...] = ()
    join: Join = Join.BARRIER
    failure: FailureMode = FailureMode.FAIL_FAST
    set_ctx: dict[str, Any] = {}  # set when the step is done


class Playbook(PlanStruct, frozen=True, kw_only=True):
    """Settings of a whole playbook."""

    entry: str
    final_step: str | None = None
    no_next_is_error: bool = False
    ctx: dict[str, Any] = {}
