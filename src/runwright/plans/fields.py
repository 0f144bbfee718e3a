"""A mapping of the document, read field by field: each reader gives a value of its type, or notes why it cannot."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any, TypeVar, cast

from runwright.contract.errors import ErrorCode

from .durations import NoDuration, read_duration
from .problems import Findings, Path, did_you_mean

E = TypeVar("E", bound=StrEnum)


class Fields:
    """A field that is null counts as left out."""

    __slots__ = ("_code", "_data", "_findings", "path")

    def __init__(self, data: dict[str, Any], path: Path, code: ErrorCode, findings: Findings) -> None:
        self._data = data
        self._code = code
        self._findings = findings
        self.path = path

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def without(self, *names: str) -> Fields:
        """The same, as if these had not been written."""
        rest = {name: value for name, value in self._data.items() if name not in names}
        return Fields(rest, self.path, self._code, self._findings)

    def raw(self, name: str) -> Any:
        return self._data.get(name)

    def wrong(self, name: str | None, sentence: str, *, on_key: bool = False) -> None:
        path = self.path if name is None else (*self.path, name)
        self._findings.error(path, self._code, sentence, on_key=on_key)

    def refuse_unknown(self, known: Collection[str], owner: str, but: Collection[str] = ()) -> None:
        """`but`: these are refused elsewhere, with a sentence of their own."""
        for name in self._data:
            if name not in known and name not in but:
                advice = did_you_mean(name, known) or f" It has {', '.join(known)}."
                self.wrong(name, f"{owner} has no field {name!r}.{advice}", on_key=True)

    def one_of(self, *names: str) -> str | None:
        """Which of several names for the same thing is given. Of two, one would be dropped without a word."""
        given = [name for name in names if name in self]
        for name in given[1:]:
            self.wrong(name, f"`{name}` says again what `{given[0]}` says. Write one of them.", on_key=True)
        return given[0] if given else None

    def not_looked_at(self, *names: str) -> None:
        """Warn of what others read, and we do not."""
        for name in names:
            if name in self:
                self._findings.warning((*self.path, name), f"`{name}` is not looked at.")

    def text(self, name: str) -> str | None:
        value = self._data.get(name)
        if value is None or isinstance(value, str):
            return value
        self.wrong(name, f"`{name}` is text{'; put it in quotes' if isinstance(value, int | float) else ''}.")
        return None

    def flag(self, name: str, default: bool) -> bool:
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, f"`{name}` is true or false.")
            return default
        return value

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.wrong(name, f"`{name}` is a whole number from {least} to {most:,}.")
            return default
        return value

    def duration(self, name: str, default: float) -> float:
        value = self._data.get(name)
        if value is None:
            return default
        try:
            return read_duration(value)
        except NoDuration as error:
            self.wrong(name, f"`{name}`: {error}")
            return default

    def timeout(self) -> float | None:
        """How long something may take. Nothing can be done in no time."""
        if "timeout" not in self:
            return None
        seconds = self.duration("timeout", 1.0)
        if seconds == 0:
            self.wrong("timeout", "`timeout` must be longer than 0.")
        return seconds

    def choice(self, name: str, default: E) -> E:
        value = self._data.get(name)
        if value is None:
            return default
        kind = type(default)
        try:
            return kind(value)
        except ValueError:
            advice = did_you_mean(value, map(str, kind)) if isinstance(value, str) else ""
            self.wrong(name, f"`{name}` is one of {', '.join(kind)}.{advice}")
            return default

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; one alone may be written without its list."""
        value = self._data.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list | tuple):
            items = cast("list[Any]", value)
            if all(isinstance(item, str) and item for item in items):
                return tuple(dict.fromkeys(cast("list[str]", items)))
        self.wrong(name, f"`{name}` is a list of texts.")
        return ()

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, f"`{name}` is a mapping.")
            return None
        return cast("dict[str, Any]", value)

    def part(self, name: str) -> Fields | None:
        """A mapping within this one."""
        data = self.mapping(name)
        return None if data is None else Fields(data, (*self.path, name), self._code, self._findings)
