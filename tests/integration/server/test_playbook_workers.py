"""Tasks of playbooks for workers: which worker runs which task, and recovery when a worker or a server is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runwright.client.transport import HttpTransport
from runwright.contract.noetl.checker import NoetlChecker
from runwright.server.routes import worker_tasks as leases
from runwright.tools.registry import all_tools
from runwright.tools.secrets import EnvironmentSecrets
from support.flaky_server import flaky_server
from support.playbooks import WAIT_FOR_FILE, arcs_to, noop, otherwise, playbook, python_task, rules, when
from support.server import Caller, run_path, running_server
from support.waiting import until
from support.workers import LostWorker, event_types, shorten_leases, wait_for_empty_queue, worker


async def events(caller: Caller, run_id: str) -> list[dict[str, Any]]:
    return (await caller.get(f"{run_path(run_id)}/events?limit=1000"))["events"]


async def workers_of(caller: Caller, run_id: str) -> dict[str, str | None]:
    """Return the worker of each task, or None for the server itself."""
    found = [event for event in await events(caller, run_id) if event["eventType"] == "TaskStarted"]
    names = [(event["stepId"], (event.get("payload") or {}).get("worker")) for event in found]
    return {path: None if name is None else name.rpartition("/")[2] for path, name in names}


async def check(caller: Caller, run_id: str) -> None:
    found = (await caller.get(f"{run_path(run_id)}/events?format=noetl&limit=1000"))["events"]
    assert NoetlChecker().check(found) == []


async def test_pipeline_at_a_worker_writes_the_same_log(store: str) -> None:
    pipeline = [
        {"one": python_task("result = 1")},
        {"two": {**python_task("result = n + 1", n="{{ one }}"), "spec": rules(otherwise("continue"))}},
        {"three": noop("{{ two }}")},
    ]
    document = playbook(
        {"step": "a", "tool": pipeline, "next": arcs_to("b")},
        {"step": "b", "tool": python_task("result = a * 10", a="{{ a }}")},
    )
    logs: list[list[tuple[str, str | None]]] = []
    for steps in ("here", "workers"):
        async with running_server(store, steps=steps) as server, worker(server):
            me = server.caller()
            run_id = await me.run(document)
            assert (await me.get(run_path(run_id)))["status"] == "COMPLETED"
            assert await me.get(f"{run_path(run_id)}/results/b") == 20
            logs.append(await event_types(me, run_id))
            await check(me, run_id)
            at_worker = None if steps == "here" else "w1"
            assert await workers_of(me, run_id) == {
                "a/one": at_worker,
                "a/two": at_worker,
                "a/three": None,  # a noop needs no worker
                "b/b": at_worker,
            }
            started = next(event for event in await events(me, run_id) if event["eventType"] == "StepStarted")
            assert (started.get("payload") or {}).get("worker", "/None").endswith(f"/{at_worker}")
            await wait_for_empty_queue(server)
    assert logs[0] == logs[1]


async def test_workers_execute_loops_policies_and_failures(store: str) -> None:
    flaky = "import runwright as rw\nif rw.current_step().attempt < 3: raise ValueError('no')\nresult = n"
    retry = rules(when("outcome.status == 'error'", "retry", attempts=3, delay=0.05), otherwise("continue"))
    pages = "result = page"
    jump = rules(
        when("outcome.result < 3", "jump", to="get", set_iter={"page": "{{ outcome.result + 1 }}"}), otherwise("break")
    )
    document = playbook(
        {
            "step": "each",
            "loop": {"in": [1, 2, 3, 4, 5], "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 2}},
            "tool": [{"try": {**python_task(flaky, n="{{ iter.n }}"), "spec": retry}}, {"told": noop("{{ try * 2 }}")}],
            "next": arcs_to("pages"),
        },
        {
            "step": "pages",
            "tool": [{"get": {**python_task(pages, page="{{ iter.page | default(1) }}"), "spec": jump}}],
            "next": arcs_to("bad"),
        },
        {
            "step": "bad",
            "loop": {"in": [1, 2, 3], "iterator": "n"},
            "tool": python_task("raise ValueError('always')"),
            "next": {"arcs": [{"step": "end", "when": "{{ event.name == 'step.failed' }}"}]},
        },
        {"step": "end", "tool": noop("{{ each }}")},
    )
    async with running_server(store, steps="workers") as server, worker(server, slots=4):
        me = server.caller()
        run_id = await me.run(document)
        ended = await me.get(run_path(run_id))
        assert ended["status"] == "COMPLETED", ended
        assert await me.get(f"{run_path(run_id)}/results/end") == [2, 4, 6, 8, 10]
        found = await event_types(me, run_id)
        assert [path for kind, path in found if kind == "LoopIterationStarted"] == [
            *(f"each[{n}]" for n in range(5)),
            "bad[0]",  # the loop ends with its first failure
        ]
        assert sum(kind == "TaskAttemptStarted" and (path or "").startswith("each") for kind, path in found) == 15
        assert [path for kind, path in found if kind == "TaskStarted" and (path or "").startswith("pages")] == [
            "pages/get",
            "pages/get@2",
            "pages/get@3",
        ]
        await check(me, run_id)


async def test_dispatch_of_a_task_overrides_step_and_playbook(store: str) -> None:
    document = playbook(
        {"step": "a", "tool": python_task("result = 1"), "next": arcs_to("b")},
        {
            "step": "b",
            "spec": {"dispatch": {"queue": "step"}},
            "tool": [
                {"x": python_task("result = 1")},
                {"y": {**python_task("result = 2"), "spec": {"dispatch": "task"}}},
            ],
        },
        executor={"spec": {"dispatch": {"queue": "all"}}},
    )
    async with (
        running_server(store) as server,
        worker(server, "all", queues=["all"]),
        worker(server, "step", queues=["step"]),
        worker(server, "task", queues=["task"]),
    ):
        me = server.caller()
        run_id = await me.run(document)
        assert await workers_of(me, run_id) == {"a/a": "all", "b/x": "step", "b/y": "task"}
        scheduled = [
            event["payload"].get("queue") for event in await events(me, run_id) if event["eventType"] == "StepScheduled"
        ]
        assert scheduled == ["all", "step"]


async def test_no_task_starts_before_a_worker_claims_it(file_store: str) -> None:
    loop = {"in": [1, 2, 3, 4], "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 3}}
    document = playbook(
        {"step": "a", "loop": loop, "tool": python_task("result = 1"), "next": arcs_to("b")},
        {"step": "b", "tool": python_task("result = 2")},
    )
    async with running_server(file_store, steps="workers") as server:
        me = server.caller()
        run_id = (await me.start(document))["runId"]

        async def offered() -> bool:
            return len(await server.service.log.store.side_tables.read("task_counts")) > 0

        await until(offered)
        await asyncio.sleep(0.3)
        found = await event_types(me, run_id)
        assert [path for kind, path in found if kind == "LoopIterationScheduled"] == ["a[0]", "a[1]", "a[2]"]
        assert not [kind for kind, _ in found if kind in ("LoopIterationStarted", "TaskStarted")]
        await me.signal(run_id, "PAUSE")
        async with worker(server) as one:
            await asyncio.sleep(0.4)
            assert one.job_count == 0
            await me.signal(run_id, "RESUME")
            assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"
        await wait_for_empty_queue(server)


async def test_while_a_run_is_paused_no_further_task_is_offered(file_store: str, tmp_path: Path) -> None:
    tasks = [{"x": python_task(WAIT_FOR_FILE, go=str(tmp_path / "go"))}, {"y": python_task("result = 1")}]
    async with running_server(file_store, steps="workers") as server, worker(server) as one:
        me = server.caller()
        run_id = (await me.start(playbook({"step": "a", "tool": tasks})))["runId"]

        async def has(kind: str, path: str) -> bool:
            return (kind, path) in await event_types(me, run_id)

        await until(lambda: has("TaskStarted", "a/x"))
        await me.signal(run_id, "PAUSE")
        (tmp_path / "go").touch()
        await until(lambda: has("TaskDone", "a/x"))
        await asyncio.sleep(0.4)
        assert one.job_count == 0
        assert not await has("TaskStarted", "a/y")
        assert await server.service.log.store.side_tables.read("task_counts") == [("DONE", 1)]  # no task is offered
        await me.signal(run_id, "RESUME")
        assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"


async def test_worker_does_not_wait_for_a_task_with_bad_inputs(
    file_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inputs of one task cannot be evaluated; the other tasks that the worker claims still run."""
    bad = {**python_task("result = 1", n="{{ nobody.knows }}"), "spec": rules(otherwise("continue"))}
    monkeypatch.setattr(leases, "START_TIMEOUT_SECONDS", 3600)
    document = playbook({"step": "a", "tool": [{"bad": bad}, {"good": {"kind": "shell", "command": "sleep 60"}}]})
    async with running_server(file_store, steps="workers") as server, worker(server, drain=0.0) as one:
        me = server.caller()
        run_id = (await me.start(document))["runId"]

        async def begun() -> bool:
            return [job.assignment.path for job in one._jobs.values()] == ["a/good"]

        await until(begun)
        assert await server.service.log.store.side_tables.read("task_counts") == [("STARTED", 1)]
        await me.signal(run_id, "CANCEL")
        assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "CANCELLED"


@pytest.fixture
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_leases(monkeypatch)


@pytest.mark.usefixtures("_short_leases")
async def test_only_the_task_of_a_lost_worker_is_executed_again(store: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    first = {"kind": "shell", "command": f"echo x >> {mark}"}
    second = {**python_task("result = 2"), "spec": {"dispatch": "second"}}
    document = playbook({"step": "a", "loop": {"in": [1], "iterator": "n"}, "tool": [{"one": first}, {"two": second}]})
    async with running_server(store, steps="workers") as server, worker(server):
        me = server.caller()
        transport = HttpTransport([server.address], None, retry_seconds=None)
        lost = LostWorker(transport, "lost", all_tools(), EnvironmentSecrets(), queues=["second"])
        stop = asyncio.Event()
        running = asyncio.create_task(lost.run(stop, 0))
        run_id = (await me.start(document))["runId"]

        async def is_claimed() -> bool:
            return lost.job_count == 1

        await until(is_claimed)
        lease_id = next(iter(lost._jobs))
        stop.set()
        await running
        async with worker(server, "w2", queues=["second"]):
            ended = await me.get(f"{run_path(run_id)}?wait=30s")
        assert ended["status"] == "COMPLETED"
        assert mark.read_text() == "x\n"
        kinds = [kind for kind, _ in await event_types(me, run_id)]
        assert (kinds.count("TaskStarted"), kinds.count("TaskDone"), kinds.count("LoopDone")) == (2, 2, 1)
        done = [event for event in await events(me, run_id) if event["eventType"] == "TaskDone"]
        assert [event["engineAttemptId"] for event in done] == [1, 2]
        late = await me.post(f"/v1/leases/{lease_id}/result?worker=lost", {"result": 1}, 409)
        assert late["code"] == "LEASE_LOST"
        await check(me, run_id)
        await transport.close()


async def test_step_with_an_unclaimed_task_times_out(file_store: str) -> None:
    first = python_task("result = 1")
    second = {**python_task("result = 2"), "spec": {"dispatch": "nobody"}}
    retried = {
        **python_task("raise ValueError('no')"),
        "spec": {"dispatch": "some", **rules(when("outcome.status == 'error'", "retry", attempts=5, delay=0.6))},
    }
    limit = {"policy": {"lifecycle": {"timeout_s": 0.8}}}
    loop = {"in": [1, 2], "iterator": "n", "spec": {"mode": "parallel"}}
    async with running_server(file_store) as server:
        me = server.caller()
        for steps in (
            {"step": "a", "spec": limit, "tool": [{"one": first}, {"two": second}]},
            {"step": "a", "spec": limit, "tool": second, "loop": loop},
        ):
            run_id = await me.run(playbook(steps))
            ended = await me.get(run_path(run_id))
            assert ended["status"] == "FAILED"
            assert "STEP_TIMEOUT" in str(ended["steps"][0]["error"])
            await check(me, run_id)
            await wait_for_empty_queue(server)
        run_id = (await me.start(playbook({"step": "a", "spec": limit, "tool": retried})))["runId"]
        async with worker(server, queues=["some"]):

            async def failed() -> bool:
                return "TaskAttemptFailed" in str(await event_types(me, run_id))

            await until(failed)
        ended = await me.get(f"{run_path(run_id)}?wait=30s")
        assert "STEP_TIMEOUT" in str(ended["steps"][0]["error"])
        await check(me, run_id)


async def test_worker_fetches_large_results_and_artifacts(store: str) -> None:
    document = playbook(
        {
            "step": "a",
            "tool": [
                {"big": python_task("result = {'rows': ['x' * 1000] * 100}")},
                {"again": {"kind": "artifact", "action": "get", "ref": "{{ big._ref }}"}},
                {"kept": {"kind": "artifact", "action": "put", "data": {"n": 7}}},
                {"got": {"kind": "artifact", "action": "get", "ref": "{{ kept }}"}},
                {"sum": python_task("result = [len(again['rows']), got['n']]", again="{{ again }}", got="{{ got }}")},
            ],
        }
    )
    async with running_server(store, steps="workers") as server, worker(server):
        me = server.caller()
        run_id = await me.run(document)
        assert (await me.get(run_path(run_id)))["status"] == "COMPLETED", await events(me, run_id)
        assert await me.get(f"{run_path(run_id)}/results/a") == [100, 7]
        assert set((await workers_of(me, run_id)).values()) == {"w1"}


async def test_checkpoints_and_responses_are_equal_at_a_worker(store: str) -> None:
    """A checkpoint belongs to one visit, and long HTTP responses are complete."""
    script = (
        "import runwright as rw\nstep = rw.current_step()\nseen = step.restored\nstep.checkpoint({'by': step.step_id})\n"
        "if step.attempt < 2 and step.step_id.startswith('l'): raise ValueError('again')\nresult = seen"
    )
    again = rules(when("outcome.status == 'error'", "retry", attempts=2), otherwise("continue"))
    jump = rules(when("(iter.n | default(0)) < 1", "jump", to="a", set_iter={"n": 1}), otherwise("break"))
    missing = rules(when("outcome.http.status == 404", "break"), otherwise("fail"))
    with flaky_server() as web:
        document = playbook(
            {"step": "a", "tool": [{"a": {**python_task(script), "spec": jump}}], "next": arcs_to("l")},
            {
                "step": "l",
                "loop": {"in": [1], "iterator": "x"},
                "tool": {**python_task(script), "spec": again},
                "next": arcs_to("w"),
            },
            {
                "step": "w",
                "tool": {"kind": "http", "url": f"{web.url}/gone", "spec": missing},
                "next": arcs_to("e"),
            },
            {"step": "e", "tool": noop(["{{ a }}", "{{ l }}", "{{ w.data.pad | length }}"])},
        )
        results: list[Any] = []
        for steps in ("here", "workers"):
            async with running_server(store, steps=steps) as server, worker(server):
                me = server.caller()
                run_id = await me.run(document)
                assert (await me.get(run_path(run_id)))["status"] == "COMPLETED", await events(me, run_id)
                results.append(await me.get(f"{run_path(run_id)}/results/e"))
    assert results == [[None, [{"by": "l[0]/l"}], 20000]] * 2


async def test_checkpoint_survives_the_stop_of_its_worker(store: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = (
        f"import pathlib, time\nimport runwright as rw\nstep = rw.current_step()\nmark = pathlib.Path({str(mark)!r})\n"
        "result = step.restored\nif not mark.exists():\n    step.checkpoint(7)\n    mark.touch()\n    time.sleep(60)"
    )
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        async with worker(server, "w1", drain=0.0):
            run_id = (await me.start(playbook({"step": "a", "tool": python_task(script)})))["runId"]

            async def begun() -> bool:
                return mark.exists()

            await until(begun)
        async with worker(server, "w2"):
            assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"
        assert await me.get(f"{run_path(run_id)}/results/a") == 7


async def test_worker_can_report_results_of_many_megabytes(file_store: str) -> None:
    async with running_server(file_store, steps="workers") as server, worker(server):
        me = server.caller()
        run_id = await me.run(playbook({"step": "a", "tool": python_task("result = 'x' * 20_000_000")}))
        assert (await me.get(run_path(run_id)))["status"] == "COMPLETED"
        assert len(await me.get(f"{run_path(run_id)}/results/a")) == 20_000_000
        run_id = await me.run({"plan": "p", "steps": [{"id": "a", "python": {"code": "'x' * 70_000_000"}}]})
        assert (await me.get(run_path(run_id)))["status"] == "FAILED"
        script = "import runwright as rw\nrw.current_step().checkpoint('x' * 20_000_000)"
        run_id = await me.run(playbook({"step": "a", "tool": python_task(script)}))
        assert "A checkpoint must have at most" in str((await me.get(run_path(run_id)))["steps"][0]["error"])


async def test_credentials_at_a_worker_are_not_in_events(
    file_store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WAREHOUSE", f"sqlite:///{tmp_path}/hunter2.db")
    query = {"kind": "sqlite", "auth": "WAREHOUSE", "query": "SELECT 1 AS one"}
    async with running_server(file_store, steps="workers") as server, worker(server):
        me = server.caller()
        run_id = await me.run(playbook({"step": "a", "tool": query}))
        assert (await me.get(run_path(run_id)))["status"] == "COMPLETED", await events(me, run_id)
        assert "hunter2" not in str(await events(me, run_id))


async def test_playbook_for_workers_can_continue_without_them(store: str) -> None:
    loop = {"in": [1, 2, 3], "iterator": "n", "spec": {"mode": "parallel"}}
    document = playbook(
        {"step": "a", "tool": noop(1), "next": arcs_to("b", "c", mode="inclusive")},
        {"step": "b", "loop": loop, "tool": [{"x": python_task("result = 1")}, {"y": python_task("result = 2")}]},
        {"step": "c", "tool": python_task("result = 3")},
    )
    async with running_server(store, steps="workers", drain=0.0) as first:
        run_id = (await first.caller().start(document))["runId"]

        async def offered() -> bool:
            return ("LoopIterationScheduled", "b[2]") in await event_types(first.caller(), run_id)

        await until(offered)
    async with running_server(store) as second:
        me = second.caller()
        assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"
        found = await event_types(me, run_id)
        assert sum(kind == "LoopIterationScheduled" for kind, _ in found) == 3
        assert set((await workers_of(me, run_id)).values()) == {None}
        await check(me, run_id)
