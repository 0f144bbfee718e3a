"""Values that do not exist yet: what a step will give, or what a parameter will be.

While a plan is written down nothing runs, so a `Value` only knows the expression that stands for it. Taking a part
of it, comparing it or putting it into a text gives another expression. What needs the value itself, such as `if` or
`for`, cannot go on.
"""

from __future__ import annotations

import keyword
import re
from typing import Any, NoReturn

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.results.encoding import encode_result

_MARK = re.compile("\ue000rw([^\ue000\ue001]*)\ue001")
"""A value inside a text, until the text is written down: f-strings and `+` must not lose it."""


class PlanNeedsValue(RunwrightError):
    """Planning cannot go on without a value that only a run can give."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(
            ErrorCode.PLAN_NEEDS_VALUE,
            f"{what} needs the value of {text}, which is only known when the plan runs. "
            "Use step.map(values) to do something for each of them, `with rw.when(condition):` to decide, "
            "or do it inside a step.",
        )


class Value:
    """Stands for a value of the run to come."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return f"<the value of {self._text}>"

    # Parts

    def __getitem__(self, key: Any) -> Value:
        if isinstance(key, slice):
            raise PlanNeedsValue(self._text, "Taking a slice")
        if isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key):
            return Value(f"{_grouped(self._text)}.{key}")
        return Value(f"{_grouped(self._text)}[{expression(key)}]")

    def __getattr__(self, name: str) -> Value:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    # Conditions and sums

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._with("==", other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self._with("!=", other)

    def __lt__(self, other: Any) -> Value:
        return self._with("<", other)

    def __le__(self, other: Any) -> Value:
        return self._with("<=", other)

    def __gt__(self, other: Any) -> Value:
        return self._with(">", other)

    def __ge__(self, other: Any) -> Value:
        return self._with(">=", other)

    def __and__(self, other: Any) -> Value:
        return self._with("and", other)

    def __or__(self, other: Any) -> Value:
        return self._with("or", other)

    def __invert__(self) -> Value:
        return Value(f"not {_grouped(self._text)}")

    def __add__(self, other: Any) -> Value | str:
        return f"{self}{other}" if isinstance(other, str) else self._with("+", other)

    def __radd__(self, other: Any) -> Value | str:
        return f"{other}{self}" if isinstance(other, str) else self._with("+", other, turned=True)

    def __sub__(self, other: Any) -> Value:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Value:
        return self._with("-", other, turned=True)

    def __mul__(self, other: Any) -> Value:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Value:
        return self._with("*", other, turned=True)

    def __truediv__(self, other: Any) -> Value:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._with("/", other, turned=True)

    def __floordiv__(self, other: Any) -> Value:
        return self._with("//", other)

    def __mod__(self, other: Any) -> Value:
        return self._with("%", other)

    def __neg__(self) -> Value:
        return Value(f"-{_grouped(self._text)}")

    def _with(self, sign: str, other: Any, *, turned: bool = False) -> Value:
        mine, theirs = _grouped(self._text), _grouped(expression(other))
        return Value(f"{theirs} {sign} {mine}" if turned else f"{mine} {sign} {theirs}")

    # Texts

    def __str__(self) -> str:
        return f"\ue000rw{self._text}\ue001"

    def __format__(self, spec: str) -> str:
        if spec:
            raise PlanNeedsValue(self._text, "Formatting")
        return str(self)

    # What cannot be

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> NoReturn:
        raise PlanNeedsValue(self._text, "`if`, `and`, `or` or `not`")

    def __iter__(self) -> NoReturn:
        raise PlanNeedsValue(self._text, "`for`, or unpacking,")

    def __len__(self) -> NoReturn:
        raise PlanNeedsValue(self._text, "`len`")

    def __contains__(self, _item: object) -> NoReturn:
        raise PlanNeedsValue(self._text, "`in`")

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise PlanNeedsValue(self._text, "Calling a method")

    def __int__(self) -> NoReturn:
        raise PlanNeedsValue(self._text, "`int`")

    def __float__(self) -> NoReturn:
        raise PlanNeedsValue(self._text, "`float`")

    def __index__(self) -> NoReturn:
        raise PlanNeedsValue(self._text, "A number")


def expression(value: Any) -> str:
    """The expression that stands for a value, one of the run to come or one that is known."""
    if isinstance(value, Value):
        return value._text  # pyright: ignore[reportPrivateUsage]
    if isinstance(value, str) and _MARK.search(value):
        return " ~ ".join(_grouped(expression(part)) for part in _parts(value))
    if isinstance(value, dict):
        pairs = (f"{_literal(str(key))}: {expression(item)}" for key, item in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(expression, value)) + "]"  # pyright: ignore[reportUnknownArgumentType]
    return _literal(value)


_SIMPLE = re.compile(r"""[\w.]+|"[^"\\]*"|[A-Za-z_]\w*(?:\.\w+|\[(?:\d+|"[^"\\]*")\])*""")


def _grouped(text: str) -> str:
    """An expression as a part of another."""
    return text if _SIMPLE.fullmatch(text) else f"({text})"


def _literal(value: Any) -> str:
    return "none" if value is None else encode_result(value).decode()


def written(value: Any) -> Any:
    """A value as a plan has it: what is known as it is, what is to come as an expression."""
    if isinstance(value, Value):
        return f"{{{{ {expression(value)} }}}}"
    if isinstance(value, str):
        *parts, last = _parts(value) or [""]
        return "".join([*(_written_part(part, is_last=False) for part in parts), _written_part(last, is_last=True)])
    if isinstance(value, dict):
        return {_name(key): written(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [written(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    plain = msgspec.json.decode(encode_result(value))
    return value if plain == value and type(plain) is type(value) else written(plain)


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"The names in a mapping are texts; {key!r} is not.")
    return key


def _parts(text: str) -> list[str | Value]:
    """A text, and the values inside it, in order."""
    parts: list[str | Value] = []
    for number, part in enumerate(_MARK.split(text)):
        if number % 2:
            parts.append(Value(part))
        elif part:
            parts.append(part)
    return parts


_BRACES = re.compile(r"\{[{%#]")
_BRACES_BEFORE_VALUE = re.compile(r"\{[{%#]|\{\Z")


def _written_part(part: str | Value, *, is_last: bool) -> str:
    """Braces in a text are meant literally."""
    if isinstance(part, Value):
        return written(part)
    braces = _BRACES if is_last else _BRACES_BEFORE_VALUE
    return braces.sub(lambda found: f'{{{{ "{found[0]}" }}}}', part)
