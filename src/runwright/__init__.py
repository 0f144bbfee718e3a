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
    from .client.connect import connect, connect_async
    from .contract.engine import EngineRunRef, IWorkflowEngine
    from .contract.errors import ErrorCode, RunwrightError
    from .contract.events import Receipt, Refusal, RunEventRecord, RunEventWrite, RunIdentity
    from .contract.keys import idempotency_key
    from .contract.plan import ExecutionPlan, Step
    from .contract.refs import ArtifactRef, ErrorInfo, StepOutput
    from .contract.snapshot import Alert, RunSnapshot, RunSummary, StepSnapshot
    from .contract.transitions import Enforcement, RunStatus, StepStatus
    from .control.app import App, AsyncApp, AsyncRun, Run, open, open_async  # noqa: A004
    from .control.signals import SignalDecision
    from .core.projector import SnapshotProjector
    from .core.verify import Finding
    from .flows.plans import PlanFunction, plan
    from .flows.recording import when
    from .flows.steps import StepFunction, step
    from .log.anchor import Anchor, make_anchor, read_anchor
    from .log.base import AppendRefused, RunLog
    from .log.holder import this_process
    from .log.judge import Fence
    from .log.model import Holder, Lease, RunFilter, RunPage, RunRow, TailPage
    from .log.open import new_event, new_run, open_log
    from .log.transfer import Importer, export_run
    from .plans.problems import PlanInvalid, Problem
    from .tools.base import Lane, StepContext, StepError, Tool, current_step

_HOMES = {
    "client.connect": ("connect", "connect_async"),
    "contract.engine": ("EngineRunRef", "IWorkflowEngine"),
    "contract.errors": ("ErrorCode", "RunwrightError"),
    "contract.events": ("Receipt", "Refusal", "RunEventRecord", "RunEventWrite", "RunIdentity"),
    "contract.keys": ("idempotency_key",),
    "contract.plan": ("ExecutionPlan", "Step"),
    "contract.refs": ("ArtifactRef", "ErrorInfo", "StepOutput"),
    "contract.snapshot": ("Alert", "RunSnapshot", "RunSummary", "StepSnapshot"),
    "contract.transitions": ("Enforcement", "RunStatus", "StepStatus"),
    "control.app": ("App", "AsyncApp", "AsyncRun", "Run", "open", "open_async"),
    "control.signals": ("SignalDecision",),
    "core.projector": ("SnapshotProjector",),
    "core.verify": ("Finding",),
    "flows.plans": ("PlanFunction", "plan"),
    "flows.recording": ("when",),
    "flows.steps": ("StepFunction", "step"),
    "log.anchor": ("Anchor", "make_anchor", "read_anchor"),
    "log.base": ("AppendRefused", "RunLog"),
    "log.holder": ("this_process",),
    "log.judge": ("Fence",),
    "log.model": ("Holder", "Lease", "RunFilter", "RunPage", "RunRow", "TailPage"),
    "log.open": ("new_event", "new_run", "open_log"),
    "log.transfer": ("Importer", "export_run"),
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
