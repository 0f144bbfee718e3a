"""The python step: calls a function, or runs a few lines of code.

A function is imported only when its step runs, so a plan can be checked without executing user code. Coroutine
functions run on the event loop for steps, other functions in a thread, and both in a child process if the class of the
step is `isolation`.
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
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

import msgspec

from runwright.contract.plan import Step, StepClass
from runwright.flows.step_function import StepFunction
from runwright.flows.user_modules import import_user_module, importable_folder

from .base import Lane, StepContext, StepError, invalid_input, is_unresolved

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

    def __init__(self, *, is_remote: bool = False) -> None:
        self._is_remote = is_remote  # steps run on another machine, so modules need not be importable here

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        call, code, args = inputs.get("call"), inputs.get("code"), inputs.get("args", {})
        if (call is None) == (code is None):
            return "Set exactly one of `call` (module:function) and `code`."
        if call is not None:
            is_remote = self._is_remote or step.dispatch is not None
            return None if is_unresolved(call) else _call_problem(call, step, find_module=not is_remote)
        if is_unresolved(code):
            return "`code` must not contain expressions: pass values in `args`, which become variables."
        return names_problem(args) or code_problem(str(code))

    def lane(self, inputs: PythonInputs, step: Step) -> Lane:
        if step.step_class is StepClass.ISOLATION:
            return Lane.PROCESS
        # A module that is not loaded yet is imported in the thread, because an import would block a loop. If the
        # function then turns out to be a coroutine function, the executor runs its coroutine on the loop for steps.
        function = None if inputs.call is None else _find_loaded(inputs.call)
        return Lane.STEP_LOOP if function is not None and is_async(function) else Lane.THREAD

    def run(self, inputs: PythonInputs, context: StepContext) -> Any:  # noqa: ARG002
        if inputs.call is not None:
            return _call(resolve(inputs.call), inputs.args)
        if inputs.code is not None:
            return _execute(inputs.code, inputs.args)
        raise invalid_input("Set exactly one of `call` (module:function) and `code`.")


def resolve(call: str) -> Callable[..., Any]:
    """Import and return the function `module:qualified.name`. Raises StepError if there is none."""
    if (loaded := _find_loaded(call)) is not None:
        return loaded
    target = _parse(call)
    if target is None:
        raise invalid_input(f"Invalid function {call!r}. Use module:function.")
    module, names = target.module, target.names
    make_importable(os.getcwd())
    try:
        found: Any = import_user_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, and one of its own imports is missing
        raise StepError("CALL_NOT_FOUND", f"Module {error.name!r} not found.", retryable=False) from None
    for name in names:
        found = getattr(found, name, _MISSING)
        if found is _MISSING:
            detail = f"{'.'.join(names)!r} not found in module {module!r}."
            raise StepError("CALL_NOT_FOUND", detail, retryable=False)
    if not callable(found):
        raise StepError(
            "CALL_NOT_FOUND", f"{call} is not callable, but of type {type(found).__name__}.", retryable=False
        )
    return found


class _CallTarget(NamedTuple):
    module: str
    names: tuple[str, ...]
    """Attribute names that lead from the module to the function."""


@functools.lru_cache(maxsize=1024)
def _parse(call: str) -> _CallTarget | None:
    match = _CALL.fullmatch(call)
    return None if match is None else _CallTarget(match["module"], tuple(match["name"].split(".")))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling this returns a coroutine: a coroutine function, bound or partial, or an object with one."""
    if isinstance(function, StepFunction):
        function = function.function
    if isinstance(function, FunctionType):
        return bool(function.__code__.co_flags & _COROUTINE)  # the usual case, much faster than inspect
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - the attribute itself is inspected
    )


def _find_loaded(call: str) -> Callable[..., Any] | None:
    """Return the function if its module is loaded, else None. Imports nothing."""
    target = _parse(call)
    found: Any = None if target is None else sys.modules.get(target.module)
    if target is None or found is None:
        return None
    try:
        for name in target.names:
            found = getattr(found, name, None)
    except Exception:  # from a `__getattr__` of the module; raised again when the step runs
        return None
    return found if callable(found) else None


def make_file_importable(file: Path) -> None:
    """Make the modules next to the file of a plan importable; those of a Python file also within their package."""
    make_importable(str(file.parent))
    if file.suffix == ".py":
        make_importable(str(importable_folder(file)))


def make_importable(folder: str) -> None:
    """Add a folder to `sys.path`, as `python -m` does for the current one."""
    if folder not in sys.path and not (folder == os.getcwd() and "" in sys.path):
        sys.path.insert(0, folder)


def changed_functions(code: dict[str, str]) -> list[str]:
    """Return the calls whose code no longer has the recorded fingerprint. Imports their modules."""
    changed: list[str] = []
    for call, fingerprint in code.items():
        try:
            function = resolve(call)
        except Exception:  # noqa: S112 - the step itself reports the error
            continue
        if isinstance(function, StepFunction) and cast("StepFunction[..., Any]", function).fingerprint != fingerprint:
            changed.append(call)
    return changed


def _call(function: Callable[..., Any], args: dict[str, Any] | list[Any]) -> Any:
    if isinstance(function, StepFunction):
        step_function = cast("StepFunction[..., Any]", function)
        positional, named = step_function.convert(args)
        return step_function.function(*positional, **named)
    return function(**args) if isinstance(args, dict) else function(*args)


def _call_problem(call: Any, step: Step, *, find_module: bool) -> str | None:
    match = _CALL.fullmatch(call) if isinstance(call, str) else None
    if match is None:
        return f"Invalid function {call!r}. Use module:function, such as shop.jobs:load."
    top = match["module"].partition(".")[0]
    if top == "__main__" and step.step_class is StepClass.ISOLATION:
        return "A function of `__main__` cannot be called in a child process. Move it to a module."
    if top in sys.modules or not find_module:
        return None
    make_importable(os.getcwd())
    if not _is_importable(top):
        importlib.invalidate_caches()  # the file may be new
        if not _is_importable(top):
            return f"Module {top!r} not found. Check its spelling and that it is installed."
    return None


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def code_problem(code: str) -> str | None:
    try:
        _compile(code)
    except SyntaxError as error:
        advice = " Set `result` instead." if "'return' outside" in error.msg else ""
        return f"Python syntax error: {error.msg} (line {error.lineno}).{advice}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"Python syntax error: {error}."
    return None


def names_problem(args: Any) -> str | None:
    if is_unresolved(args):
        return None
    if not isinstance(args, dict):
        return "`args` of `code` must be a mapping: each becomes a variable of that name."
    for name in cast("dict[str, Any]", args):
        if not name.isidentifier() or name.startswith("__"):
            return f"Invalid variable name {name!r}."
    return None


@functools.lru_cache(maxsize=256)
def _compile(code: str) -> CodeType:
    """Compile code so that the value of a last expression is assigned to a variable."""
    tree = ast.parse(code, "<code>")
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        target = ast.Name(_VALUE, ast.Store())
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(ast.Assign([target], last.value), last))
    return compile(tree, "<code>", "exec")


def _execute(code: str, args: dict[str, Any] | list[Any]) -> Any:
    return run_code(code, args)[1]


def run_code(code: str, args: dict[str, Any] | list[Any]) -> tuple[dict[str, Any], Any]:
    """Run code with `args` as variables. Return its variables and its result.

    The result is the variable `result` if the code set it, else the value of the last expression.
    """
    problem = code_problem(code) or names_problem(args)
    if problem or isinstance(args, list):
        raise invalid_input(problem or "`args` of `code` must be a mapping.")
    scope: dict[str, Any] = {**args, "__name__": "__step__"}
    exec(_compile(code), scope)  # noqa: S102 - running the plan author's code is the purpose
    result = scope.get("result", _MISSING)
    if result is not _MISSING and result is not args.get("result", _MISSING):
        return scope, result
    return scope, scope.get(_VALUE)
