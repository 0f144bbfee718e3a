"""`@rw.plan`: a function that is traced with symbolic values to get a plan."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Self, cast, overload

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ParamType
from runwright.plans.registry import SUB_PLAN
from runwright.storage.json_encoding import encode_result

from .proxies import SymbolicValue, to_template
from .step_function import StepFunction, convert_value, importable_module, type_hints
from .syntax_check import check_plan_source
from .tracing import FlowFunction, P, R, Trace, reject_unknown_options

_OPTIONS = ("name", "version", "description", "on_failure", "timeout")


class PlanFunction(FlowFunction[P, R]):
    """A plan written in Python. `app.start(orders, day="2026-01-01")` runs it; tracing it runs no step.

    A call in another plan adds a step to that plan: a child run, which ends no later than its parent.
    """

    kind = SUB_PLAN

    def __init__(
        self, function: Callable[P, R], options: dict[str, Any], call_options: dict[str, Any] | None = None
    ) -> None:
        super().__init__(function, options, call_options or {})

    def __repr__(self) -> str:
        return f"<plan {self.name}>"

    @property
    def name(self) -> str:
        return self._options.get("name") or self.function.__name__

    @property
    def module(self) -> str:
        return importable_module(self.function)

    @property
    def source(self) -> str | None:
        """Return the file that defines the function."""
        return inspect.getsourcefile(self.function)

    def _with(self, call_options: dict[str, Any]) -> Self:
        return type(self)(self.function, self._options, call_options)

    def _run_here(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:  # noqa: ARG002
        raise RunwrightError(
            ErrorCode.INVALID_PLAN_SCHEMA,
            f"The plan {self.name} cannot be run by a call. Start it with app.start({self.function.__name__}, ...).",
        )

    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        self._parameters()
        return {"params": dict(self._bind(args, kwargs).arguments)}

    @functools.cached_property
    def traced(self) -> TracedPlan:
        """Trace the function; the result is cached."""
        check_plan_source(self.function, lambda value: isinstance(value, FlowFunction))
        trace = Trace()
        with trace.activate():
            result = cast("Callable[..., Any]", self.function)(
                **{name: SymbolicValue(f"params.{name}") for name in self._parameters()}
            )
        if inspect.iscoroutine(result):
            result.close()
            raise _invalid(f"The plan {self.name} must be defined with `def`, not `async def`: it only names steps.")
        steps = {step_id: called for step_id, called in trace.functions.items() if isinstance(called, StepFunction)}
        plans = {step_id: called for step_id, called in trace.functions.items() if isinstance(called, PlanFunction)}
        return TracedPlan(self._document(trace, result), steps, plans)

    def _document(self, trace: Trace, result: Any) -> dict[str, Any]:
        """Return the plan document, as it would be written in YAML."""
        hints = type_hints(self.function)
        parameters = self._parameters()
        defaults = {
            name: msgspec.json.decode(encode_result(parameter.default))
            for name, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        param_types = {name: str(param_type_of_hint(hints.get(name, Any))) for name in parameters}
        optional = {
            "version": self._options.get("version"),
            "description": self._options.get("description"),
            "params": defaults or None,
            "paramTypes": param_types or None,
            "onFailure": self._options.get("on_failure"),
            "timeout": self._options.get("timeout"),
            "result": None if result is None else to_template(result),
        }
        return {
            "plan": self.name,
            **{name: value for name, value in optional.items() if value is not None},
            "order": "graph",
            "steps": trace.steps,
        }

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        for name, parameter in self._signature.parameters.items():
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise _invalid(f"The parameters of plan {self.name} must have names: *{name} is not supported.")
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise _invalid(f"The parameter {name} of plan {self.name} must not be positional only: remove the `/`.")
        return self._signature.parameters

    def params(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Encode parameters as JSON values, checked against the function's annotations."""
        hints = type_hints(self.function)
        params: dict[str, Any] = {}
        for name, value in values.items():
            plain = msgspec.json.decode(encode_result(value))
            if name in hints:
                convert_value(plain, hints[name], f"parameter {name} of {self.name}", strict=True)
            params[name] = plain
        return params

    def typed(self, step_id: str | None, value: Any) -> Any:
        """Convert the result of a step, or of the plan if `step_id` is None, to the annotated return type."""
        if step_id is None:
            hint = type_hints(self.function).get("return")
        else:
            called = self.traced.functions.get(step_id) or self.traced.plans.get(step_id)
            hint = None if called is None else type_hints(called.function).get("return")
        if step_id is not None and hint is not None and isinstance(value, list) and step_id in self.traced.mapped:
            items = cast("list[Any]", value)
            return [convert_value(item, hint, f"result of {step_id}") for item in items]
        return cast("Any", value) if hint is None else convert_value(value, hint, f"result of {step_id or self.name}")


class TracedPlan(msgspec.Struct, frozen=True):
    document: dict[str, Any]
    functions: dict[str, StepFunction[..., Any]]  # by step
    plans: dict[str, PlanFunction[..., Any]]  # by the step that runs it

    @property
    def mapped(self) -> frozenset[str]:
        """Return the steps that were added with `map`."""
        return frozenset(step["id"] for step in self.document["steps"] if "foreach" in step)


_PARAM_TYPES: dict[Any, ParamType] = {
    str: ParamType.STRING,
    bool: ParamType.BOOLEAN,
    int: ParamType.INTEGER,
    float: ParamType.NUMBER,
    list: ParamType.LIST,
    tuple: ParamType.LIST,
    set: ParamType.LIST,
    frozenset: ParamType.LIST,
    dict: ParamType.OBJECT,
    collections.abc.Mapping: ParamType.OBJECT,
    collections.abc.Sequence: ParamType.LIST,
}


def param_type_of_hint(hint: Any) -> ParamType:
    """Return the JSON type of a parameter with this annotation; ANY if it has several."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return param_type_of_hint(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        types_found = {param_type_of_hint(part) for part in typing.get_args(hint)}
        return types_found.pop() if len(types_found) == 1 else ParamType.ANY
    if origin is typing.Literal:
        types_found = {param_type_of_hint(type(value)) for value in typing.get_args(hint)}
        return types_found.pop() if len(types_found) == 1 else ParamType.ANY
    if (known := _PARAM_TYPES.get(origin or hint)) is not None:
        return known
    try:
        schema = msgspec.json.schema(hint)
    except Exception:
        return ParamType.ANY
    if "$ref" in schema:
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    names = {"string": ParamType.STRING, "object": ParamType.OBJECT, "array": ParamType.LIST}
    return names.get(str(schema.get("type")), ParamType.ANY)


@overload
def plan(function: Callable[P, R], /) -> PlanFunction[P, R]: ...
@overload
def plan(
    *,
    name: str | None = None,
    version: str | None = None,
    description: str | None = None,
    on_failure: str | None = None,
    timeout: float | str | None = None,
) -> Callable[[Callable[P, R]], PlanFunction[P, R]]: ...
def plan(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a plan. Calling a step in it adds the step; using a step's result adds the dependency."""
    if function is not None:
        return PlanFunction(function, {})
    reject_unknown_options(options, _OPTIONS, "a plan", ErrorCode.INVALID_PLAN_SCHEMA)

    def decorate(function: Callable[..., Any]) -> PlanFunction[..., Any]:
        return PlanFunction(function, options)

    return decorate


def _invalid(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, sentence)
