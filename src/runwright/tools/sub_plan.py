"""The plan step: a child run of another plan, with a log of its own."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.plans.secret_refs import secret_names

from .base import Lane, StepContext, is_unresolved

PARAMS_ARE_LOGGED = "Parameters are stored in the log, so they must hold no secret. Name the secret in the child plan."

_REF = re.compile(r"plan:sha256:[0-9a-f]{64}", re.ASCII)


class PlanInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    ref: str | None = None
    path: str | None = None
    """A file, relative to the plan that names it. Replaced by a `ref` when the plan is loaded."""
    params: dict[str, Any] = {}
    inherit: bool = False
    """Pass the parameters of this run too; `params` override them."""


class PlanTool:
    kind = "plan"
    stays_here = True  # completed by the engine, never sent to a worker
    inputs = PlanInputs
    main_input = "path"

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        ref, path = inputs.get("ref"), inputs.get("path")
        if (ref is None) == (path is None):
            return (
                "Set exactly one of `path` (a file relative to this plan) and `ref` (printed by `runwright plan hash`)."
            )
        if is_unresolved(ref) or is_unresolved(path):
            return "`ref` and `path` must not contain expressions: the plan must be known before the run starts."
        if ref is not None and _REF.fullmatch(str(ref)) is None:
            return "Invalid `ref`: expected plan:sha256: and 64 hex digits, as printed by `runwright plan hash`."
        if step.secret_refs or any(secret_names(inputs.get("params"))):
            return PARAMS_ARE_LOGGED
        return None

    def lane(self, inputs: PlanInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.RUN

    def run(self, inputs: PlanInputs, context: StepContext) -> None:
        """Do nothing: the engine starts the child run and waits for its end."""
