"""Where the expressions are in a text: `{{ ... }}`, and nothing else of Jinja's."""

from __future__ import annotations

import re

from .bounds import LONGEST_EXPRESSION, LONGEST_TEXT, MOST_EXPRESSIONS, Fault

OPEN, CLOSE = "{{", "}}"
_TELLING = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\[({\])}]""", re.DOTALL)


def split(text: str) -> list[tuple[bool, str]]:
    """The parts of a text in order, each with whether it is an expression (then without its braces)."""
    if OPEN in text and len(text) > LONGEST_TEXT:
        raise Fault(f"a text with expressions may have {LONGEST_TEXT:,} characters at most")
    parts: list[tuple[bool, str]] = []
    start = expressions = 0
    while (opening := text.find(OPEN, start)) >= 0:
        if opening > start:
            parts.append((False, text[start:opening]))
        end = _end(text, opening + 2)
        parts.append((True, text[opening + 2 : end]))
        start = end + 2
        expressions += 1
        if expressions > MOST_EXPRESSIONS:
            raise Fault(f"a text may have {MOST_EXPRESSIONS} expressions at most")
    if start < len(text) or not parts:
        parts.append((False, text[start:]))
    for is_expression, part in parts:
        _refuse_other_braces(is_expression, part)
    return parts


def _end(text: str, start: int) -> int:
    """Where the braces that were opened just before `start` close: not those inside a quoted text or a mapping."""
    depth = 0
    for token in _TELLING.finditer(text, start, start + LONGEST_EXPRESSION + 2):
        sign = token[0]
        if sign in "[({":
            depth += 1
        elif sign == "}" and depth == 0 and text.startswith(CLOSE, token.start()):
            return token.start()
        elif sign in "])}":
            depth = max(depth - 1, 0)
    if len(text) - start > LONGEST_EXPRESSION:
        raise Fault(f"an expression is longer than {LONGEST_EXPRESSION:,} characters, or {OPEN} is never closed")
    raise Fault(f"{OPEN} is not closed by {CLOSE} (for the braces themselves write {{{{ '{{{{' }}}})")


def _refuse_other_braces(is_expression: bool, part: str) -> None:
    if is_expression:
        if part[:1] in ("-", "+") or part[-1:] in ("-", "+"):
            raise Fault("a sign right at the braces is not supported; put a space between them")
        return
    if _encloses(part, "{%", "%}"):
        raise Fault("only {{ }} expressions are allowed here, no {% %} blocks: decide with `when`, repeat with a loop")
    if _encloses(part, "{#", "#}"):
        raise Fault("only {{ }} expressions are allowed here, no {# #} comments")


def _encloses(text: str, opening: str, closing: str) -> bool:
    """Whether both are there, in this order. One alone is left be: `${#name}` is how a shell counts."""
    start = text.find(opening)
    return start >= 0 and text.find(closing, start + len(opening)) >= 0
