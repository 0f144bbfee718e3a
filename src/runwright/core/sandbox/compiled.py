"""One expression, ready to be evaluated."""

from __future__ import annotations

from typing import Any

from .access import MISSING, absent, find
from .bounds import Budget
from .syntax import is_look_up, last_filter, look_up_path, parse
from .tree import Mentioned, Run, Scope, build, named


class Compiled:
    """How to run an expression, and what it mentions."""

    def __init__(self, text: str) -> None:
        self.mentioned = Mentioned()
        path = look_up_path(text)
        if path is not None:
            self.is_look_up = True
            self.last_filter: str | None = None
            self.run: Run = _look_up(self.mentioned, *path)
            return
        tree = parse(text)
        self.is_look_up = is_look_up(tree)
        self.last_filter = last_filter(tree)
        self.run = build(tree, self.mentioned)


def _look_up(mentioned: Mentioned, name: str, *fields: str) -> Run:
    """The short way for what most expressions are: a long plan has many of them."""
    if fields:
        mentioned.field(name, fields[0])
    else:
        mentioned.name(name)
    first = named(name)

    def run(scope: Scope, budget: Budget) -> Any:
        value = first(scope, budget)
        for place, field in enumerate(fields):
            found = find(value, field)
            if found is MISSING:
                raise absent(".".join((name, *fields[:place])), value, field)
            value = found
        return value

    return run
