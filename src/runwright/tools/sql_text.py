"""Named values in SQL text: `:day` becomes the database's own mark, wherever it stands as a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

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


def bound(
    query: str, names: Collection[str], mark: str, split: Callable[[str], list[str]]
) -> list[tuple[str, list[str]]]:
    """The same for several statements, each with its own values: no database binds those of several at once. What binds
    nothing stays in one piece."""
    whole = positional(query, names, mark)
    texts = split(query) if whole[1] else []
    return [whole] if len(texts) < 2 else [positional(text, mentioned(text), mark) for text in texts]


def mentioned(query: str) -> set[str]:
    """The names of the values that a query binds."""
    return {text[1:] for kind, text in _tokens(query) if kind == "value"}


def statements(query: str) -> list[str]:
    """The statements in a text; what is only blanks or comments is none."""
    return [query[begin:end] for begin, end in _spans(query)]


def _spans(query: str) -> list[tuple[int, int]]:
    """Where each statement begins and ends."""
    found: list[tuple[int, int]] = []
    at, begin, says_something = 0, 0, False
    for kind, text in _tokens(query):
        first, *rest = text.split(";") if kind == "plain" else [text]
        says_something = says_something or (kind not in _COMMENTS and bool(first.strip()))
        end = at + len(first)
        for piece in rest:
            found += [(begin, end)] if says_something else []
            begin, says_something = end + 1, bool(piece.strip())
            end = begin + len(piece)
        at += len(text)
    return [*found, (begin, at)] if says_something else found


def last_question(query: str) -> tuple[str, str] | None:
    """Of several statements, the last if it asks for rows, and all that comes before it; None if it does not."""
    spans = _spans(query)
    if len(spans) < 2:
        return None
    begin, end = spans[-1]
    last = query[begin:end]
    return (query[:begin], last) if asks_for_rows(last) else None


def asks_for_rows(statement: str) -> bool:
    """Whether rows come of it, as far as its words tell."""
    words = [word for kind, text in _tokens(statement) if kind == "plain" for word in _WORD.findall(text.lower())]
    return bool(words) and (words[0] in _ASKING or "returning" in words)


_ASKING = frozenset({"select", "with", "values", "table", "show", "explain", "pragma", "from", "describe", "fetch"})
_WORD = re.compile(r"[a-z_]+")


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
