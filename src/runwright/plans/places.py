"""Lines and columns. Only a plan with problems needs them, so its text is gone through a second time for these."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Set
from typing import Any

import msgspec
import yaml

from .problems import Path
from .yaml_core import events

Place = tuple[int, int]
Token = tuple[str, str, Place]
"""What begins or ends here: `{`, `[`, `}` for the end of either, or `.` for a scalar; its text; where."""


class Places(msgspec.Struct):
    """Where the values and the names of some fields are."""

    values: dict[Path, Place] = {}
    keys: dict[Path, Place] = {}

    def of(self, path: Path, on_key: bool = False) -> Place:
        """The place of a path, or of the nearest thing that holds it."""
        if on_key and path in self.keys:
            return self.keys[path]
        while path not in self.values and path:
            path = path[:-1]
        return self.values.get(path, (1, 1))


def yaml_tokens(text: str) -> Iterator[Token]:
    for event in events(text):
        mark: Any = event.start_mark
        place = (mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.MappingStartEvent):
            yield "{", "", place
        elif isinstance(event, yaml.SequenceStartEvent):
            yield "[", "", place
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            yield "}", "", place
        elif isinstance(event, yaml.ScalarEvent):
            yield ".", event.value, place
        elif isinstance(event, yaml.AliasEvent):
            yield ".", "", place


_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s{}\[\],:"]+')


def json_tokens(text: str) -> Iterator[Token]:
    """The tokens of a text that is known to be JSON."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for match in _JSON.finditer(text):
        line = bisect_right(starts, match.start())
        place = (line, match.start() - starts[line - 1] + 1)
        sign = match[0]
        if sign in "{[":
            yield sign, "", place
        elif sign in "}]":
            yield "}", "", place
        else:
            yield ".", json.loads(sign) if sign[0] == '"' else sign, place


class _Frame:
    """A list or mapping that is being gone through."""

    __slots__ = ("is_mapping", "key", "path", "place_in_list")

    def __init__(self, is_mapping: bool, path: Path | None) -> None:
        self.is_mapping = is_mapping
        self.path = path  # None: nothing in here is asked for
        self.key: str | None = None  # of a mapping, once it was read
        self.place_in_list = -1

    def path_of_next(self) -> Path | None:
        if self.path is None:
            return None
        if self.is_mapping:
            return (*self.path, str(self.key))
        return (*self.path, self.place_in_list)


def find_places(tokens: Iterable[Token], wanted: Iterable[Path]) -> Places:
    """Where these paths are."""
    prefixes = {path[:length] for path in wanted for length in range(len(path) + 1)}
    places = Places({}, {})
    frames: list[_Frame] = []
    for sign, text, place in tokens:
        if sign == "}":
            frames.pop()
            continue
        path = _enter(frames[-1], sign, text, place, prefixes, places) if frames else ()
        if path is not None and path in prefixes:
            places.values.setdefault(path, place)
        if sign != ".":
            frames.append(_Frame(sign == "{", path if path in prefixes else None))
    return places


def _enter(frame: _Frame, sign: str, text: str, place: Place, prefixes: Set[Path], places: Places) -> Path | None:
    """The path of the value that begins here, or None if it is a key or not asked for."""
    if frame.is_mapping and frame.key is None:
        frame.key = text if sign == "." else ""
        path = frame.path_of_next()
        if path is not None and path in prefixes:
            places.keys.setdefault(path, place)
        return None
    frame.place_in_list += 1
    path = frame.path_of_next()
    frame.key = None
    return path
