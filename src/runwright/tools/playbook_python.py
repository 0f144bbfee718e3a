"""The `python` of playbooks: code that sets `result`, or defines `main`, with its arguments as variables."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import msgspec

from runwright.contract.plan import Step

from .base import RAISED, Lane, StepContext, StepError, is_open
from .python import code_trouble, names_trouble, run_code


class PlaybookPythonInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    code: str
    args: dict[str, Any] = {}
    libs: dict[str, str] = {}
    """Modules to import, or what they have (`module:name`), by the name that the code has for each."""


class PlaybookPythonTool:
    kind = "noetl.python"
    inputs = PlaybookPythonInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        code, args = inputs.get("code"), inputs.get("args", {})
        if is_open(code):
            return "The code must be known from the start: give values as `args`, which become variables."
        return names_trouble(args) or names_trouble(inputs.get("libs", {})) or code_trouble(str(code))

    def lane(self, inputs: PlaybookPythonInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.THREAD

    def run(self, inputs: PlaybookPythonInputs, context: StepContext) -> Any:  # noqa: ARG002
        try:
            modules = {name: _imported(what) for name, what in inputs.libs.items()}
            scope, value = run_code(inputs.code, {"input_data": inputs.args, **modules, **inputs.args})
            main = scope.get("main")
            if value is None and inspect.isfunction(main):
                value = main(**_taken(main, inputs.args))
        except StepError:
            raise
        except (Exception, SystemExit) as error:
            name = type(error).__name__
            facts: dict[str, Any] = {"kind": "python", "py": {"exception_type": name}}
            raise StepError(RAISED, f"{name}: {error}", category="user", **facts) from error
        return value


def _imported(what: str) -> Any:
    module, _, name = what.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


def _taken(function: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function takes."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return args
    if len(parameters) == 1 and not set(parameters) & set(args):
        return {next(iter(parameters)): args}  # `def main(input_data)`: all of them
    return {name: value for name, value in args.items() if name in parameters}
