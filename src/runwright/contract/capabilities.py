"""What a plan may require of whatever runs it, and what the embedded runtime can do."""

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

EMBEDDED = CAPABILITIES - {"signal.pause.emulated", "workflow.child.workflows", "workflow.continue.as.new"}


def validation_report(plan: ExecutionPlan, adapter: str, offered: frozenset[str]) -> dict[str, object] | None:
    """Hold what a plan requires against what its runtime offers; None where nothing is required.

    Raises CAPABILITY_NOT_SUPPORTED where the plan must not run so.
    """
    target = plan.metadata.target_adapter
    if target not in (None, "any", adapter) and adapter != "mock":  # any plan can be played
        raise RunwrightError(
            ErrorCode.CAPABILITY_NOT_SUPPORTED,
            f"The plan is for the runtime {target}; this is {adapter}. Run it there, or set targetAdapter to any.",
        )
    required = plan.metadata.requires_capabilities
    if not required:
        return None
    behavior = plan.metadata.fallback_behavior or "reject"
    checks: list[dict[str, object]] = []
    warnings: list[dict[str, str]] = []
    for name in required:
        if name not in CAPABILITIES:
            known = ", ".join(sorted(CAPABILITIES))
            sentence = f"No capability is called {name!r}. There are: {known}."
            raise RunwrightError(ErrorCode.CAPABILITY_NOT_SUPPORTED, sentence)
        supported = name in offered
        checks.append({"capability": name, "supported": supported})
        if supported:
            continue
        if behavior not in FALLBACKS[1:]:
            raise RunwrightError(
                ErrorCode.CAPABILITY_NOT_SUPPORTED,
                f"The plan requires {name}, which the runtime {adapter} does not have. "
                "Pick another runtime, or set fallbackBehavior to emulate or degrade.",
            )
        code = "CAPABILITY_EMULATED" if behavior == "emulate" else "CAPABILITY_DEGRADED"
        warnings.append({"code": code, "capability": name, "message": f"{adapter} does not have {name}."})
    return {
        "planId": plan.plan_id,
        "planVersion": plan_version(plan),
        "targetAdapter": adapter,
        "status": "WARNINGS" if warnings else "VALID",
        "capabilityChecks": checks,
        "errors": [],
        "warnings": warnings,
    }
