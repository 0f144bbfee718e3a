"""What steps and plans in Python have in common: a function that can be called while a plan is written down."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar, cast

from runwright.contract.errors import ErrorCode, RunwrightError

from .recording import current
from .values import Value

P = ParamSpec("P")
R = TypeVar("R")

CALL_OPTIONS = (
    "retries",
    "backoff",
    "initial",
    "longest",
    "jitter",
    "timeout",
    "step_class",
    "cancellable",
    "id",
    "after",
)
"""What may be said of a step, wherever it is called."""


class Decorated(ABC, Generic[P, R]):
    kind: ClassVar[str]
    """Of the step that a call of it is."""

    def __init__(self, function: Callable[P, R], options: dict[str, Any], call_options: dict[str, Any]) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), function)
        self.function = function
        self._options = options
        self._call_options = call_options
        self._signature = inspect.signature(function)

    @property
    def name(self) -> str:
        return self.function.__name__

    def options(self, **changes: Any) -> Self:
        """The same with other settings, for one call: retries, timeout, id, after, ..."""
        refuse_unknown(changes, CALL_OPTIONS, "A step", ErrorCode.INVALID_STEP_SCHEMA)
        return self._with({**self._call_options, **changes})

    def map(self, items: Any, /, *, max_parallel: int | None = None, **others: Any) -> Any:
        """Do this for each item, which becomes the first argument; the results come as a list, in order."""
        first = next(iter(self._signature.parameters), None)
        if first is None:
            raise refused(f"{self.name} takes no argument, so it cannot be mapped.")
        plan = current()
        if plan is None:
            run = cast("Callable[..., Any]", self._run_here)
            return [run(item, **others) for item in items]
        inputs = self._inputs((Value("item"),), others)
        foreach = {"in": items, **({} if max_parallel is None else {"maxParallel": max_parallel})}
        return plan.add(self, inputs, self._call_options, foreach)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        plan = current()
        if plan is None:
            return self._run_here(*args, **kwargs)
        return cast("R", plan.add(self, self._inputs(args, kwargs), self._call_options))

    @abstractmethod
    def _with(self, call_options: dict[str, Any]) -> Self: ...

    @abstractmethod
    def _run_here(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What a call does where no plan is written down."""

    @abstractmethod
    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of the step that stands for a call."""

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise refused(f"{self.name}: {error}. It is {self.name}{self._signature}.") from None


def refuse_unknown(options: Mapping[str, Any], known: Collection[str], owner: str, code: ErrorCode) -> None:
    for name in options:
        if name not in known:
            raise RunwrightError(code, f"{owner} has no option {name!r}. It has: {', '.join(known)}.")


def refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, sentence)
