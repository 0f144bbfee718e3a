"""One schedulable unit of a plan graph: a step, or a task of a playbook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from runwright.contract.plan import Step
from runwright.core.expressions.template import contains_expression


class Node(msgspec.Struct):
    index: int
    step: Step
    needs: tuple[int, ...]
    mentions: frozenset[str] | None  # steps whose results its expressions use; None: all
    body: bytes | None  # the inputs as JSON, if they contain no expression
    secrets: bool  # the inputs name a secret; those of a task may do so after evaluation
    queue: str | None = None  # the task queue of workers; None: the engine executes it
    needed_by: list[int] = []
    is_task: bool = False  # a task of a playbook
    follows: int | None = None
    followed_by: int | None = None


def constant_body(inputs: dict[str, Any]) -> bytes | None:
    """Inputs without expressions, as JSON: decoding it is the fastest way to copy them."""
    return None if contains_expression(inputs) else msgspec.json.encode(inputs)


QueueOf = Callable[[Step], str | None]
"""The task queue of a step that workers execute; None if the engine executes it."""


def no_queue(_: Step) -> None:
    """The engine executes every step."""


def names_secret(value: Any) -> bool:
    """Whether a mapping with the key `secret` occurs anywhere in a value."""
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        return "secret" in mapping or any(map(names_secret, mapping.values()))
    return isinstance(value, list | tuple) and any(map(names_secret, cast("list[Any]", value)))
