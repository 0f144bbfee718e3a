"""Capabilities that a plan may require of its runtime, and those of the embedded runtime."""

from __future__ import annotations

from .errors import ErrorCode, RunwrightError
from .plan import ExecutionPlan, plan_version

CAPABILITIES = frozenset(
    {
        "signal.pause.native",
        "signal.pause.emulated",
        "cancel.cooperative",
        "cancel.forced",
        "workflow.child.workflows",
        "workflow.fan.dynamic",
        "workflow.fan.parallel",
        "query.workflow.state",
        "query.task.state",
        "replay.full",
        "replay.task",
        "workflow.continue.as.new",
        "signals.rate.limit",
        "signals.concurrent",
    }
)

FALLBACKS = ("reject", "emulate", "degrade")
ADAPTERS = ("any", "embedded", "mock", "temporal", "conductor")

EMBEDDED_CAPABILITIES = CAPABILITIES - {"signal.pause.emulated", "workflow.child.workflows", "workflow.continue.as.new"}


def validation_report(plan: ExecutionPlan, adapter: str, offered: frozenset[str]) -> dict[str, object] | None:
    """Compare the capabilities that a plan requires with those of its runtime; None if it requires none.

    Raises CAPABILITY_NOT_SUPPORTED if the plan must not run on this runtime.
    """
    _check_adapter(plan, adapter)
    required = plan.metadata.requires_capabilities
    if not required:
        return None
    behavior = plan.metadata.fallback_behavior or "reject"
    checks: list[dict[str, object]] = []
    warnings: list[dict[str, str]] = []
    for name in required:
        if name not in CAPABILITIES:
            known = ", ".join(sorted(CAPABILITIES))
            raise _not_supported(f"Unknown capability {name!r}. Known: {known}.")
        supported = name in offered
        checks.append({"capability": name, "supported": supported})
        if supported:
            continue
        if behavior not in FALLBACKS[1:]:
            raise _not_supported(
                f"The plan requires {name}, which the runtime {adapter} does not support. "
                "Use another runtime, or set fallbackBehavior to emulate or degrade."
            )
        code = "CAPABILITY_EMULATED" if behavior == "emulate" else "CAPABILITY_DEGRADED"
        warnings.append({"code": code, "capability": name, "message": f"{adapter} does not support {name}."})
    return {
        "planId": plan.plan_id,
        "planVersion": plan_version(plan),
        "targetAdapter": adapter,
        "status": "WARNINGS" if warnings else "VALID",
        "capabilityChecks": checks,
        "errors": [],
        "warnings": warnings,
    }


def _check_adapter(plan: ExecutionPlan, adapter: str) -> None:
    target = plan.metadata.target_adapter
    if target not in (None, "any", adapter) and adapter != "mock":  # every plan can be simulated
        raise _not_supported(
            f"The plan targets the runtime {target}; this is {adapter}. Run it there, or set targetAdapter to any."
        )


def _not_supported(detail: str) -> RunwrightError:
    return RunwrightError(ErrorCode.CAPABILITY_NOT_SUPPORTED, detail)
