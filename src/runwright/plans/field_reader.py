"""Typed access to a mapping of a document. Each method returns a value of its type, or reports a problem."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any, TypeVar, cast

from runwright.contract.errors import ErrorCode

from .durations import InvalidDuration, parse_duration
from .load_limits import max_steps
from .problems import DocumentPath, ProblemCollector, did_you_mean

E = TypeVar("E", bound=StrEnum)


class FieldReader:
    """The fields of one mapping. A null field counts as absent; an invalid field is reported and has its default."""

    __slots__ = ("_code", "_data", "_problems", "path")

    def __init__(self, data: dict[str, Any], path: DocumentPath, code: ErrorCode, problems: ProblemCollector) -> None:
        self._data = data
        self._code = code
        self._problems = problems
        self.path = path

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def without(self, *names: str) -> FieldReader:
        """Return a reader of the same mapping without these fields."""
        rest = {name: value for name, value in self._data.items() if name not in names}
        return FieldReader(rest, self.path, self._code, self._problems)

    def raw(self, name: str) -> Any:
        return self._data.get(name)

    def error(self, name: str | None, sentence: str, *, on_key: bool = False) -> None:
        """Report an error at a field, or at the whole mapping if `name` is None."""
        path = self.path if name is None else (*self.path, name)
        self._problems.error(path, self._code, sentence, on_key=on_key)

    def reject_unknown(self, known: Collection[str], owner: str, except_for: Collection[str] = ()) -> None:
        """Report unknown fields. `except_for`: fields that the caller rejects with a sentence of their own."""
        for name in self._data:
            if name not in known and name not in except_for:
                advice = did_you_mean(name, known) or f" Known fields: {', '.join(known)}."
                self.error(name, f"Unknown field {name!r} in {owner}.{advice}", on_key=True)

    def find_alias(self, *names: str) -> str | None:
        """Return which of several names for the same field is used; None if none is.

        More than one is an error: otherwise a value would be dropped silently.
        """
        used = [name for name in names if name in self]
        for name in used[1:]:
            self.error(name, f"`{name}` has the same meaning as `{used[0]}`. Use only one of them.", on_key=True)
        return used[0] if used else None

    def warn_ignored(self, *names: str) -> None:
        """Warn about fields that other engines use and this one does not."""
        for name in names:
            if name in self:
                self._problems.warning((*self.path, name), f"Unknown field `{name}` is ignored.")

    def text(self, name: str) -> str | None:
        value = self._data.get(name)
        if value is None or isinstance(value, str):
            return value
        self.error(name, f"`{name}` must be a string{'; put it in quotes' if isinstance(value, int | float) else ''}.")
        return None

    def flag(self, name: str, default: bool) -> bool:
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.error(name, f"`{name}` must be true or false.")
            return default
        return value

    def integer(self, name: str, default: int, minimum: int, maximum: int) -> int:
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            self.error(name, f"`{name}` must be an integer from {minimum} to {maximum:,}.")
            return default
        return value

    def duration(self, name: str, default: float) -> float:
        """Return a duration in seconds."""
        value = self._data.get(name)
        if value is None:
            return default
        try:
            return parse_duration(value)
        except InvalidDuration as error:
            self.error(name, f"Invalid `{name}`: {error}")
            return default

    def timeout(self, name: str = "timeout") -> float | None:
        """Return a duration greater than 0, in seconds; None if there is no such field."""
        if name not in self:
            return None
        seconds = self.duration(name, 1.0)
        if seconds <= 0:
            self.error(name, f"`{name}` must be longer than 0.")
        return seconds

    def choice(self, name: str, default: E) -> E:
        value = self._data.get(name)
        if value is None:
            return default
        choices = type(default)
        try:
            return choices(value)
        except ValueError:
            advice = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
            self.error(name, f"`{name}` must be one of {', '.join(choices)}.{advice}")
            return default

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings. A single string may be written without the list."""
        value = self._data.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list | tuple):
            items = cast("list[Any]", value)
            if all(isinstance(item, str) and item for item in items):
                return tuple(dict.fromkeys(cast("list[str]", items)))
        self.error(name, f"`{name}` must be a list of strings.")
        return ()

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.error(name, f"`{name}` must be a mapping.")
            return None
        return cast("dict[str, Any]", value)

    def nested(self, name: str) -> FieldReader | None:
        """Return a reader of a mapping within this one."""
        data = self.mapping(name)
        return None if data is None else FieldReader(data, (*self.path, name), self._code, self._problems)


def check_step_count(fields: FieldReader, name: str, count: int) -> bool:
    """Report a plan with more steps than are allowed."""
    if count <= max_steps():
        return True
    fields.error(name, f"The plan has {count:,} steps; at most {max_steps():,} are allowed ([limits] planSteps).")
    return False
