"""A step that calls a Python function, or runs a few lines of Python.

A function is only imported when its step runs: a plan can be checked without running anybody's code. Where
it runs follows from what it is: a coroutine function on the loop for steps, any other in a thread, and both in
a process of their own where the step's class is `isolation`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, cast

import msgspec

from runwright.contract.plan import Step, StepClass
from runwright.flows.steps import StepFunction

from .base import Lane, StepContext, StepError, is_open

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_CALL = re.compile(rf"(?P<module>{_DOTTED}):(?P<name>{_DOTTED})")
_VALUE = "__runwright_value__"
_MISSING = object()


_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE


class PythonInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    call: str | None = None
    code: str | None = None
    args: dict[str, Any] | list[Any] = {}


class PythonTool:
    kind = "python"
    inputs = PythonInputs
    main_input = "call"

    def __init__(self, *, elsewhere: bool = False) -> None:
        self._elsewhere = elsewhere  # the code is where the steps run, and that is not here

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        call, code, args = inputs.get("call"), inputs.get("code"), inputs.get("args", {})
        if (call is None) == (code is None):
            return "Give exactly one of `call` (module:function) and `code`."
        if call is not None:
            elsewhere = self._elsewhere or step.dispatch is not None
            return None if is_open(call) else _call_trouble(call, step, look=not elsewhere)
        return names_trouble(args) or (None if is_open(code) else code_trouble(str(code)))

    def lane(self, inputs: PythonInputs, step: Step) -> Lane:
        if step.step_class is StepClass.ISOLATION:
            return Lane.PROCESS
        # A module that is not loaded yet is imported in the thread, which is no place to wait for on a loop. Should
        # the function turn out to be a coroutine function, the executor takes what it gives to the loop for steps.
        function = None if inputs.call is None else _loaded(inputs.call)
        return Lane.STEP_LOOP if function is not None and is_async(function) else Lane.THREAD

    def run(self, inputs: PythonInputs, context: StepContext) -> Any:  # noqa: ARG002
        if inputs.call is not None:
            return _call(resolve(inputs.call), inputs.args)
        if inputs.code is not None:
            return _execute(inputs.code, inputs.args)
        raise _bad("Give exactly one of `call` (module:function) and `code`.")


def resolve(call: str) -> Callable[..., Any]:
    """The function that `module:qualified.name` names. Imports its module."""
    if (known := _loaded(call)) is not None:
        return known
    place = _parse(call)
    if place is None:
        raise _bad(f"{call!r} does not name a function. Write module:function.")
    module, names = place
    make_importable(os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and misses one of its own
        raise StepError("CALL_NOT_FOUND", f"There is no module {error.name!r}.", retryable=False) from None
    for name in names:
        found = getattr(found, name, _MISSING)
        if found is _MISSING:
            detail = f"Module {module!r} has no {'.'.join(names)!r}."
            raise StepError("CALL_NOT_FOUND", detail, retryable=False)
    if not callable(found):
        raise StepError("CALL_NOT_FOUND", f"{call} is a {type(found).__name__} and cannot be called.", retryable=False)
    return found


@functools.lru_cache(maxsize=1024)
def _parse(call: str) -> tuple[str, tuple[str, ...]] | None:
    """The module, and the names that lead from there to the function."""
    match = _CALL.fullmatch(call)
    return None if match is None else (match["module"], tuple(match["name"].split(".")))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling this gives a coroutine: a coroutine function, bound, partial or an object that has one."""
    if isinstance(function, StepFunction):
        function = function.function
    if isinstance(function, FunctionType):
        return bool(function.__code__.co_flags & _COROUTINE)  # nearly always, and many times as fast as asking inspect
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - it is looked at, not tested for
    )


def _loaded(call: str) -> Callable[..., Any] | None:
    """The function, if it can be had without importing anything."""
    place = _parse(call)
    found: Any = None if place is None else sys.modules.get(place[0])
    if place is None or found is None:
        return None
    try:
        for name in place[1]:
            found = getattr(found, name, None)
    except Exception:  # a module may have a `__getattr__` of its own; what it says is heard when the step runs
        return None
    return found if callable(found) else None


def make_importable(folder: str) -> None:
    """As `python -m` does for the current folder: what lies in it can be imported."""
    if folder not in sys.path and not (folder == os.getcwd() and "" in sys.path):
        sys.path.insert(0, folder)


def changed_functions(code: dict[str, str]) -> list[str]:
    """Of these steps in Python and their fingerprints, those whose code is another now. Imports their modules."""
    changed: list[str] = []
    for call, fingerprint in code.items():
        try:
            function = resolve(call)
        except Exception:  # noqa: S112 - whoever runs the step is told
            continue
        if isinstance(function, StepFunction) and cast("StepFunction[..., Any]", function).fingerprint != fingerprint:
            changed.append(call)
    return changed


def _call(function: Callable[..., Any], args: dict[str, Any] | list[Any]) -> Any:
    if isinstance(function, StepFunction):
        made = cast("StepFunction[..., Any]", function)
        given, named = made.convert(args)
        return made.function(*given, **named)
    return function(**args) if isinstance(args, dict) else function(*args)


def _call_trouble(call: Any, step: Step, *, look: bool) -> str | None:
    match = _CALL.fullmatch(call) if isinstance(call, str) else None
    if match is None:
        return f"{call!r} does not name a function. Write module:function, such as shop.jobs:load."
    top = match["module"].partition(".")[0]
    if top == "__main__" and step.step_class is StepClass.ISOLATION:
        return "A function of `__main__` cannot be called in a process of its own. Put it into a module."
    if top in sys.modules or not look:
        return None
    make_importable(os.getcwd())
    if not _can_be_found(top):
        importlib.invalidate_caches()  # it may have been written a moment ago
        if not _can_be_found(top):
            return f"There is no module {top!r} here. Is it spelled so, and installed?"
    return None


def _can_be_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def code_trouble(code: str) -> str | None:
    try:
        _compile(code)
    except SyntaxError as error:
        advice = " Set `result` instead." if "'return' outside" in error.msg else ""
        return f"The code is no Python: {error.msg} (line {error.lineno}).{advice}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"The code is no Python: {error}."
    return None


def names_trouble(args: Any) -> str | None:
    if is_open(args):
        return None
    if not isinstance(args, dict):
        return "`args` of `code` is a mapping: each becomes a variable of that name."
    for name in cast("dict[str, Any]", args):
        if not name.isidentifier() or name.startswith("__"):
            return f"{name!r} cannot be the name of a variable."
    return None


@functools.lru_cache(maxsize=256)
def _compile(code: str) -> CodeType:
    """The code, with the value of a last expression put aside."""
    tree = ast.parse(code, "<code>")
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        target = ast.Name(_VALUE, ast.Store())
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(ast.Assign([target], last.value), last))
    return compile(tree, "<code>", "exec")


def _execute(code: str, args: dict[str, Any] | list[Any]) -> Any:
    return run_code(code, args)[1]


def run_code(code: str, args: dict[str, Any] | list[Any]) -> tuple[dict[str, Any], Any]:
    """Run it with `args` as variables. The result is `result` where the code set it, else its last expression;
    before it, all that the code left behind."""
    trouble = code_trouble(code) or names_trouble(args)
    if trouble or isinstance(args, list):
        raise _bad(trouble or "`args` of `code` is a mapping.")
    scope: dict[str, Any] = {**args, "__name__": "__step__"}
    exec(_compile(code), scope)  # noqa: S102 - running the plan author's code is what this is for
    result = scope.get("result", _MISSING)
    if result is not _MISSING and result is not args.get("result", _MISSING):
        return scope, result
    return scope, scope.get(_VALUE)


def _bad(detail: str) -> StepError:
    return StepError("INVALID_INPUT", detail, retryable=False)
