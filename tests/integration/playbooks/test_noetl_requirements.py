"""Requirements of NoETL's Runtime Event Model v10, and known failures of servers of its kind."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright.contract.catalog import CATALOG
from runwright.contract.noetl.checker import NoetlChecker
from runwright.contract.noetl.view import alias_of, noetl_event
from runwright.control.operations import Operations
from runwright.log.model import RunFilter
from support.engine import engine, wait_for_end, wait_for_event
from support.playbooks import arcs_to, noop, otherwise, playbook, python_task, rules, run_playbook, when
from support.server import run_path, running_server
from support.waiting import until

SERVER = [
    "playbook.execution.requested",
    "playbook.request.evaluated",
    "playbook.started",
    "playbook.paused",
    "playbook.finished",
    "playbook.processed",
    "workflow.started",
    "workflow.finished",
    "step.scheduled",
    "loop.started",
    "loop.iteration.scheduled",
    "loop.done",
    "policy.admit.evaluated",
    "next.evaluated",
]
WORKER = [
    "step.started",
    "step.done",
    "step.failed",
    "task.started",
    "task.attempt.started",
    "task.attempt.done",
    "task.attempt.failed",
    "task.done",
    "task.failed",
    "loop.iteration.started",
    "loop.iteration.done",
    "loop.iteration.failed",
    "policy.task.evaluated",
    "result.stored",
    "result.manifest.updated",
]
"""Every type of the model's section 3, by its emitter."""

EVERYTHING = playbook(
    {
        "step": "loop",
        "loop": {"in": [0, 1, 2], "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 2}},
        "tool": [
            {"plain": {**python_task("result = 1 / n", n="{{ iter.n }}"),
                       "spec": rules(when("outcome.status == 'error'", "retry", attempts=2), otherwise("continue"))}},
            {"large": {**noop("{{ _prev }}"), "spec": {"result": {"inline_max_bytes": 0}}}},
        ],
        "spec": {"policy": {"failure": {"mode": "best_effort"}}},
        "next": arcs_to("fails"),
    },
    {"step": "fails", "tool": python_task("raise ValueError('no')"),
     "next": {"arcs": [{"step": "holds", "when": "{{ event.name == 'step.failed' }}"}]}},
    {"step": "holds", "tool": python_task("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"), "next": arcs_to("end")},
    {"step": "end", "tool": noop("{{ loop }}")},
)  # fmt: skip


async def run_everything(operations: Operations) -> list[dict[str, Any]]:
    """Run a playbook that emits every type and return its NoETL events."""
    run_id = await operations.start(operations.load(EVERYTHING))
    await wait_for_event(operations, run_id, "TaskStarted", "holds/holds")
    await operations.signal(run_id, "PAUSE")
    await wait_for_event(operations, run_id, "RunPaused")
    Path("go").touch()
    await operations.signal(run_id, "RESUME")
    await wait_for_end(operations, run_id)
    return [noetl_event(record) for record in await operations.log.read(run_id)]


def test_canonical_names_are_lowercase_words_with_dots() -> None:
    for kind in CATALOG.values():
        assert re.fullmatch(r"[a-z]+(\.[a-z]+){1,2}", kind.dotted), kind.dotted


def test_catalogue_has_every_noetl_type_with_alias_and_role() -> None:
    ours = {kind.dotted: str(kind.role) for kind in CATALOG.values()}
    assert {name: ours[name] for name in (*SERVER, *WORKER)} == {
        **dict.fromkeys(SERVER, "server"),
        **dict.fromkeys(WORKER, "worker"),
    }
    assert alias_of("task.attempt.failed") == "TaskAttemptFailed"
    assert alias_of("playbook.execution.requested") == "PlaybookExecutionRequested"
    assert alias_of("policy.admit.evaluated") == "PolicyAdmitEvaluated"


async def test_every_noetl_type_is_emitted_by_its_source(
    file_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with engine(file_store) as operations:
        events = await run_everything(operations)
    assert NoetlChecker().check(events) == []
    by = {each["event_type"]: each["source"] for each in events}
    assert {name for name, source in by.items() if source == "server"} >= set(SERVER)
    assert {name for name, source in by.items() if source == "worker"} >= set(WORKER)
    aliases = {each["event_alias"] for each in events}
    assert {"PlaybookExecutionRequested", "TaskAttemptFailed", "LoopIterationDone", "NextEvaluated"} <= aliases


async def test_every_event_has_its_envelope_and_a_place_in_one_tree(
    file_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with engine(file_store) as operations:
        events = await run_everything(operations)
    ids = [each["event_id"] for each in events]
    assert len(set(ids)) == len(ids)
    assert [each["seq"] for each in events] == list(range(1, len(events) + 1))
    for each in events:
        assert each["timestamp"].endswith("Z")
        assert each["source"] in ("server", "worker")
        assert each["entity_type"] in ("playbook", "workflow", "step", "task", "loop", "next", "policy", "result")
        assert each["entity_id"]
    tries = [each for each in events if each["event_type"].startswith("task.attempt.") and each.get("iteration") == 0]
    assert [(each["attempt"], each["task_run_id"], each["iteration_id"]) for each in tries] == [
        (number, "task:plain:run:1", "step:loop:run:1:iteration:0") for number in (1, 1, 2, 2)
    ]
    roots = [each for each in events if each["parent_id"] is None]
    assert {each["entity_type"] for each in roots} == {"playbook"}


async def test_workers_cannot_start_steps(file_store: str) -> None:
    """A worker may report its own work; only the server may schedule steps."""
    async with running_server(file_store) as server:
        await server.caller().run(playbook({"step": "a", "tool": noop()}))
        worker = await server.caller_with(scopes=("events:worker",))
        envelope = {"event_id": "x", "timestamp": "2026-01-01T00:00:00Z", "execution_id": "other", "entity_id": "a"}
        for name in ("step.scheduled", "next.evaluated", "playbook.started", "loop.started"):
            await worker.post(
                "/v1/events?format=noetl", {**envelope, "event_type": name, "source": "worker"}, expected=403
            )


async def test_storage_is_a_task_that_returns_a_reference(file_store: str, tmp_path: Path) -> None:
    """There are no sinks: a task stores the data and returns a reference to it."""
    put = {"kind": "artifact", "action": "put", "data": {"a": 1}, "type": "report"}
    document = playbook({"step": "a", "tool": [{"keep": put}, {"end": noop("{{ keep.uri }}")}]})
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert (await operations.run_result(snapshot.run_id)).startswith("file://")
    assert not [line for line in lines if "ink" in line.split()[0]]


# Known failures of servers of this kind


async def test_lists_pages_and_the_fold_never_disagree(file_store: str) -> None:
    """The list, the snapshot and the page of a run have the same status at every event."""
    slow = playbook({"step": "a", "loop": {"in": "{{ range(40) }}", "iterator": "n"},
                     "tool": python_task("__import__('time').sleep(0.005)")})  # fmt: skip
    async with running_server(file_store) as server:
        me = server.caller()
        run_id = (await me.start(slow))["runId"]
        seen: set[str] = set()
        while "COMPLETED" not in seen:
            row = next(run for run in (await me.get("/v1/runs"))["runs"] if run["runId"] == run_id)
            log = server.service.log
            then = await log.snapshot(run_id, row["lastEventSeq"])
            assert then.status == row["status"]
            page = await me.get(run_path(run_id))
            assert page["lastEventSeq"] >= row["lastEventSeq"]
            assert (await log.snapshot(run_id, page["lastEventSeq"])).status == page["status"]
            seen.add(row["status"])
        found = await server.service.log.list_runs(RunFilter())
        assert [run.status for run in found.runs] == ["COMPLETED"]


async def test_an_outage_of_the_store_does_not_end_a_long_run(
    file_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outage exceeds the write budget within a pipeline; the task's result is not lost, and the task runs once."""
    monkeypatch.chdir(tmp_path)
    script = "with open('notes', 'a') as notes: notes.write('x\\n')\nresult = 41"
    document = playbook(
        {"step": "a", "tool": [{"one": python_task(script)}, {"two": python_task("result = n + 1", n="{{ one }}")}]}
    )
    async with engine(file_store) as operations:
        operations.engine.write_budget = 0.2
        real = operations.log.append_prepared
        refused = 0

        async def failing_append(events: Any, **more: Any) -> Any:
            nonlocal refused
            if any(each.stored.event_type == "TaskDone" for each in events) and refused < 8:
                refused += 1
                raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "It is away.", outcome="withdrawn")
            return await real(events, **more)

        monkeypatch.setattr(operations.log, "append_prepared", failing_append)
        snapshot, lines = await run_playbook(operations, document)
        assert (snapshot.status, await operations.run_result(snapshot.run_id)) == ("COMPLETED", 42)
    assert refused == 8
    assert not [line for line in lines if "Failed" in line]
    assert Path("notes").read_text() == "x\n"


async def test_loop_done_is_emitted_once_after_every_item(
    file_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several drivers in turn execute one loop; each item is done, and the loop ends once."""
    monkeypatch.chdir(tmp_path)
    document = playbook(
        {"step": "a", "loop": {"in": "{{ range(300) }}", "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 8}},
         "tool": python_task("__import__('time').sleep(0.002)\nresult = n", n="{{ iter.n }}"), "next": arcs_to("b")},
        {"step": "b", "tool": noop("{{ a | sum }}")},
    )  # fmt: skip
    run_id = ""
    for turn in range(4):
        async with engine(file_store, recover=True) as operations:
            if not run_id:
                run_id = await operations.start(operations.load(document))
            wanted = 70 * (turn + 1)

            async def has_progressed(
                operations: Operations = operations, wanted: int = wanted, run_id: str = run_id
            ) -> bool:
                records = await operations.log.read(run_id, limit=100_000)
                kinds = Counter(record.event_type for record in records)
                return kinds["LoopIterationDone"] >= wanted or bool(kinds["RunCompleted"])

            await until(has_progressed)
    async with engine(file_store, recover=True) as operations:
        snapshot = await wait_for_end(operations, run_id)
        assert (snapshot.status, await operations.run_result(run_id)) == ("COMPLETED", sum(range(300)))
        records = await operations.log.read(run_id, limit=100_000)
    kinds = Counter(record.event_type for record in records)
    assert (kinds["LoopDone"], kinds["LoopIterationDone"], kinds["NextEvaluated"]) == (1, 300, 2)
    assert NoetlChecker().check(map(noetl_event, records)) == []


async def test_followers_of_a_run_receive_every_event(file_store: str) -> None:
    """Followers read the log itself, early or late; no events are published separately."""
    document = playbook({"step": "a", "loop": {"in": "{{ range(50) }}", "iterator": "n"}, "tool": noop("{{ iter.n }}")})
    async with engine(file_store) as operations, rw.open_log(file_store) as other:
        run_id = await operations.start(operations.load(document))
        received: list[int] = []

        async def follow() -> None:
            async for record in other.follow(run_id):
                received.append(record.run_seq)
                if record.event_type == "RunProcessed":
                    return

        await asyncio.wait_for(follow(), 20)
        assert received == [record.run_seq for record in await operations.log.read(run_id, limit=10_000)]
