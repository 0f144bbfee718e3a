"""`slug: "Some Title"` gives `some-title`."""

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
    inputs = SlugInputs  # checked before a run starts, and again once expressions are filled in
    main_input = "text"  # what `slug: value` sets

    def check(self, inputs: dict[str, Any], step: rw.Step) -> str | None:
        """What is wrong beyond the types, as a sentence. Texts may still hold expressions."""
        longest = inputs.get("longest", 80)
        return "`longest` is at least 1." if isinstance(longest, int) and longest < 1 else None

    def lane(self, inputs: SlugInputs, step: rw.Step) -> rw.Lane:
        """Where it runs: at once (it takes no time), in a thread, on a loop of ours, ..."""
        return rw.Lane.INLINE

    def run(self, inputs: SlugInputs, context: rw.StepContext) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", inputs.text.lower()).strip("-")[: inputs.longest]
        if not slug:
            raise rw.StepError("NOTHING_LEFT", f"{inputs.text!r} has no letter or digit.", retryable=False)
        return slug
