"""Expressions: `{{ ... }}` in the texts of a plan. Evaluation, checks and static analysis.

A text that is exactly one expression evaluates to its value with its type; a text with other characters evaluates to
text. A missing value is an error, never an empty text. No expression can reach anything but its data or grow without
bounds.

The syntax is Jinja's. Jinja is imported with the first text that has an expression in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runwright.contract.errors import ErrorCode, RunwrightError

from .budget import Budget, ExpressionFailure, ExpressionScope, budget_of, content_size, to_text
from .parser import OPEN, split
from .value_types import is_container

if TYPE_CHECKING:
    from .compiler import CompiledExpression

BUILT_IN_NAMES = frozenset({"range"})
"""Names that are available in every expression."""

_MAX_QUOTED_LENGTH = 80  # characters of an expression that a message quotes
_CACHE_SIZE = 16_384  # compiled texts


class ExpressionError(RunwrightError):
    """An expression cannot be parsed or evaluated. The message quotes the expression, never a value."""

    def __init__(self, text: str, cause: str) -> None:
        quoted = " ".join(text[: 4 * _MAX_QUOTED_LENGTH].split())
        quoted = quoted if len(quoted) <= _MAX_QUOTED_LENGTH else quoted[: _MAX_QUOTED_LENGTH - 1] + "…"
        super().__init__(ErrorCode.EXPRESSION_ERROR, f'In "{quoted}": {cause}{"" if cause.endswith("?") else "."}')
        self.cause = cause


class _Template:
    """A parsed text: its parts in order, each plain text or an expression."""

    def __init__(self, text: str) -> None:
        self.parts: list[str | CompiledExpression] = []
        for part in split(text):
            self.parts.append(_compile(part.text) if part.is_expression else part.text)
        first = self.parts[0]
        self.single = first if len(self.parts) == 1 and not isinstance(first, str) else None

    @property
    def expressions(self) -> list[CompiledExpression]:
        return [part for part in self.parts if not isinstance(part, str)]


def _compile(text: str) -> CompiledExpression:
    from .compiler import CompiledExpression

    return CompiledExpression(text)


@lru_cache(maxsize=_CACHE_SIZE)
def _parse_cached(text: str) -> _Template | ExpressionError:
    """Parse a text, or return the error. Errors are cached too, so that an invalid text is not parsed repeatedly."""
    try:
        return _Template(text)
    except ExpressionFailure as failure:
        return ExpressionError(text, str(failure))


def _template(text: str) -> _Template:
    template = _parse_cached(text)
    if isinstance(template, ExpressionError):
        raise ExpressionError(text, template.cause)
    return template


def check(text: str) -> None:
    """Raise ExpressionError if an expression in the text cannot be parsed."""
    if "{" in text:
        _template(text)


def has_expression(value: object) -> bool:
    return isinstance(value, str) and OPEN in value


def contains_expression(value: Any) -> bool:
    """Return whether a value contains an expression at any depth. Keys are not checked."""
    if isinstance(value, str):
        return OPEN in value
    if isinstance(value, dict):
        return any(contains_expression(item) for item in value.values())  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return any(contains_expression(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    return False


def evaluate(text: str, scope: Mapping[str, Any]) -> Any:
    """Evaluate a text in this scope; raises ExpressionError."""
    if OPEN not in text:
        return text
    template = _template(text)
    budget = budget_of(scope)
    try:
        budget.charge_call()
        if template.single is None:
            return _evaluate_mixed(template, scope, budget)
        value = template.single.evaluate(scope, budget)
        if not template.single.is_lookup and is_container(value):
            content_size(value)  # encoding the value later must not produce unlimited output
        return value
    except ExpressionFailure as failure:
        raise ExpressionError(text, str(failure)) from None
    except RecursionError:
        raise ExpressionError(text, "it is nested too deeply") from None
    except Exception as error:
        raise ExpressionError(text, f"evaluation failed ({type(error).__name__})") from error


def _evaluate_mixed(template: _Template, scope: Mapping[str, Any], budget: Budget) -> str:
    texts = [
        part if isinstance(part, str) else to_text(budget, part.evaluate(scope, budget)) for part in template.parts
    ]
    budget.charge_characters(sum(map(len, texts)))
    return "".join(texts)


def evaluate_all(value: Any, scope: Mapping[str, Any]) -> Any:
    """Return a value with every text in it evaluated, all from one budget. Keys are not evaluated."""
    return _evaluate_all(value, scope if isinstance(scope, ExpressionScope) else ExpressionScope(scope))


def _evaluate_all(value: Any, scope: ExpressionScope) -> Any:
    if isinstance(value, str):
        return evaluate(value, scope)
    if isinstance(value, dict):
        return {key: _evaluate_all(item, scope) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_evaluate_all(item, scope) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def evaluate_copy(value: Any, scope: Mapping[str, Any]) -> Any:
    """Evaluate every text in a value and copy the result, so that the caller may modify it."""
    return _deep_copy(evaluate_all(value, scope))


def _deep_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _deep_copy(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_deep_copy(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def condition_text(condition: str) -> str:
    """Return a condition with braces, which may be omitted in a `when`."""
    condition = condition.strip()
    return condition if OPEN in condition else f"{{{{ {condition} }}}}"


def check_single(text: str) -> None:
    """Raise ExpressionError if the text is not exactly one expression."""
    if _template(text).single is None:
        raise ExpressionError(text, "this must be one expression, entirely inside the braces")


def is_true(condition: str | bool, scope: Mapping[str, Any]) -> bool:
    """Evaluate a condition. The texts `true` and `false` count as booleans, because parameters can be texts."""
    if isinstance(condition, bool):
        return condition
    text = condition_text(condition)
    check_single(text)  # a mixed text would always be true
    value = evaluate(text, scope)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return bool(value)


def every_expression_ends_in(text: str, name: str) -> bool:
    """Return whether this filter is the outermost operation of each expression in a text."""
    return all(compiled.last_filter == name for compiled in _template(text).expressions)


def replace_expressions(text: str, mark: str) -> str:
    """Replace each expression in a text with a marker."""
    return "".join(part if isinstance(part, str) else mark for part in _template(text).parts)


def mentioned_steps(values: Iterable[Any]) -> frozenset[str] | None:
    """Return the steps that the expressions in these values mention; None if only evaluation can determine them."""
    return mentioned_fields("steps", values)


def mentioned_fields(name: str, values: Iterable[Any]) -> frozenset[str] | None:
    """Return the fields of `name` that expressions mention; None if only evaluation can determine them."""
    fields: set[str] = set()
    for compiled in _expressions(values):
        if name in compiled.mentioned.whole:
            return None
        fields |= compiled.mentioned.fields.get(name, set())
    return frozenset(fields)


def mentioned_names(value: Any) -> frozenset[str]:
    """Return the names that expressions in this value read from their scope: params, steps, item, ..."""
    names: set[str] = set()
    for compiled in _expressions([value]):
        names |= compiled.mentioned.names
    return frozenset(names)


def _expressions(values: Iterable[Any]) -> Iterable[CompiledExpression]:
    for value in values:
        if isinstance(value, str):
            if OPEN in value:
                yield from _template(value).expressions
        elif isinstance(value, dict):
            yield from _expressions(value.values())  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list | tuple):
            yield from _expressions(value)  # pyright: ignore[reportUnknownArgumentType]
