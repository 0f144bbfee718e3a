"""A step that is a run of another plan, with a log of its own."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.plans.secrets import secret_refs

from .base import Lane, StepContext, is_open

SECRETS = "Parameters are kept in the log, so no secret can be one. Name the secret in the other plan itself."

_REF = re.compile(r"plan:sha256:[0-9a-f]{64}", re.ASCII)


class PlanInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    ref: str | None = None
    path: str | None = None
    """A file, beside the plan that names it. It becomes a `ref` when the plan is read."""
    params: dict[str, Any] = {}
    inherit: bool = False
    """With the parameters of this run, and `params` over them."""


class PlanTool:
    kind = "plan"
    stays_here = True  # no worker is needed for it
    inputs = PlanInputs
    main_input = "path"

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        ref, path = inputs.get("ref"), inputs.get("path")
        if (ref is None) == (path is None):
            return "Say which plan: `path`, a file beside this one, or `ref`, as `runwright plan hash` prints it."
        if is_open(ref) or is_open(path):
            return "Which plan it is must be known from the start: no expressions in `ref` and `path`."
        if ref is not None and _REF.fullmatch(str(ref)) is None:
            return "`ref` is plan:sha256: and 64 digits, as `runwright plan hash` prints it."
        if step.secret_refs or any(secret_refs(inputs.get("params"))):
            return SECRETS
        return None

    def lane(self, inputs: PlanInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.RUN

    def run(self, inputs: PlanInputs, context: StepContext) -> None:
        """The engine makes the run, and waits for its end."""
