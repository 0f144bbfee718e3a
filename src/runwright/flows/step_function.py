"""`@rw.step`: a function that becomes a step when it is called in a plan."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, get_type_hints, overload

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.storage.json_encoding import encode_result

from .tracing import CALL_OPTIONS, FlowFunction, P, R, invalid_step, reject_unknown_options


class StepFunction(FlowFunction[P, R]):
    """A step function. A call in a plan adds a step; a call anywhere else runs the function."""

    kind = "python"

    def __init__(self, function: Callable[P, R], call_options: dict[str, Any]) -> None:
        super().__init__(function, {}, call_options)

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    def _with(self, call_options: dict[str, Any]) -> Self:
        return type(self)(self.function, call_options)

    def _run_here(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        args_by_name = _by_name(self._signature, self._bind(args, kwargs))
        return {"call": function_ref(self.function), "args": args_by_name}

    # Execution

    def convert(self, args: dict[str, Any] | list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert JSON arguments to the types of the function's annotations."""
        hints = self._hints
        bound = self._bind(tuple(args), {}) if isinstance(args, list) else self._bind((), args)
        for name, value in bound.arguments.items():
            hint = hints.get(name)
            if hint is not None and self._signature.parameters[name].kind not in _VARIADIC:
                bound.arguments[name] = convert_value(value, hint, f"argument {name} of {self.name}")
        return list(bound.args), dict(bound.kwargs)

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return type_hints(self.function)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return a hash that changes with the function's source code."""
        try:
            source = inspect.getsource(self.function).encode()
        except (OSError, TypeError):  # defined at an interactive prompt, or generated
            code = getattr(self.function, "__code__", None)
            source = b"" if code is None else code.co_code
        return sha256(source).hexdigest()[:16]


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _by_name(signature: inspect.Signature, bound: inspect.BoundArguments) -> dict[str, Any] | list[Any]:
    """Return the arguments of a call by name, or as a list if some are positional only. Defaults are omitted."""
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            if bound.kwargs:
                raise invalid_step(f"A step cannot have both positional-only arguments and {', '.join(bound.kwargs)}.")
            return list(bound.args)
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    return named


def convert_value(value: Any, hint: Any, subject: str, *, strict: bool = False) -> Any:
    """Convert a JSON value to an annotated type. For types without a JSON form, return the value as it is."""
    try:
        return msgspec.json.decode(encode_result(value), type=hint, strict=strict) if _has_json_form(hint) else value
    except msgspec.ValidationError as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Invalid {subject}: {error}.") from None


@functools.lru_cache(maxsize=1024)
def _is_decodable(hint: Any) -> bool:
    try:
        msgspec.json.Decoder(hint)
        return True
    except Exception:
        return False


def _has_json_form(hint: Any) -> bool:
    if hint is Any or hint is None:
        return False
    try:
        return _is_decodable(hint)
    except TypeError:  # the hint is not hashable
        return False


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function's annotations; empty if they cannot be resolved."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:
        return {}


def function_ref(function: Callable[..., Any]) -> str:
    """Return `module:name`, by which other processes import the function."""
    name = function.__qualname__
    if "<" in name:
        raise invalid_step(
            f"Other processes cannot import {name}: it is a lambda, or a function inside a function. "
            "Move it to the top of a module."
        )
    return f"{importable_module(function)}:{name}"


_MAIN_MODULES = ("__main__", "__mp_main__")
"""Names of the module of a program, the second one in a child of multiprocessing."""


def importable_module(function: Callable[..., Any]) -> str:
    """Return the module of a function; for `__main__`, the name under which its file can be imported."""
    module = function.__module__
    if module not in _MAIN_MODULES:
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else "" if file is None else Path(file).stem
    if not name.replace(".", "_").isidentifier():
        return module
    sys.modules.setdefault(name, main)  # this process has loaded it already
    return name


@overload
def step(function: Callable[P, R], /) -> StepFunction[P, R]: ...
@overload
def step(
    *,
    retries: int = 0,
    backoff: str = "exponential",
    initial: float | str = 1.0,
    longest: float | str = 60.0,
    jitter: bool = True,
    timeout: float | str | None = None,
    step_class: str = "light",
    cancellable: bool = True,
    id: str | None = None,
) -> Callable[[Callable[P, R]], StepFunction[P, R]]: ...
def step(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a step. `retries=3` allows four attempts; durations are seconds or text such as "30s"."""
    if function is not None:
        return StepFunction(function, {})
    reject_unknown_options(options, CALL_OPTIONS, "a step", ErrorCode.INVALID_STEP_SCHEMA)

    def decorate(function: Callable[..., Any]) -> StepFunction[..., Any]:
        return StepFunction(function, options)

    return decorate
