"""Check that a plan holds only JSON values: it is hashed, stored and sent as JSON."""

from __future__ import annotations

import math
import re
from typing import Any, cast

from runwright.plans.yaml.reader import MAX_DEPTH

from .problems import INVALID_PLAN, DocumentPath, ProblemCollector

_Container = dict[Any, Any] | list[Any] | tuple[Any, ...]
_FORBIDDEN_CHARACTER = re.compile("[\x00\ud800-\udfff]")


def check_json_values(value: Any, problems: ProblemCollector, path: DocumentPath = ()) -> None:
    """Report every value that JSON cannot represent."""
    if isinstance(value, dict | list | tuple):
        _check_container(cast("_Container", value), problems, path)
        return
    sentence = _scalar_problem(value)
    if sentence:
        problems.error(path, INVALID_PLAN, sentence)


def _check_container(value: _Container, problems: ProblemCollector, path: DocumentPath) -> None:
    if len(path) >= MAX_DEPTH:
        problems.error(path, INVALID_PLAN, f"A plan must be nested at most {MAX_DEPTH} levels deep.")
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if isinstance(value, dict) and (not isinstance(key, str) or _scalar_problem(key)):
            problems.error(path, INVALID_PLAN, "A field name must be a string that JSON can represent.")
        elif isinstance(item, dict | list | tuple):
            _check_container(cast("_Container", item), problems, (*path, key))
        elif sentence := _scalar_problem(item):
            problems.error((*path, key), INVALID_PLAN, sentence)


def _scalar_problem(value: Any) -> str | None:
    """Return the reason why JSON, or a database that stores it, cannot represent a scalar; None if it can."""
    if isinstance(value, str):
        if (value.isascii() and "\0" not in value) or not (match := _FORBIDDEN_CHARACTER.search(value)):
            return None
        return f"The character U+{ord(match[0]):04X} is not allowed in a plan."
    if value is None or isinstance(value, int):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else "A number must be finite."
    return f"A plan must hold only JSON values, not {type(value).__name__}."
