"""The `python` task of playbooks: code that sets `result`, or defines `main`, with its arguments as variables."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.flows.user_modules import import_user_module
from runwright.tools.base import STEP_RAISED, Lane, StepContext, StepError, is_unresolved
from runwright.tools.python import code_problem, names_problem, run_code


class PlaybookPythonInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    code: str
    args: dict[str, Any] = {}
    libs: dict[str, str] = {}
    """Modules to import, or attributes of them (`module:name`), by their name in the code."""


class PlaybookPythonTool:
    kind = "noetl.python"
    inputs = PlaybookPythonInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        code, args = inputs.get("code"), inputs.get("args", {})
        if is_unresolved(code):
            return "`code` must not contain expressions: pass values in `args`, which become variables."
        return names_problem(args) or names_problem(inputs.get("libs", {})) or code_problem(str(code))

    def lane(self, inputs: PlaybookPythonInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.THREAD

    def run(self, inputs: PlaybookPythonInputs, context: StepContext) -> Any:  # noqa: ARG002
        try:
            modules = {name: _import(target) for name, target in inputs.libs.items()}
            scope, value = run_code(inputs.code, {"input_data": inputs.args, **modules, **inputs.args})
            main = scope.get("main")
            if value is None and inspect.isfunction(main):
                value = main(**_accepted_args(main, inputs.args))
        except StepError:
            raise
        except (Exception, SystemExit) as error:
            name = type(error).__name__
            facts: dict[str, Any] = {"kind": "python", "py": {"exception_type": name}}
            raise StepError(STEP_RAISED, f"{name}: {error}", category="user", **facts) from error
        return value


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    found = import_user_module(module)
    return getattr(found, name) if name else found


def _accepted_args(function: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function has parameters for."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return args
    if len(parameters) == 1 and not set(parameters) & set(args):
        return {next(iter(parameters)): args}  # `def main(input_data)` gets all arguments
    return {name: value for name, value in args.items() if name in parameters}
