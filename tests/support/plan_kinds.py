"""Kinds of step for tests of plans: small, and independent of the real tools."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.plans.loader import load_plan
from runwright.plans.problems import LoadedPlan, PlanInvalid


class NoopInputs(msgspec.Struct):
    result: Any = None


class ShellInputs(msgspec.Struct):
    command: str | list[str]
    env: dict[str, str] = {}
    cwd: str | None = None
    limit: int = 0


class Login(msgspec.Struct, rename="camel"):
    user_name: str
    tries: int = 1


class CallInputs(msgspec.Struct, rename="camel"):
    url: str = "http://localhost"
    max_size: int = 5
    login: Login | None = None
    headers: dict[str, list[str]] = {}


class FakeKind:
    def __init__(self, kind: str, inputs: type[msgspec.Struct], main_input: str | None = None) -> None:
        self.kind = kind
        self.inputs = inputs
        self.main_input = main_input

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        return f"{step.step_id} may not say {inputs['command']!r}." if inputs.get("command") == "forbidden" else None


KINDS = {
    tool.kind: tool
    for tool in (
        FakeKind("noop", NoopInputs),
        FakeKind("shell", ShellInputs, "command"),
        FakeKind("call", CallInputs, "url"),
        FakeKind("timeout", NoopInputs),  # It has the name of a field of a step and requires the full form.
    )
}


def load_text(text: str | bytes, name: str = "test.yaml") -> LoadedPlan:
    return load_plan(text, name=name, tools=KINDS)


def problems_of(text: str | bytes, name: str = "test.yaml") -> list[str]:
    """Return the problems of a plan, as they are printed."""
    try:
        load_text(text, name)
    except PlanInvalid as invalid:
        return [str(problem) for problem in invalid.problems]
    return []


def with_step(step: str) -> str:
    """Return a plan whose second step has these lines; they begin on line 4."""
    lines = "\n".join(f"    {line}" for line in step.strip("\n").split("\n"))
    return f"plan: p\nsteps:\n  - {{id: first, noop: }}\n  -\n{lines}\n"
