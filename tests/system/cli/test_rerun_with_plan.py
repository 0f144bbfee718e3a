"""Reruns with a corrected plan: unchanged steps are kept, the others run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.commands import Shell

PLAN = """
plan: orders
params: {day: monday, table: orders}
steps:
  - {id: extract, shell: "echo extract >> ran; echo '{\\"rows\\": 3}'"}
  - {id: load, shell: "echo load >> ran; COMMAND"}
  - {id: report, shell: "echo report {{ params.day | quote }} >> ran"}
"""
GRAPH = """
plan: wide
params: {day: monday, size: 1}
order: graph
steps:
  - {id: a, shell: "echo a >> ran"}
  - {id: b, shell: "echo b {{ params.day | quote }} >> ran"}
  - {id: c, dependsOn: [a], shell: "echo c >> ran"}
  - {id: d, dependsOn: [b, c], shell: "false"}
"""


def write(folder: Path, text: str) -> None:
    (folder / "plan.yaml").write_text(text)


def ran(folder: Path) -> list[str]:
    file = folder / "ran"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def queued(runwright: Shell, run: str) -> dict[str, Any]:
    return json.loads(runwright("events", run, "--json").splitlines()[0])["payload"]


def test_a_failed_run_continues_with_the_corrected_plan(runwright: Shell, tmp_path: Path) -> None:
    write(tmp_path, PLAN.replace("COMMAND", "echoo hi"))
    runwright("run", "plan.yaml", "--run-id", "first", exits=1)
    assert ran(tmp_path) == ["extract", "load"]
    write(tmp_path, PLAN.replace("COMMAND", "echo hi"))
    refused = runwright("run", "plan.yaml", "--run-id", "first", exits=2) + runwright.stderr
    assert "runwright rerun first --plan FILE" in " ".join(refused.split())
    checked = runwright("plan", "check", "plan.yaml", "--run", "first")
    assert [line.split(None, 2) for line in checked.splitlines()[:3]] == [
        ["keep", "extract"],
        ["run", "load", "its definition changed"],
        ["run", "report", "a step before it runs again"],
    ]
    runwright("rerun", "first", "--plan", "plan.yaml", "--run-id", "second")
    assert ran(tmp_path) == ["load", "report monday"]
    payload = queued(runwright, "second")
    first = json.loads(runwright("show", "first", "--json"))
    assert (payload["originRunId"], payload["originPlanVersion"]) == ("first", first["planVersion"])
    assert payload["carriedOver"] == 1
    second = json.loads(runwright("show", "second", "--json"))
    assert second["status"] == "COMPLETED"
    assert second["planVersion"] != first["planVersion"]
    assert json.loads(runwright("results", "get", "second", "extract")) == {"rows": 3}


@pytest.mark.parametrize(
    ("before", "after", "options", "expected"),
    [
        ('"false"', '"true"', [], []),  # only d runs, which prints nothing
        ('"echo a >> ran"', '"echo A >> ran"', [], ["A", "c"]),
        ("{id: c, dependsOn: [a]", "{id: c, dependsOn: [a], retry: {maxAttempts: 3}", [], []),
        ("day: monday", "day: tuesday", [], ["b tuesday"]),
        ("size: 1", "size: 2", [], []),
        ("order: graph", "order: graph", ["--param", "day=friday"], ["b friday"]),
        ("steps:", "steps:\n  - {id: new, shell: 'echo new >> ran'}", [], ["new"]),
        ("{id: c, dependsOn: [a]", "{id: x, shell: 'echo x >> ran'}\n  - {id: c, dependsOn: [a, x]", [], ["c", "x"]),
    ],
)
def test_only_changed_steps_and_those_after_them_run(
    runwright: Shell, tmp_path: Path, before: str, after: str, options: list[str], expected: list[str]
) -> None:
    write(tmp_path, GRAPH)
    runwright("run", "plan.yaml", "--run-id", "first", exits=1)
    ran(tmp_path)
    write(tmp_path, GRAPH.replace(before, after).replace("false", "true"))
    preview = json.loads(runwright("plan", "check", "plan.yaml", "--run", "first", *options, "--json"))["steps"]
    runwright("rerun", "first", "--plan", "plan.yaml", "--run-id", "second", *options)
    assert sorted(ran(tmp_path)) == expected
    kept = {step["stepId"] for step in preview if step["carriedOver"]}
    steps = json.loads(runwright("show", "second", "--json"))["steps"]
    assert kept == {step["stepId"] for step in steps if step.get("reasonCode") == "CARRIED_OVER"}


FLOW = """
import runwright as rw

@rw.step
def one() -> int:
    return 1

@rw.step
def two(n: int) -> int:
    BODY

@rw.plan
def flow():
    return two(one())
"""


def test_changed_code_of_a_python_step_runs_again(runwright: Shell, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW.replace("BODY", "return n + 1"))
    runwright.check(runwright.process("run", "flow.py", "--run-id", "first"))
    (tmp_path / "flow.py").write_text(FLOW.replace("BODY", "return n + 41"))
    runwright.check(runwright.process("rerun", "first", "--plan", "flow.py", "--run-id", "second"))
    assert runwright("results", "get", "second").strip() == "42"
    assert queued(runwright, "second")["carriedOver"] == 1


def test_an_invalid_plan_or_parameter_starts_nothing(runwright: Shell, tmp_path: Path) -> None:
    write(tmp_path, GRAPH)
    runwright("run", "plan.yaml", "--run-id", "first", exits=1)
    runwright("rerun", "first", "--plan", "plan.yaml", "--param", "dya=x", exits=2)
    write(tmp_path, GRAPH.replace("dependsOn: [a]", "dependsOn: [zz]"))
    runwright("rerun", "first", "--plan", "plan.yaml", exits=2)
    assert len(json.loads("[" + ",".join(runwright("list", "--json").splitlines()) + "]")) == 1
