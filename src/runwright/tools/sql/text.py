"""SQL text: named parameters (`:day`) to the database's own placeholders, and splitting into statements."""

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
_TOKEN_KINDS = ("quoted", "dollar", "line", "block", "cast", "value")
_COMMENTS = frozenset({"line", "block"})
_COMMENT_MARK = re.compile(r"/\*|\*/")
_WORD = re.compile(r"[a-z_]+")
_QUERY_WORDS = frozenset(
    {"select", "with", "values", "table", "show", "explain", "pragma", "from", "describe", "fetch"}
)


class SqlTextError(ValueError):
    """Problem with the named parameters of a query. Its text is a sentence."""


def to_positional(query: str, names: Collection[str], placeholder: str) -> tuple[str, list[str]]:
    """Replace each named parameter by `placeholder` and a number.

    Return the query and the names in the order of their numbers. Quoted text, comments and casts (`x::date`) are left
    unchanged. Raises SqlTextError unless the query uses exactly `names`.
    """
    numbers: dict[str, int] = {}
    parts: list[str] = []
    for kind, text in _tokens(query):
        if kind != "value":
            parts.append(text)
            continue
        name = text[1:]
        if name not in names:
            raise SqlTextError(f"The query uses :{name}, but `args` has no {name!r}.")
        parts.append(f"{placeholder}{numbers.setdefault(name, len(numbers) + 1)}")
    unused = [name for name in names if name not in numbers]
    if unused:
        raise SqlTextError(f"`args` has {unused[0]!r}, but the query does not use :{unused[0]}.")
    return "".join(parts), list(numbers)


def bind_statements(
    query: str, names: Collection[str], placeholder: str, split: Callable[[str], list[str]]
) -> list[tuple[str, list[str]]]:
    """Apply `to_positional` to each statement, because no database binds the values of several statements at once.

    A query without parameters stays in one piece.
    """
    whole = to_positional(query, names, placeholder)
    texts = split(query) if whole[1] else []
    return [whole] if len(texts) < 2 else [to_positional(text, parameter_names(text), placeholder) for text in texts]


def parameter_names(query: str) -> set[str]:
    """Return the names of the parameters of a query."""
    return {text[1:] for kind, text in _tokens(query) if kind == "value"}


def split_statements(query: str) -> list[str]:
    """Split a text into statements. Pieces of only blanks and comments are dropped."""
    return [query[start:end] for start, end in _spans(query)]


def _spans(query: str) -> list[tuple[int, int]]:
    """Return start and end of each statement."""
    found: list[tuple[int, int]] = []
    position, start, has_content = 0, 0, False
    for kind, text in _tokens(query):
        first, *rest = text.split(";") if kind == "plain" else [text]
        has_content = has_content or (kind not in _COMMENTS and bool(first.strip()))
        end = position + len(first)
        for piece in rest:
            found += [(start, end)] if has_content else []
            start, has_content = end + 1, bool(piece.strip())
            end = start + len(piece)
        position += len(text)
    return [*found, (start, position)] if has_content else found


def split_last_query(query: str) -> tuple[str, str] | None:
    """Split off the last of several statements if it returns rows; None if it does not, or if there is only one."""
    spans = _spans(query)
    if len(spans) < 2:
        return None
    start, end = spans[-1]
    last = query[start:end]
    return (query[:start], last) if returns_rows(last) else None


def returns_rows(statement: str) -> bool:
    """Whether a statement returns rows, judged by its keywords."""
    words = [word for kind, text in _tokens(statement) if kind == "plain" for word in _WORD.findall(text.lower())]
    return bool(words) and (words[0] in _QUERY_WORDS or "returning" in words)


def is_outside_literals(query: str, word: str) -> bool:
    """Whether a word never occurs inside quotes or a comment."""
    return all(word not in text for kind, text in _tokens(query) if kind != "plain")


def _tokens(query: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) for each token; kinds are `plain` and _TOKEN_KINDS. The texts together are the query."""
    position = 0
    while match := _TOKEN.search(query, position):
        if match.start() > position:
            yield "plain", query[position : match.start()]
        kind = next(kind for kind in _TOKEN_KINDS if match[kind] is not None)
        position = _end_of_comment(query, match.end()) if kind == "block" else match.end()
        yield kind, query[match.start() : position]
    if position < len(query):
        yield "plain", query[position:]


def _end_of_comment(query: str, position: int) -> int:
    """Return the end of a block comment. Postgres and DuckDB nest them."""
    depth = 1
    while depth and (match := _COMMENT_MARK.search(query, position)):
        depth += 1 if match[0] == "/*" else -1
        position = match.end()
    return len(query) if depth else position
