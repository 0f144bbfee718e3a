"""Symbolic values: results of steps and parameters while a plan is traced.

Nothing runs during tracing, so a `SymbolicValue` holds only the expression that represents it. Accessing a part of it,
comparing it or inserting it into a text gives another expression. An operation that needs the value itself, such as
`if` or `for`, raises PlanNeedsValue.
"""

from __future__ import annotations

import keyword
import re
from typing import Any, NoReturn

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.storage.json_encoding import encode_result

_MARK = re.compile("\ue000rw([^\ue000\ue001]*)\ue001")
"""A symbolic value inside a text, so that f-strings and `+` preserve it until the text becomes a template."""


class PlanNeedsValue(RunwrightError):
    """Tracing needs a value that is known only in a run."""

    def __init__(self, expression: str, operation: str) -> None:
        super().__init__(
            ErrorCode.PLAN_NEEDS_VALUE,
            f"{operation} needs the value of {expression}, which is known only when the plan runs. "
            "Use step.map(values) instead of a loop, `with rw.when(condition):` instead of `if`, "
            "or do it inside a step.",
        )


class SymbolicValue:
    """An expression that represents a value of a future run."""

    __slots__ = ("_expression",)

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def __repr__(self) -> str:
        return f"<the value of {self._expression}>"

    # Parts

    def __getitem__(self, key: Any) -> SymbolicValue:
        if isinstance(key, slice):
            raise PlanNeedsValue(self._expression, "Taking a slice")
        if isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key):
            return SymbolicValue(f"{_grouped(self._expression)}.{key}")
        return SymbolicValue(f"{_grouped(self._expression)}[{to_expression(key)}]")

    def __getattr__(self, name: str) -> SymbolicValue:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    # Conditions and arithmetic

    def __eq__(self, other: object) -> SymbolicValue:  # type: ignore[override]
        return self._operation("==", other)

    def __ne__(self, other: object) -> SymbolicValue:  # type: ignore[override]
        return self._operation("!=", other)

    def __lt__(self, other: Any) -> SymbolicValue:
        return self._operation("<", other)

    def __le__(self, other: Any) -> SymbolicValue:
        return self._operation("<=", other)

    def __gt__(self, other: Any) -> SymbolicValue:
        return self._operation(">", other)

    def __ge__(self, other: Any) -> SymbolicValue:
        return self._operation(">=", other)

    def __and__(self, other: Any) -> SymbolicValue:
        return self._operation("and", other)

    def __or__(self, other: Any) -> SymbolicValue:
        return self._operation("or", other)

    def __invert__(self) -> SymbolicValue:
        return SymbolicValue(f"not {_grouped(self._expression)}")

    def __add__(self, other: Any) -> SymbolicValue | str:
        return f"{self}{other}" if isinstance(other, str) else self._operation("+", other)

    def __radd__(self, other: Any) -> SymbolicValue | str:
        return f"{other}{self}" if isinstance(other, str) else self._operation("+", other, reversed_order=True)

    def __sub__(self, other: Any) -> SymbolicValue:
        return self._operation("-", other)

    def __rsub__(self, other: Any) -> SymbolicValue:
        return self._operation("-", other, reversed_order=True)

    def __mul__(self, other: Any) -> SymbolicValue:
        return self._operation("*", other)

    def __rmul__(self, other: Any) -> SymbolicValue:
        return self._operation("*", other, reversed_order=True)

    def __truediv__(self, other: Any) -> SymbolicValue:
        return self._operation("/", other)

    def __rtruediv__(self, other: Any) -> SymbolicValue:
        return self._operation("/", other, reversed_order=True)

    def __floordiv__(self, other: Any) -> SymbolicValue:
        return self._operation("//", other)

    def __mod__(self, other: Any) -> SymbolicValue:
        return self._operation("%", other)

    def __neg__(self) -> SymbolicValue:
        return SymbolicValue(f"-{_grouped(self._expression)}")

    def _operation(self, sign: str, other: Any, *, reversed_order: bool = False) -> SymbolicValue:
        own, others = _grouped(self._expression), _grouped(to_expression(other))
        return SymbolicValue(f"{others} {sign} {own}" if reversed_order else f"{own} {sign} {others}")

    # Texts

    def __str__(self) -> str:
        return f"\ue000rw{self._expression}\ue001"

    def __format__(self, spec: str) -> str:
        if spec:
            raise PlanNeedsValue(self._expression, "Formatting")
        return str(self)

    # Operations that need the value

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> NoReturn:
        raise PlanNeedsValue(self._expression, "`if`, `and`, `or` or `not`")

    def __iter__(self) -> NoReturn:
        raise PlanNeedsValue(self._expression, "`for`, or unpacking,")

    def __len__(self) -> NoReturn:
        raise PlanNeedsValue(self._expression, "`len`")

    def __contains__(self, _item: object) -> NoReturn:
        raise PlanNeedsValue(self._expression, "`in`")

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise PlanNeedsValue(self._expression, "Calling a method")

    def __int__(self) -> NoReturn:
        raise PlanNeedsValue(self._expression, "`int`")

    def __float__(self) -> NoReturn:
        raise PlanNeedsValue(self._expression, "`float`")

    def __index__(self) -> NoReturn:
        raise PlanNeedsValue(self._expression, "A number")


def to_expression(value: Any) -> str:
    """Return the expression of a symbolic or a known value."""
    if isinstance(value, SymbolicValue):
        return value._expression  # pyright: ignore[reportPrivateUsage]
    if isinstance(value, str) and _MARK.search(value):
        return " ~ ".join(_grouped(to_expression(part)) for part in _parts(value))
    if isinstance(value, dict):
        pairs = (f"{_literal(str(key))}: {to_expression(item)}" for key, item in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_expression, value)) + "]"  # pyright: ignore[reportUnknownArgumentType]
    return _literal(value)


_SIMPLE = re.compile(r"""[\w.]+|"[^"\\]*"|[A-Za-z_]\w*(?:\.\w+|\[(?:\d+|"[^"\\]*")\])*""")


def _grouped(text: str) -> str:
    """Put an expression in parentheses if it needs them as a part of another."""
    return text if _SIMPLE.fullmatch(text) else f"({text})"


def _literal(value: Any) -> str:
    return "none" if value is None else encode_result(value).decode()


def to_template(value: Any) -> Any:
    """Return a value as it is written in a plan: symbolic values become {{ expressions }}, others stay as they are."""
    if isinstance(value, SymbolicValue):
        return f"{{{{ {to_expression(value)} }}}}"
    if isinstance(value, str):
        *parts, last = _parts(value) or [""]
        return "".join([*(_template_part(part, is_last=False) for part in parts), _template_part(last, is_last=True)])
    if isinstance(value, dict):
        return {_name(key): to_template(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [to_template(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    plain = msgspec.json.decode(encode_result(value))
    return value if plain == value and type(plain) is type(value) else to_template(plain)


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Invalid key {key!r}: the keys of a mapping must be strings.")
    return key


def _parts(text: str) -> list[str | SymbolicValue]:
    """Split a text into its literal parts and the symbolic values inside it, in order."""
    parts: list[str | SymbolicValue] = []
    for index, part in enumerate(_MARK.split(text)):
        if index % 2:
            parts.append(SymbolicValue(part))
        elif part:
            parts.append(part)
    return parts


_BRACES = re.compile(r"\{[{%#]")
_BRACES_BEFORE_VALUE = re.compile(r"\{[{%#]|\{\Z")


def _template_part(part: str | SymbolicValue, *, is_last: bool) -> str:
    """Escape braces in a literal part, so that they are not read as expressions."""
    if isinstance(part, SymbolicValue):
        return to_template(part)
    braces = _BRACES if is_last else _BRACES_BEFORE_VALUE
    return braces.sub(lambda found: f'{{{{ "{found[0]}" }}}}', part)
