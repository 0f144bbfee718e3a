"""Check the source of a plan function for statements that have no effect on its steps.

A plan function is traced, not executed: its steps run later. A `try` around a call of a step never sees the step fail,
and a `while` never sees its result.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from runwright.contract.errors import ErrorCode, RunwrightError

_ADVICE = {
    "try": "Handle failures with `retries`, `on_failure` of the plan, or inside of the step.",
    "while": "Repeat inside of a step, or call the step with `.map` for each item.",
}


def check_plan_source(function: Callable[..., Any], is_step: Callable[[Any], bool]) -> None:
    """Raise INVALID_PLAN_SCHEMA for a `try` or `while` around the call of a step. Nothing is checked without source."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    names = _visible_names(function)
    for node in ast.walk(tree):
        if not isinstance(node, ast.While | ast.Try | ast.TryStar):
            continue
        keyword = "while" if isinstance(node, ast.While) else "try"
        for name in _called_names(node):
            if is_step(names.get(name)):
                place = f"Line {first + node.lineno - 1}: `{keyword}` around the step {name}"
                message = f"{place} has no effect, because the step runs later. {_ADVICE[keyword]}"
                raise RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, message)


def _visible_names(function: Callable[..., Any]) -> dict[str, Any]:
    closure = inspect.getclosurevars(function)
    return {**closure.globals, **closure.nonlocals}


def _called_names(node: ast.AST) -> Iterator[str]:
    """Yield the names of called functions: `extract(...)`, `extract.map(...)`, `extract.options(...)(...)`."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        target: ast.expr = call
        while isinstance(target, ast.Call | ast.Attribute):
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name):
            yield target.id
