"""What a plan may hold: what JSON can hold. A plan is hashed, stored and sent as JSON."""

from __future__ import annotations

import math
import re
from typing import Any, cast

from .problems import PLAN, Findings, Path
from .yaml_reader import DEEPEST

_UNFIT = re.compile("[\x00\ud800-\udfff]")


def check_values(value: Any, findings: Findings, path: Path = ()) -> None:
    """Note every value that JSON cannot hold."""
    if isinstance(value, dict | list | tuple):
        _check_inside(cast("dict[Any, Any] | list[Any] | tuple[Any, ...]", value), findings, path)
        return
    sentence = _unfit(value)
    if sentence:
        findings.error(path, PLAN, sentence)


def _check_inside(value: dict[Any, Any] | list[Any] | tuple[Any, ...], findings: Findings, path: Path) -> None:
    if len(path) >= DEEPEST:
        findings.error(path, PLAN, f"A plan is nested {DEEPEST} levels deep at most.")
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if isinstance(value, dict) and (not isinstance(key, str) or _unfit(key)):
            findings.error(path, PLAN, "The name of a field is text that JSON can hold.")
        elif isinstance(item, dict | list | tuple):
            _check_inside(cast("dict[Any, Any] | list[Any] | tuple[Any, ...]", item), findings, (*path, key))
        elif sentence := _unfit(item):
            findings.error((*path, key), PLAN, sentence)


def _unfit(value: Any) -> str | None:
    """Why JSON, or a store that keeps it, cannot hold a scalar."""
    if isinstance(value, str):
        if (value.isascii() and "\0" not in value) or not (sign := _UNFIT.search(value)):
            return None
        return f"The character U+{ord(sign[0]):04X} is not allowed in a plan."
    if value is None or isinstance(value, int):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else "A number must be finite."
    return f"A plan holds what JSON can hold, and no {type(value).__name__}."
