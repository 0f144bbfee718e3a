"""The approval step: waits for the decision of a person. Nothing runs meanwhile."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from runwright.contract import payloads
from runwright.contract.plan import Step
from runwright.plans.secret_refs import secret_names

from .base import INPUTS_ARE_LOGGED, Lane, StepContext, is_unresolved

FIELD_TYPES = ("string", "integer", "number", "boolean")


class ApprovalInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    prompt: str
    fields: dict[str, Any] = {}
    approvers: list[str] = []


class ApprovalStepTool:
    kind = "approval"
    stays_here = True  # completed by the engine, never sent to a worker
    inputs = ApprovalInputs
    main_input = "prompt"

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        if step.foreach is not None:
            return "A foreach step cannot request approvals. Request one approval for the whole list."
        if step.secret_refs or any(secret_names(inputs)):
            return INPUTS_ARE_LOGGED
        fields = cast("dict[str, Any]", inputs.get("fields") or {})
        if is_unresolved(fields):
            return None
        for name, field in fields.items():
            if (problem := _field_problem(field)) is not None:
                return f"Field {name!r}: {problem}"
        return None

    def lane(self, inputs: ApprovalInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.ASK

    def run(self, inputs: ApprovalInputs, context: StepContext) -> None:
        """Do nothing: the decision completes the step."""

    def question(self, inputs: ApprovalInputs, expires_at: str | None) -> tuple[str, msgspec.Struct]:
        """Return the event that requests the approval."""
        fields = {name: _expand(field) for name, field in inputs.fields.items()}
        request = payloads.Approval(inputs.prompt, fields or None, inputs.approvers or None, expires_at)
        return "ApprovalRequested", request


def _field_problem(field: Any) -> str | None:
    kind = _expand(field).get("type")
    if kind not in FIELD_TYPES:
        return f"`type` must be one of {', '.join(FIELD_TYPES)}."
    unknown = set(_expand(field)) - {"type", "required", "choices", "label"}
    return f"unknown key {min(unknown)!r}; allowed: type, required, choices, label." if unknown else None


def _expand(field: Any) -> dict[str, Any]:
    """Expand the short form: `amount: number` is `amount: {type: number}`. Fields are required by default."""
    field_map = cast("dict[str, Any]", field) if isinstance(field, dict) else {"type": field}
    return {"required": True, **field_map}
