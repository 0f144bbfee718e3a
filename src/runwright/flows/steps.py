"""`@rw.step`: a function that can be a step of a plan, and stays a function."""

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
from runwright.results.encoding import encode_result

from .decorated import CALL_OPTIONS, Decorated, P, R, refuse_unknown, refused


class StepFunction(Decorated[P, R]):
    """A function as a step. Called in a plan it is written down; called anywhere else it simply runs."""

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
        call = place_of(self.function)
        return {"call": call, "args": _by_name(self._signature, self._bound(args, kwargs))}

    # When it runs

    def convert(self, args: dict[str, Any] | list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments as JSON has them, as what the function says it takes."""
        hints = self._hints
        bound = self._bound(tuple(args), {}) if isinstance(args, list) else self._bound((), args)
        for name, value in bound.arguments.items():
            hint = hints.get(name)
            if hint is not None and self._signature.parameters[name].kind not in _MANY:
                bound.arguments[name] = as_type(value, hint, f"{self.name}: argument {name}")
        return list(bound.args), dict(bound.kwargs)

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return type_hints(self.function)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Changes with the function's code."""
        try:
            source = inspect.getsource(self.function).encode()
        except (OSError, TypeError):  # typed at a prompt, or built
            code = getattr(self.function, "__code__", None)
            source = b"" if code is None else code.co_code
        return sha256(source).hexdigest()[:16]


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _by_name(signature: inspect.Signature, bound: inspect.BoundArguments) -> dict[str, Any] | list[Any]:
    """The arguments of a call, by name where they have one. What is left at its default is left out."""
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            if bound.kwargs:
                raise refused(f"A step cannot take both arguments without a name and {', '.join(bound.kwargs)}.")
            return list(bound.args)
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    return named


def as_type(value: Any, hint: Any, what: str, *, strict: bool = False) -> Any:
    """A value as JSON has it, as the type that somebody wrote down. Types that JSON has no form for are passed on."""
    try:
        return msgspec.json.decode(encode_result(value), type=hint, strict=strict) if _is_plain(hint) else value
    except msgspec.ValidationError as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"{what}: {error}.") from None


@functools.lru_cache(maxsize=1024)
def _can_be_converted(hint: Any) -> bool:
    try:
        msgspec.json.Decoder(hint)
        return True
    except Exception:
        return False


def _is_plain(hint: Any) -> bool:
    if hint is Any or hint is None:
        return False
    try:
        return _can_be_converted(hint)
    except TypeError:  # it cannot be hashed
        return False


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's annotations; none where they name what is not there."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:
        return {}


def place_of(function: Callable[..., Any]) -> str:
    """`module:name`, by which any process finds the function again."""
    name = function.__qualname__
    if "<" in name:
        raise refused(
            f"{name} cannot be found again by another process: it is a lambda, or a function inside a function. "
            "Move it to the top of a module."
        )
    return f"{module_of(function)}:{name}"


def module_of(function: Callable[..., Any]) -> str:
    """The module of a function; of one in the program itself, the name under which its file can be imported."""
    module = function.__module__
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else "" if file is None else Path(file).stem
    if not name.replace(".", "_").isidentifier():
        return module
    sys.modules.setdefault(name, main)  # in this process it is loaded already
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
    """Make a function a step. `retries=3` tries it up to four times; durations are seconds or texts such as "30s"."""
    if function is not None:
        return StepFunction(function, {})
    refuse_unknown(options, CALL_OPTIONS, "A step", ErrorCode.INVALID_STEP_SCHEMA)

    def decorate(function: Callable[..., Any]) -> StepFunction[..., Any]:
        return StepFunction(function, options)

    return decorate
