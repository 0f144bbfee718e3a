"""Scalars of the YAML 1.2 core schema. There are no dates; `yes`, `no` and `on` are text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, cast

import yaml

CORE = "tag:yaml.org,2002:"
_INT = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
INT = re.compile(_INT)
FLOAT = re.compile(_FLOAT)
MAX_INT_LENGTH = 1000
"""Characters of a whole number. Python writes no longer ones in decimal, and a hexadecimal one grows when written."""
KEYWORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS = frozenset("+-.0123456789")


def parse_plain(text: str) -> Any:
    """Return the value of a scalar without quotes. Raises ValueError for a number that is too long."""
    if text[:1] in _NUMBER_STARTS and text:
        if INT.fullmatch(text):
            if len(text) > MAX_INT_LENGTH:
                raise ValueError
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
        return parse_float(text) if FLOAT.fullmatch(text) else text
    return KEYWORDS.get(text, text)


def parse_float(text: str) -> float:
    lower = text.lower()
    return math.nan if lower == ".nan" else float(lower.replace(".inf", "inf"))


def parse_tagged(tag: str, text: str) -> Any:
    """Return the value of a tagged scalar. Raises KeyError for an unknown tag, ValueError if the text is invalid."""
    if tag in (CORE + "str", "!"):
        return text
    types: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "bool": (bool,), "null": (type(None),)}
    expected = types[tag.removeprefix(CORE)]
    value = parse_plain(text)
    if type(value) not in expected:
        raise ValueError
    return float(value) if expected[0] is float else value


def parse_events(text: str) -> Iterator[yaml.Event]:
    """Parse a document to a flat series of events. Composing it into a tree would recurse in C without limit."""
    loader: Any = yaml.CLoader if yaml.__with_libyaml__ else yaml.Loader
    return cast("Iterator[yaml.Event]", yaml.parse(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
