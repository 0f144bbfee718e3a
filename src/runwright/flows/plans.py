"""`@rw.plan`: a function that writes a plan down when it is called with values that are still to come."""

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
from runwright.plans.known import SUB_PLAN
from runwright.results.encoding import encode_result

from .decorated import Decorated, P, R, refuse_unknown
from .recording import Recording
from .steps import StepFunction, as_type, module_of, type_hints
from .values import Value, written

_OPTIONS = ("name", "version", "description", "on_failure", "timeout")


class PlanFunction(Decorated[P, R]):
    """A plan in Python. `app.start(orders, day="2026-01-01")` runs it; nothing in it runs while it is written down.

    Called in another plan it is a step of that one: a run of its own, which ends no later than its parent.
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
        return module_of(self.function)

    @property
    def source(self) -> str | None:
        """The file it is in."""
        return inspect.getsourcefile(self.function)

    def _with(self, call_options: dict[str, Any]) -> Self:
        return type(self)(self.function, self._options, call_options)

    def _run_here(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:  # noqa: ARG002
        raise RunwrightError(
            ErrorCode.INVALID_PLAN_SCHEMA,
            f"The plan {self.name} is not run by calling it. Start it with app.start({self.function.__name__}, ...).",
        )

    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        self._parameters()
        return {"params": dict(self._bound(args, kwargs).arguments)}

    @functools.cached_property
    def traced(self) -> Traced:
        """The plan, written down once."""
        recording = Recording()
        with recording.open():
            result = cast("Callable[..., Any]", self.function)(
                **{name: Value(f"params.{name}") for name in self._parameters()}
            )
        if inspect.iscoroutine(result):
            result.close()
            raise _refused(f"The plan {self.name} is an `async def`. Write it with `def`: it only names steps.")
        steps = {step_id: called for step_id, called in recording.called.items() if isinstance(called, StepFunction)}
        plans = {step_id: called for step_id, called in recording.called.items() if isinstance(called, PlanFunction)}
        return Traced(self._document(recording, result), steps, plans)

    def _document(self, recording: Recording, result: Any) -> dict[str, Any]:
        """The plan as its YAML would say it."""
        hints = type_hints(self.function)
        parameters = self._parameters()
        defaults = {
            name: msgspec.json.decode(encode_result(parameter.default))
            for name, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        kinds = {name: str(kind_of(hints.get(name, Any))) for name in parameters}
        given = {
            "version": self._options.get("version"),
            "description": self._options.get("description"),
            "params": defaults or None,
            "paramTypes": kinds or None,
            "onFailure": self._options.get("on_failure"),
            "timeout": self._options.get("timeout"),
            "result": None if result is None else written(result),
        }
        return {
            "plan": self.name,
            **{name: value for name, value in given.items() if value is not None},
            "order": "graph",
            "steps": recording.steps,
        }

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        for name, parameter in self._signature.parameters.items():
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise _refused(f"The plan {self.name} takes *{name}; parameters of a plan have names.")
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise _refused(f"The plan {self.name} takes {name} by its place only; leave the `/` out.")
        return self._signature.parameters

    def params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as JSON has them, checked against what the function says it takes."""
        hints = type_hints(self.function)
        params: dict[str, Any] = {}
        for name, value in given.items():
            plain = msgspec.json.decode(encode_result(value))
            if name in hints:
                as_type(plain, hints[name], f"Parameter {name} of {self.name}", strict=True)
            params[name] = plain
        return params

    def typed(self, step_id: str | None, value: Any) -> Any:
        """A step's result as its function says it gives it; without a step, the plan's own."""
        if step_id is None:
            hint = type_hints(self.function).get("return")
        else:
            called = self.traced.functions.get(step_id) or self.traced.plans.get(step_id)
            hint = None if called is None else type_hints(called.function).get("return")
        if step_id is not None and hint is not None and isinstance(value, list) and step_id in self.traced.mapped:
            items = cast("list[Any]", value)
            return [as_type(item, hint, f"The result of {step_id}") for item in items]
        return cast("Any", value) if hint is None else as_type(value, hint, f"The result of {step_id or self.name}")


class Traced(msgspec.Struct, frozen=True):
    document: dict[str, Any]
    functions: dict[str, StepFunction[..., Any]]  # by step
    plans: dict[str, PlanFunction[..., Any]]  # by the step that is a run of it

    @property
    def mapped(self) -> frozenset[str]:
        """The steps that were called for each of many values."""
        return frozenset(step["id"] for step in self.document["steps"] if "foreach" in step)


_KINDS: dict[Any, ParamType] = {
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


def kind_of(hint: Any) -> ParamType:
    """What a parameter with this annotation looks like in JSON, as far as it is one thing only."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return kind_of(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        kinds = {kind_of(part) for part in typing.get_args(hint)}
        return kinds.pop() if len(kinds) == 1 else ParamType.ANY
    if origin is typing.Literal:
        kinds = {kind_of(type(value)) for value in typing.get_args(hint)}
        return kinds.pop() if len(kinds) == 1 else ParamType.ANY
    if (known := _KINDS.get(origin or hint)) is not None:
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
    """Make a function a plan. Calling a step in it adds the step; passing its value on makes the dependency."""
    if function is not None:
        return PlanFunction(function, {})
    refuse_unknown(options, _OPTIONS, "A plan", ErrorCode.INVALID_PLAN_SCHEMA)

    def decorate(function: Callable[..., Any]) -> PlanFunction[..., Any]:
        return PlanFunction(function, options)

    return decorate


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, sentence)
