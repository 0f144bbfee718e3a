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

_SHELL = (
    "`shell` must not contain an expression: its value would choose the program that executes the command. "
    "`unquoted: true` permits it."
)
_OTHER_SHELL = (
    "`| quote` protects in POSIX shells only. Write the command as a list, or pass the value in `env`; "
    "`unquoted: true` permits it as it is."
)
_EXECUTED = f"An expression in `command` is an argument of a program that executes it as code: {_ADVICE[3:]}"

_POSIX_SHELLS = frozenset({"sh", "ash", "bash", "dash", "ksh", "mksh", "zsh"})
_INTERPRETERS = _POSIX_SHELLS | {"su", "perl", "python", "python3", "ruby", "node", "php", "Rscript"}
"""Programs that execute an argument after -c or -e as code."""

_EXECUTING = frozenset({"eval", "trap", "ssh"})
"""Commands that execute their arguments as code."""

_SEPARATOR = re.compile(r"[;&|\n(){}`]")
_CODE_OPTION = re.compile(r"-\w*[cer]|--command|--eval")

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


def unquoted_expression(command: str, shell: str | None = None) -> ToolProblem | None:
    """Return the problem of a command with an expression whose value could become code."""
    if shell is not None and has_expression(shell):
        return ToolProblem("UNQUOTED_EXPRESSION", _SHELL)
    if not has_expression(command):
        return None
    if shell is not None and not _is_posix(shell):
        return ToolProblem("UNQUOTED_EXPRESSION", _OTHER_SHELL)
    try:
        check(command)
    except ExpressionError:
        return None  # reported with the other expressions of the plan
    if not every_expression_ends_in(command, "quote"):
        return ToolProblem("UNQUOTED_EXPRESSION", _UNQUOTED)
    text = replace_expressions(command, _MARK)
    if not _are_words(text):
        return ToolProblem("UNQUOTED_EXPRESSION", _INSIDE)
    if any(_is_executed(before) for before in text.split(_MARK)[:-1]):
        return ToolProblem("UNQUOTED_EXPRESSION", _EXECUTED)
    return None


def _is_posix(shell: str) -> bool:
    """Whether a value of the field `shell` names a shell that understands POSIX quotes."""
    words = [word for word in shell.split() if not word.startswith("-") and "=" not in word]
    if words and _program(words[0]) == "env":
        del words[0]
    return not words or _program(words[0]) in _POSIX_SHELLS


def _program(word: str) -> str:
    return word.strip("'\"").rpartition("/")[2]


def _is_executed(before: str) -> bool:
    """Whether the word after this part of a command is an argument that its program executes."""
    words = _SEPARATOR.split(before)[-1].split()
    programs = {_program(word) for word in words}
    is_code = any(_CODE_OPTION.fullmatch(word) for word in words)
    return bool(programs & _EXECUTING or (is_code and programs & _INTERPRETERS))


def _are_words(text: str) -> bool:
    """Whether the shell takes each mark as a word or a part of one. False if the text before it is not understood."""
    position = 0
    while token := _TOKEN.match(text, position):
        if _MARK in token[0] and token[0] != _MARK:
            return False
        position = token.end()
    return _MARK not in text[position:]
