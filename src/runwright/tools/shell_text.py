"""Expressions in the text of a shell command: every value must stay one word."""

from __future__ import annotations

import re

from runwright.core.expressions.template import (
    ExpressionError,
    check,
    every_expression_ends_in,
    has_expression,
    replace_expressions,
)

from .base import ToolProblem

_MARK = "\ue000"
"""Stands for an expression. A private-use character, which commands do not contain."""

_ADVICE = 'or pass the value in `env` and write "$NAME"; `unquoted: true` permits it as it is.'
_UNQUOTED = f"An expression in `command` must end in `| quote`, so that its value is one word and not code; {_ADVICE}"
_INSIDE = (
    "An expression in `command` is inside of quotes, backticks, `${}`, `$(())`, `[[ ]]`, a comment or a here-document, "
    f"or after a part that is not understood, where `| quote` may not protect: write it outside of that, {_ADVICE}"
)

_TOKEN = re.compile(
    r"""
    \\.                                                # an escaped character
    | \$?' (?: [^'\\]* | (?<!\$') [^']* ) '              # '...'; $'...' only without escapes, which bash alone knows
    | \$?" (?: [^"\\$`] | \\. | \$(?![({]) | \$\{[\w\#@*?!:=+/.%-]*\} | \$\([^()'"`\\$\#<]*\) | `[^`'"\\$]*` )* "
    | ` (?: [^`\\] | \\. )* `
    | \$\{ [\w\#@*?!:=+/.%-]* \}                         # ${name}, ${#name}, ${name%.csv}
    | \$\(\( [\w\s$+*/%<>=-]* \)\)                       # $((count + 1))
    | \[\[ [^]'"`\\$]* \]\]                             # [[ -f name ]], and classes of characters
    | (?<! [^\s;&|()<>] ) \# [^\n]*                       # a comment
    | \$ (?! [({'"\\\ue000] ) | \$\( (?!\() | \( (?!\() | \[ (?!\[) | < (?!<)
    | [^\\'"`$(\[<]                                     # any other character, also an expression
    """,
    re.VERBOSE | re.DOTALL,
)
"""A part of a command that all shells read alike. Others (here-documents, nested quotes) are not analysed."""


def unquoted_expression(command: str) -> ToolProblem | None:
    """Return the problem of a command with an expression whose value could become code."""
    if not has_expression(command):
        return None
    try:
        check(command)
    except ExpressionError:
        return None  # reported with the other expressions of the plan
    if not every_expression_ends_in(command, "quote"):
        return ToolProblem("UNQUOTED_EXPRESSION", _UNQUOTED)
    if not _are_words(replace_expressions(command, _MARK)):
        return ToolProblem("UNQUOTED_EXPRESSION", _INSIDE)
    return None


def _are_words(text: str) -> bool:
    """Whether the shell takes each mark as a word or a part of one. False if the text before it is not understood."""
    position = 0
    while token := _TOKEN.match(text, position):
        if _MARK in token[0] and token[0] != _MARK:
            return False
        position = token.end()
    return _MARK not in text[position:]
