"""IWorkflowEngine: the interface of a runtime, and its references to runs.

A runtime starts, cancels, signals and describes runs. It does not plan, and it is not the source of truth: that is the
log.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import msgspec

from .refs import PlanRef
from .transitions import RunStatus

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class _EngineRunRef(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="provider"
):
    workflow_id: Id
    run_id: Id


class TemporalRunRef(_EngineRunRef, frozen=True, kw_only=True, tag="temporal"):
    namespace: Id
    task_queue: str | None = None


class ConductorRunRef(_EngineRunRef, frozen=True, kw_only=True, tag="conductor"):
    conductor_url: Id


class EmbeddedRunRef(_EngineRunRef, frozen=True, kw_only=True, tag="embedded"):
    """A run of the embedded engine; both ids are the run id."""


class MockRunRef(_EngineRunRef, frozen=True, kw_only=True, tag="mock"):
    """A run that was only simulated."""


EngineRunRef = TemporalRunRef | ConductorRunRef | EmbeddedRunRef | MockRunRef


def provider_of(ref: EngineRunRef) -> str:
    return str(ref.__struct_config__.tag)


class RunContext(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The id and the tenancy of a run to start. The adapter is chosen before the run starts."""

    tenant_id: str
    project_id: str
    environment_id: str
    run_id: str
    target_adapter: Literal["embedded", "mock", "temporal", "conductor"] = "embedded"


class SignalRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    signal_id: str
    signal_type: str
    payload: dict[str, Any] = {}
    reason: str | None = None


class RunStatusSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The answer of a status query."""

    run_id: str
    status: RunStatus
    substatus: str | None = None
    message: str | None = None
    started_at: str | None = None
    completed_at: str | None = None


class IWorkflowEngine(Protocol):
    async def start_run(self, plan_ref: PlanRef, context: RunContext) -> EngineRunRef:
        """Start a run of a plan from the plan store."""
        ...

    async def cancel_run(self, engine_run_ref: EngineRunRef) -> None: ...

    async def get_run_status(self, engine_run_ref: EngineRunRef) -> RunStatusSnapshot: ...

    async def signal(self, engine_run_ref: EngineRunRef, request: SignalRequest) -> None: ...
