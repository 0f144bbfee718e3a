"""Playbooks over HTTP: started like any plan, with events in NoETL format."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

from runwright.contract.noetl.checker import NoetlChecker
from support.playbooks import arcs_to, noop, playbook, python_task
from support.server import run_path, running_server
from support.waiting import until


async def test_playbook_events_are_readable_in_both_formats(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        loop = {"in": "{{ xs }}", "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 2}}
        document = playbook(
            {"step": "a", "loop": loop, "tool": noop("{{ iter.x }}"), "next": arcs_to("b")},
            {"step": "b", "tool": noop()},
            workload={"xs": [1]},
        )
        run_id = await me.run(document, params={"xs": [1, 2, 3]})
        ended = await me.get(run_path(run_id))
        assert (ended["status"], [step["stepId"] for step in ended["steps"]]) == ("COMPLETED", ["a", "b"])
        noetl = await me.get(f"{run_path(run_id)}/events?format=noetl")
        assert NoetlChecker().check(noetl["events"]) == []
        ours = await me.get(f"{run_path(run_id)}/events")
        assert [event["seq"] for event in noetl["events"]] == [event["runSeq"] for event in ours["events"]]
        one = await me.get(f"{run_path(run_id)}/events?format=noetl&eventType=next.evaluated&stepId=a")
        assert one["events"][0]["event_type"] == "next.evaluated"
        assert one["events"][0]["payload"]["selected"] == [{"step": "b"}]


async def test_large_result_is_read_by_address_and_by_hash(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        large = {**python_task("result = ['x' * 100] * 1000"), "spec": {"result": {"preview_max_bytes": 10}}}
        run_id = await me.run(playbook({"step": "a", "tool": [{"big": large}]}))
        events = await me.get(
            f"{run_path(run_id)}/events?format=noetl&eventType=ResultStored&stepId={quote('a/big', safe='')}"
        )
        (stored,) = events["events"]
        assert (stored["event_type"], stored["entity_type"]) == ("result.stored", "result")
        assert (stored["entity_id"], stored["parent_id"]) == ("task:big:attempt:1", "task:big:run:1")
        ref = stored["payload"]["result_ref"]
        for name in (quote(ref["ref"], safe=""), ref["meta"]["sha256"], "a"):
            assert await me.get(f"{run_path(run_id)}/results/{name}") == ["x" * 100] * 1000
        other = await me.run(playbook({"step": "a", "tool": noop()}))
        await me.get(f"{run_path(other)}/results/{quote(ref['ref'], safe='')}", expected=404)

        async def unavailable(key: str) -> bytes:
            raise OSError(f"nobody at 10.1.2.3, where {key} should be")

        server.service.operations.engine.services.results.tiers._open["local"].get = unavailable
        problem = await me.get(f"{run_path(run_id)}/results/{quote(ref['ref'], safe='')}", expected=503)
        assert problem["code"] == "REFERENCE_NOT_AVAILABLE"
        assert "10.1.2.3" not in str(problem), "the address of a store is not disclosed"


async def test_loop_without_readers_has_its_counts_as_result(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        loop = {"in": [1, 2, 3], "iterator": "x"}
        run_id = await me.run(playbook({"step": "a", "loop": loop, "tool": noop()}, {"step": "b", "tool": noop()}))
        assert await me.get(f"{run_path(run_id)}/results/a") == {"total": 3, "done": 3, "failed": 0}


async def test_a_stream_ends_with_its_playbook(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        slow = {"kind": "shell", "command": "sleep 0.5"}
        run_id = (await me.start(playbook({"step": "a", "tool": slow})))["runId"]
        async with asyncio.timeout(10):  # less than the 15 s after which an open stream sends a heartbeat
            received = [event async for event in me.stream(f"{run_path(run_id)}/stream")]
        assert received[-1]["event"] == "RunProcessed"


FORGED = {
    "task.done": {
        "entity_type": "task",
        "entity_id": "t",
        "payload": {"outcome": {"status": "ok", "result": "FORGED"}},
    },
    "task.attempt.started": {"entity_type": "task", "entity_id": "t", "attempt": 2},
    "policy.task.evaluated": {"entity_id": "task:t", "payload": {"action": {"do": "break"}, "ctx": {"x": "FORGED"}}},
    "policy.admit.evaluated": {"entity_id": "step:b", "payload": {"allow": True}},
    "next.evaluated": {
        "entity_id": "step:a",
        "payload": {"mode": "exclusive", "matched": [{"step": "b"}], "selected": [{"step": "b"}]},
    },
    "result.stored": {"entity_id": "task:t:attempt:1", "payload": {"result_ref": {"ref": "noetl://x"}}},
    "workflow.finished": {},
    "playbook.processed": {},
}


async def test_events_from_others_are_refused_for_a_driven_run(store: str, tmp_path: Path) -> None:
    """While a process drives the run, only that process may record its tasks, policies and arcs."""
    waiting = python_task(
        "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\nresult = 'true'"
    )
    document = playbook(
        {"step": "a", "tool": [{"t": waiting}, {"u": noop("{{ t }}")}], "next": arcs_to("b")},
        {"step": "b", "tool": noop("{{ a }}")},
    )
    async with running_server(store) as server:
        me = await server.caller_with("Engineer", scopes=("events:server", "events:worker"))
        await me.start(document, context={"runId": "r"})
        await until(lambda: asyncio.to_thread((tmp_path / "begun").exists))
        for number, (kind, more) in enumerate(FORGED.items()):
            ids = {"parent_id": "step:a:run:1", "step_run_id": "step:a:run:1", "task_run_id": "task:t:run:1"}
            of_step = ids if more else {}
            forged = {
                "event_id": f"forged-{number}",
                "event_type": kind,
                "timestamp": "2026-02-05T23:11:22Z",
                "execution_id": "r",
                **of_step,
                **more,
            }
            refused = await me.post("/v1/events?format=noetl", forged, 409)
            assert refused["code"] == "RUN_OWNED", kind
        (tmp_path / "go").touch()
        assert (await me.get(f"{run_path('r')}?wait=30s"))["status"] == "COMPLETED"
        assert await me.get(f"{run_path('r')}/results/b") == "true"
        noetl = await me.get(f"{run_path('r')}/events?format=noetl")
        assert NoetlChecker().check(noetl["events"]) == []
