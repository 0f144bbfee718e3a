"""ExecutionPlan: the steps of a run, as data. Every authoring format is converted to it.

A plan is immutable and identified by its content: `content_hash` is the SHA-256 of its canonical JSON, and the version
of a plan that specifies none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from .errors import ErrorCode, RunwrightError
from .plan_struct import PlanStruct
from .playbook import Playbook, Route

SCHEMA_VERSION = "v1.0"
PIPELINE = "pipeline"


class Order(StrEnum):
    SEQUENTIAL = "sequential"  # one after another, in the order of declaration
    GRAPH = "graph"  # each step as soon as its dependencies have ended
    ROUTED = "routed"  # a playbook: tokens move along arcs


class OnFailure(StrEnum):
    FAIL = "fail"  # running steps finish, no new steps start, the run fails
    CONTINUE = "continue"  # run all steps that do not depend on the failed step, then fail the run
    WAIT = "wait"  # the run stays open until an operator retries, skips or cancels


class Backoff(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class StepClass(StrEnum):
    LIGHT = "light"
    HEAVY = "heavy"  # uses a whole processor: the number of concurrent steps is limited
    ISOLATION = "isolation"  # runs in a separate process


class ParamType(StrEnum):
    """The JSON type of a parameter."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    OBJECT = "object"
    ANY = "any"


class Retry(PlanStruct, frozen=True):
    max_attempts: int = 1
    backoff: Backoff = Backoff.EXPONENTIAL
    initial: float = 1.0  # in seconds, like every duration of a plan
    longest: float = msgspec.field(default=60.0, name="max")
    jitter: bool = True


class Foreach(PlanStruct, frozen=True):
    items: Any = msgspec.field(name="in")  # a list, or an expression that evaluates to one
    item_name: str = msgspec.field(default="item", name="as")
    max_parallel: int = 16


class Step(PlanStruct, frozen=True, kw_only=True):
    step_id: str
    kind: str
    inputs: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="with")
    depends_on: tuple[str, ...] = ()
    when: str | bool | None = None
    foreach: Foreach | None = None
    retry: Retry = Retry()
    timeout: float | None = None
    step_class: StepClass = msgspec.field(default=StepClass.LIGHT, name="class")
    cancellable: bool = True
    needs_approval: bool = False
    secret_refs: tuple[str, ...] = ()
    dispatch: dict[str, str] | None = None
    fallback: Any = None
    route: Route | None = None  # only in a playbook, where `kind` is PIPELINE


class PlanMetadata(PlanStruct, frozen=True, kw_only=True):
    plan_id: str
    plan_version: str = ""  # empty: the content hash is the version
    description: str | None = None
    labels: dict[str, str] = {}
    requires_capabilities: tuple[str, ...] = ()
    fallback_behavior: str | None = None
    target_adapter: str | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """The use of a tool by a step or task."""

    name: str
    kind: str
    inputs: dict[str, Any]
    secret_refs: tuple[str, ...] = ()
    dispatch: dict[str, str] | None = None


class ExecutionPlan(PlanStruct, frozen=True, kw_only=True):
    metadata: PlanMetadata
    params: dict[str, Any] = {}  # defaults
    param_types: dict[str, ParamType] = {}  # a parameter without a default is required
    order: Order  # always encoded, because its default depends on the steps
    on_failure: OnFailure = OnFailure.FAIL
    timeout: float | None = None
    steps: tuple[Step, ...]
    result: Any = None  # result of the run; may contain expressions
    playbook: Playbook | None = None

    @property
    def param_names(self) -> frozenset[str]:
        return frozenset(self.params) | frozenset(self.param_types)

    @property
    def plan_id(self) -> str:
        return self.metadata.plan_id

    def tool_calls(self) -> Iterator[ToolCall]:
        """Iterate over the tool uses of all steps, or of their tasks in a playbook."""
        for step in self.steps:
            if step.route is None:
                yield ToolCall(step.step_id, step.kind, step.inputs, step.secret_refs, step.dispatch)
                continue
            for task in step.route.tasks:
                yield ToolCall(f"{step.step_id}/{task.label}", task.kind, task.inputs, dispatch=task.dispatch)


def plan_body(plan: ExecutionPlan) -> bytes:
    """Return the canonical bytes of a plan, which are hashed and stored."""
    return msgspec.json.encode(plan, order="sorted")


def content_hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def plan_version(plan: ExecutionPlan) -> str:
    return plan.metadata.plan_version or content_hash(plan_body(plan))


def read_plan(body: bytes) -> ExecutionPlan:
    """Decode a plan from its canonical bytes."""
    try:
        return msgspec.json.decode(body, type=ExecutionPlan)
    except msgspec.MsgspecError as error:
        raise RunwrightError(
            ErrorCode.SCHEMA_VERSION_UNKNOWN,
            f"Invalid stored plan: {error}. If a newer Runwright wrote it, upgrade this one.",
        ) from None


def check_schema_version(version: str | None) -> None:
    """Refuse a plan of another major version, a newer minor version, or one more than three minor versions older."""
    match = re.fullmatch(r"v(\d+)\.(\d+)", version or "", re.ASCII)
    major, minor = map(int, SCHEMA_VERSION.removeprefix("v").split("."))
    if match is None or int(match[1]) != major or not minor - 3 <= int(match[2]) <= minor:
        raise RunwrightError(
            ErrorCode.SCHEMA_VERSION_UNKNOWN,
            f"Unsupported plan schema version {version}: this Runwright supports {SCHEMA_VERSION} and the three minor "
            "versions before it. Use the Runwright that wrote the plan.",
        )
