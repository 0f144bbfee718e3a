"""Isolation of visits, tokens and values from each other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright.contract.noetl.checker import NoetlChecker
from runwright.contract.noetl.view import noetl_event
from support.engine import engine, event_lines, lines_of_types, wait_for_end, wait_for_event
from support.flaky_server import flaky_server
from support.playbooks import (
    WAIT_FOR_FILE,
    arcs_to,
    noop,
    otherwise,
    playbook,
    python_task,
    result_of,
    rules,
    run_playbook,
    when,
)

BIG = 70_000  # bytes, too many for an event


async def args_of(operations: Any, run_id: str, step: str) -> list[dict[str, Any]]:
    """Return the arguments of each visit of a step."""
    records = await operations.log.read(run_id)
    scheduled = [record for record in records if record.event_type == "StepScheduled"]
    return [record.payload["args"] for record in scheduled if record.step_id.partition("@")[0] == step]


async def test_arcs_read_the_result_of_their_own_visit(store: str) -> None:
    arcs = [{"step": "mail", "args": {"to": name}} for name in ("ada", "grace", "joan")]
    passed = {"asked": "{{ args.to }}", "sent": "{{ mail }}", "out": "{{ output.data }}"}
    document = playbook(
        {"step": "split", "tool": noop(), "next": {"spec": {"mode": "inclusive"}, "arcs": arcs}},
        {"step": "mail", "join": "any", "tool": noop("{{ args.to }}"),
         "next": {"arcs": [{"step": "note", "args": passed, "when": "{{ mail == args.to }}"}]}},
        {"step": "note", "join": "any", "tool": noop()},
    )  # fmt: skip
    async with engine(store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        given = await args_of(operations, snapshot.run_id, "note")
    assert sorted(given, key=str) == [{"asked": n, "sent": n, "out": n} for n in ("ada", "grace", "joan")]


async def test_each_token_is_a_visit_where_no_arcs_meet(store: str, tmp_path: Path) -> None:
    """Several tokens can be present at once: pages are saved while the next ones are read."""
    again = {"step": "page", "when": "{{ page < 5 }}", "args": {"n": "{{ page }}"}}
    document = playbook(
        {"step": "page", "tool": noop("{{ (args.n | default(0)) + 1 }}"),
         "next": {"spec": {"mode": "inclusive"}, "arcs": [again, {"step": "save", "args": {"n": "{{ page }}"}}]}},
        {"step": "save", "tool": python_task(WAIT_FOR_FILE, go=str(tmp_path / "go")),
         "next": {"arcs": [{"step": "told", "args": {"n": "{{ args.n }}"}}]}},
        {"step": "told", "tool": noop()},
    )  # fmt: skip
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(document))
        await wait_for_event(operations, run_id, "TaskStarted", "save@5/save")
        (tmp_path / "go").touch()
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert sorted(given["n"] for given in await args_of(operations, run_id, "told")) == [1, 2, 3, 4, 5]


async def test_pause_does_not_time_out_a_completed_step(store: str, tmp_path: Path) -> None:
    step = {"step": "work", "spec": {"policy": {"lifecycle": {"timeout_s": 1.5}}}, "next": arcs_to("after")}
    for tool in (
        python_task(WAIT_FOR_FILE, go=str(tmp_path / "go")),
        {**python_task(WAIT_FOR_FILE, go=str(tmp_path / "go")), "spec": rules(otherwise("continue"))},
    ):
        (tmp_path / "go").unlink(missing_ok=True)
        async with engine(store) as operations:
            document = playbook({**step, "tool": tool}, {"step": "after", "tool": noop()})
            run_id = await operations.start(operations.load(document))
            await wait_for_event(operations, run_id, "TaskStarted", "work/work")
            await operations.signal(run_id, "PAUSE")
            await wait_for_event(operations, run_id, "RunPaused")
            (tmp_path / "go").touch()
            await wait_for_event(operations, run_id, "StepCompleted", "work")  # a pause lets running steps finish
            await asyncio.sleep(1.6)
            paused = await operations.log.snapshot(run_id)
            assert (paused.status, paused.completed_steps) == ("PAUSED", 1)
            await operations.signal(run_id, "RESUME")
            assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def test_loop_can_complete_during_a_pause(store: str, tmp_path: Path) -> None:
    loop = {"in": [1, 2], "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 2}}
    document = playbook(
        {
            "step": "work",
            "loop": loop,
            "tool": python_task(WAIT_FOR_FILE, go=str(tmp_path / "go")),
            "next": arcs_to("after"),
        },
        {"step": "after", "tool": noop("{{ work | length }}")},
    )
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(document))
        await wait_for_event(operations, run_id, "TaskStarted", "work[1]/work")
        await operations.signal(run_id, "PAUSE")
        await wait_for_event(operations, run_id, "RunPaused")
        (tmp_path / "go").touch()
        await wait_for_event(operations, run_id, "StepCompleted", "work")
        assert "StepScheduled after" not in await event_lines(operations, run_id)
        await operations.signal(run_id, "RESUME")
        snapshot = await wait_for_end(operations, run_id)
        assert await result_of(operations, snapshot) == 2
        assert NoetlChecker().check(map(noetl_event, await operations.log.read(run_id))) == []


async def test_arc_output_is_from_the_task_that_ended_the_step(file_store: str) -> None:
    arcs = {"arcs": [{"step": "good", "when": "{{ output.http.status == 200 }}", "args": {"d": "{{ output.data }}"}},
                     {"step": "other", "args": {"d": "{{ output.data }}", "s": "{{ output.http.status }}"}}]}  # fmt: skip
    ends = [{"step": name, "tool": noop("{{ args }}")} for name in ("good", "other")]
    like_a_response = {"status": 200, "headers": {}, "data": [1]}
    with flaky_server() as server:
        web = {"kind": "http", "url": f"{server.url}/echo", "spec": rules(otherwise("break"))}
        stopped = {
            **noop(like_a_response),
            "spec": rules(when("output.data.status == 200", "break"), otherwise("fail")),
        }
        async with engine(file_store) as operations:
            for tools, status in (([{"web": web}, {"b": noop()}], 200), ([{"a": stopped}, {"web": web}], None)):
                document = playbook({"step": "call", "tool": tools, "next": arcs}, *ends)
                snapshot, lines = await run_playbook(operations, document)
                assert snapshot.status == "COMPLETED", lines
                found = await result_of(operations, snapshot)
                if status is None:
                    assert found == {"d": like_a_response, "s": None}
                else:
                    assert found["d"]["method"] == "GET"


@pytest.mark.parametrize("size", [10, 1000])
async def test_expressions_read_large_results_like_small_ones(file_store: str, size: int) -> None:
    made = python_task("result = {'user%d' % n: 'v' * 100 for n in range(size)}", size="{{ size }}")
    document = playbook(
        {"step": "a", "tool": made,
         "next": {"arcs": [{"step": "each", "args": {"count": "{{ a | length }}", "out": "{{ output.data | length }}"}}]}},
        {"step": "each", "loop": {"in": "{{ (a | list)[-2:] }}", "iterator": "user"}, "tool": noop("{{ iter.user }}"),
         "next": {"arcs": [{"step": "end", "args": {"n": "{{ args }}", "last": "{{ each }}"}}]}},
        {"step": "end", "tool": python_task("result = [n, last, sorted(whole) == sorted('user%d' % i for i in range(size))]",
                                     n="{{ args.n }}", last="{{ args.last }}", whole="{{ a }}", size="{{ size }}")},
        workload={"size": size},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        counts = {"count": size, "out": size}
        assert await result_of(operations, snapshot) == [counts, [f"user{size - 2}", f"user{size - 1}"], True]


async def test_selected_fields_and_the_whole_result_are_readable(file_store: str) -> None:
    spec = {"result": {"select": [{"path": "$[2999].id", "as": "last"}]}}
    arcs = [{"step": "more", "when": "{{ fetch.last > 100 }}",
             "args": {"last": "{{ fetch.last }}", "n": "{{ fetch | length }}", "in": "{{ fetch._ref.store }}"}},
            {"step": "never", "args": {"n": "{{ fetch | length }}"}}]  # fmt: skip
    document = playbook(
        {"step": "fetch", "tool": {**python_task("result = [{'id': n, 't': 'x' * 50} for n in range(3000)]"), "spec": spec},
         "next": {"arcs": arcs}},
        {"step": "more", "tool": noop("{{ args }}")},
        {"step": "never", "tool": noop()},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == {"last": 2999, "n": 3000, "in": "local"}


async def test_task_mutations_of_arguments_do_not_leak(file_store: str) -> None:
    """Mutations are not in the log, so the workload, `ctx` and stored results must not change."""
    spoil = "names.append('mallory'); big['rows'].append(2); seen.append('x'); result = [len(names), len(seen)]"
    set_seen = rules(otherwise("continue", set_ctx={"seen": ["a"]}))
    document = playbook(
        {"step": "make", "tool": {**python_task(f"result = {{'rows': [1], 'pad': 'x' * {BIG}}}"), "spec": set_seen}, "next": arcs_to("spoil")},
        {"step": "spoil", "loop": {"in": [1, 2, 3], "iterator": "n", "spec": {"mode": "parallel"}},
         "tool": python_task(spoil, names="{{ names }}", big="{{ make }}", seen="{{ ctx.seen }}"), "next": arcs_to("look")},
        {"step": "look", "tool": noop(["{{ names }}", "{{ make.rows }}", "{{ ctx.seen }}", "{{ spoil }}"])},
        workload={"names": ["ada"]},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == [["ada"], [1], ["a"], [[2, 2]] * 3]


async def test_recovered_run_reads_the_same_plan(file_store: str, tmp_path: Path) -> None:
    """The order of keys in mappings is the same after a recovery, too."""
    mapping = {"zip": 1, "city": 2}
    seen = python_task(
        "result = [list(row), list(jobs), header]", row=mapping, jobs="{{ jobs }}", header="{{ n | join(',') }}"
    )
    document = playbook(
        {"step": "wait", "tool": python_task(WAIT_FOR_FILE, go=str(tmp_path / "go")), "next": arcs_to("n")},
        {"step": "n", "tool": noop(mapping), "next": arcs_to("b")},
        {"step": "b", "tool": seen},
        workload={"jobs": {"zeta": 1, "alpha": 2}},
    )
    go = tmp_path / "go"
    go.touch()
    async with engine(file_store) as operations:
        run_through = await result_of(operations, (await run_playbook(operations, document))[0])
    go.unlink()
    async with engine(file_store) as operations:
        run_id = await operations.start(operations.load(document))
        await wait_for_event(operations, run_id, "TaskStarted", "wait/wait")
    go.touch()
    async with engine(file_store) as operations:
        await operations.resume(run_id)
        assert await result_of(operations, await wait_for_end(operations, run_id)) == run_through
    assert run_through[1] == ["zeta", "alpha"]


async def test_step_scoped_result_is_unavailable_after_the_step(file_store: str) -> None:
    step_scoped = {"result": {"store": {"scope": "step"}, "select": [{"path": "$.k", "as": "key"}]}}
    tool = {**python_task(f"result = {{'pad': 'x' * {BIG}, 'k': 1}}"), "spec": step_scoped}
    for expression, code_of in (("{{ a.key }}", None), ("{{ a.pad | length }}", "REFERENCE_NOT_AVAILABLE")):
        document = playbook(
            {"step": "a", "tool": tool, "next": {"arcs": [{"step": "b", "when": "{{ a.pad | length > 1 }}"}]}},
            {"step": "b", "tool": noop(expression)},
        )
        async with engine(file_store) as operations:
            snapshot, _ = await run_playbook(operations, document)
            assert (snapshot.root_cause and snapshot.root_cause.code) == code_of


async def test_the_workload_and_ctx_may_hold_expressions(file_store: str) -> None:
    document = playbook(
        {"step": "a", "tool": noop(["{{ tag }}", "{{ deep.url }}", "{{ both }}", "{{ ctx.here }}", "{{ given }}"])},
        workload={"tag": "run_{{ execution_id }}", "host": "h", "deep": {"url": "http://{{ host }}/", "n": 1},
                  "both": "{{ tag }} at {{ workload.deep.url }}", "given": "{{ tag }}"},
        ctx={"here": "{{ deep.url }}"},
    )  # fmt: skip
    async with engine(file_store) as operations:
        params = {"host": "{{ tag }}", "deep": {"n": 2}, "given": "{{ nothing of ours }}"}
        snapshot, lines = await run_playbook(operations, document, params=params, run_id="r1")
        assert snapshot.status == "COMPLETED", lines
        url = "http://{{ tag }}/"  # a parameter is data, even if it looks like an expression
        assert await result_of(operations, snapshot) == ["run_r1", url, f"run_r1 at {url}", url, params["given"]]
        again = await operations.start(operations.load(document), params=params, run_id="r1")
        assert again == "r1"
        rerun = await wait_for_end(operations, await operations.rerun("r1", new_id="r2"))
        assert await result_of(operations, rerun) == ["run_r2", url, f"run_r2 at {url}", url, params["given"]]


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"a": "{{ workload.nobody }}"}, "nobody"),
        ({"a": "{{ b }}", "b": "{{ workload.a }}"}, "Cycle in workload expressions: a -> b -> a"),
    ],
)
async def test_invalid_workload_expression_is_refused_at_start(workload: dict[str, Any], message: str) -> None:
    async with engine("memory://") as operations:
        plan = operations.load(playbook({"step": "a", "tool": noop()}, workload=workload))
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.start(plan)
        assert (caught.value.code, message in caught.value.detail) == ("EXPRESSION_ERROR", True)
        assert not (await operations.log.list_runs()).runs


async def test_invalid_ctx_expression_fails_the_run(store: str) -> None:
    async with engine(store) as operations:
        snapshot, lines = await run_playbook(
            operations, playbook({"step": "a", "tool": noop()}, ctx={"e": "{{ nobody }}"})
        )
    assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "EXPRESSION_ERROR")
    assert lines_of_types(lines, "WorkflowStarted", "StepStarted", "WorkflowFinished") == [
        "WorkflowStarted",
        "WorkflowFinished",
    ]


async def test_iteration_variables_do_not_hide_workload_or_results(store: str) -> None:
    sets = rules(otherwise("continue", set_iter={"limit": 99, "prep": "x", "own": 1}))
    document = playbook(
        {"step": "prep", "tool": noop({"n": 3}), "next": arcs_to("poll")},
        {"step": "poll", "tool": [{"ask": {**noop(), "spec": sets}},
                                  {"use": noop(["{{ limit }}", "{{ prep.n }}", "{{ iter.limit }}", "{{ own }}"])}]},
        workload={"limit": 10},
    )  # fmt: skip
    async with engine(store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == [10, 3, 99, 1]


async def test_failed_visit_is_not_routed_by_an_older_result(store: str) -> None:
    fails = "if p == 2: raise ConnectionError('page 2 lost')\nresult = {'ok': True}"
    for loop in ({}, {"loop": {"in": [1], "iterator": "n"}}):
        own = "fetch[0].ok" if loop else "fetch.ok"
        document = playbook(
            {"step": "fetch", **loop, "tool": python_task(fails, p="{{ ctx.page }}"), "next": {"arcs": [
                {"step": "fetch", "when": "{{ ctx.page == 1 }}", "set": {"ctx.page": 2}},
                {"step": "publish", "when": "{{ " + own + " }}"},
                {"step": "publish", "when": "{{ output.data.ok }}"},
                {"step": "rescue", "when": "{{ event.name == 'step.failed' }}"}]}},
            {"step": "publish", "tool": noop("published")},
            {"step": "rescue", "tool": noop("rescued")},
            ctx={"page": 1},
        )  # fmt: skip
        async with engine(store) as operations:
            snapshot, lines = await run_playbook(operations, document)
            assert snapshot.status == "COMPLETED", lines
            assert await result_of(operations, snapshot) == "rescued"


async def test_arc_conditions_do_not_replace_the_root_cause(store: str) -> None:
    for condition in ("{{ work.ok }}", "{{ nobody.knows }}"):
        arcs = {"arcs": [{"step": "good", "when": condition}]}
        document = playbook(
            {"step": "work", "tool": python_task("1 / 0"), "next": arcs}, {"step": "good", "tool": noop()}
        )
        async with engine(store) as operations:
            snapshot, _ = await run_playbook(operations, document)
            assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "STEP_RAISED")


async def test_arcs_accept_any_name_for_the_end_of_a_step(store: str) -> None:
    for loop, name in (({"loop": {"in": [1], "iterator": "x"}}, "step.done"), ({}, "loop.done"), ({}, "call.done")):
        arcs = {"arcs": [{"step": "e", "when": "{{ event.name == '" + name + "' }}"}]}
        document = playbook(
            {"step": "work", **loop, "tool": noop(1), "next": arcs}, {"step": "e", "tool": noop("reached")}
        )
        async with engine(store) as operations:
            snapshot, _ = await run_playbook(operations, document)
            assert await result_of(operations, snapshot) == "reached"


async def test_sub_run_with_a_permanent_error_is_not_retried(store: str) -> None:
    again = rules(when("outcome.error.retryable", "retry", attempts=3), otherwise("fail"))
    for value, tries in (("{{ nosuch }}", 1), ("{{ 'x' }}", 3)):
        first = noop(value) if tries == 1 else python_task("1 / 0")
        document = playbook(
            {"step": "s", "tool": {"kind": "workbook", "name": "pair", "spec": again}},
            workbook=[{"name": "pair", "tool": [{"a": first}, {"b": noop(1)}]}],
        )
        async with engine(store) as operations:
            snapshot, lines = await run_playbook(operations, document)
            assert snapshot.root_cause.code == "SUBRUN_FAILED"
            assert len(lines_of_types(lines, "TaskAttemptStarted")) == tries


@pytest.mark.parametrize(
    ("most", "is_good"), [(2, True), ("4", True), (2.5, False), (True, False), ("x", False), (0, False)]
)
async def test_max_in_flight_must_be_a_positive_whole_number(most: Any, is_good: bool) -> None:
    loop = {"in": [1, 2, 3], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": "{{ m }}"}}
    async with engine("memory://") as operations:
        document = playbook({"step": "l", "loop": loop, "tool": noop()}, workload={"m": most})
        snapshot, _ = await run_playbook(operations, document)
    assert (snapshot.status == "COMPLETED") is is_good


async def test_job_uuid_is_an_alias_of_the_run_id(store: str) -> None:
    document = playbook({"step": "a", "tool": noop("{{ id }} {{ job.uuid }}")}, workload={"id": "{{ job.uuid }}"})
    async with engine(store) as operations:
        snapshot, _ = await run_playbook(operations, document, run_id="r1")
        assert await result_of(operations, snapshot) == "r1 r1"


@pytest.mark.parametrize("fails", [True, False])
async def test_newest_visit_is_read_even_if_an_older_ends_later(file_store: str, tmp_path: Path, fails: bool) -> None:
    arcs = [{"step": "work", "args": {"n": n, "go": str(tmp_path / f"go{n}")}} for n in (1, 2)]
    document = playbook(
        {"step": "a", "tool": noop(), "next": {"spec": {"mode": "inclusive"}, "arcs": arcs}},
        {"step": "work", "join": "any", "spec": {"policy": {"failure": {"mode": "best_effort"}}},
         "tool": python_task(f"{WAIT_FOR_FILE}\nassert n == 2 or not {fails}\nresult = n", n="{{ args.n }}", go="{{ args.go }}")},
        {"step": "end", "tool": noop("{{ work }}")},
        executor={"spec": {"final_step": "end"}},
    )  # fmt: skip
    async with engine(file_store) as operations:
        run_id = await operations.start(operations.load(document))
        (tmp_path / "go2").touch()
        await wait_for_event(operations, run_id, "StepCompleted", "work@2")
        (tmp_path / "go1").touch()
        snapshot = await wait_for_end(operations, run_id)
        assert (snapshot.status, await result_of(operations, snapshot)) == ("COMPLETED", 2)


async def test_failed_run_does_not_wait_for_unclaimed_tasks(file_store: str) -> None:
    remote = {**python_task("result = 1"), "spec": {"dispatch": {"queue": "nobody"}}}
    document = playbook(
        {"step": "a", "next": arcs_to("bad", "far", mode="inclusive")},
        {"step": "bad", "tool": python_task("1 / 0")},
        {"step": "far", "tool": remote},
    )
    async with engine(file_store, workers="named") as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert (snapshot.status, snapshot.root_cause.step_id) == ("FAILED", "bad")
        assert "StepScheduled far" in lines
        assert NoetlChecker().check(map(noetl_event, await operations.log.read(snapshot.run_id))) == []


async def test_task_timeout_includes_resolving_secrets(file_store: str) -> None:
    class SlowSecrets:
        def missing(self, names: Any, context: Any) -> list[str]:
            return []

        def resolve(self, names: Any, context: Any) -> dict[str, str]:
            asyncio.run(asyncio.sleep(2))
            return dict.fromkeys(names, "sqlite:///x.db")

    task = {"kind": "sqlite", "auth": "db", "query": "select 1", "spec": {"timeout": "100ms"}}
    async with engine(file_store) as operations:
        operations.engine.services.secrets = SlowSecrets()
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "tool": task}))
    assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "STEP_TIMEOUT")
