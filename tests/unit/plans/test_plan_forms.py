"""All forms of a plan load as the same plan: short or full, YAML or JSON, file or data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import (
    Backoff,
    ExecutionPlan,
    Foreach,
    OnFailure,
    Order,
    Retry,
    StepClass,
    content_hash,
    plan_body,
    plan_version,
)
from runwright.plans.loader import load_plan_file, plan_from_dict
from runwright.plans.problems import PlanInvalid
from runwright.tools.registry import builtin_tools
from support.plan_kinds import KINDS, load_text, problems_of

SHORT = """
plan: orders
version: "3"
description: Every night
labels: {team: shop}
requiresCapabilities: [retry]
params: {day: "2026-01-01"}
order: graph
onFailure: wait
timeout: 1h30m
steps:
  - id: extract
    shell: "echo {{ params.day | quote }}"
    retry: {maxAttempts: 3, backoff: fixed, initial: 500ms, max: 1m, jitter: false}
    timeout: 30
  - id: load
    dependsOn: [extract]
    when: "{{ steps.extract.result.ok }}"
    foreach: {in: "{{ steps.extract.result.rows }}", as: row, maxParallel: 4}
    call: {url: "http://x/{{ row.id }}/{{ index }}", maxSize: "{{ row.size }}"}
    class: heavy
    cancellable: false
    secretRefs: [TOKEN]
    dispatch: {queue: big}
    fallback: skip
  - id: rest
    dependsOn: extract
    noop:
"""

FULL = """
apiVersion: runwright/v1
kind: Plan
metadata:
  planId: orders
  planVersion: "3"
  description: Every night
  labels: {team: shop}
  requiresCapabilities: [retry]
params: {day: "2026-01-01"}
order: graph
onFailure: wait
timeout: 5400
steps:
  - stepId: extract
    kind: shell
    with: {command: "echo {{ params.day | quote }}"}
    dependsOn: []
    retry: {maxAttempts: 3, backoff: fixed, initial: 0.5, max: 60s, jitter: false}
    timeout: 30s
    class: light
    cancellable: true
    needsApproval: false
  - stepId: load
    kind: call
    with: {url: "http://x/{{ row.id }}/{{ index }}", maxSize: "{{ row.size }}"}
    dependsOn: [extract]
    when: "{{ steps.extract.result.ok }}"
    foreach: {in: "{{ steps.extract.result.rows }}", as: row, maxParallel: 4}
    class: heavy
    cancellable: false
    secretRefs: [TOKEN]
    dispatch: {queue: big}
    fallback: skip
  - stepId: rest
    kind: noop
    with: {}
    dependsOn: [extract]
    retry: {maxAttempts: 1, initial: 1s, max: 60s}
    when: null
"""


def test_every_field_of_a_plan_is_read() -> None:
    plan = load_text(SHORT).plan
    assert (plan.plan_id, plan_version(plan), plan.metadata.description) == ("orders", "3", "Every night")
    assert plan.metadata.labels == {"team": "shop"}
    assert plan.metadata.requires_capabilities == ("retry",)
    assert plan.params == {"day": "2026-01-01"}
    assert (plan.order, plan.on_failure, plan.timeout) == (Order.GRAPH, OnFailure.WAIT, 5400.0)
    extract, load, rest = plan.steps
    assert (extract.step_id, extract.kind, extract.inputs) == (
        "extract",
        "shell",
        {"command": "echo {{ params.day | quote }}"},
    )
    assert extract.retry == Retry(3, Backoff.FIXED, 0.5, 60.0, False)
    assert extract.timeout == 30.0
    assert load.depends_on == rest.depends_on == ("extract",)
    assert load.when == "{{ steps.extract.result.ok }}"
    assert load.foreach == Foreach("{{ steps.extract.result.rows }}", "row", 4)
    assert (load.step_class, load.cancellable, load.secret_refs) == (StepClass.HEAVY, False, ("TOKEN",))
    assert (load.dispatch, load.fallback) == ({"queue": "big"}, "skip")
    assert (rest.kind, rest.inputs, rest.retry) == ("noop", {}, Retry())


def test_the_short_and_the_full_form_have_the_same_hash() -> None:
    assert plan_body(load_text(SHORT).plan) == plan_body(load_text(FULL).plan)


def test_canonical_bytes_load_as_the_same_plan() -> None:
    body = plan_body(load_text(SHORT).plan)
    assert plan_body(load_text(body).plan) == body


def test_explicit_defaults_do_not_change_the_hash() -> None:
    plain = "plan: p\nsteps: [{id: a, foreach: [1], noop: {}}]"
    wordy = """
        plan: p
        params: {}
        labels: {}
        order: sequential
        onFailure: fail
        steps:
          - {id: a, noop: {}, foreach: {in: [1], as: item, maxParallel: 16}, retry: {max: 60, initial: 1.0}, class: light}
    """
    assert plan_body(load_text(plain).plan) == plan_body(load_text(wordy).plan)


def test_the_smallest_plan_is_sequential_with_a_hash_version() -> None:
    plan = load_text('plan: hello\nsteps:\n  - {id: greet, shell: "echo hello"}\n').plan
    assert plan.order is Order.SEQUENTIAL
    assert plan_version(plan) == content_hash(plan_body(plan))


def test_a_kind_named_like_a_field_works_in_the_full_form() -> None:
    step = load_text("plan: p\nsteps: [{id: a, kind: timeout, timeout: 5s}]").plan.steps[0]
    assert (step.kind, step.timeout) == ("timeout", 5.0)


@pytest.mark.parametrize(
    ("step", "inputs"),
    [
        ("shell: echo", {"command": "echo"}),
        ("shell: [echo, a]", {"command": ["echo", "a"]}),
        ("shell: {command: echo, cwd: /tmp}", {"command": "echo", "cwd": "/tmp"}),
        ("kind: shell, with: echo", {"command": "echo"}),
        ("noop: ", {}),
        ("kind: noop", {}),
    ],
)
def test_a_value_that_is_no_mapping_sets_the_main_input(step: str, inputs: dict[str, Any]) -> None:
    assert load_text(f"plan: p\nsteps: [{{id: a, {step}}}]").plan.steps[0].inputs == inputs


def test_json_gives_the_same_plan() -> None:
    data = json.loads(msgspec.json.encode(load_text(FULL).plan))
    for text in (json.dumps(data), json.dumps(data, indent="\t"), "\ufeff" + json.dumps(data, indent=2)):
        assert plan_body(load_text(text, "plan.json").plan) == plan_body(load_text(FULL).plan)


def test_json_escapes_unknown_to_yaml_are_read() -> None:
    text = '{"plan": "p", "description": "\\/ \\ud83d\\ude00", "steps": [{"id": "a", "noop": {}}]}'
    assert load_text(text).plan.metadata.description == "/ 😀"


def test_data_gives_the_same_plan_and_is_copied() -> None:
    data: dict[str, Any] = {"plan": "p", "params": {"list": [1]}, "steps": [{"id": "a", "noop": {}}]}
    plan = plan_from_dict(data, KINDS).plan
    data["params"]["list"].append(2)
    assert plan.params == {"list": [1]}
    assert plan_body(plan) == plan_body(load_text("plan: p\nparams: {list: [1]}\nsteps: [{id: a, noop: {}}]").plan)


def test_problems_of_data_name_the_path_of_the_field() -> None:
    data = {
        "plan": "p",
        "steps": [{"id": "a", "noop": {}}, {"id": "b", "noop": {}, "retry": {"maxAttempts": 0}, "when": 3}],
    }
    with pytest.raises(PlanInvalid) as invalid:
        plan_from_dict(data, KINDS, name="flow")
    assert sorted(str(problem) for problem in invalid.value.problems) == [
        "flow:steps[1].retry.maxAttempts: INVALID_STEP_SCHEMA `maxAttempts` must be an integer from 1 to 1,000.",
        "flow:steps[1].when: INVALID_STEP_SCHEMA `when` must be an expression, true or false.",
    ]


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes", "\0", "\ud800", object(), {1: 2}])
def test_data_that_json_cannot_represent_is_refused(value: Any) -> None:
    with pytest.raises(PlanInvalid) as invalid:
        plan_from_dict({"plan": "p", "steps": [{"id": "a", "noop": {"result": [value]}}]}, KINDS)
    assert invalid.value.problems[0].path.startswith("steps[0].noop.result[0]")


def test_data_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    with pytest.raises(PlanInvalid, match="levels deep"):
        plan_from_dict({"plan": "p", "steps": [{"id": "a", "noop": {"result": loop}}]}, KINDS)


def test_a_file_is_read_and_named_in_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("plan: p\nsteps: [{id: a, noop: {}}]\n")
    assert isinstance(load_plan_file(path, KINDS).plan, ExecutionPlan)
    path.write_text("plan: p\nsteps: [{id: a, nop: {}}]\n")
    with pytest.raises(PlanInvalid) as invalid:
        load_plan_file(path, KINDS)
    assert str(invalid.value.problems[0]).startswith(f"{path}:2:17: INVALID_STEP_SCHEMA ")


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_an_unreadable_file_is_reported_as_plan_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunwrightError) as refused:
        load_plan_file(tmp_path / name, KINDS)
    assert refused.value.code is ErrorCode.PLAN_NOT_FOUND


def test_expressions_and_secrets_are_accepted_for_any_type() -> None:
    text = """
        plan: p
        params: {n: 1}
        steps:
          - id: a
            call:
              url: {secret: URL}
              maxSize: "{{ params.n }}"
              login: {userName: {secret: USER}, tries: "{{ params.n }}"}
              headers: {A: ["{{ params.n }}", {secret: B}, plain], B: "{{ params.n }}"}
          - {id: b, shell: {command: ["{{ params.n }}", x], env: "{{ params.n }}"}}
    """
    assert problems_of(text) == []


def test_builtin_tools_can_be_used_as_kinds_of_step() -> None:
    text = """
        plan: p
        steps:
          - {id: a, shell: "echo hello"}
          - {id: b, python: {code: "a + 1", args: {a: "{{ steps.a.result.exitCode }}"}}}
          - {id: c, wait: 30s}
          - {id: d, noop: }
    """
    from runwright.plans.loader import load_plan

    assert [step.kind for step in load_plan(text, tools=builtin_tools()).plan.steps] == [
        "shell",
        "python",
        "wait",
        "noop",
    ]
    with pytest.raises(PlanInvalid) as invalid:
        load_plan("plan: p\nsteps: [{id: a, wait: soon}]", tools=builtin_tools())
    assert invalid.value.problems[0].code == "INVALID_STEP_SCHEMA"
