"""A step in its net, as whoever carries it out wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from runwright.contract.plan import Step

from .expressions import any_expression


class Node(msgspec.Struct):
    index: int
    step: Step
    needs: tuple[int, ...]
    mentions: frozenset[str] | None  # steps whose results its expressions use; None: any
    body: bytes | None  # its inputs as JSON, where they hold no expression
    secrets: bool  # they name a secret, or may do so once they are filled in
    queue: str | None = None  # where workers find it; None: whoever drives the run carries it out
    needed_by: list[int] = []
    follows: int | None = None
    followed_by: int | None = None


def constant_body(inputs: dict[str, Any]) -> bytes | None:
    """Inputs that are the same for every run, as JSON: reading that is the quickest way to a copy."""
    return None if any_expression(inputs) else msgspec.json.encode(inputs)


QueueOf = Callable[[Step], str | None]
"""Which steps are left to workers, and where they find them."""


def nowhere(_: Step) -> None:
    """Nothing is left to workers."""


def names_secret(value: Any) -> bool:
    """Whether a mapping called `secret` is anywhere inside; what it is to be called is the plans' business."""
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        return "secret" in mapping or any(map(names_secret, mapping.values()))
    return isinstance(value, list | tuple) and any(map(names_secret, cast("list[Any]", value)))
