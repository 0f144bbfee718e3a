"""Named values in SQL text: `:day` becomes the database's own mark, wherever it stands as a value."""

from __future__ import annotations

import re
from collections.abc import Collection

_TOKEN = re.compile(
    r"""
      (?P<quoted> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" )
    | (?P<dollar> \$(?P<tag>[A-Za-z_]\w*)?\$ .*? \$(?(tag)(?P=tag))\$ )
    | (?P<line> --[^\n]* )
    | (?P<block> /\* )
    | (?P<cast> :: | := )
    | (?P<value> (?<![\w'"\])]):(?P<name>[A-Za-z_]\w*) )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")


class SqlTextError(ValueError):
    """What is wrong with a query's named values: a sentence."""


def positional(query: str, names: Collection[str], mark: str) -> tuple[str, list[str]]:
    """The query with `mark` and a number for each named value, and the names in the order of their numbers.

    What stands in quotes, in comments or in a cast (`x::date`) is left alone.
    """
    numbers: dict[str, int] = {}
    parts: list[str] = []
    at = 0
    while match := _TOKEN.search(query, at):
        parts.append(query[at : match.start()])
        at = match.end()
        name = match["name"]
        if name is not None:
            if name not in names:
                raise SqlTextError(f"The query uses :{name}, and `args` has no {name!r}.")
            parts.append(f"{mark}{numbers.setdefault(name, len(numbers) + 1)}")
            continue
        if match["block"]:
            at = _end_of_comment(query, at)
        parts.append(query[match.start() : at])
    unused = [name for name in names if name not in numbers]
    if unused:
        raise SqlTextError(f"`args` has {unused[0]!r}, and the query does not use :{unused[0]}.")
    return "".join([*parts, query[at:]]), list(numbers)


def _end_of_comment(query: str, at: int) -> int:
    """Comments may hold comments, in Postgres and DuckDB."""
    depth = 1
    while depth and (match := _COMMENT.search(query, at)):
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return len(query) if depth else at
