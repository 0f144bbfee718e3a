"""A step that asks a person, and goes on with the answer. Nothing runs meanwhile."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from runwright.contract import payloads
from runwright.contract.plan import Step

from .base import Lane, StepContext, is_open

FIELD_TYPES = ("string", "integer", "number", "boolean")


class ApprovalInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    prompt: str
    fields: dict[str, Any] = {}
    approvers: list[str] = []


class ApprovalTool:
    kind = "approval"
    stays_here = True  # no worker is needed for it
    inputs = ApprovalInputs
    main_input = "prompt"

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        if step.foreach is not None:
            return "An approval cannot be asked for in a foreach. Ask once, for the whole list."
        fields = cast("dict[str, Any]", inputs.get("fields") or {})
        if is_open(fields):
            return None
        for name, field in fields.items():
            if (trouble := _field_trouble(field)) is not None:
                return f"Field {name!r}: {trouble}"
        return None

    def lane(self, inputs: ApprovalInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.ASK

    def run(self, inputs: ApprovalInputs, context: StepContext) -> None:
        """Nothing is left to do once there is an answer."""

    def question(self, inputs: ApprovalInputs, expires_at: str | None) -> tuple[str, msgspec.Struct]:
        """The event that says what is asked."""
        fields = {name: _full(field) for name, field in inputs.fields.items()}
        asked = payloads.Approval(inputs.prompt, fields or None, inputs.approvers or None, expires_at)
        return "ApprovalRequested", asked


def _field_trouble(field: Any) -> str | None:
    kind = _full(field).get("type")
    if kind not in FIELD_TYPES:
        return f"its type is one of {', '.join(FIELD_TYPES)}."
    unknown = set(_full(field)) - {"type", "required", "choices", "label"}
    return f"it has no {min(unknown)!r}; it has type, required, choices, label." if unknown else None


def _full(field: Any) -> dict[str, Any]:
    """`amount: number` is short for `amount: {type: number}`. What is not said to be optional is required."""
    given = cast("dict[str, Any]", field) if isinstance(field, dict) else {"type": field}
    return {"required": True, **given}
