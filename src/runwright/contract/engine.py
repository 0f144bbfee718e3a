"""IWorkflowEngine: what every runtime can be asked for, and how it names its runs.

A runtime that implements it starts, stops, signals and describes runs. It plans nothing, and it is not the truth:
that is the log.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import msgspec

from .refs import PlanRef
from .transitions import RunStatus

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class _Ref(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="provider"):
    workflow_id: Id
    run_id: Id


class TemporalRunRef(_Ref, frozen=True, kw_only=True, tag="temporal"):
    namespace: Id
    task_queue: str | None = None


class ConductorRunRef(_Ref, frozen=True, kw_only=True, tag="conductor"):
    conductor_url: Id


class EmbeddedRunRef(_Ref, frozen=True, kw_only=True, tag="embedded"):
    """A run of our own engine; both of its ids are the run's."""


class MockRunRef(_Ref, frozen=True, kw_only=True, tag="mock"):
    """A run that was only played."""


EngineRunRef = TemporalRunRef | ConductorRunRef | EmbeddedRunRef | MockRunRef


def provider_of(ref: EngineRunRef) -> str:
    return str(ref.__struct_config__.tag)


class RunContext(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Whose run it is, and what it is called. The adapter is settled before a run is started."""

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
    """What a status query answers."""

    run_id: str
    status: RunStatus
    substatus: str | None = None
    message: str | None = None
    started_at: str | None = None
    completed_at: str | None = None


class IWorkflowEngine(Protocol):
    async def start_run(self, plan_ref: PlanRef, context: RunContext) -> EngineRunRef:
        """Start a run of a plan that is in the plan store."""
        ...

    async def cancel_run(self, engine_run_ref: EngineRunRef) -> None: ...

    async def get_run_status(self, engine_run_ref: EngineRunRef) -> RunStatusSnapshot: ...

    async def signal(self, engine_run_ref: EngineRunRef, request: SignalRequest) -> None: ...
