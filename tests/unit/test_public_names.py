"""The public names are pinned here. Removing one requires a changelog entry."""

from __future__ import annotations

import subprocess
import sys

import runwright as rw

PUBLIC = {
    "Alert", "Anchor", "AppendRefused", "Enforcement", "ErrorCode", "Fence", "Finding", "Holder", "Importer", "Lease", "Receipt", "Refusal",
    "RunEventRecord", "RunEventWrite", "RunFilter", "RunIdentity", "RunLog", "RunPage", "RunRow", "RunSnapshot",
    "RunStatus", "RunSummary", "RunwrightError", "SnapshotProjector", "StepSnapshot", "StepStatus", "TailPage",
    "__version__", "export_run", "idempotency_key", "make_anchor", "new_event", "new_run", "open_log", "read_anchor",
    "this_process", "App", "AsyncApp", "AsyncRun", "ExecutionPlan", "PlanInvalid", "Problem", "Run", "SignalDecision",
    "StepContext", "StepError", "current_step", "open", "open_async", "PlanFunction", "StepFunction", "plan", "step",
    "when", "Lane", "Step", "Tool", "ArtifactRef", "ErrorInfo", "StepOutput",
    "connect", "connect_async", "EngineRunRef", "IWorkflowEngine",
}  # fmt: skip

LOG_METHODS = {
    "alerts", "append", "append_independent", "append_prepared", "close", "create_run", "end_cursor", "events",
    "find_by_id", "find_by_prefix", "find_engine_run", "find_event", "find_run", "follow", "hash_at", "heads", "health",
    "ingest", "list_runs", "open", "owners", "plan", "raise_alerts", "read", "read_all", "rebuild", "redact", "resolve_run",
    "runs_signalled_since", "search", "select", "snapshot", "store_plan", "tail", "verify", "wait_for_events",
}  # fmt: skip
LEASE_METHODS = {"acquire", "claim_due", "claim_run", "owned_runs", "owners", "release", "release_run", "renew"}


def test_the_public_names_are_pinned() -> None:
    assert set(rw.__all__) == PUBLIC
    assert set(dir(rw)) == PUBLIC
    for name in PUBLIC:
        assert getattr(rw, name) is not None


def test_the_methods_of_log_and_leases_are_pinned() -> None:
    assert {name for name in dir(rw.RunLog) if not name.startswith("_")} == LOG_METHODS
    leases = rw.open_log("memory://").leases
    assert {name for name in dir(leases) if not name.startswith("_")} == LEASE_METHODS


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(rw, "nothing_of_the_kind")


def test_importing_runwright_loads_no_heavy_modules() -> None:
    code = "import runwright, sys; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for heavy in ("apsw", "asyncpg", "asyncio", "rich", "click", "cryptography", "msgspec", "jinja2", "yaml"):
        assert heavy not in loaded


def test_error_codes_are_formatted_as_text() -> None:
    error = rw.RunwrightError(rw.ErrorCode.RUN_NOT_FOUND, "no such run")
    assert f"{error.code}" == "RUN_NOT_FOUND"
    assert str(error) == "RUN_NOT_FOUND: no such run"
