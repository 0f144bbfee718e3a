"""The artifact step: stores a file as an artifact, or fetches one."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.plan import Step

from .base import Lane, StepContext, invalid_input


class ArtifactInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    put: str | None = None
    kind: str = "file"
    get: dict[str, Any] | str | None = None
    to: str | None = None


class ArtifactTool:
    kind = "artifact"
    inputs = ArtifactInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        return _problem(inputs)

    def lane(self, inputs: ArtifactInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.THREAD

    def run(self, inputs: ArtifactInputs, context: StepContext) -> Any:
        problem = _problem({name: value for name, value in msgspec.structs.asdict(inputs).items() if value is not None})
        if problem is not None:
            raise invalid_input(problem)
        if inputs.put is not None:
            return context.keep(context.path(inputs.put), inputs.kind)
        assert inputs.get is not None
        assert inputs.to is not None
        return {"path": inputs.to, "sizeBytes": context.fetch(inputs.get, context.path(inputs.to))}


def _problem(inputs: dict[str, Any]) -> str | None:
    if ("put" in inputs) == ("get" in inputs):
        return "Set exactly one of `put` (a file to store) and `get` (an artifact to fetch)."
    if "get" in inputs and "to" not in inputs:
        return "`get` requires `to`, the file to write."
    if "put" in inputs and "to" in inputs:
        return "`to` requires `get`."
    return None
