"""Named values in SQL text: `:day` becomes the database's own mark, wherever it stands as a value."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

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
    for kind, text in _tokens(query):
        if kind != "value":
            parts.append(text)
            continue
        name = text[1:]
        if name not in names:
            raise SqlTextError(f"The query uses :{name}, and `args` has no {name!r}.")
        parts.append(f"{mark}{numbers.setdefault(name, len(numbers) + 1)}")
    unused = [name for name in names if name not in numbers]
    if unused:
        raise SqlTextError(f"`args` has {unused[0]!r}, and the query does not use :{unused[0]}.")
    return "".join(parts), list(numbers)


def bound(query: str, names: Collection[str], mark: str) -> list[tuple[str, list[str]]]:
    """The same for several statements, each with its own values: no database binds those of several at once. What binds
    nothing stays in one piece."""
    whole = positional(query, names, mark)
    texts = statements(query) if whole[1] else []
    return [whole] if len(texts) < 2 else [positional(text, mentioned(text), mark) for text in texts]


def mentioned(query: str) -> set[str]:
    """The names of the values that a query binds."""
    return {text[1:] for kind, text in _tokens(query) if kind == "value"}


def statements(query: str) -> list[str]:
    """The statements in a text; what is only blanks or comments is none."""
    found: list[str] = []
    now, says_something = "", False
    for kind, text in _tokens(query):
        first, *rest = text.split(";") if kind == "plain" else [text]
        now += first
        says_something = says_something or (kind not in _COMMENTS and bool(first.strip()))
        for piece in rest:
            found += [now] if says_something else []
            now, says_something = piece, bool(piece.strip())
    return [*found, now] if says_something else found


def last_question(query: str) -> tuple[str, str] | None:
    """Of several statements, the last if it asks for rows, and all that comes before it; None if it does not."""
    *before, last = statements(query) or [""]
    words = last.split(None, 1)
    if not before or not words or words[0].lower() not in _ASKING:
        return None
    return query[: query.rindex(last)], last


_ASKING = frozenset({"select", "with", "values", "table", "show", "explain"})


def stands_free(query: str, word: str) -> bool:
    """Whether a word is never inside quotes or a comment."""
    return all(word not in text for kind, text in _tokens(query) if kind != "plain")


_COMMENTS = frozenset({"line", "block"})


def _tokens(query: str) -> Iterator[tuple[str, str]]:
    """The text in pieces: plain, quoted, dollar, line, block, cast, value. Together they are the text."""
    at = 0
    while match := _TOKEN.search(query, at):
        if match.start() > at:
            yield "plain", query[at : match.start()]
        kind = next(kind for kind in ("quoted", "dollar", "line", "block", "cast", "value") if match[kind] is not None)
        at = _end_of_comment(query, match.end()) if kind == "block" else match.end()
        yield kind, query[match.start() : at]
    if at < len(query):
        yield "plain", query[at:]


def _end_of_comment(query: str, at: int) -> int:
    """Comments may hold comments, in Postgres and DuckDB."""
    depth = 1
    while depth and (match := _COMMENT.search(query, at)):
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return len(query) if depth else at
