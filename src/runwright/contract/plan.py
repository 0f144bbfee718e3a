"""The plan: what a run is to do, as data. Every form people write becomes one of these.

A plan is immutable and known by its content: `content_hash` is the SHA-256 of its canonical JSON, and the
plan's version unless it was given one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from .errors import ErrorCode, RunwrightError
from .part import Part
from .playbook import Playbook, Route

SCHEMA_VERSION = "v1.0"
PIPELINE = "pipeline"


class Order(StrEnum):
    SEQUENTIAL = "sequential"  # one after another, as declared
    GRAPH = "graph"  # each as soon as its own dependencies have ended
    ROUTED = "routed"  # a playbook: tokens go along arcs


class OnFailure(StrEnum):
    FAIL = "fail"  # let what runs end, start nothing more, fail the run
    CONTINUE = "continue"  # go on with all that does not depend on the failed step, then fail the run
    WAIT = "wait"  # keep the run open for an operator to retry, skip or cancel


class Backoff(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class StepClass(StrEnum):
    LIGHT = "light"
    HEAVY = "heavy"  # takes a processor to itself: only so many at once
    ISOLATION = "isolation"  # in a process of its own


class ParamType(StrEnum):
    """What a parameter looks like in JSON."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    OBJECT = "object"
    ANY = "any"


class Retry(Part, frozen=True):
    max_attempts: int = 1
    backoff: Backoff = Backoff.EXPONENTIAL
    initial: float = 1.0  # seconds, as every duration here
    longest: float = msgspec.field(default=60.0, name="max")
    jitter: bool = True


class Foreach(Part, frozen=True):
    items: Any = msgspec.field(name="in")  # a list, or an expression that gives one
    item_name: str = msgspec.field(default="item", name="as")
    max_parallel: int = 16


class Step(Part, frozen=True, kw_only=True):
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
    route: Route | None = None  # of a playbook's step, whose kind is PIPELINE


class PlanMetadata(Part, frozen=True, kw_only=True):
    plan_id: str
    plan_version: str = ""  # empty: the content hash
    description: str | None = None
    labels: dict[str, str] = {}
    requires_capabilities: tuple[str, ...] = ()
    fallback_behavior: str | None = None
    target_adapter: str | None = None


class Work(msgspec.Struct, frozen=True):
    """A step or task, as far as its tool goes."""

    name: str
    kind: str
    inputs: dict[str, Any]
    secret_refs: tuple[str, ...] = ()
    dispatch: dict[str, str] | None = None


class ExecutionPlan(Part, frozen=True, kw_only=True):
    metadata: PlanMetadata
    params: dict[str, Any] = {}  # defaults
    param_types: dict[str, ParamType] = {}  # one that is only here must be given
    order: Order  # always written: what it is by default hangs on the steps
    on_failure: OnFailure = OnFailure.FAIL
    timeout: float | None = None
    steps: tuple[Step, ...]
    result: Any = None  # of the whole run, with expressions
    playbook: Playbook | None = None

    @property
    def param_names(self) -> frozenset[str]:
        return frozenset(self.params) | frozenset(self.param_types)

    @property
    def plan_id(self) -> str:
        return self.metadata.plan_id

    def work(self) -> Iterator[Work]:
        """Everything in it that a tool carries out: steps, and the tasks of a playbook's steps."""
        for step in self.steps:
            if step.route is None:
                yield Work(step.step_id, step.kind, step.inputs, step.secret_refs, step.dispatch)
                continue
            for task in step.route.tasks:
                yield Work(f"{step.step_id}/{task.label}", task.kind, task.inputs, dispatch=task.dispatch)


def plan_body(plan: ExecutionPlan) -> bytes:
    """The canonical bytes of a plan: what is hashed and what the plan store keeps."""
    return msgspec.json.encode(plan, order="sorted")


def content_hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def plan_version(plan: ExecutionPlan) -> str:
    return plan.metadata.plan_version or content_hash(plan_body(plan))


def read_plan(body: bytes) -> ExecutionPlan:
    """The plan that these canonical bytes are."""
    try:
        return msgspec.json.decode(body, type=ExecutionPlan)
    except msgspec.MsgspecError as error:
        raise RunwrightError(
            ErrorCode.SCHEMA_VERSION_UNKNOWN, f"This plan was written by a newer Runwright: {error}. Upgrade this one."
        ) from None


def check_schema_version(version: str | None) -> None:
    """Refuse a plan of another major version, of a newer minor one, or of one more than three minors back."""
    match = re.fullmatch(r"v(\d+)\.(\d+)", version or "", re.ASCII)
    ours = tuple(map(int, SCHEMA_VERSION.removeprefix("v").split(".")))
    if match is None or int(match[1]) != ours[0] or not ours[1] - 3 <= int(match[2]) <= ours[1]:
        raise RunwrightError(
            ErrorCode.SCHEMA_VERSION_UNKNOWN,
            f"The plan's schema version is {version}; this Runwright reads {SCHEMA_VERSION} and three minor versions "
            "back. Use the Runwright that wrote it.",
        )
