"""Runwright: a workflow engine whose history is its only truth.

    import runwright as rw

    async with rw.open_log("sqlite:///runs.db") as log:
        run = rw.new_run("orders-42", plan_id="orders")
        await log.append([rw.new_event("RunStarted", run)])

Everything a user imports is here. Nothing is loaded before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from runwright.client.connect import connect, connect_async
    from runwright.contract.errors import ErrorCode, RunwrightError
    from runwright.contract.events import Receipt, Refusal, RunEventRecord, RunEventWrite, RunIdentity
    from runwright.contract.keys import idempotency_key
    from runwright.contract.plan import ExecutionPlan, Step
    from runwright.contract.refs import ArtifactRef, ErrorInfo, StepOutput
    from runwright.contract.snapshot import Alert, RunSnapshot, RunSummary, StepSnapshot
    from runwright.contract.transitions import Enforcement, RunStatus, StepStatus
    from runwright.contract.workflow_engine import EngineRunRef, IWorkflowEngine
    from runwright.control.app import App, AsyncApp, AsyncRun, Run, open, open_async  # noqa: A004
    from runwright.control.signal_rules import SignalDecision
    from runwright.core.integrity.verify import Finding
    from runwright.core.projector import SnapshotProjector
    from runwright.flows.plan_function import PlanFunction, plan
    from runwright.flows.step_function import StepFunction, step
    from runwright.flows.tracing import when
    from runwright.log.anchor import Anchor, make_anchor, read_anchor
    from runwright.log.append.authority import Fence
    from runwright.log.builders import new_event, new_run
    from runwright.log.export_import import Importer, export_run
    from runwright.log.factory import open_log
    from runwright.log.model import Holder, Lease, RunFilter, RunPage, RunRow, TailPage
    from runwright.log.process_identity import this_process
    from runwright.log.run_log import AppendRefused, RunLog
    from runwright.plans.problems import PlanInvalid, Problem
    from runwright.tools.base import Lane, StepContext, StepError, Tool, current_step

_HOMES = {
    "client.connect": ("connect", "connect_async"),
    "contract.workflow_engine": ("EngineRunRef", "IWorkflowEngine"),
    "contract.errors": ("ErrorCode", "RunwrightError"),
    "contract.events": ("Receipt", "Refusal", "RunEventRecord", "RunEventWrite", "RunIdentity"),
    "contract.keys": ("idempotency_key",),
    "contract.plan": ("ExecutionPlan", "Step"),
    "contract.refs": ("ArtifactRef", "ErrorInfo", "StepOutput"),
    "contract.snapshot": ("Alert", "RunSnapshot", "RunSummary", "StepSnapshot"),
    "contract.transitions": ("Enforcement", "RunStatus", "StepStatus"),
    "control.app": ("App", "AsyncApp", "AsyncRun", "Run", "open", "open_async"),
    "control.signal_rules": ("SignalDecision",),
    "core.projector": ("SnapshotProjector",),
    "core.integrity.verify": ("Finding",),
    "flows.plan_function": ("PlanFunction", "plan"),
    "flows.tracing": ("when",),
    "flows.step_function": ("StepFunction", "step"),
    "log.anchor": ("Anchor", "make_anchor", "read_anchor"),
    "log.run_log": ("AppendRefused", "RunLog"),
    "log.process_identity": ("this_process",),
    "log.append.authority": ("Fence",),
    "log.model": ("Holder", "Lease", "RunFilter", "RunPage", "RunRow", "TailPage"),
    "log.builders": ("new_event", "new_run"),
    "log.factory": ("open_log",),
    "log.export_import": ("Importer", "export_run"),
    "plans.problems": ("PlanInvalid", "Problem"),
    "tools.base": ("Lane", "StepContext", "StepError", "Tool", "current_step"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Alert",
    "Anchor",
    "App",
    "AppendRefused",
    "ArtifactRef",
    "AsyncApp",
    "AsyncRun",
    "Enforcement",
    "EngineRunRef",
    "ErrorCode",
    "ErrorInfo",
    "ExecutionPlan",
    "Fence",
    "Finding",
    "Holder",
    "IWorkflowEngine",
    "Importer",
    "Lane",
    "Lease",
    "PlanFunction",
    "PlanInvalid",
    "Problem",
    "Receipt",
    "Refusal",
    "Run",
    "RunEventRecord",
    "RunEventWrite",
    "RunFilter",
    "RunIdentity",
    "RunLog",
    "RunPage",
    "RunRow",
    "RunSnapshot",
    "RunStatus",
    "RunSummary",
    "RunwrightError",
    "SignalDecision",
    "SnapshotProjector",
    "Step",
    "StepContext",
    "StepError",
    "StepFunction",
    "StepOutput",
    "StepSnapshot",
    "StepStatus",
    "TailPage",
    "Tool",
    "__version__",
    "connect",
    "connect_async",
    "current_step",
    "export_run",
    "idempotency_key",
    "make_anchor",
    "new_event",
    "new_run",
    "open",
    "open_async",
    "open_log",
    "plan",
    "read_anchor",
    "step",
    "this_process",
    "when",
]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'runwright' has no attribute {name!r}")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
