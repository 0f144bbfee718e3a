"""Preview of a rerun with a corrected plan: which steps of a run would not run again."""

from __future__ import annotations

from typing import Any

from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, content_hash, plan_body, read_plan
from runwright.contract.transitions import StepStatus
from runwright.core.fold.payload_reader import read_payload
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.model import RunRow
from runwright.log.protocols import LogReader
from runwright.plans.registry import find_registered

from .rerun import PlanChange, changed_calls, changed_params, reasons_to_run
from .run_params import merge_params, rerun_params


async def preview_rerun(
    log: LogReader, row: RunRow, plan: ExecutionPlan, params: dict[str, Any]
) -> list[dict[str, Any]]:
    """The steps of the plan, each with whether it would be carried over from the run, or why it would run."""
    run = row.identity
    record = await log.find_event(run.run_id, "RunStarted")
    started = None if record is None else read_payload(payloads.RunStarted, record)
    if started is None or started.plan_ref is None:
        raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"Run {run.run_id!r} does not name its plan.")
    old_plan = read_plan(await log.plan(started.plan_ref.sha256, run.tenant_id))
    snapshot = await log.snapshot(run.run_id)
    before = await _params_of(log, run.run_id)
    after = merge_params(plan, rerun_params(old_plan, plan, run.run_id, before, params))
    registered = find_registered(content_hash(plan_body(plan)))
    change = PlanChange(
        changed_params(before, after), changed_calls(started.code, None if registered is None else registered.code)
    )
    succeeded = {
        step.step_id
        for step in snapshot.steps
        if step.status is StepStatus.SUCCESS or step.reason_code == "CARRIED_OVER"
    }
    old, new = PlanGraph(old_plan, lambda _: None), PlanGraph(plan, lambda _: None)
    reasons = reasons_to_run(old, new, succeeded, change)
    names = [node.step.step_id for node in new.nodes]
    return [{"stepId": name, "carriedOver": name not in reasons, "reason": reasons.get(name)} for name in names]


async def _params_of(log: LogReader, run_id: str) -> dict[str, Any]:
    """The parameters of a run: those of its start, with the changes of operators."""
    params: dict[str, Any] = {}
    async for record in log.events(run_id):
        if record.event_type in ("RunQueued", "RunParamsUpdated"):
            params = (record.payload or {}).get("params") or params
    return params
