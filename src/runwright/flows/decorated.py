"""What steps and plans in Python have in common: a function, and the options it was decorated with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, cast

from runwright.contract.errors import ErrorCode, RunwrightError

P = ParamSpec("P")
R = TypeVar("R")


class Decorated(Generic[P, R]):
    def __init__(self, function: Callable[P, R], options: dict[str, Any]) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), function)
        self.function = function
        self._options = options
        self._signature = inspect.signature(function)


def refuse_unknown(options: Mapping[str, Any], known: Collection[str], owner: str, code: ErrorCode) -> None:
    for name in options:
        if name not in known:
            raise RunwrightError(code, f"{owner} has no option {name!r}. It has: {', '.join(known)}.")
