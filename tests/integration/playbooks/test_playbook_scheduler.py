"""Execution of playbooks: pipelines, policies, loops, arcs, and the events in their logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runwright.contract.noetl.checker import NoetlChecker
from runwright.contract.noetl.view import noetl_event
from runwright.control.run_views import artifacts_of
from support.engine import engine, lines_of_types, statuses
from support.flaky_server import flaky_server
from support.playbooks import (
    arcs_to,
    context_of,
    noop,
    otherwise,
    playbook,
    python_task,
    result_of,
    rules,
    run_playbook,
    when,
)


async def test_playbook_log_has_every_event_in_order(store: str) -> None:
    document = playbook(
        {"step": "a", "tool": python_task("result = n + 1", n="{{ n }}"), "next": arcs_to("b")},
        {"step": "b", "tool": noop("{{ a }}")},
        workload={"n": 1},
    )
    async with engine(store) as operations:
        snapshot, lines = await run_playbook(operations, document, params={"n": 41})
        assert await result_of(operations, snapshot) == 42
    assert lines == [
        "RunQueued",
        "AdmissionEvaluated",
        "RunStarted",
        "WorkflowStarted",
        "PolicyAdmitEvaluated a",
        "StepScheduled a",
        "StepStarted a",
        "TaskStarted a/a",
        "TaskDone a/a",
        "StepCompleted a",
        "NextEvaluated a",
        "PolicyAdmitEvaluated b",
        "StepScheduled b",
        "StepStarted b",
        "TaskStarted b/b",
        "TaskDone b/b",
        "StepCompleted b",
        "NextEvaluated b",
        "WorkflowFinished",
        "RunCompleted",
        "RunProcessed",
    ]


async def test_errors_of_a_server_are_retried_and_then_fail(file_store: str) -> None:
    with flaky_server() as server:
        policy = rules(
            when("outcome.http.status >= 500", "retry", attempts=3, backoff="exponential", delay=0.01),
            otherwise("continue"),
        )
        tool = {"kind": "http", "url": f"{server.url}/broken", "spec": policy}
        async with engine(file_store) as operations:
            snapshot, lines = await run_playbook(operations, playbook({"step": "a", "tool": tool}))
            records = await operations.log.read(snapshot.run_id)
        evaluated = [record.payload for record in records if record.event_type == "PolicyTaskEvaluated"]
        failed = next(noetl_event(record) for record in records if record.event_type == "TaskFailed")
        assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "HTTP_STATUS")
        assert server.seen["/broken"] == 3
    assert lines_of_types(lines, "TaskAttemptStarted", "TaskAttemptFailed", "TaskFailed") == [
        "TaskAttemptStarted a/a",
        "TaskAttemptFailed a/a",
        "TaskAttemptStarted a/a #2",
        "TaskAttemptFailed a/a #2",
        "TaskAttemptStarted a/a #3",
        "TaskAttemptFailed a/a #3",
        "TaskFailed a/a #3 HTTP_STATUS",
    ]
    assert evaluated[0]["matched_rule_index"] == 0
    assert evaluated[0]["action"] == {"do": "retry", "attempts": 3, "backoff": "exponential", "delay": 0.01}
    assert evaluated[2]["action"]["do"] == "fail"
    assert [error["kind"] for error in (failed["payload"]["error"], failed["payload"]["outcome"]["error"])] == [
        "http"
    ] * 2


async def test_answers_are_routed_by_jumps(file_store: str) -> None:
    with flaky_server() as server:

        def document(path: str) -> dict[str, Any]:
            policy = rules(
                when("outcome.http.status == 404", "jump", to="missing"),
                when("outcome.status == 'error'", "fail"),
                otherwise("jump", to="found", set_ctx={"rows": "{{ outcome.result.data.rows }}"}),
            )
            pipeline = [
                {"fetch": {"kind": "http", "url": f"{server.url}{path}", "spec": policy}},
                {"missing": {**python_task("result = 'none'"), "spec": rules(otherwise("break"))}},
                {"found": python_task("result = 'some'")},
            ]
            return playbook({"step": "a", "tool": pipeline})

        async with engine(file_store) as operations:
            missing, lines = await run_playbook(operations, document("/nowhere"))
            assert (missing.status, await result_of(operations, missing)) == ("COMPLETED", "none")
            assert lines_of_types(lines, "TaskStarted") == ["TaskStarted a/fetch", "TaskStarted a/missing"]
            found, lines = await run_playbook(operations, document("/orders"))
            assert (await result_of(operations, found), await context_of(operations, found.run_id)) == (
                "some",
                {"rows": [1, 2, 3]},
            )
            assert lines_of_types(lines, "TaskStarted") == ["TaskStarted a/fetch", "TaskStarted a/found"]


async def test_pages_are_streamed_and_each_has_its_own_retries(store: str) -> None:
    """Every page fails once; two attempts per visit, not per step, are enough for all pages."""
    with flaky_server() as server:
        fetch = {
            "kind": "http",
            "url": f"{server.url}/pages",
            "params": {"page": "{{ iter.page | default(1) }}"},
            "spec": rules(
                when("outcome.error.retryable", "retry", attempts=2, delay=0.01),
                when("outcome.status == 'error'", "fail"),
                otherwise("continue"),
            ),
        }
        keep = {
            **python_task(
                "result = rows + more", rows="{{ iter.rows | default([]) }}", more="{{ fetch.data['items'] }}"
            ),
            "spec": rules(
                when(
                    "fetch.data.has_more",
                    "jump",
                    to="fetch",
                    set_iter={"rows": "{{ outcome.result }}", "page": "{{ (iter.page | default(1)) + 1 }}"},
                ),
                otherwise("break", set_ctx={"rows": "{{ outcome.result }}"}),
            ),
        }
        async with engine(store) as operations:
            document = playbook({"step": "a", "tool": [{"fetch": fetch}, {"keep": keep}, {"never": noop()}]})
            snapshot, lines = await run_playbook(operations, document)
            assert snapshot.status == "COMPLETED", lines
            assert await context_of(operations, snapshot.run_id) == {"rows": [1, 2, 3, 4, 5, 6]}
        assert lines_of_types(lines, "TaskStarted") == [
            "TaskStarted a/fetch",
            "TaskStarted a/keep",
            "TaskStarted a/fetch@2",
            "TaskStarted a/keep@2",
            "TaskStarted a/fetch@3",
            "TaskStarted a/keep@3",
        ]
        assert len(lines_of_types(lines, "TaskAttemptFailed")) == 3


async def test_parallel_loop_is_bounded_and_isolates_iterations(file_store: str, tmp_path: Path) -> None:
    text = """
import os, time
open(os.path.join(folder, f'on-{x}'), 'w').close()
time.sleep(0.05)
count = len([name for name in os.listdir(folder) if name.startswith('on-')])
os.remove(os.path.join(folder, f'on-{x}'))
result = count
"""
    step = {
        "step": "a",
        "loop": {"in": "{{ range(12) }}", "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": "{{ most }}"}},
        "tool": [
            {
                "see": {
                    **python_task(text, x="{{ iter.x }}", folder=str(tmp_path)),
                    "set": {"iter.mine": "{{ iter.x * 10 }}"},
                }
            },
            {
                "say": python_task(
                    "result = [count, mine, index]", count="{{ see }}", mine="{{ iter.mine }}", index="{{ iter.index }}"
                )
            },
        ],
        "next": {"arcs": [{"step": "b", "args": {"all": "{{ a }}"}}]},
    }
    document = playbook(step, {"step": "b", "tool": noop("{{ args.all }}")}, workload={"most": 3})
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        found = await result_of(operations, snapshot)
    assert [(mine, index) for _, mine, index in found] == [(10 * x, x) for x in range(12)]
    assert max(count for count, _, _ in found) <= 3


async def test_inner_loop_reads_the_outer_iteration(file_store: str, tmp_path: Path) -> None:
    inner = playbook(
        {
            "step": "inner",
            "loop": {"in": "{{ ys }}", "iterator": "y"},
            "tool": python_task("result = f'{x}{y}'", x="{{ iter.parent.x }}", y="{{ iter.y }}"),
            "next": {"arcs": [{"step": "all", "args": {"them": "{{ inner }}"}}]},
        },
        {"step": "all", "tool": noop("{{ args.them }}")},
    )
    import json

    (tmp_path / "inner.yaml").write_text(json.dumps(inner))
    outer = playbook(
        {
            "step": "outer",
            "loop": {"in": ["a", "b"], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 2}},
            "tool": {"kind": "playbook", "path": "inner.yaml", "args": {"ys": [1, 2]}},
            "next": {"arcs": [{"step": "end", "args": {"all": "{{ outer }}"}}]},
        },
        {"step": "end", "tool": noop("{{ args.all }}")},
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, outer)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == [["a1", "a2"], ["b1", "b2"]]


async def test_looping_workbook_task_reads_the_outer_iteration(store: str) -> None:
    pairs = {
        "loop": {"in": "{{ ys }}", "iterator": "y"},
        "tool": [
            {"join": python_task("result = f'{x}{y}'", x="{{ iter.parent.x }}", y="{{ iter.y }}")},
            {"mark": python_task("result = joined + sign", joined="{{ join }}", sign="{{ workload.sign }}")},
        ],
    }
    document = playbook(
        {
            "step": "outer",
            "loop": {"in": ["a", "b"], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 2}},
            "tool": {"kind": "workbook", "name": "pairs", "args": {"ys": [1, 2]}},
            "next": arcs_to("end"),
        },
        {"step": "end", "tool": noop("{{ outer }}")},
        workload={"sign": "?", "other": 1},
        workbook={"pairs": pairs},
    )
    async with engine(store) as operations:
        snapshot, lines = await run_playbook(operations, document, params={"sign": "!"})
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == [["a1!", "a2!"], ["b1!", "b2!"]]
        records = await operations.log.read(snapshot.run_id)
        assert NoetlChecker().check(map(noetl_event, records)) == []


ON_TO_B = {"arcs": [{"step": "b", "args": {"x": "{{ a }}"}}]}


@pytest.mark.parametrize(
    "steps",
    [
        (
            {
                "step": "a",
                "tool": {
                    **python_task("result = 'x' * 300000"),
                    "spec": rules(otherwise("continue", set_ctx={"v": "{{ outcome.result }}"})),
                },
            },
        ),
        (
            {
                "step": "a",
                "tool": {
                    **python_task("result = 'x' * 300000"),
                    "spec": rules(otherwise("continue", set_iter={"v": "{{ outcome.result }}"})),
                },
            },
        ),
        ({"step": "a", "tool": python_task("result = 'x' * 300000"), "next": ON_TO_B}, {"step": "b", "tool": noop()}),
        (
            {
                "step": "a",
                "tool": python_task("result = 'x' * 300000"),
                "set": {"ctx.v": "{{ a }}"},
                "next": arcs_to("b"),
            },
            {"step": "b", "tool": noop()},
        ),
        (
            {"step": "s", "tool": noop(), "next": arcs_to("a", "c", mode="inclusive")},
            {"step": "a", "tool": python_task("result = 'x' * 200000"), "next": ON_TO_B},
            {
                "step": "c",
                "tool": python_task("result = 'x' * 200000"),
                "next": {"arcs": [{"step": "b", "args": {"y": "{{ c }}"}}]},
            },
            {"step": "b", "tool": noop()},
        ),
    ],
    ids=["set_ctx", "set_iter", "arc", "step", "join"],
)
async def test_setting_too_large_a_value_fails_the_run(file_store: str, steps: tuple[dict[str, Any], ...]) -> None:
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, playbook(*steps))
        assert snapshot.status == "FAILED", lines
        assert snapshot.root_cause is not None
        assert snapshot.root_cause.code == "PAYLOAD_TOO_LARGE"


async def test_newer_spelling_in_arcs_and_expressions_is_accepted(file_store: str) -> None:
    document = playbook(
        {
            "step": "s",
            "tool": [
                {"name": "x", "kind": "noop", "result": 8, "set": {"step.z": "{{ output.data }}"}},
                {"name": "y", "kind": "noop", "result": "{{ step.z }}"},
            ],
            "next": {"arcs": [{"step": "t", "set": {"ctx.way": "{{ s }}", "a": 1}}]},
        },
        {
            "step": "t",
            "spec": {
                "policy": {
                    "admit": {
                        "rules": [
                            {"when": "{{ event.name == 'step.done' and event.step == 's' }}", "then": {"allow": True}},
                            {"else": {"then": {"allow": False}}},
                        ]
                    }
                }
            },
            "tool": [{"name": "x", "kind": "noop", "result": ["{{ input.a }}", "{{ ctx.way }}"]}],
        },
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == [1, 8]
        assert await context_of(operations, snapshot.run_id) == {"way": 8}


async def test_arcs_read_the_outcome_of_their_step_as_output(file_store: str) -> None:
    with flaky_server() as server:
        document = playbook(
            {"step": "rows", "tool": noop({"rows": [{"left": 3}]}), "set": {"ctx.left": "{{ output.data.rows[0].left }}"},
             "next": {"arcs": [{"step": "never", "when": "{{ output.data.rows[0].left == 0 }}"},
                               {"step": "web", "when": "{{ output.status == 'ok' }}"}]}},
            {"step": "web", "tool": {"kind": "http", "url": f"{server.url}/echo"},
             "next": {"arcs": [{"step": "bad", "when": "{{ output.http.status == 200 }}",
                                "set": {"method": "{{ output.data.method }}"}}]}},
            {"step": "bad", "tool": python_task("result = 1"), "next": {"arcs": [{"step": "bad_again"}]}},
            {"step": "bad_again", "tool": python_task("1 / 0"),
             "next": {"arcs": [{"step": "each", "when": "{{ output.status == 'error' and not output.data }}",
                                "set": {"ctx.code": "{{ output.error.code }}"}}]}},
            {"step": "each", "loop": {"in": [1, 2], "iterator": "n"}, "tool": noop("{{ iter.n }}"),
             "next": {"arcs": [{"step": "end", "args": {"all": "{{ output.data }}"}}]}},
            {"step": "end", "tool": noop("{{ args.all }}")},
            {"step": "never", "tool": noop()},
        )  # fmt: skip
        async with engine(file_store) as operations:
            snapshot, lines = await run_playbook(operations, document)
            assert snapshot.status == "COMPLETED", lines
            assert await result_of(operations, snapshot) == [1, 2]
            assert await context_of(operations, snapshot.run_id) == {"left": 3, "code": "STEP_RAISED"}
            evaluated = await operations.log.find_event(snapshot.run_id, "NextEvaluated", "web")
            assert evaluated is not None and evaluated.payload is not None
            assert evaluated.payload["selected"] == [{"step": "bad", "args": {"method": "GET"}}]


async def test_arcs_read_the_status_of_an_http_response(file_store: str) -> None:
    """The status is available even if no expression reads the body, and if the response is an error."""
    by_status = {"arcs": [{"step": "found", "when": "{{ output.http.status == 200 }}"},
                          {"step": "gone", "when": "{{ output.http.status == 404 and output.error.kind == 'not_found' }}"},
                          {"step": "other"}]}  # fmt: skip
    with flaky_server() as server:
        for page, expected in (("echo", "found"), ("status/404", "gone")):
            document = playbook(
                {"step": "web", "tool": {"kind": "http", "url": f"{server.url}/{page}"}, "next": by_status},
                *({"step": name, "tool": noop(name)} for name in ("found", "gone", "other")),
            )
            async with engine(file_store) as operations:
                snapshot, lines = await run_playbook(operations, document)
                assert snapshot.status == "COMPLETED", lines
                assert await result_of(operations, snapshot) == expected


async def test_a_task_of_the_workbook_has_the_workload_of_its_run(file_store: str) -> None:
    """Includes undeclared parameters, and names of credentials, which cannot be passed as parameters."""
    seen = "{{ [extra, pg_credential, deep.a, deep.b, args | default('none')] }}"
    document = playbook(
        {"step": "a", "tool": {"kind": "workbook", "name": "w", "args": {"deep": {"b": 3}}}},
        workload={"pg_credential": "warehouse", "deep": {"a": 1, "b": 2}},
        workbook={"w": {"tool": [{"x": noop()}, {"y": noop(seen)}]}},
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document, params={"extra": 5})
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == [5, "warehouse", 1, 3, {}]


async def test_nested_workbook_task_reads_the_outer_iteration(file_store: str) -> None:
    document = playbook(
        {
            "step": "a",
            "loop": {"in": ["x"], "iterator": "i"},
            "tool": {"kind": "workbook", "name": "one"},
            "next": arcs_to("e"),
        },
        {"step": "e", "tool": noop("{{ a }}")},
        workbook={
            "one": {"tool": [{"kind": "workbook", "name": "two"}]},
            "two": {"tool": [noop("{{ iter.parent.i }}")]},
        },
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == ["x"]


@pytest.mark.parametrize(("mode", "visited"), [("exclusive", ["b"]), ("inclusive", ["b", "c"])])
async def test_arc_mode_selects_the_first_or_all_matches(file_store: str, mode: str, visited: list[str]) -> None:
    arcs = [
        {"step": "never", "when": "{{ n > 5 }}"},
        {"step": "b", "when": "{{ n > 1 }}"},
        {"step": "c", "when": "n > 2"},
    ]
    document = playbook(
        {"step": "a", "tool": noop(), "next": {"spec": {"mode": mode}, "arcs": arcs}},
        *({"step": name, "tool": noop()} for name in ("never", "b", "c")),
        workload={"n": 3},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        chosen = await operations.log.find_event(snapshot.run_id, "NextEvaluated", "a")
    assert [name for name in statuses(snapshot) if name != "a"] == visited
    assert chosen.payload["mode"] == mode
    assert [arc["step"] for arc in chosen.payload["selected"]] == visited


async def test_join_barrier_visits_once_and_join_any_per_branch(file_store: str) -> None:
    def document(join: str) -> dict[str, Any]:
        return playbook(
            {"step": "a", "next": arcs_to("b", "c", mode="inclusive")},
            {"step": "b", "tool": python_task("import time; time.sleep(0.1)"), "next": arcs_to("end")},
            {"step": "c", "tool": noop(), "next": arcs_to("d")},
            {"step": "d", "tool": noop(), "next": arcs_to("end")},
            {"step": "end", "tool": noop(), "join": join},
        )

    async with engine(file_store) as operations:
        once, lines = await run_playbook(operations, document("barrier"))
        assert lines_of_types(lines, "StepStarted")[-1] == "StepStarted end"
        assert "end@2" not in statuses(once)
        each, _ = await run_playbook(operations, document("any"))
        assert {"end", "end@2"} <= set(statuses(each))


async def test_cycle_of_steps_repeats_until_an_arc_leaves_it(file_store: str) -> None:
    document = playbook(
        {"step": "start", "tool": noop(), "next": arcs_to("work")},
        {
            "step": "work",
            "tool": {**noop(), "spec": rules(otherwise("continue", set_ctx={"n": "{{ (ctx.n | default(0)) + 1 }}"}))},
            "next": {"arcs": [{"step": "work", "when": "{{ ctx.n < 4 }}"}, {"step": "end"}]},
        },
        {"step": "end", "tool": noop("{{ ctx.n }}")},
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == 4
    assert lines_of_types(lines, "StepStarted") == [
        f"StepStarted {name}" for name in ("start", "work", "work@2", "work@3", "work@4", "end")
    ]


async def test_a_step_that_is_not_admitted_waits_for_ctx(file_store: str) -> None:
    admit = {
        "policy": {
            "admit": {
                "rules": [
                    {"when": "{{ ctx.ready | default(false) }}", "then": {"allow": True}},
                    {"else": {"then": {"allow": False}}},
                ]
            }
        }
    }
    ready = {
        **python_task("import time; time.sleep(0.05)"),
        "spec": rules(otherwise("continue", set_ctx={"ready": "{{ flag }}"})),
    }
    document = playbook(
        {"step": "a", "next": arcs_to("late", "soon", mode="inclusive")},
        {"step": "late", "spec": admit, "tool": noop()},
        {"step": "soon", "tool": ready},
        workload={"flag": True},
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED"
        assert lines_of_types(lines, "PolicyAdmitEvaluated") == [
            "PolicyAdmitEvaluated a",
            "PolicyAdmitEvaluated late",
            "PolicyAdmitEvaluated soon",
            "PolicyAdmitEvaluated late #2",
        ]
        stuck, _ = await run_playbook(operations, document, params={"flag": False})
        assert (stuck.status, stuck.root_cause.code) == ("FAILED", "ADMISSION_DEADLOCK")


@pytest.mark.parametrize("name", ["step.done", "loop.done", "call.done"])
async def test_admission_knows_the_end_of_a_loop_by_every_name(file_store: str, name: str) -> None:
    admit = [
        {"when": f"{{{{ event.name == '{name}' }}}}", "then": {"allow": True}},
        {"else": {"then": {"allow": False}}},
    ]
    document = playbook(
        {"step": "a", "loop": {"in": [1], "iterator": "n"}, "tool": noop(), "next": arcs_to("b")},
        {"step": "b", "tool": noop(), "spec": {"policy": {"admit": {"rules": admit}}}},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
    assert snapshot.status == "COMPLETED"


@pytest.mark.parametrize(
    "condition",
    [
        "event.name == 'call.done'",
        "event['name'] == 'loop.done'",
        "event.get('name') in ('step.exit', 'x')",
        "(event.name) == 'call.done'",
        "event.name | lower == 'loop.done'",
        "'loop.done' in [event.name]",
        "'step.exit' == event.name",
    ],
)
async def test_event_name_aliases_match_in_any_expression(file_store: str, condition: str) -> None:
    arcs = {"arcs": [{"step": "b", "when": f"{{{{ {condition} }}}}"}]}
    document = playbook({"step": "a", "tool": noop(), "next": arcs}, {"step": "b", "tool": noop()})
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
    assert statuses(snapshot) == {"a": "SUCCESS", "b": "SUCCESS"}


async def test_only_comparisons_with_event_name_use_aliases(file_store: str) -> None:
    arcs = [{"step": "b", "when": "{{ word == 'loop.done' and event.name in ['call.done', 'loop.done'] }}"}]
    document = playbook({"step": "a", "tool": noop(), "next": {"arcs": arcs}}, {"step": "b", "tool": noop()})
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, {**document, "workload": {"word": "loop.done"}})
    assert statuses(snapshot) == {"a": "SUCCESS", "b": "SUCCESS"}


async def test_admission_deadlock_names_only_the_denied_steps(file_store: str) -> None:
    never = {"policy": {"admit": {"rules": [{"else": {"then": {"allow": False}}}]}}}
    document = playbook(
        {"step": "a", "next": arcs_to("gate", "join", mode="inclusive")},
        {"step": "gate", "spec": never, "tool": noop(), "next": arcs_to("join")},
        {"step": "join", "tool": noop()},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
    assert (
        snapshot.root_cause.message
        == "Admission deadlock: nothing is running, and these steps wait for admission: gate."
    )


async def test_iteration_reads_the_variables_it_sets(file_store: str) -> None:
    tasks = [
        {**noop("next"), "name": "t", "set": {"iter.cursor": "{{ output.data }}"}},
        {**noop(["{{ iter.cursor }}", "{{ cursor }}", "{{ iter.index }}"]), "name": "u"},
    ]
    document = playbook(
        {"step": "s", "loop": {"in": ["a", "b"], "iterator": "cursor"}, "tool": tasks, "next": arcs_to("e")},
        {"step": "e", "tool": noop("{{ s }}")},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == [["next", "next", 0], ["next", "next", 1]]


async def test_tasks_of_the_workbook_have_labels(file_store: str) -> None:
    tasks = [
        {"name": "first", "kind": "workbook", "task": "w"},
        {"name": "w", "kind": "workbook"},
        {**noop("{{ [first, w] }}"), "name": "end"},
    ]
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, playbook({"step": "s", "tool": tasks}, workbook={"w": noop(5)}))
        assert await result_of(operations, snapshot) == [5, 5]


async def test_failed_visit_hides_the_result_of_an_earlier_visit(file_store: str) -> None:
    arcs = [
        {"step": "fetch", "when": "{{ fetch.page == 10 }}"},
        {"step": "save", "when": "{{ event.name == 'step.failed' }}"},
    ]
    document = playbook(
        {"step": "fetch", "tool": python_task("result = {'page': 10 // (1 - n)}", n="{{ ctx.n }}"),
         "set": {"ctx.n": "{{ ctx.n + 1 }}"}, "next": {"arcs": arcs}},
        {"step": "save", "tool": noop("{{ fetch.page | default('nothing') if fetch is defined else 'nothing' }}")},
        ctx={"n": 0},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == "nothing"


async def test_arcs_read_the_variables_of_their_step(file_store: str) -> None:
    arcs = [{"step": "b", "when": "{{ step.z == 7 }}", "args": {"z": "{{ step.z }}"}}]
    document = playbook(
        {"step": "a", "tool": {**noop(), "set": {"step.z": 7}}, "next": {"arcs": arcs}},
        {"step": "b", "tool": noop("{{ args.z }}")},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == 7


async def test_arc_sets_variables_of_its_target_step(file_store: str) -> None:
    arc = {"step": "b", "set": {"step.x": 1, "y": 2, "ctx.z": 3}}
    document = playbook(
        {"step": "a", "tool": noop(), "next": {"arcs": [arc]}},
        {"step": "b", "tool": noop("{{ [step.x, args.x, args.y, ctx.z] }}")},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == [1, 1, 2, 3]


async def test_the_final_step_runs_once_and_last(file_store: str) -> None:
    document = playbook(
        {"step": "a", "next": arcs_to("b", "end", mode="inclusive")},
        {"step": "b", "tool": python_task("import time; time.sleep(0.05)"), "next": arcs_to("end")},
        {"step": "end", "tool": noop("over")},
        executor={"spec": {"final_step": "end"}},
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == "over"
    assert lines_of_types(lines, "StepStarted") == ["StepStarted a", "StepStarted b", "StepStarted end"]


@pytest.mark.parametrize(
    ("condition", "code_"), [("false", "ADMISSION_DEADLOCK"), ("nothing.like.it", "EXPRESSION_ERROR")]
)
async def test_a_final_step_that_is_not_admitted_ends_the_run(file_store: str, condition: str, code_: str) -> None:
    admit = {
        "rules": [{"when": "{{ " + condition + " }}", "then": {"allow": True}}, {"else": {"then": {"allow": False}}}]
    }
    document = playbook(
        {"step": "a", "tool": noop()},
        {"step": "z", "tool": noop(), "spec": {"policy": {"admit": admit}}},
        executor={"spec": {"final_step": "z"}},
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == code_
    assert "StepScheduled z" not in lines


async def test_denied_token_does_not_block_other_tokens(file_store: str) -> None:
    admit = {
        "rules": [
            {"when": "{{ args.go or ctx.open | default(false) }}", "then": {"allow": True}},
            {"else": {"then": {"allow": False}}},
        ]
    }
    fan = {
        "spec": {"mode": "inclusive"},
        "arcs": [{"step": "x", "args": {"go": go, "n": n}} for n, go in enumerate((False, True))],
    }
    document = playbook(
        {"step": "a", "next": fan},
        {
            "step": "x",
            "join": "any",
            "tool": noop("{{ args.n }}"),
            "spec": {"policy": {"admit": admit}},
            "set": {"ctx.open": "{{ args.go }}"},
        },
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == 0  # the denied token was admitted after `ctx` had changed
    assert [line for line in lines if line.startswith("StepScheduled x")] == ["StepScheduled x", "StepScheduled x@2"]


async def test_failure_is_routed_by_an_arc_or_fails_the_run(file_store: str) -> None:
    bad = {"step": "a", "tool": python_task("1 / 0")}
    caught = {"arcs": [{"step": "never"}, {"step": "mend", "when": "{{ event.name == 'step.failed' }}"}]}
    document = playbook({**bad, "next": caught}, {"step": "never", "tool": noop()}, {"step": "mend", "tool": noop()})
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert (snapshot.status, statuses(snapshot)) == ("COMPLETED", {"a": "FAILED", "mend": "SUCCESS"})
        failed, lines = await run_playbook(operations, playbook(bad))
        assert (failed.status, failed.root_cause.step_id, failed.root_cause.code) == ("FAILED", "a", "STEP_RAISED")
        passed, _ = await run_playbook(
            operations, playbook({**bad, "spec": {"policy": {"failure": {"mode": "best_effort"}}}})
        )
        assert passed.status == "COMPLETED"
    assert lines[-3:] == ["WorkflowFinished", "RunFailed STEP_RAISED", "RunProcessed"]


async def test_condition_that_raises_fails_the_run(file_store: str) -> None:
    async with engine(file_store) as operations:
        arc = playbook(
            {"step": "a", "next": {"arcs": [{"step": "b", "when": "{{ nothing.there }}"}]}},
            {"step": "b", "tool": noop()},
        )
        snapshot, _ = await run_playbook(operations, arc)
        assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "EXPRESSION_ERROR")
        task = playbook(
            {"step": "a", "tool": {**noop(), "spec": rules(when("nothing.there", "fail"), otherwise("continue"))}}
        )
        snapshot, lines = await run_playbook(operations, task)
        assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "EXPRESSION_ERROR")
        assert "TaskFailed a/a EXPRESSION_ERROR" in lines
        evaluated = await operations.log.find_event(snapshot.run_id, "PolicyTaskEvaluated", "a/a", 1)
        assert evaluated is not None
        assert (evaluated.payload["action"], evaluated.payload["error"]["code"]) == ({"do": "fail"}, "EXPRESSION_ERROR")


async def test_parallel_iterations_cannot_set_the_same_ctx_key(file_store: str) -> None:
    def document(mode: str) -> dict[str, Any]:
        loop = {"in": [1, 2, 3], "iterator": "x", "spec": {"mode": mode, "max_in_flight": 3}}
        tool = {**noop(), "spec": rules(otherwise("continue", set_ctx={"last": "{{ iter.x }}"}))}
        return playbook(
            {"step": "a", "loop": loop, "tool": tool, "spec": {"policy": {"failure": {"mode": "best_effort"}}}}
        )

    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document("parallel"))
        assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "CTX_CONFLICT")
        fine, _ = await run_playbook(operations, document("sequential"))
        assert (fine.status, await context_of(operations, fine.run_id)) == ("COMPLETED", {"last": 3})


async def test_an_empty_loop_is_done_at_once(file_store: str) -> None:
    step = {"step": "a", "loop": {"in": [], "iterator": "x"}, "tool": noop(), "next": arcs_to("b")}
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, playbook(step, {"step": "b", "tool": noop()}))
        assert snapshot.status == "COMPLETED"
    assert lines_of_types(lines, "LoopStarted", "LoopIterationStarted", "LoopDone") == ["LoopStarted a", "LoopDone a"]
    assert lines.index("LoopDone a") < lines.index("NextEvaluated a") < lines.index("StepCompleted a")


async def test_endless_cycles_fail_with_their_limit(file_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runwright.core.playbook.tokens.MAX_VISITS", 20)
    monkeypatch.setattr("runwright.core.playbook.scheduler.MAX_JUMPS", 20)
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "tool": noop(), "next": arcs_to("a")}))
        assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "VISIT_LIMIT")
        tool = [{"again": {**noop(), "spec": rules(otherwise("jump", to="again"))}}]
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "tool": tool}))
        assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "JUMP_LIMIT")


async def test_artifacts_of_tasks_are_stored_and_listed(file_store: str) -> None:
    put = {"kind": "artifact", "action": "put", "data": {"rows": [1, 2]}, "type": "note"}
    document = playbook(
        {"step": "a", "tool": [{"keep": put}, {"get": {"kind": "artifact", "action": "get", "ref": "{{ keep }}"}}]}
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == {"rows": [1, 2]}
        assert [artifact.kind for artifact in snapshot.artifacts] == ["note"]
        assert [path for path, _ in await artifacts_of(operations.log, snapshot.run_id)] == ["a/keep"]


async def test_run_end_lists_as_many_artifacts_as_fit(file_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runwright.core.scheduling.run_end_payloads.MAX_ARTIFACT_LIST_BYTES", 500)
    put = {"kind": "artifact", "action": "put", "data": "{{ iter.n }}", "type": "note"}
    document = playbook({"step": "a", "loop": {"in": list(range(12)), "iterator": "n"}, "tool": [{"keep": put}]})
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        end = await operations.log.find_event(snapshot.run_id, "RunCompleted")
        made = await artifacts_of(operations.log, snapshot.run_id)
    assert end is not None and end.payload is not None
    assert 0 < len(end.payload["artifactRefs"]) < 12
    assert len(end.payload["artifactRefs"]) + end.payload["artifactsLeftOut"] == 12
    assert len({ref.uri for _, ref in made}) == 12


async def test_step_times_out_after_its_limit(file_store: str) -> None:
    spec = {"policy": {"lifecycle": {"timeout_s": 0.3}}}
    slow = [{"wait": {"kind": "shell", "command": "sleep 30"}}]
    again = {**python_task("1 / 0"), "spec": rules(otherwise("retry", attempts=100, delay=60))}
    async with engine(file_store) as operations:
        for tool in (slow, again):
            snapshot, _ = await run_playbook(operations, playbook({"step": "a", "spec": spec, "tool": tool}))
            assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "STEP_TIMEOUT")
            assert snapshot.root_cause.message == "The step timed out after 0.3 s."
        loop = {"in": [1, 2, 3], "iterator": "n"}
        nap = {"kind": "shell", "command": "sleep 0.2"}
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "spec": spec, "loop": loop, "tool": nap}))
        assert snapshot.root_cause.code == "STEP_TIMEOUT"  # the timeout is the cause, not a failed iteration


async def test_task_that_succeeds_after_its_timeout_fails(file_store: str) -> None:
    spec = {"timeout": 0.2, **rules(when("outcome.error.kind == 'timeout'", "break", set_ctx={"late": True}))}
    slow = {**python_task("import time\nfor _ in range(8): time.sleep(0.1)\nresult = 1"), "spec": spec}
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "tool": slow}))
        assert snapshot.status == "COMPLETED"
        assert await context_of(operations, snapshot.run_id) == {"late": True}


async def test_python_code_reads_libs_arguments_and_the_item(file_store: str) -> None:
    libs = {"m": "math", "day": {"from": "datetime", "import": "date"}}
    text = "result = [m.sqrt(four), input_data['four'], n, day(2026, 1, 2).day]"
    first = {**python_task(text, four=4, n="{{ n }}"), "libs": libs}
    loop = {"in": [7], "iterator": "n"}
    async with engine(file_store) as operations:
        document = playbook(
            {"step": "a", "loop": loop, "tool": first, "next": arcs_to("b")}, {"step": "b", "tool": noop("{{ a }}")}
        )
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == [[2.0, 4, 7, 2]]


async def test_each_attempt_in_a_wide_loop_runs_once(file_store: str, tmp_path: Path) -> None:
    """The loop needs several appends; no task runs twice at the boundary of two of them."""
    record = tmp_path / "told"
    script = "with open(told, 'a') as file: file.write(f'{n} {attempt}\\n')\nassert attempt > 1"
    task = {
        **python_task(script, told=str(record), n="{{ iter.n }}", attempt="{{ _attempt }}"),
        "spec": rules(when("outcome.status == 'error'", "retry", attempts=2, delay=0)),
    }
    loop = {"in": "{{ range(300) | list }}", "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 300}}
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "loop": loop, "tool": task}))
    assert snapshot.status == "COMPLETED"
    assert sorted(record.read_text().split("\n")[:-1]) == sorted(
        f"{n} {attempt}" for n in range(300) for attempt in (1, 2)
    )


def nested(value: Any, levels: int) -> Any:
    return value if not levels else [nested(value, levels - 1)]


@pytest.mark.parametrize(
    "values",
    [
        {"set_ctx": {"x": "{{ 'a\\u0000b' }}"}},
        {"set_iter": {"x": nested("{{ outcome.result }}", 50)}},
        {"attempts": "{{ 10 ** 400 }}"},
        {"delay": "{{ 10 ** 400 }}"},
    ],
)
async def test_value_not_storable_in_an_event_fails_the_task(file_store: str, values: dict[str, Any]) -> None:
    given = {"delay": 0, "attempts": 2, **values} if {"attempts", "delay"} & values.keys() else values
    policy = rules(otherwise("retry" if "delay" in given else "continue", **given))
    deep = "result = 1\nfor _ in range(199): result = [result]"
    document = playbook({"step": "a", "tool": [{"t": {**python_task(deep), "spec": policy}}]})
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
    assert snapshot.status == "FAILED", lines
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code in ("RESULT_NOT_STORABLE", "EXPRESSION_ERROR")


async def test_arbitrary_facts_in_a_tool_error_are_bounded(file_store: str) -> None:
    import runwright as rw

    facts: list[dict[str, Any]] = [
        {"http": {}},
        {"http": {"status": "500"}},
        {"kind": 7},
        {"result": {"pad": "x" * 3_000_000}},
    ]
    facts += [{"http": {"status": 500, "headers": {"x": "y" * 3_000_000}}}, {"py": {"exception_type": "a\0b"}}]
    for number, each in enumerate(facts):
        script = f"import runwright as rw\nraise rw.StepError('X', 'm', **{each!r})"
        for spec in ({}, {"spec": rules(when("output.http.status == 1", "continue"), otherwise("fail"))}):
            async with engine(file_store) as operations:
                snapshot, lines = await run_playbook(
                    operations, playbook({"step": "a", "tool": {**python_task(script), **spec}})
                )
                assert snapshot.status == "FAILED", (number, lines)
                for record in await operations.log.read(snapshot.run_id):
                    assert isinstance(record, rw.RunEventRecord)
                    assert len(bytes(record.raw_payload)) < 70_000
