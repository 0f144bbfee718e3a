"""Tracing of plan functions.

While a plan function is traced, calls of step and plan functions add steps to the current trace instead of running.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar, cast

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.core.expressions.template import mentioned_steps

from .proxies import SymbolicValue, to_expression, to_template

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
"""Options of a step, for `@rw.step` and for a single call."""

_RETRY_FIELDS = {"backoff": "backoff", "initial": "initial", "longest": "max", "jitter": "jitter"}
_STEP_FIELDS = {"timeout": "timeout", "step_class": "class", "cancellable": "cancellable"}

_current: ContextVar[Trace | None] = ContextVar("runwright_recording", default=None)


def current_trace() -> Trace | None:
    """Return the trace of the plan function that is being traced in this context, if any."""
    return _current.get()


class Trace:
    """The steps that a plan function has called so far."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.functions: dict[str, FlowFunction[..., Any]] = {}  # by step id
        self._conditions: list[str | bool] = []  # of the enclosing `rw.when` blocks
        self._used_ids: set[str] = set()

    @contextmanager
    def activate(self) -> Generator[None]:
        """Make this the current trace."""
        if _current.get() is not None:
            raise RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, "A plan cannot be traced inside another plan.")
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def when(self, condition: str | bool) -> Generator[None]:
        self._conditions.append(condition)
        try:
            yield
        finally:
            self._conditions.pop()

    def add(
        self,
        function: FlowFunction[..., Any],
        inputs: dict[str, Any],
        options: dict[str, Any],
        foreach: dict[str, Any] | None = None,
    ) -> SymbolicValue:
        """Add a step for a call; return the symbolic value of its result."""
        step_id = self._new_id(function.name, options.get("id"))
        self.functions[step_id] = function
        fields: dict[str, Any] = {"id": step_id, function.kind: to_template(inputs), **_step_fields(options)}
        if foreach is not None:
            fields["foreach"] = {**foreach, "in": to_template(foreach["in"])}
        if self._conditions:
            fields["when"] = self._condition()
        after = [_step_id_of(value) for value in options.get("after") or ()]
        mentioned = mentioned_steps([fields[function.kind], fields.get("foreach"), fields.get("when")]) or ()
        used = [step["id"] for step in self.steps if step["id"] in mentioned]
        fields["dependsOn"] = list(dict.fromkeys([*used, *after]))
        self.steps.append(fields)
        return StepValue(step_id)

    def _new_id(self, name: str, requested: str | None) -> str:
        if requested is not None:
            if requested in self._used_ids:
                raise RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, f"Duplicate step id {requested!r}.")
            self._used_ids.add(requested)
            return requested
        number, step_id = 1, name
        while step_id in self._used_ids:
            number += 1
            step_id = f"{name}_{number}"
        self._used_ids.add(step_id)
        return step_id

    def _condition(self) -> str | bool:
        if len(self._conditions) == 1:
            only = self._conditions[0]
            return only if isinstance(only, bool) else f"{{{{ {only} }}}}"
        parts = (str(each).lower() if isinstance(each, bool) else f"({each})" for each in self._conditions)
        return "{{ " + " and ".join(parts) + " }}"


class StepValue(SymbolicValue):
    """The result of a step."""

    __slots__ = ("_step_id",)

    def __init__(self, step_id: str) -> None:
        path = f".{step_id}" if step_id.isidentifier() else f"[{to_expression(step_id)}]"
        super().__init__(f"steps{path}.result")
        self._step_id = step_id


def _step_id_of(value: Any) -> str:
    if not isinstance(value, StepValue):
        raise RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, "`after` must be a list of results of steps.")
    return value._step_id  # pyright: ignore[reportPrivateUsage]


def _step_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Convert call options to the fields of a step in a plan document."""
    retry: dict[str, Any] = {}
    if "retries" in options:
        retry["maxAttempts"] = options["retries"] + 1
    for name, field in _RETRY_FIELDS.items():
        if name in options:
            retry[field] = options[name]
    fields: dict[str, Any] = {"retry": retry} if retry else {}
    for name, field in _STEP_FIELDS.items():
        if options.get(name) is not None:
            fields[field] = options[name]
    return fields


@contextmanager
def when(condition: Any) -> Generator[None]:
    """Run the steps called inside only if the condition holds: `with rw.when(rows.count > 0):`"""
    trace = current_trace()
    if trace is None:
        raise RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, "rw.when() must be used inside a function with @rw.plan.")
    if not isinstance(condition, SymbolicValue | bool):
        raise RunwrightError(
            ErrorCode.INVALID_PLAN_SCHEMA,
            "The argument of rw.when() must be a condition on a result of a step, such as rows.count > 0.",
        )
    with trace.when(condition if isinstance(condition, bool) else to_expression(condition)):
        yield


class FlowFunction(ABC, Generic[P, R]):
    """Base of step and plan functions: a call while a plan is traced adds a step to the plan."""

    kind: ClassVar[str]
    """Kind of the steps that calls add."""

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
        """Return the same function with other options, for one call: retries, timeout, id, after, ..."""
        reject_unknown_options(changes, CALL_OPTIONS, "a step", ErrorCode.INVALID_STEP_SCHEMA)
        return self._with({**self._call_options, **changes})

    def map(self, items: Any, /, *, max_parallel: int | None = None, **others: Any) -> Any:
        """Call the function for each item, as its first argument; return the list of results, in order."""
        first = next(iter(self._signature.parameters), None)
        if first is None:
            raise invalid_step(f"{self.name} has no parameter, so it cannot be mapped.")
        trace = current_trace()
        if trace is None:
            run = cast("Callable[..., Any]", self._run_here)
            return [run(item, **others) for item in items]
        inputs = self._inputs((SymbolicValue("item"),), others)
        foreach = {"in": items, **({} if max_parallel is None else {"maxParallel": max_parallel})}
        return trace.add(self, inputs, self._call_options, foreach)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        trace = current_trace()
        if trace is None:
            return self._run_here(*args, **kwargs)
        return cast("R", trace.add(self, self._inputs(args, kwargs), self._call_options))

    @abstractmethod
    def _with(self, call_options: dict[str, Any]) -> Self: ...

    @abstractmethod
    def _run_here(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Handle a call outside of a trace."""

    @abstractmethod
    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of the step for a call."""

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise invalid_step(f"{self.name}: {error}. Signature: {self.name}{self._signature}.") from None


def reject_unknown_options(options: Mapping[str, Any], known: Collection[str], owner: str, code: ErrorCode) -> None:
    for name in options:
        if name not in known:
            raise RunwrightError(code, f"Unknown option {name!r} of {owner}. Options: {', '.join(known)}.")


def invalid_step(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, sentence)
