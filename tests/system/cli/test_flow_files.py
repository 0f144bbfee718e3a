"""Plans in Python from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import Shell

FLOW = """
import runwright as rw


@rw.step
def greet(name: str) -> str:
    print(f"hello {name}")
    return name.upper()


@rw.plan
def hello(name: str, times: int = 1):
    return greet.map([name, f"{name}!"])
"""
TWO = (
    FLOW
    + """

@rw.plan
def other():
    greet("x")
"""
)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def write(shell: Shell, text: str, name: str = "flow.py") -> None:
    (shell.folder / name).write_text(text)


def test_a_flow_runs_and_its_yaml_is_the_same_plan(shell: Shell) -> None:
    write(shell, FLOW)
    assert "COMPLETED  hello" in shell("run", "flow.py", "--param", "name=ada", "--param", "times=2")
    assert "hello ada!" in shell("logs", "@last")
    write(shell, shell("plan", "show", "flow.py"), "flow.yaml")
    assert shell("plan", "hash", "flow.yaml") == shell("plan", "hash", "flow.py")
    shell("run", "flow.yaml", "--param", "name=bob")


def test_file_with_several_plans_requires_a_plan_name(shell: Shell) -> None:
    write(shell, TWO)
    shell("run", "flow.py", exits=2)
    assert "PLAN_NOT_FOUND" in shell.stderr
    assert "hello, other" in shell.stderr
    shell("run", "flow.py:oter", exits=2)
    assert "Did you mean 'other'?" in shell.stderr
    assert "COMPLETED  other" in shell("run", "flow.py:other")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(:\n", "flow.py:1:7: INVALID_PLAN_SCHEMA Python syntax error"),
        ("import runwright as rw\nimport nosuch_module\n", "flow.py:2:1: INVALID_PLAN_SCHEMA ModuleNotFoundError"),
        (
            FLOW.replace("return greet.map", "if greet(name): pass\n    return greet.map"),
            "flow.py:13:1: PLAN_NEEDS_VALUE",
        ),
        (FLOW.replace('f"{name}!"]', "1], nmae=2"), "flow.py:13:1: INVALID_STEP_SCHEMA"),
        ("x = 1\n", "PLAN_NOT_FOUND"),
    ],
)
def test_errors_in_a_flow_file_are_reported_with_a_code(shell: Shell, text: str, expected: str) -> None:
    write(shell, text)
    shell("run", "flow.py", "--param", "name=x", exits=2)
    assert expected in shell.stderr


def test_missing_and_mistyped_parameters_are_refused(shell: Shell) -> None:
    write(shell, FLOW)
    shell("run", "flow.py", exits=2)
    assert "needs name (a string)" in shell.stderr
    shell("run", "flow.py", "--param", "name=x", "--param", "times=often", exits=2)
    assert "times must be an integer" in shell.stderr


def test_flow_file_named_like_another_module_is_refused(shell: Shell) -> None:
    (shell.folder / "flows").mkdir()
    write(shell, FLOW, "flows/json.py")
    shell("run", "flows/json.py", "--param", "name=x", exits=2)
    assert "Rename the file" in shell.stderr


def test_mock_runtime_completes_a_plan_without_executing_it(shell: Shell) -> None:
    write(shell, "plan: p\nsteps:\n  - {id: a, shell: 'touch was-here; exit 1'}\n  - {id: b, noop: {}}\n", "plan.yaml")
    assert "COMPLETED  p" in shell("run", "plan.yaml", "--runtime", "mock", "--run-id", "played")
    assert not (shell.folder / "was-here").exists()
    assert '"engineType":"mock"' in shell("events", "played", "--json")
