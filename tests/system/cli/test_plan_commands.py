"""`runwright plan` and `runwright init`: check and show plans before a run."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.commands import Project

WRONG = """\
plan: wrong
stepz: []
steps:
  - {id: a, shel: "echo a"}
  - {id: a, shell: "echo b"}
  - {id: c, shell: "echo {{ steps.nope.result | quote }}", dependsOn: [zz]}
  - {id: d, wait: 3 parsecs}
"""
FORK = """\
plan: fork
order: graph
steps:
  - {id: a, shell: "echo a"}
  - {id: b, dependsOn: [a], noop: {}}
  - {id: c, dependsOn: [a], noop: {}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_every_plan_error_is_reported_with_its_line(project: Project) -> None:
    lines = project("plan", "validate", project.plan(WRONG), exits=2).splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "4", "5", "6", "6", "7"]
    assert all(line.split(" ")[1].isupper() for line in lines)
    assert "Did you mean 'shell'?" in lines[1]
    report = json.loads(project("plan", "validate", "plan.yaml", "--json", exits=2))
    assert (report["status"], len(report["errors"])) == ("ERRORS", 6)
    assert (report["errors"][1]["line"], report["errors"][1]["code"]) == (4, "INVALID_STEP_SCHEMA")
    for command in ("show", "hash", "graph"):
        project("plan", command, "plan.yaml", exits=2)
        assert len(project.stderr.splitlines()) == 6
    assert [path.name for path in project.folder.iterdir()] == ["plan.yaml"]


def test_warnings_alone_are_no_failure(project: Project) -> None:
    project.plan(
        "plan: p\nsteps:\n  - {id: a, noop: {}}\n  - {id: b, noop: {}}\n  - {id: c, dependsOn: [a], noop: {}}\n"
    )
    lines = project("plan", "validate", "plan.yaml").splitlines()
    assert " WARNING " in lines[0]
    assert lines[-1].startswith("ok  p: 3 steps, graph, ")
    assert json.loads(project("plan", "validate", "plan.yaml", "--json"))["status"] == "WARNINGS"


def test_a_plan_is_shown_hashed_and_drawn(project: Project) -> None:
    plan = project.plan(FORK)
    digest = project("plan", "hash", plan).strip()
    assert json.loads(project("plan", "hash", plan, "--json"))["sha256"] == digest
    (project.folder / "again.yaml").write_text(project("plan", "show", plan))
    assert project("plan", "hash", "again.yaml").strip() == digest
    assert [step["stepId"] for step in json.loads(project("plan", "show", plan, "--json"))["steps"]] == ["a", "b", "c"]
    assert all(name in project("plan", "graph", plan) for name in ("a", "b", "c"))
    project("plan", "graph", plan, "--svg", "-o", "g.svg")
    assert ElementTree.parse(project.folder / "g.svg").getroot().tag.endswith("svg")
    project("plan", "graph", plan, "-o", "nowhere/g.txt", exits=2)


def test_init_writes_a_plan_and_overwrites_nothing(project: Project) -> None:
    output = project("init")
    made = sorted(path.name for path in project.folder.iterdir())
    assert "runwright.toml" in made
    plan = next(name for name in made if name.endswith(".yaml"))
    assert f"runwright run {plan}" in output
    (project.folder / plan).write_text("plan: mine\nsteps:\n  - {id: own, noop: {}}\n")
    assert "exists, not changed" in project("init")
    assert (project.folder / plan).read_text().startswith("plan: mine")
    assert "COMPLETED  mine" in project("run", plan)


def test_playbook_graph_has_arcs_and_parameters_are_parsed(project: Project) -> None:
    text = """
apiVersion: noetl.io/v10
kind: Playbook
metadata: {name: p}
workload: {rows: "{{ range(3) | list }}", name: Ada}
workflow:
- step: a
  loop: {in: "{{ rows }}", iterator: x}
  tool: {kind: noop, result: "{{ iter.x }}"}
  next: {arcs: [{step: b, when: "{{ rows }}"}]}
- step: b
  tool: {kind: noop, result: "{{ [a, name] }}"}
"""
    plan = project.plan(text)
    assert json.loads(project("plan", "graph", plan, "--json"))["steps"] == [
        {"stepId": "a", "next": [{"step": "b", "when": "{{ rows }}"}]},
        {"stepId": "b", "next": []},
    ]
    project("run", plan, "--run-id", "r", "--param", "rows=[7,8]", "--param", "name=5")
    assert json.loads(project("results", "get", "r")) == [[7, 8], "5"]
    project("logs", "r", "a[0]/other", exits=2)
    assert project.stderr.startswith("STEP_NOT_FOUND Task 'other' not found in step 'a'. Its tasks: a.")
