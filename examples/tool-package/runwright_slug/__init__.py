"""A tool package: `slug: "Some Title"` returns `some-title`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

import runwright as rw


class SlugInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    longest: int = 80


class SlugTool:
    kind = "slug"
    inputs = SlugInputs  # Validated before a run starts, and again after evaluating expressions.
    main_input = "text"  # The input that `slug: value` sets.

    def check(self, inputs: dict[str, Any], step: rw.Step) -> str | None:
        """Return a sentence that describes invalid inputs, or None. Texts may still contain expressions."""
        longest = inputs.get("longest", 80)
        return "`longest` is at least 1." if isinstance(longest, int) and longest < 1 else None

    def lane(self, inputs: SlugInputs, step: rw.Step) -> rw.Lane:
        """Select how the step is executed: inline (for short steps), in a thread, on an event loop, ..."""
        return rw.Lane.INLINE

    def run(self, inputs: SlugInputs, context: rw.StepContext) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", inputs.text.lower()).strip("-")[: inputs.longest]
        if not slug:
            raise rw.StepError("NOTHING_LEFT", f"{inputs.text!r} has no letter or digit.", retryable=False)
        return slug
