"""Playbooks are read in both syntax versions, and problems are reported with their line."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runwright.contract import playbook as parts_of_playbooks
from runwright.contract.plan import ExecutionPlan, plan_body, read_plan
from runwright.contract.plan_struct import PlanStruct, make_canonical
from runwright.contract.playbook import ArcMode, Join, PolicyAction
from runwright.plans.drawing.text import graph_svg, graph_text
from runwright.plans.loader import load_plan, plan_from_dict
from runwright.plans.problems import PlanInvalid
from runwright.plans.registry import make_plan_ref
from runwright.plans.writer import plan_yaml
from runwright.tools.registry import all_tools
from support.playbooks import arcs_to, noop, otherwise, playbook, python_task, rules, when


def read(document: dict[str, Any]) -> ExecutionPlan:
    return plan_from_dict(document, all_tools()).plan


def problems_in(document: dict[str, Any]) -> list[str]:
    with pytest.raises(PlanInvalid) as caught:
        read(document)
    return [f"{problem.path}: {problem.sentence}" for problem in caught.value.problems]


def test_both_syntax_versions_give_the_same_plan() -> None:
    earlier = playbook(
        {
            "step": "a",
            "tool": [
                {
                    "fetch": {
                        "kind": "http",
                        "endpoint": "https://example.org/x",
                        "args": {"page": 1},
                        "spec": rules(
                            when("outcome.status == 'error'", "fail"),
                            otherwise("continue", set_ctx={"n": 1}, set_iter={"m": 2}),
                        ),
                    }
                }
            ],
            "next": {"arcs": [{"step": "b", "args": {"x": 1}}]},
        },
        {"step": "b", "tool": noop()},
    )
    later = playbook(
        {
            "step": "a",
            "tool": [
                {
                    "name": "fetch",
                    "kind": "http",
                    "url": "https://example.org/x",
                    "input": {"page": 1},
                    "spec": rules(
                        when("outcome.status == 'error'", "fail"), otherwise("continue", set={"ctx.n": 1, "iter.m": 2})
                    ),
                }
            ],
            "next": {"arcs": [{"step": "b", "set": {"x": 1}}]},
        },
        {"step": "b", "tool": noop()},
    )
    assert plan_body(read(earlier)) == plan_body(read(later))


def test_a_playbook_is_read_as_a_plan_with_routes() -> None:
    plan = read(
        playbook(
            {"step": "a", "tool": noop(), "next": arcs_to("b", "c", mode="inclusive"), "join": "any"},
            {"step": "b", "tool": noop(), "loop": {"in": "{{ xs }}", "iterator": "x"}},
            {"step": "c", "tool": {"name": "one", **noop()}},
            workload={"xs": [1]},
            executor={"spec": {"entry_step": "a", "final_step": "c", "no_next_is_error": True}},
        )
    )
    assert read_plan(plan_body(plan)) == plan
    assert plan.params == {"xs": [1]}
    first = plan.steps[0].route
    assert first is not None
    assert (first.mode, first.join, [arc.step for arc in first.arcs]) == (ArcMode.INCLUSIVE, Join.ANY, ["b", "c"])
    assert plan.playbook is not None
    assert (plan.playbook.entry, plan.playbook.final_step, plan.playbook.no_next_is_error) == ("a", "c", True)


def test_set_of_a_task_becomes_a_continue_rule() -> None:
    plan = read(playbook({"step": "a", "tool": {**noop(), "set": {"ctx.x": "{{ output.data }}", "y": 1}}}))
    assert plan.steps[0].route is not None
    task_rules = plan.steps[0].route.tasks[0].rules
    assert task_rules is not None
    assert [(rule.do, rule.set_ctx, rule.set_iter) for rule in task_rules] == [
        (PolicyAction.FAIL, {}, {}),
        (PolicyAction.CONTINUE, {"x": "{{ output.data }}"}, {"y": 1}),
    ]


def test_an_iterator_name_in_use_gives_a_warning() -> None:
    loop = {"in": [1], "iterator": "num"}
    for more in ({"workload": {"num": 1}}, {}):
        other = {"step": "other" if more else "num", "tool": noop()}
        document = playbook({"step": "a", "loop": loop, "tool": noop(), "next": arcs_to(other["step"])}, other, **more)
        (warning,) = plan_from_dict(document, all_tools()).warnings
        assert "Write `iter.num`" in str(warning)


def test_an_http_timeout_above_the_default_sets_idle_timeout() -> None:
    for timeout, idle in ((30, None), ({"connect": "1m", "read": 60}, 120.0), ("2m", 120.0)):
        tool = {"kind": "http", "url": "http://h/", "spec": {"timeout": timeout}}
        plan = read(playbook({"step": "a", "tool": tool}))
        assert plan.steps[0].route is not None
        assert plan.steps[0].route.tasks[0].inputs.get("idleTimeout") == idle


def test_workbook_tasks_are_expanded_where_they_are_used() -> None:
    for workbook in (
        [{"name": "add", "tool": {"kind": "python", "code": "result = x + y", "args": {"x": 1, "y": 1}}}],
        {"add": {"tool": {"kind": "python", "code": "result = x + y", "args": {"x": 1, "y": 1}}}},
    ):
        tool = {"kind": "workbook", "name": "add", "args": {"y": 2}}
        plan = read(playbook({"step": "a", "tool": tool}, workbook=workbook))
        assert plan.steps[0].route is not None
        task = plan.steps[0].route.tasks[0]
        assert (task.label, task.kind, task.inputs["args"]) == ("a", "noetl.python", {"x": 1, "y": 2})


STEP = {"step": "a", "tool": noop()}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (playbook(STEP, workload={"a": "{{ env.HOME }}"}), "Unknown name 'env'"),
    (playbook({"step": "a", "tool": {"kind": "python", "script": {"uri": "x"}}}), "`script` is no longer supported"),
    (playbook(STEP, metadata={"name": "a|b"}), "`name` must not contain |"),
    (playbook(STEP, workload={"a": "{{ 1 + }}"}), 'In "{{ 1 + }}"'),
    (playbook(STEP, ctx={"a": "{{ 1 + }}"}), 'In "{{ 1 + }}"'),
    (playbook({"step": "a", "tool": {**noop(), "spec": {"timeout": {"read": -5}}}}), "A duration must be between 0"),
    (playbook({"step": "a", "tool": {**noop(), "spec": {"timeout": {"read": 0}}}}), "`read` must be longer than 0"),
    (playbook({"step": "a", "tool": {**noop(), "spec": {"timeout": {"read": "soon"}}}}), "A duration must be a number"),
    (playbook({"step": "a", "tool": {**noop(), "set": {"args": 1}}}), "The name 'args' is reserved"),
    (
        playbook({"step": "a", "tool": {**noop(), "spec": rules(otherwise("continue", set_iter={"ctx": 1}))}}),
        "The name 'ctx' is reserved",
    ),
    (playbook(STEP, {"step": "a", "tool": noop()}), "Duplicate step 'a'"),
    (
        playbook({"step": "abc", "tool": noop(), "next": arcs_to("abd")}),
        "Unknown step 'abd' in an arc. Did you mean 'abc'?",
    ),
    (playbook({**STEP, "loop": {"iterator": "x"}}), "A loop must have `in`"),
    (playbook({**STEP, "loop": {"in": [1]}}), "A loop must have an `iterator`"),
    (playbook({"step": "a", "tool": {"kind": "htpt"}}), "Unknown kind 'htpt'. Did you mean 'http'?"),
    (playbook({"step": "a", "tool": {"kind": "snowflake"}}), "Unknown kind 'snowflake'"),
    (playbook({**STEP, "when": "{{ x }}"}), "A step has no `when`"),
    (playbook({**STEP, "case": []}), "`case` is no longer supported"),
    (playbook({**STEP, "output": {}}), "`spec.result` of its task"),
    (
        playbook(STEP, executor={"spec": {"policy": {"defaults": {"timeout": 3}}}}),
        "Unknown field 'timeout' in `defaults`",
    ),
    (playbook(STEP, executor={"spec": {"policy": {"defaults": {"timeout_s": 0}}}}), "must be longer than 0"),
    (
        playbook(STEP, executor={"spec": {"policy": {"retry": {}}}}),
        "Unknown field 'retry' in the policy of the executor",
    ),
    (playbook({"step": "a", "tool": {**python_task("1"), "libs": {"d": {"from": "datetime"}}}}), "libs"),
    (playbook({**STEP, "retry": {}}), "`retry` is no longer supported"),
    (playbook({**STEP, "sink": {}}), "`sink` is no longer supported"),
    (playbook({**STEP, "expr": "x"}), "`expr` is no longer supported"),
    (playbook({**STEP, "eval": "x"}), "`eval` is no longer supported"),
    (playbook({"step": "a", "tool": {**noop(), "spec": {"policy": [1]}}}), "A policy must be a mapping with `rules`"),
    (
        playbook({"step": "a", "tool": {**noop(), "spec": {"policy": {"rules": [{"when": "{{ x }}", "then": {}}]}}}}),
        "A rule must have an action",
    ),
    (
        playbook({"step": "a", "tool": {**noop(), "spec": rules(otherwise("jump", to="b"))}}),
        "Unknown task 'b' in this pipeline",
    ),
    (playbook({"step": "a", "tool": [{"x": noop()}, {"x": noop()}]}), "Duplicate task 'x' in this pipeline"),
    (
        playbook({"step": "a", "tool": {**noop(), "spec": rules(otherwise("explode"))}}),
        "`do` must be one of continue, retry, jump, break, fail",
    ),
    (playbook({"step": "a", "tool": {**noop(), "retry": 3}}), "`retry` is no longer supported"),
    (playbook(STEP, vars={"x": 1}), "`vars` is no longer supported"),
    (playbook(STEP, surprise=1), "Unknown field 'surprise' in a playbook"),
    (playbook({"step": "a"}), "A step must have a `tool`, a `next`, or both"),
    (playbook({"step": "a/b", "tool": noop()}), "Invalid name 'a/b': it contains /"),
    (playbook({"step": "ctx", "tool": noop()}), "The name 'ctx' is reserved in expressions"),
    (playbook(STEP, workload={"args": 1}), "The name 'args' is reserved in expressions"),
    (playbook({"step": "a", "tool": noop("{{ 1 + }}")}), "EXPRESSION_ERROR"),
    (playbook({"step": "a", "tool": {"kind": "workbook", "name": "x"}}), "Unknown task 'x' of the workbook"),
    (
        playbook({"step": "a", "tool": {"kind": "workbook", "name": "x", "arg": {}}}, workbook={"x": noop()}),
        "Unknown field 'arg' in a task of kind workbook. Did you mean 'args'?",
    ),
    (
        playbook(
            {"step": "a", "tool": {"kind": "workbook", "name": "x"}},
            workbook={
                "x": {"tool": [{"kind": "workbook", "name": "y"}]},
                "y": {"tool": [{"kind": "workbook", "name": "x"}]},
            },
        ),
        "Dependency cycle in the workbook: x -> y -> x.",
    ),
    (
        playbook(
            {"step": "a", "tool": {"kind": "workbook", "name": "x"}},
            workbook=[{"name": "x", "tool": [noop()], "arcs": []}],
        ),
        "Unknown field 'arcs' in a task of the workbook",
    ),
    (
        playbook(
            {"step": "a", "tool": {"kind": "workbook", "name": "x"}},
            workbook={"x": {"tool": noop(), "loop": {"in": []}}},
        ),
        "A loop must have an `iterator`",
    ),
    (
        playbook({"step": "a", "tool": {"kind": "workbook", "name": "x"}}, workbook={"x": {"tool": {"kind": "htp"}}}),
        "Unknown kind 'htp'. Did you mean 'http'?",
    ),
    (
        playbook({"step": "a", "tool": {**noop(), "spec": rules(otherwise("continue"), when("true", "fail"))}}),
        "`else`, or a rule without `when`, must be the last rule",
    ),
    (
        playbook({"step": "a", "tool": noop(), "next": arcs_to("a")}, executor={"spec": {"final_step": "a"}}),
        "The final step 'a' must not have a `next`",
    ),
    (
        playbook({"step": "a", "tool": {**noop(), "spec": rules(when("true", None), otherwise("continue"))}}),
        "A rule must have an action",
    ),
    (
        playbook({"step": "a", "tool": {**noop(), "spec": rules({"then": {"do": "fail"}}, otherwise("continue"))}}),
        "`else`, or a rule without `when`, must be the last rule",
    ),
    (
        playbook(
            {
                **STEP,
                "spec": {
                    "policy": {
                        "admit": {
                            "rules": [{"else": {"then": {"allow": False}}}, {"when": "true", "then": {"allow": True}}]
                        }
                    }
                },
            }
        ),
        "`else`, or a rule without `when`, must be the last rule",
    ),
    (playbook(STEP, executor={"final_step": "a"}), "Unknown field 'final_step' in the executor"),
    (playbook({**STEP, "spec": {"dispatch": {"queue": "{{ q }}"}}}), "the queue must be known before the run starts"),
    (playbook(STEP, workload={"a": [{"secret": "TOKEN"}]}), "are not resolved. Refer to the secret where it is used"),
    (playbook(STEP, workload={"api_password": "hunter2"}), "refer to it where it is used: {secret: NAME}"),
    (playbook(STEP, workbook={"x": {"kind": "nonsense"}}), "Unknown kind 'nonsense'"),
    (
        playbook(STEP, workbook={"x": {"tool": [noop(), {"kind": "noop", "retry": 3}]}}),
        "`retry` is no longer supported",
    ),
    (
        playbook({"step": "a", "tool": noop(), "next": {"arcs": [{"step": "a", "set": {"foo.x": 1}}]}}),
        "An arc cannot set 'foo.x'. Set `ctx.name` or an argument.",
    ),
    (playbook({"step": "a", "tool": {**noop(), "set": {"ctx.a.b": 1}}}), "Write ctx.a, with a mapping"),
    (playbook({"step": "a", "tool": [{**noop(), "name": 5}, noop()]}), "`name` must be a string; put it in quotes."),
    (playbook(STEP, kind="Credential"), "`kind` of a playbook must be `Playbook`."),
    (
        playbook({**STEP, "spec": {"policy": {"lifecycle": {"timeout": 3}}}}),
        "Unknown field 'timeout' in `lifecycle`",
    ),
    (playbook({**STEP, "spec": {"policy": {"failure": {"mod": "best_effort"}}}}), "Unknown field 'mod' in `failure`"),
    (
        playbook({"step": "a", "tool": noop(), "next": {"arcs": [{"step": "a", "set": {"iter.x": 1}}]}}),
        "An arc cannot set 'iter.x' of an iteration",
    ),
    (playbook({"step": "a", "tool": noop()}, workbook=["x"]), "A task of the workbook must have a name and a tool."),
    (playbook({"step": "a", "tool": {"kind": "python", "code": "def"}}), "Python syntax error"),
    (playbook({"step": "a", "tool": {"kind": "python", "code": "return 1"}}), "Set `result` instead."),
    (
        playbook({"step": "a", "tool": {"kind": "shell", "command": "true", "commands": ["false"]}}),
        "`commands` has the same meaning as `command`. Use only one of them.",
    ),
    (
        playbook({"step": "a", "tool": {"kind": "http", "url": "http://x.example", "json": {}, "body": "x"}}),
        "`body` has the same meaning as `json`.",
    ),
    (playbook({"step": "a", "tool": {"kind": "http"}}), "requires `url`"),
    (
        playbook({"step": "a", "tool": {"kind": "postgres", "query": "select 1"}}),
        "Set `auth` (the name of a secret with the database URL) or `connection`.",
    ),
    (playbook(STEP, executor={"spec": {"final_step": "z"}}), "Unknown step 'z'"),
]


@pytest.mark.parametrize(("document", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_invalid_playbooks_are_refused_with_the_reason(document: dict[str, Any], sentence: str) -> None:
    if sentence == "EXPRESSION_ERROR":
        with pytest.raises(PlanInvalid) as caught:
            read(document)
        assert caught.value.code == "EXPRESSION_ERROR"
    else:
        assert sentence in "\n".join(problems_in(document))


def test_problems_have_lines() -> None:
    text = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
- step: one
  tool:
  - name: fetch
    kind: noop
    spec:
      policy:
        rules:
        - when: "{{ true }}"
          then: {do: jump, to: fetsh}
  next:
    arcs:
    - step: too
"""
    with pytest.raises(PlanInvalid) as caught:
        load_plan(text, name="p.yaml", tools=all_tools())
    assert [(problem.line, problem.sentence.split(".")[0]) for problem in caught.value.problems] == [
        (13, "Unknown task 'fetsh' in this pipeline"),
        (16, "Unknown step 'too' in an arc"),
    ]


@pytest.mark.parametrize(("before", "line"), [("  next:\n    arcs:\n", 10), ("  next:\n", 9)])
def test_an_arc_to_an_unknown_step_is_reported_with_its_line(before: str, line: int) -> None:
    text = f"""apiVersion: noetl.io/v10
kind: Playbook
metadata: {{name: p}}
workflow:
- step: s
{before}    - {{stp: s}}
    - {{step: s}}
    - {{step: nowhere}}
"""
    with pytest.raises(PlanInvalid) as caught:
        load_plan(text, name="p.yaml", tools=all_tools())
    assert [problem.line for problem in caught.value.problems if "nowhere" in problem.sentence] == [line]


def test_ambiguous_playbooks_give_warnings() -> None:
    policy = rules(when("outcome.status == 'error'", "fail"))
    moot = rules(otherwise("continue", attempts=3, to="nowhere"))
    loaded = plan_from_dict(
        playbook(
            {"step": "a", "tool": [{**noop(), "spec": policy}, {**noop(), "spec": moot}]},
            {"step": "lost", "tool": {"kind": "sqlite", "path": "x.db", "query": "select {{ 1 }}", "auth": "db"}},
        ),
        all_tools(),
    )
    sentences = "\n".join(problem.sentence for problem in loaded.warnings)
    assert "If none of these rules matches" in sentences
    assert "No arc leads to 'lost'" in sentences
    assert "Expressions become part of the SQL text" in sentences
    assert "`auth` is ignored because `path` gives the address." in sentences
    assert "`attempts` is ignored: it belongs to `do: retry`." in sentences
    assert "`to` is ignored: it belongs to `do: jump`." in sentences


def test_extra_fields_of_other_producers_are_accepted() -> None:
    """Accept fields of other producers that have no effect here, or only one meaning."""
    quiet = {"spec": {"on_no_match": "quiet"}, "arcs": [{"step": "b"}]}
    loop = {"in": [1], "iterator": "n", "spec": {"mode": "parallel", "policy": {"exec": "distributed"}}}
    policy = {
        "policy": {"rules": [{"when": "{{ false }}", "then": {"do": "fail"}}, {"else": None, "then": {"do": "break"}}]}
    }
    http = {"kind": "http", "url": "https://example.org", "verify_ssl": True, "follow_redirects": True, "spec": policy}
    loaded = plan_from_dict(
        playbook(
            {
                "step": "a",
                "loop": loop,
                "tool": [{"get": http}, {"ask": {"kind": "duckdb", "query": "select 1"}}],
                "next": quiet,
            },
            {"step": "b", "tool": {"kind": "artifact", "action": "get", "input": {"result_ref": "{{ a }}"}}},
            workload={"execution_id": "theirs"},
        ),
        all_tools(),
    )
    warnings = " ".join(problem.sentence for problem in loaded.warnings)
    for sentence in (
        "Unknown field `verify_ssl` is ignored",
        "`execution_id` is set by the run",
        "`policy` is ignored",
    ):
        assert sentence in warnings
    route = loaded.plan.steps[0].route
    assert route is not None
    assert route.tasks[1].inputs["connection"] == "duckdb:///:memory:"
    assert [rule.when for rule in route.tasks[0].rules or ()] == ["{{ false }}", None]


def test_tasks_inherit_defaults_of_step_and_executor() -> None:
    limits = {"spec": {"policy": {"defaults": {"timeout_s": 30}, "results": {"reference_first": True}}}}
    document = playbook(
        {
            "step": "a",
            "input": {"x": 1, "y": 1},
            "tool": [
                {"own": {**python_task("result = x", y=2), "spec": {"timeout": 5}}},
                {"lent": {"kind": "workbook", "name": "w", "args": {"z": 3}}},
                {"sub": {"kind": "playbook", "ref": "plan:sha256:" + "0" * 64}},
            ],
        },
        workbook={"w": {**python_task("result = x", y=4, z=4)}},
        executor=limits,
    )
    loaded = plan_from_dict(document, all_tools())
    route = loaded.plan.steps[0].route
    assert route is not None
    own, shared, sub = route.tasks
    assert (own.timeout, shared.timeout, sub.timeout) == (5, 30, None)
    assert (own.inputs["args"], shared.inputs["args"]) == ({"x": 1, "y": 2}, {"x": 1, "y": 4, "z": 3})
    assert [problem.sentence for problem in loaded.warnings if "`results` is ignored" in problem.sentence]


@pytest.mark.parametrize("field", ["retry", "sink", "eval"])
def test_a_removed_field_is_reported_once(field: str) -> None:
    with pytest.raises(PlanInvalid) as caught:
        read(playbook({"step": "a", "tool": {**noop(), field: {}}}))
    assert [f"`{field}` is no longer supported" in problem.sentence for problem in caught.value.problems] == [True]


def test_a_playbook_path_with_an_expression_is_refused() -> None:
    with pytest.raises(PlanInvalid, match="the playbook must be known before the run starts"):
        read(playbook({"step": "a", "tool": {"kind": "playbook", "path": "{{ sub }}"}}))


def test_a_plan_file_cannot_use_playbook_features() -> None:
    with pytest.raises(PlanInvalid):
        read({"plan": "p", "steps": [{"id": "a", "noetl.python": {"code": "1"}}]})
    with pytest.raises(PlanInvalid) as caught:
        read({"plan": "p", "order": "routed", "steps": [{"id": "a", "noop": {}}]})
    assert "`order` must be sequential or graph" in caught.value.problems[0].sentence


FULL = playbook(
    {
        "step": "a",
        "spec": {
            "join": "any",
            "policy": {
                "admit": {
                    "rules": [{"when": "{{ n > 1 }}", "then": {"allow": True}}, {"else": {"then": {"allow": False}}}]
                },
                "lifecycle": {"timeout_s": 5},
                "failure": {"mode": "best_effort"},
            },
        },
        "loop": {"in": "{{ xs }}", "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": "{{ n }}"}},
        "tool": [
            {
                "get": {
                    "kind": "http",
                    "url": "https://example.org",
                    "method": "POST",
                    "params": {"q": 1},
                    "json": {"x": 1},
                    "auth": "token",
                }
            },
            {"sql": {"kind": "postgres", "auth": "db", "query": "select :x", "args": {"x": 1}, "max_rows": 5}},
            {"file": {"kind": "sqlite", "path": "x.db", "query": "select 1"}},
            {"sh": {"kind": "shell", "command": "true", "env": {"A": "1"}, "cwd": "/tmp"}},
            {"keep": {"kind": "artifact", "action": "put", "data": {"x": 1}, "type": "note"}},
            {"say": {"kind": "nats", "auth": "bus", "operation": "publish", "subject": "x", "data": {"y": 1}}},
            {"known": {"kind": "secrets", "names": ["token"], "map": {"k": "key"}}},
            {"sub": {"kind": "playbook", "ref": "plan:sha256:" + "0" * 64, "args": {"x": 1}, "inherit": True}},
            {
                "py": {
                    "kind": "python",
                    "code": "result = 1",
                    "set": {"ctx.seen": "{{ output.data }}", "y": 2},
                    "spec": {
                        "timeout": 3,
                        **rules(
                            when("outcome.error.retryable", "retry", attempts=4, backoff="linear", delay=1.5),
                            when("iter.x > 2", "jump", to="get", set_iter={"m": 1}),
                            otherwise("break", set_ctx={"k": 1}),
                        ),
                        "result": {
                            "inline_max_bytes": 10,
                            "preview_max_bytes": 5,
                            "store": {"kind": "s3", "ttl": 60, "scope": "step", "compression": "gzip"},
                            "select": [{"path": "a.b", "as": "b"}],
                            "manifest": {"as": "all", "strategy": "concat", "path": "$.rows"},
                        },
                        "dispatch": {"queue": "gpu"},
                    },
                }
            },
        ],
        "set": {"ctx.done": True},
        "next": {
            "spec": {"mode": "inclusive"},
            "arcs": [
                {"step": "b", "when": "{{ n > 1 }}", "args": {"z": 1}, "set": {"ctx.way": 1}},
                {"step": "a", "when": False},
            ],
        },
    },
    {"step": "b", "tool": noop({"x": 1})},
    {"step": "c", "tool": noop()},
    workload={"n": 2, "xs": [1, 2]},
    ctx={"seen": None},
    executor={"spec": {"entry_step": "b", "final_step": "c", "no_next_is_error": True}},
)


def test_a_written_playbook_loads_as_the_same_playbook() -> None:
    plan = read(FULL)
    again = load_plan(plan_yaml(plan), tools=all_tools()).plan
    assert again == plan
    assert plan_body(again) == plan_body(plan)


def test_the_full_playbook_uses_every_field() -> None:
    """Check that FULL has every field: a field it omits could be lost on the way to a server without a failing test."""
    used_fields: dict[type[msgspec.Struct], set[str]] = {}

    def collect(value: Any) -> None:
        if isinstance(value, msgspec.Struct):
            defaults = make_canonical(type(value), **{name: getattr(value, name) for name in _required(type(value))})
            changed = {name for name in value.__struct_fields__ if getattr(value, name) != getattr(defaults, name)}
            used_fields[type(value)] = used_fields.get(type(value), set()) | changed | _required(type(value))
            for name in value.__struct_fields__:
                collect(getattr(value, name))
        elif isinstance(value, tuple):
            for part in value:
                collect(part)

    plan = read(FULL)
    collect(plan.playbook)
    for step in plan.steps:
        collect(step.route)
    parts = {
        part for part in vars(parts_of_playbooks).values() if isinstance(part, type) and issubclass(part, PlanStruct)
    } - {PlanStruct}
    assert {part.__name__: set(part.__struct_fields__) - used_fields.get(part, set()) for part in parts} == {
        part.__name__: set[str]() for part in parts
    }


def _required(part: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(part) if field.required}


def test_a_playbook_is_drawn_along_its_arcs() -> None:
    plan = read(
        playbook(
            {"step": "a", "tool": noop(), "next": arcs_to("b", "c", mode="inclusive")},
            {"step": "b", "tool": [{"x": noop()}, {"y": {"kind": "shell", "command": "true"}}], "next": arcs_to("d")},
            {"step": "c", "tool": noop(), "loop": {"in": [1], "iterator": "x"}, "next": arcs_to("a", "d")},
            {"step": "d", "tool": noop()},
        )
    )
    assert graph_text(plan) == (
        "●   a  noop\n├─╮\n│ ● b  noop > shell\n● │ c  noop, for each, back to a\n├─╯\n●   d  noop\n"
    )
    assert "back to a" in graph_svg(plan)


def test_fields_next_to_a_workbook_tool_apply_to_its_task() -> None:
    item = {"tool": python_task("result = x"), "args": {"x": 1}, "spec": {"timeout": 5}}
    plan = read(playbook({"step": "a", "tool": {"kind": "workbook", "name": "w", "timeout": 9}}, workbook={"w": item}))
    assert plan.steps[0].route is not None
    task = plan.steps[0].route.tasks[0]
    assert (task.inputs["args"], task.timeout) == ({"x": 1}, 9)


def test_tasks_without_a_name_are_numbered() -> None:
    plan = read(playbook({"step": "a", "tool": [noop(), noop(2), {"own": noop(3)}]}))
    assert plan.steps[0].route is not None
    assert [task.label for task in plan.steps[0].route.tasks] == ["task_1", "task_2", "own"]


def test_workbook_tasks_use_the_dispatch_of_their_step() -> None:
    whole = {
        "tool": [{"x": python_task("result = 1")}, {"y": {**python_task("result = 2"), "spec": {"dispatch": "own"}}}]
    }
    tool = {"kind": "workbook", "name": "w"}
    document = playbook({"step": "a", "spec": {"dispatch": "gpu"}, "tool": tool}, workbook={"w": whole})
    loaded = plan_from_dict(document, all_tools())
    (inner,) = loaded.sub_plans
    assert loaded.plan.steps[0].route is not None
    assert loaded.plan.steps[0].route.tasks[0].inputs["ref"] == make_plan_ref(inner)
    assert inner.steps[0].route is not None
    assert [task.dispatch for task in inner.steps[0].route.tasks] == [{"queue": "gpu"}, {"queue": "own"}]


def test_a_drawing_shows_a_nested_workbook_as_playbook() -> None:
    whole = {"tool": [{"x": noop()}, {"y": noop()}]}
    tasks = [{"a": noop()}, {"b": {"kind": "workbook", "name": "w"}}]
    assert "noop > playbook" in graph_text(read(playbook({"step": "s", "tool": tasks}, workbook={"w": whole})))


def test_nested_workbook_references_are_read_and_bounded() -> None:
    workbook = {f"w{n}": {"tool": [{"kind": "workbook", "name": f"w{n + 1}"}] * 2} for n in range(18)}
    for item in workbook.values():
        item["tool"] = [{"a": item["tool"][0]}, {"b": item["tool"][1]}]
    document = playbook({"step": "a", "tool": {"kind": "workbook", "name": "w0"}}, workbook={**workbook, "w18": noop()})
    assert len(read(document).steps) == 1
    chain = {f"w{n}": {"tool": [{"kind": "workbook", "name": f"w{n + 1}"}]} for n in range(400)}
    deep = playbook({"step": "a", "tool": {"kind": "workbook", "name": "w0"}}, workbook={**chain, "w400": noop()})
    assert "Nested more than 20 levels deep" in problems_in(deep)[0]


def test_settings_of_a_workbook_call_override_the_definition() -> None:
    definition = {"kind": "noop", "spec": {"timeout": 5, "result": {"inline_max_bytes": 10}}}
    tool = {"kind": "workbook", "name": "add", "spec": {"timeout": 9}}
    plan = read(playbook({"step": "a", "tool": tool}, workbook={"add": {"tool": definition}}))
    assert plan.steps[0].route is not None
    task = plan.steps[0].route.tasks[0]
    assert (task.timeout, task.result.inline_max_bytes) == (9, 10)
