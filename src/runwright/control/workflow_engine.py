"""IWorkflowEngine over the embedded engine.

Operations other than a start receive only the ids of the provider: the tenant of the run is read from the log, and the
caller must be allowed to see the run.
"""

from __future__ import annotations

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import check_schema_version
from runwright.contract.refs import PlanRef
from runwright.contract.workflow_engine import (
    EmbeddedRunRef,
    EngineRunRef,
    IWorkflowEngine,
    MockRunRef,
    RunContext,
    RunStatusSnapshot,
    SignalRequest,
    provider_of,
)
from runwright.core.fold.run_state import substatus
from runwright.log.model import RunRow
from runwright.log.validation import not_found

from .operations import Operations
from .run_scope import RunScope
from .signal_rules import SignalDecision


class EmbeddedWorkflowEngine(IWorkflowEngine):
    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def start_run(self, plan_ref: PlanRef, context: RunContext) -> EngineRunRef:
        provider = self._operations.engine.services.provider
        if context.target_adapter != provider:
            raise RunwrightError(
                ErrorCode.CAPABILITY_NOT_SUPPORTED, f"This engine is {provider}, not {context.target_adapter}."
            )
        check_schema_version(plan_ref.schema_version)
        plan = (await self._operations.engine.services.plans.graph(plan_ref.sha256, context.tenant_id)).plan
        version = plan.metadata.plan_version or plan_ref.sha256
        if (plan.plan_id, version) != (plan_ref.plan_id, plan_ref.plan_version):
            raise RunwrightError(
                ErrorCode.PLAN_REF_MISMATCH,
                f"The reference names {plan_ref.plan_id} {plan_ref.plan_version}; it is {plan.plan_id} {version}.",
            )
        place = RunScope(context.tenant_id, context.project_id, context.environment_id)
        run_id, _ = await self._operations.start_or_get(plan, run_id=context.run_id, place=place, trigger="api")
        kind = MockRunRef if provider == "mock" else EmbeddedRunRef
        return kind(workflow_id=run_id, run_id=run_id)

    async def cancel_run(self, engine_run_ref: EngineRunRef) -> None:
        row = await self._find(engine_run_ref)
        _check(await self._operations.signal(row.identity.run_id, "CANCEL"))

    async def get_run_status(self, engine_run_ref: EngineRunRef) -> RunStatusSnapshot:
        return status_of(await self._find(engine_run_ref))

    async def signal(self, engine_run_ref: EngineRunRef, request: SignalRequest) -> None:
        row = await self._find(engine_run_ref)
        decision = await self._operations.signal(
            row.identity.run_id,
            request.signal_type,
            request.payload,
            reason=request.reason,
            signal_id=request.signal_id,
        )
        _check(decision)

    async def _find(self, ref: EngineRunRef) -> RunRow:
        """Find a run of this engine. Its provider ids are its run id, and an event of another engine may claim the
        same ids: so it is found by the run id."""
        row = await self._operations.find(ref.run_id)
        if (row.provider, row.workflow_id) != (provider_of(ref), ref.workflow_id):
            raise not_found(f"{provider_of(ref)}://{ref.workflow_id}/{ref.run_id}")
        return row


def status_of(row: RunRow) -> RunStatusSnapshot:
    """The status from the row of a run, without a fold."""
    within, message = substatus(row.summary)
    return RunStatusSnapshot(
        run_id=row.identity.run_id,
        status=row.status,
        substatus=within,
        message=message,
        started_at=row.summary.started_at,
        completed_at=row.summary.completed_at,
    )


def _check(decision: SignalDecision) -> None:
    if decision.code is not None:
        raise RunwrightError(ErrorCode(decision.code), decision.reason or "")
