"""Expressions: `{{ ... }}` in the texts of a plan.

A text that is exactly one expression becomes its value, type and all; anything mixed becomes text. What is not
there is an error, never an empty text. Nothing an expression does can leave its data or grow without bounds.

Jinja gives the syntax. It is loaded with the first text that has an expression in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runwright.contract.errors import ErrorCode, RunwrightError

from .sandbox.bounds import Budget, Fault, plain_text, weight
from .sandbox.kinds import is_container
from .sandbox.text import OPEN, split

if TYPE_CHECKING:
    from .sandbox.compiled import Compiled

BUILT_IN = frozenset({"range"})
"""Names that every expression has."""

_SHOWN = 80  # characters of an expression that a sentence quotes
_KEPT = 16_384  # compiled texts


class ExpressionError(RunwrightError):
    """An expression that cannot be read or evaluated. Its sentence quotes the expression, never a value."""

    def __init__(self, text: str, cause: str) -> None:
        shown = " ".join(text[: 4 * _SHOWN].split())
        shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
        super().__init__(ErrorCode.EXPRESSION_ERROR, f'In "{shown}": {cause}{"" if cause.endswith("?") else "."}')
        self.cause = cause


class _Template:
    """A text, read: its parts in order, each plain or an expression."""

    def __init__(self, text: str) -> None:
        self.parts: list[str | Compiled] = []
        for is_expression, part in split(text):
            self.parts.append(_compile(part) if is_expression else part)
        first = self.parts[0]
        self.single = first if len(self.parts) == 1 and not isinstance(first, str) else None

    @property
    def expressions(self) -> list[Compiled]:
        return [part for part in self.parts if not isinstance(part, str)]


def _compile(text: str) -> Compiled:
    from .sandbox.compiled import Compiled

    return Compiled(text)


@lru_cache(maxsize=_KEPT)
def _read(text: str) -> _Template | ExpressionError:
    """A text, read; or why it cannot be. Both are kept, so that what is wrong costs no more than what is right."""
    try:
        return _Template(text)
    except Fault as fault:
        return ExpressionError(text, str(fault))


def _template(text: str) -> _Template:
    template = _read(text)
    if isinstance(template, ExpressionError):
        raise ExpressionError(text, template.cause)
    return template


def check(text: str) -> None:
    """Refuse a text whose expressions cannot be read."""
    if "{" in text:
        _template(text)


def has_expression(value: object) -> bool:
    return isinstance(value, str) and OPEN in value


def any_expression(value: Any) -> bool:
    """Whether there is an expression anywhere inside."""
    if isinstance(value, str):
        return OPEN in value
    if isinstance(value, dict):
        return any(any_expression(item) for item in value.values())  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return any(any_expression(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    return False


def evaluate(text: str, scope: Mapping[str, Any]) -> Any:
    """What a text says in this scope."""
    if OPEN not in text:
        return text
    template = _template(text)
    budget = Budget()
    try:
        if template.single is None:
            return _mixed(template, scope, budget)
        value = template.single.run(scope, budget)
        if not template.single.is_look_up and is_container(value):
            weight(value)  # whoever writes the value out must not find that it has no end
        return value
    except Fault as fault:
        raise ExpressionError(text, str(fault)) from None
    except RecursionError:
        raise ExpressionError(text, "it is nested too deeply") from None
    except Exception as error:
        raise ExpressionError(text, f"it failed ({type(error).__name__})") from error


def _mixed(template: _Template, scope: Mapping[str, Any], budget: Budget) -> str:
    texts = [part if isinstance(part, str) else plain_text(budget, part.run(scope, budget)) for part in template.parts]
    budget.characters(sum(map(len, texts)))
    return "".join(texts)


def fill(value: Any, scope: Mapping[str, Any]) -> Any:
    """A value with every text in it evaluated. Keys stay as they are."""
    if isinstance(value, str):
        return evaluate(value, scope)
    if isinstance(value, dict):
        return {key: fill(item, scope) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [fill(item, scope) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def fill_anew(value: Any, scope: Mapping[str, Any]) -> Any:
    """The same, and nobody else has any of it: whoever is given it may do with it as they like."""
    return _copied(fill(value, scope))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def condition_text(condition: str) -> str:
    """A condition as a text with braces: those of a `when` may be left out."""
    condition = condition.strip()
    return condition if OPEN in condition else f"{{{{ {condition} }}}}"


def check_single(text: str) -> None:
    """Refuse a text that is not exactly one expression."""
    if _template(text).single is None:
        raise ExpressionError(text, "this must be one expression, with all of it inside the braces")


def is_true(condition: str | bool, scope: Mapping[str, Any]) -> bool:
    """Whether a condition holds. The texts `true` and `false` count as what they say: parameters come as text."""
    if isinstance(condition, bool):
        return condition
    text = condition_text(condition)
    check_single(text)  # mixed text would always hold
    value = evaluate(text, scope)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return bool(value)


def every_expression_ends_in(text: str, name: str) -> bool:
    """Whether the last thing that happens to each expression in a text is this filter."""
    return all(compiled.last_filter == name for compiled in _template(text).expressions)


def with_marks(text: str, mark: str) -> str:
    """A text with this in the place of each expression."""
    return "".join(part if isinstance(part, str) else mark for part in _template(text).parts)


def mentioned_steps(values: Iterable[Any]) -> frozenset[str] | None:
    """The steps that the expressions in these values mention, or None where that shows only when they run."""
    return mentioned_fields("steps", values)


def mentioned_fields(name: str, values: Iterable[Any]) -> frozenset[str] | None:
    """The fields of `name` that are mentioned, or None where that cannot be told."""
    fields: set[str] = set()
    for compiled in _expressions(values):
        if name in compiled.mentioned.whole:
            return None
        fields |= compiled.mentioned.fields.get(name, set())
    return frozenset(fields)


def mentioned_names(value: Any) -> frozenset[str]:
    """The names that expressions in this value take from their scope: params, steps, item, ..."""
    names: set[str] = set()
    for compiled in _expressions([value]):
        names |= compiled.mentioned.names
    return frozenset(names)


def _expressions(values: Iterable[Any]) -> Iterable[Compiled]:
    for value in values:
        if isinstance(value, str):
            if OPEN in value:
                yield from _template(value).expressions
        elif isinstance(value, dict):
            yield from _expressions(value.values())  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list | tuple):
            yield from _expressions(value)  # pyright: ignore[reportUnknownArgumentType]
