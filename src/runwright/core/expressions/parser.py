"""From text to syntax tree: find the `{{ ... }}` in a text, and parse one expression with Jinja's parser.

Nothing else of Jinja's template syntax is supported. Jinja is imported with the first expression that needs its parser.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from .budget import MAX_EXPRESSION_LENGTH, MAX_EXPRESSIONS, MAX_TEXT_LENGTH, ExpressionFailure

if TYPE_CHECKING:
    from jinja2 import Environment, nodes

OPEN, CLOSE = "{{", "}}"
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_QUOTED_OR_BRACKET = re.compile(_QUOTED.pattern + r"|[\[({\])}]", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ALLOWED_ESCAPES = frozenset("\\'\"abfnrtvxuUN\n")
_LOOKUP = re.compile(r"\s*([a-z][a-z_]*(?:\.[a-zA-Z]\w*)*)\s*", re.ASCII)
_MAX_LOOKUP_LENGTH = 200  # characters; longer lookups are parsed by Jinja
_KEYWORDS = frozenset({"true", "false", "none", "not", "and", "or", "is", "in", "if", "else"})


# Texts


class TextPart(NamedTuple):
    """A part of a text: plain text, or an expression without its braces."""

    is_expression: bool
    text: str


def split(text: str) -> list[TextPart]:
    """Split a text into its plain parts and expressions, in order."""
    if OPEN in text and len(text) > MAX_TEXT_LENGTH:
        raise ExpressionFailure(f"a text with expressions must have at most {MAX_TEXT_LENGTH:,} characters")
    parts: list[TextPart] = []
    start = expressions = 0
    while (opening := text.find(OPEN, start)) >= 0:
        if opening > start:
            parts.append(TextPart(False, text[start:opening]))
        end = _find_close(text, opening + 2)
        parts.append(TextPart(True, text[opening + 2 : end]))
        start = end + 2
        expressions += 1
        if expressions > MAX_EXPRESSIONS:
            raise ExpressionFailure(f"a text must have at most {MAX_EXPRESSIONS} expressions")
    if start < len(text) or not parts:
        parts.append(TextPart(False, text[start:]))
    for part in parts:
        _check_supported(part)
    return parts


def _find_close(text: str, start: int) -> int:
    """Find the `}}` for the `{{` just before `start`, skipping braces in quoted texts and mappings."""
    depth = 0
    for token in _QUOTED_OR_BRACKET.finditer(text, start, start + MAX_EXPRESSION_LENGTH + 2):
        bracket = token[0]
        if bracket in "[({":
            depth += 1
        elif bracket == "}" and depth == 0 and text.startswith(CLOSE, token.start()):
            return token.start()
        elif bracket in "])}":
            depth = max(depth - 1, 0)
    if len(text) - start > MAX_EXPRESSION_LENGTH:
        limit = f"{MAX_EXPRESSION_LENGTH:,} characters"
        raise ExpressionFailure(f"an expression is longer than {limit}, or {OPEN} is not closed")
    raise ExpressionFailure(f"{OPEN} is not closed by {CLOSE} (for literal braces write {{{{ '{{{{' }}}})")


def _check_supported(part: TextPart) -> None:
    text = part.text
    if part.is_expression:
        if text[:1] in ("-", "+") or text[-1:] in ("-", "+"):
            raise ExpressionFailure(
                "whitespace control ({{- or -}}) is not supported; put a space between sign and braces"
            )
        return
    if _encloses(text, "{%", "%}"):
        raise ExpressionFailure(
            "only {{ }} expressions are allowed here, no {% %} blocks: use `when` or a loop instead"
        )
    if _encloses(text, "{#", "#}"):
        raise ExpressionFailure("only {{ }} expressions are allowed here, no {# #} comments")


def _encloses(text: str, opening: str, closing: str) -> bool:
    """Return whether both occur, in this order. One alone is allowed: `${#name}` is a length in shell syntax."""
    start = text.find(opening)
    return start >= 0 and text.find(closing, start + len(opening)) >= 0


# Expressions


def parse_lookup(text: str) -> list[str] | None:
    """Return the parts of a plain lookup such as `steps.load.result`; None for any other expression.

    Most expressions are plain lookups, and this is much faster than a parser.
    """
    match = _LOOKUP.fullmatch(text) if len(text) < _MAX_LOOKUP_LENGTH else None
    path = match[1].split(".") if match else []
    return path if path and path[0] not in _KEYWORDS else None


def parse(text: str) -> nodes.Expr:
    """Parse an expression, without its braces, to Jinja's syntax tree."""
    from jinja2 import TemplateError
    from jinja2.parser import Parser

    if len(text) > MAX_EXPRESSION_LENGTH:
        raise ExpressionFailure(f"it is longer than {MAX_EXPRESSION_LENGTH:,} characters")
    if not text.strip():
        raise ExpressionFailure("no expression between the braces")
    _check_escapes(text)
    try:
        parser = Parser(_environment(), text, state="variable")
        tree = parser.parse_expression()
        if not parser.stream.eos:
            raise ExpressionFailure(f"unexpected {str(parser.stream.current.value)[:40]!r} after the expression")
    except RecursionError as error:
        raise ExpressionFailure("it is nested too deeply") from error
    except TemplateError as error:
        raise ExpressionFailure(str(error.message or "syntax error").rstrip(".")) from error
    except (ValueError, SyntaxError, OverflowError) as error:
        raise ExpressionFailure("invalid number or quoted text") from error
    return tree


@cache
def _environment() -> Environment:
    from jinja2 import Environment

    return Environment(autoescape=False, optimized=False)  # noqa: S701 - nothing is rendered with it


def _check_escapes(text: str) -> None:
    """Refuse unknown escapes. Jinja evaluates quoted texts as Python literals, where they will become errors."""
    if "\\" not in text:
        return
    for quoted in _QUOTED.finditer(text):
        for escape in _ESCAPE.finditer(quoted[0]):
            if escape[1] not in _ALLOWED_ESCAPES:
                raise ExpressionFailure(f"unknown escape \\{escape[1]} in a quoted text; write \\\\ for a backslash")
