"""The noop step: returns its input."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.plan import Step

from .base import Lane, StepContext


class NoopInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    result: Any = None


class NoopTool:
    kind = "noop"
    stays_here = True  # completed by the engine, never sent to a worker
    inputs = NoopInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        return None

    def lane(self, inputs: NoopInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.INLINE

    def run(self, inputs: NoopInputs, context: StepContext) -> Any:  # noqa: ARG002
        return inputs.result
