"""Lines and columns of document paths.

Only a plan with problems needs positions, so they are found in a second pass over its text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Set
from typing import Any, NamedTuple

import msgspec
import yaml

from runwright.plans.problems import DocumentPath

from .scalars import parse_events


class Position(NamedTuple):
    """Line and column, from 1."""

    line: int
    column: int


class YamlToken(NamedTuple):
    sign: str  # begin of a mapping `{` or of a list `[`, end of either `}`, or a scalar `.`
    text: str  # of a scalar
    position: Position


class Positions(msgspec.Struct):
    """Positions of the values and of the names of some fields."""

    values: dict[DocumentPath, Position] = {}
    keys: dict[DocumentPath, Position] = {}

    def of(self, path: DocumentPath, on_key: bool = False) -> Position:
        """Return the position of a path, or of its nearest ancestor that has one."""
        if on_key and path in self.keys:
            return self.keys[path]
        while path not in self.values and path:
            path = path[:-1]
        return self.values.get(path, Position(1, 1))


def yaml_tokens(text: str) -> Iterator[YamlToken]:
    for event in parse_events(text):
        mark: Any = event.start_mark
        position = Position(mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.MappingStartEvent):
            yield YamlToken("{", "", position)
        elif isinstance(event, yaml.SequenceStartEvent):
            yield YamlToken("[", "", position)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            yield YamlToken("}", "", position)
        elif isinstance(event, yaml.ScalarEvent):
            yield YamlToken(".", event.value, position)
        elif isinstance(event, yaml.AliasEvent):
            yield YamlToken(".", "", position)


_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s{}\[\],:"]+')


def json_tokens(text: str) -> Iterator[YamlToken]:
    """Yield the tokens of a text that is known to be valid JSON."""
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for match in _JSON.finditer(text):
        line = bisect_right(line_starts, match.start())
        position = Position(line, match.start() - line_starts[line - 1] + 1)
        sign = match[0]
        if sign in "{[":
            yield YamlToken(sign, "", position)
        elif sign in "}]":
            yield YamlToken("}", "", position)
        else:
            yield YamlToken(".", json.loads(sign) if sign[0] == '"' else sign, position)


class _Frame:
    """An open list or mapping."""

    __slots__ = ("index", "is_mapping", "key", "path")

    def __init__(self, is_mapping: bool, path: DocumentPath | None) -> None:
        self.is_mapping = is_mapping
        self.path = path  # None: no wanted path lies within it
        self.key: str | None = None  # in a mapping, the key of the next value once it was read
        self.index = -1  # in a list, of the latest item

    def path_of_next(self) -> DocumentPath | None:
        if self.path is None:
            return None
        if self.is_mapping:
            return (*self.path, str(self.key))
        return (*self.path, self.index)


def find_positions(tokens: Iterable[YamlToken], wanted: Iterable[DocumentPath]) -> Positions:
    """Find the positions of these paths and of their ancestors."""
    prefixes = {path[:length] for path in wanted for length in range(len(path) + 1)}
    positions = Positions({}, {})
    frames: list[_Frame] = []
    for token in tokens:
        if token.sign == "}":
            frames.pop()
            continue
        path = _enter(frames[-1], token, prefixes, positions) if frames else ()
        if path is not None and path in prefixes:
            positions.values.setdefault(path, token.position)
        if token.sign != ".":
            frames.append(_Frame(token.sign == "{", path if path in prefixes else None))
    return positions


def _enter(frame: _Frame, token: YamlToken, prefixes: Set[DocumentPath], positions: Positions) -> DocumentPath | None:
    """Return the path of the value that begins with the token; None if it is a key or not wanted."""
    if frame.is_mapping and frame.key is None:
        frame.key = token.text if token.sign == "." else ""
        path = frame.path_of_next()
        if path is not None and path in prefixes:
            positions.keys.setdefault(path, token.position)
        return None
    frame.index += 1
    path = frame.path_of_next()
    frame.key = None
    return path
