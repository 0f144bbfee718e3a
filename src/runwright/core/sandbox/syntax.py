"""What of an expression is Jinja's: the reading of its text."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, TemplateError, nodes
from jinja2.parser import Parser

from .bounds import LONGEST_EXPRESSION, Fault

_LOOK_UP = re.compile(r"\s*([a-z][a-z_]*(?:\.[a-zA-Z]\w*)*)\s*", re.ASCII)
_SHORT = 200  # characters: a look-up is no longer
_WORDS = frozenset({"true", "false", "none", "not", "and", "or", "is", "in", "if", "else"})
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = frozenset("\\'\"abfnrtvxuUN\n")


@cache
def _jinja() -> Environment:
    return Environment(autoescape=False, optimized=False)  # noqa: S701 - nothing is rendered with it


def parse(text: str) -> nodes.Expr:
    """The tree of an expression."""
    if len(text) > LONGEST_EXPRESSION:
        raise Fault(f"it is longer than {LONGEST_EXPRESSION:,} characters")
    if not text.strip():
        raise Fault("there is no expression between the braces")
    _check_escapes(text)
    try:
        parser = Parser(_jinja(), text, state="variable")
        tree = parser.parse_expression()
        if not parser.stream.eos:
            raise Fault(f"it should have ended before {str(parser.stream.current.value)[:40]!r}")
    except RecursionError as error:
        raise Fault("it is nested too deeply") from error
    except TemplateError as error:
        raise Fault(str(error.message or "it cannot be read").rstrip(".")) from error
    except (ValueError, SyntaxError, OverflowError) as error:
        raise Fault("it holds a number or a text that cannot be read") from error
    return tree


def look_up_path(text: str) -> list[str] | None:
    """`steps.load.result`, as most expressions are, in its parts; None for anything else."""
    match = _LOOK_UP.fullmatch(text) if len(text) < _SHORT else None
    path = match[1].split(".") if match else []
    return path if path and path[0] not in _WORDS else None


def _check_escapes(text: str) -> None:
    """Jinja hands quoted texts to Python, which warns of strange escapes today and will refuse them one day."""
    if "\\" not in text:
        return
    for quoted in _QUOTED.finditer(text):
        for escape in _ESCAPE.finditer(quoted[0]):
            if escape[1] not in _ESCAPES:
                raise Fault(f"\\{escape[1]} means nothing in a quoted text; write \\\\ for a backslash")


def is_look_up(node: nodes.Node) -> bool:
    """Whether the value is a part of the scope as it is, so that nothing can have grown."""
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        node = node.node
    return isinstance(node, nodes.Name)


def last_filter(node: nodes.Node) -> str | None:
    """The filter that makes the value, if one does."""
    return node.name if isinstance(node, nodes.Filter) else None


def label(node: nodes.Node) -> str:
    """A value as sentences call it."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr):
        return f"{label(node.node)}.{node.attr}"
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return f"{label(node.node)}[{str(node.arg.value)[:40]!r}]"
    return label(node.node) if isinstance(node, nodes.Getitem) else "the value"


def scope_name(name: str) -> str:
    """A name that is looked up in the scope. Playbooks have a few with an underscore."""
    return name if name in _UNDERSCORED else public(name)


_UNDERSCORED = frozenset({"_prev", "_task", "_attempt"})


_FIELDS = frozenset({"_ref", "_store", "_preview", "__ref__", "__preview__"})
"""What a playbook can ask of a result that is kept elsewhere. They are keys of a mapping, like all fields."""


def public(name: str) -> str:
    if name.startswith("_") and name not in _FIELDS:
        raise Fault(f'names with a leading underscore cannot be used; for a field of data write ["{name[:40]}"]')
    return name
