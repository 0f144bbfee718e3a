"""Limits of a process: the table [limits] of runwright.toml.

[limits]
planSteps = 200000      # steps of one plan
stepOutput = 16777216   # bytes that a shell command may write to its standard output, unless its last line is JSON
"""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.plans.load_limits import MAX_STEPS
from runwright.plans.problems import did_you_mean
from runwright.tools.shell import MAX_OUTPUT

from .settings import invalid_setting, settings_table


class Limits(msgspec.Struct, frozen=True, rename="camel"):
    plan_steps: int = MAX_STEPS
    step_output: int = MAX_OUTPUT


def read_limits() -> Limits:
    """Read the table; a field that is not there has its default."""
    table: dict[str, Any] = settings_table("limits")
    known = Limits.__struct_encode_fields__
    for name, value in table.items():
        if name not in known:
            raise invalid_setting(f"Unknown field {name!r} in [limits].{did_you_mean(name, known)}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise invalid_setting(f"`{name}` in [limits] must be a whole number from 1.")
    return msgspec.convert(table, Limits)
