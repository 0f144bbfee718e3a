"""Steps for workers: offered, claimed, started, ended, and continued when a worker or a server is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runwright as rw
from runwright.client.transport import HttpTransport
from runwright.runtimes.embedded import dispatcher as dispatch
from runwright.server.routes import worker_tasks as leases
from runwright.tools.registry import all_tools
from runwright.tools.secrets import EnvironmentSecrets
from runwright.worker.worker import Worker
from support.components import free_port
from support.playbooks import playbook
from support.server import RunningServer, run_path, running_server
from support.waiting import until
from support.workers import LostWorker, event_types, shorten_leases, wait_for_empty_queue, worker


async def test_worker_executes_steps(store: str) -> None:
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        plan = {
            "plan": "p",
            "steps": [
                {"id": "a", "shell": "echo out; echo err >&2; echo '{\"x\": 1}'"},
                {"id": "b", "python": {"code": "n + 1", "args": {"n": "{{ steps.a.result.x }}"}}},
                {"id": "c", "noop": {}},
            ],
        }
        async with worker(server):
            run_id = await me.run(plan)
        ended = await me.get(run_path(run_id))
        assert ended["status"] == "COMPLETED", ended
        assert await me.get(f"{run_path(run_id)}/results/b") == 2
        assert await event_types(me, run_id) == [
            ("RunQueued", None),
            ("RunStarted", None),
            ("StepScheduled", "a"),
            ("StepStarted", "a"),
            ("StepCompleted", "a"),
            ("StepScheduled", "b"),
            ("StepStarted", "b"),
            ("StepCompleted", "b"),
            ("StepStarted", "c"),
            ("StepCompleted", "c"),
            ("RunCompleted", None),
        ]
        events = (await me.get(f"{run_path(run_id)}/events"))["events"]
        assert events[2]["payload"] == {"queue": "default"}
        assert events[3]["payload"]["worker"].endswith("/w1")
        lines = [(line["stream"], line["text"]) for line in (await me.get(f"{run_path(run_id)}/logs/a"))["lines"]]
        assert ("out", "out") in lines
        assert ("err", "err") in lines
        await wait_for_empty_queue(server)


async def test_only_steps_with_a_queue_go_to_workers(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        plan = {
            "plan": "p",
            "steps": [{"id": "a", "shell": "true"}, {"id": "b", "shell": "true", "dispatch": {"queue": "gpu"}}],
        }
        async with worker(server, queues=["cpu"]):
            run_id = (await me.start(plan))["runId"]

            async def scheduled() -> bool:
                return ("StepScheduled", "b") in await event_types(me, run_id)

            await until(scheduled)
            async with worker(server, "w2", queues=["gpu"]):
                assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"
        events = (await me.get(f"{run_path(run_id)}/events"))["events"]
        by = {e["stepId"]: e.get("payload", {}).get("worker") for e in events if e["eventType"] == "StepStarted"}
        assert by["a"] is None
        assert by["b"].endswith("/w2")


async def test_workers_execute_loops_retries_and_failures(store: str) -> None:
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        plan = {
            "plan": "p",
            "order": "graph",
            "onFailure": "continue",
            "steps": [
                {
                    "id": "each",
                    "foreach": {"in": [1, 2, 3, 4, 5], "as": "n", "maxParallel": 2},
                    "shell": "echo {{ n | quote }}",
                },
                {
                    "id": "flaky",
                    "retry": {"maxAttempts": 3, "initial": "0.05s"},
                    "python": {
                        "code": "import runwright as rw\nif rw.current_step().attempt < 3: raise ValueError('no')\nresult = 3"
                    },
                },
                {"id": "bad", "shell": "exit 4"},
            ],
        }
        async with worker(server, slots=4):
            run_id = await me.run(plan)
        ended = await me.get(run_path(run_id))
        assert {step["stepId"]: step["status"] for step in ended["steps"]} == {
            "each": "SUCCESS",
            "flaky": "SUCCESS",
            "bad": "FAILED",
        }
        found = await event_types(me, run_id)
        assert [path for kind, path in found if kind == "LoopIterationScheduled"] == [f"each[{n}]" for n in range(5)]
        assert len([path for kind, path in found if (kind, path) == ("StepScheduled", "flaky")]) == 3
        assert len(await me.get(f"{run_path(run_id)}/results/each")) == 5


async def test_checkpoint_and_artifact_of_a_worker_are_stored(store: str) -> None:
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        code = (
            "import runwright as rw\nstep = rw.current_step()\nstep.checkpoint({'at': 7})\n"
            "ref = step.keep(b'abc', 'note')\nfrom pathlib import Path\nstep.fetch(ref, Path('copy'))\n"
            "result = Path('copy').read_text()"
        )
        async with worker(server):
            run_id = await me.run({"plan": "p", "steps": [{"id": "a", "python": {"code": code}}]})
        assert await me.get(f"{run_path(run_id)}/results/a") == "abc"
        saved = next(
            e for e in (await me.get(f"{run_path(run_id)}/events"))["events"] if e["eventType"] == "CheckpointWritten"
        )
        assert saved["payload"]["state"] == {"at": 7}
        (stored,) = (await me.get(f"{run_path(run_id)}/artifacts"))["artifacts"]
        assert stored["artifact"]["kind"] == "note"


async def test_secrets_are_resolved_only_by_the_worker(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        plan = {
            "plan": "p",
            "steps": [
                {
                    "id": "a",
                    "shell": {"command": "echo key=$KEY; echo $KEY | wc -c", "env": {"KEY": {"secret": "API_KEY"}}},
                }
            ],
        }
        run_id = (await me.start(plan))["runId"]  # the server has no such secret
        monkeypatch.setenv("API_KEY", "hunter2-and-more")
        async with worker(server):
            assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"
        lines = [line["text"] for line in (await me.get(f"{run_path(run_id)}/logs/a"))["lines"]]
        assert lines == ["key=***", "17"]
        everything = str(await me.get(f"{run_path(run_id)}/events")) + str(
            await server.service.log.store.side_tables.read("task_counts")
        )
        assert "hunter2" not in everything


async def test_pause_holds_steps_back_and_cancel_stops_them(store: str) -> None:
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        plan = {"plan": "p", "steps": [{"id": "a", "shell": "sleep 60"}]}
        run_id = (await me.start(plan))["runId"]
        await me.signal(run_id, "PAUSE")
        async with worker(server) as one:
            await asyncio.sleep(0.5)
            assert one.job_count == 0
            await me.signal(run_id, "RESUME")

            async def is_claimed() -> bool:
                return one.job_count == 1

            await until(is_claimed)
            decided = await me.signal(run_id, "CANCEL")
            assert decided["decision"] == "ACCEPTED"
            ended = await me.get(f"{run_path(run_id)}?wait=30s")
            assert ended["status"] == "CANCELLED"
            assert ended["steps"][0]["error"]["code"] == "CANCELLED"
        other = (await me.start(plan))["runId"]
        await me.signal(other, "CANCEL")
        ended = await me.get(f"{run_path(other)}?wait=30s")
        assert (ended["status"], ended["steps"][0]["status"]) == ("CANCELLED", "SKIPPED")
        await wait_for_empty_queue(server)


async def test_a_timeout_reaches_the_worker(file_store: str) -> None:
    async with running_server(file_store, steps="workers") as server:
        me = server.caller()
        async with worker(server) as one:
            run_id = await me.run({"plan": "p", "steps": [{"id": "a", "shell": "sleep 60", "timeout": "0.5s"}]})

            async def idle() -> bool:
                return one.job_count == 0

            await until(idle)
        ended = await me.get(run_path(run_id))
        assert ended["steps"][0]["error"]["code"] == "STEP_TIMEOUT"


@pytest.fixture
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_leases(monkeypatch)


@pytest.mark.usefixtures("_short_leases")
async def test_step_of_a_lost_worker_goes_to_another(store: str) -> None:
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        transport = HttpTransport([server.address], None, retry_seconds=None)
        lost = LostWorker(transport, "lost", all_tools(), EnvironmentSecrets())
        stop = asyncio.Event()
        running = asyncio.create_task(lost.run(stop, 0))
        run_id = (await me.start({"plan": "p", "steps": [{"id": "a", "shell": "echo hi"}]}))["runId"]

        async def is_claimed() -> bool:
            return lost.job_count == 1

        await until(is_claimed)
        lease_id, job = next(iter(lost._jobs.items()))
        stop.set()
        await running
        async with worker(server, "w2"):
            ended = await me.get(f"{run_path(run_id)}?wait=30s")
        assert (ended["status"], ended["steps"][0]["engineAttemptId"]) == ("COMPLETED", 2)
        kinds = [kind for kind, _ in await event_types(me, run_id)]
        assert (kinds.count("StepStarted"), kinds.count("StepCompleted")) == (1, 1)
        # A late result of the lost worker is refused.
        late = await me.post(f"/v1/leases/{lease_id}/result?worker=lost", {"result": 1}, 409)
        assert late["code"] == "LEASE_LOST"
        assert job.assignment.path == "a"
        await transport.close()


@pytest.mark.usefixtures("_short_leases")
async def test_a_step_that_loses_every_worker_fails(file_store: str) -> None:
    async with running_server(file_store, steps="workers") as server:
        me = server.caller()
        transport = HttpTransport([server.address], None, retry_seconds=None)
        lost = LostWorker(transport, "lost", all_tools(), EnvironmentSecrets())
        stop = asyncio.Event()
        running = asyncio.create_task(lost.run(stop, 0))
        ended = await me.get(f"{run_path(await me.run({'plan': 'p', 'steps': [{'id': 'a', 'shell': 'true'}]}))}")
        assert (ended["status"], ended["steps"][0]["error"]["code"]) == ("FAILED", "WORKER_LOST")
        stop.set()
        await running
        await transport.close()


async def test_running_loop_finishes_after_a_failure_elsewhere(file_store: str) -> None:
    """Nothing new starts, but a step that has started finishes, also at workers."""
    async with running_server(file_store, steps="workers") as server:
        me = server.caller()
        loop = {"id": "b", "shell": "sleep 0.3", "foreach": {"in": [1, 2, 3], "maxParallel": 1}}
        plan = {"plan": "p", "order": "graph", "steps": [{"id": "a", "shell": "false"}, loop]}
        async with worker(server):
            ended = await me.get(run_path(await me.run(plan)))
        found = {step["stepId"]: step["status"] for step in ended["steps"]}
        assert found == {"a": "FAILED", "b": "SUCCESS"}
        assert ended["status"] == "FAILED"


async def test_claimed_step_of_an_ended_run_is_dropped(file_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "START_TIMEOUT_SECONDS", 0.2)
    async with running_server(file_store, steps="workers") as server:
        me = server.caller()
        run_id = await me.run({"plan": "p", "steps": [{"id": "a", "noop": {}}]})
        run = (await server.service.log.find_run(run_id)).identity
        await server.service.task_queue.offer(run, "a", 1, "default", server.service.operations.engine.owner)
        async with worker(server):
            await wait_for_empty_queue(server)


LOOP = {"in": [1, 2], "iterator": "n", "spec": {"mode": "parallel"}}
TWO_AT_ONCE = [
    {"plan": "p", "order": "graph", "steps": [{"id": "a", "shell": "true"}, {"id": "b", "shell": "true"}]},
    playbook({"step": "a", "loop": LOOP, "tool": {"kind": "shell", "command": "true"}}),
]


async def claim_task(server: RunningServer, name: str) -> tuple[int, int]:
    """Wait for a task, claim it as a worker of this name, and return task id and lease number."""

    async def claim() -> list[tuple[int, int]]:
        return list(await server.service.task_queue.claim(name, ["default"], None, 1))

    return (await until(claim))[0]


async def wait_for_state(server: RunningServer, task_id: int, state: str) -> None:
    async def is_in_state() -> bool:
        row = await server.service.task_queue.find(task_id)
        return row is not None and row[5] == state

    await until(is_in_state)


@pytest.mark.parametrize("plan", TWO_AT_ONCE, ids=["plan", "playbook"])
async def test_released_step_is_not_lost_while_its_driver_is_busy(
    file_store: str, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver waits for a store; one worker claims a step and releases it, and another claims it."""
    monkeypatch.setattr(dispatch, "POLL", 0.05)
    async with running_server(file_store, steps="workers") as server:
        me, table, engine = server.caller(), server.service.task_queue, server.service.operations.engine
        run_id = (await me.start(plan))["runId"]
        first, lease_no = await claim_task(server, "w1")
        await wait_for_state(server, first, "STARTED")
        is_available, put = asyncio.Event(), engine.services.results.put

        async def blocked_put(*arguments: Any) -> None:
            await is_available.wait()
            await put(*arguments)

        monkeypatch.setattr(engine.services.results, "put", blocked_put)
        await table.store_outcome(first, lease_no, "w1", msgspec.json.encode({"result": "x" * 100_000}))
        await asyncio.sleep(0.3)
        second, lease_no = await claim_task(server, "w1")
        await asyncio.sleep(0.3)
        await table.release(second, lease_no)
        second, lease_no = await claim_task(server, "w2")
        await asyncio.sleep(0.3)
        is_available.set()
        await wait_for_state(server, second, "STARTED")
        started = [
            e["payload"]["worker"]
            for e in (await me.get(f"{run_path(run_id)}/events"))["events"]
            if e["payload"].get("worker")
        ]
        assert started[-1] == "w2"
        await asyncio.sleep(0.3)
        assert await table.store_outcome(second, lease_no, "w2", msgspec.json.encode({"result": 1}))
        assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"


@pytest.mark.parametrize("plan", TWO_AT_ONCE, ids=["plan", "playbook"])
async def test_step_claimed_while_the_disk_is_full_is_not_lost(
    file_store: str, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "POLL", 0.05)
    async with running_server(file_store, steps="workers") as server:
        me, engine = server.caller(), server.service.operations.engine
        monkeypatch.setattr(engine.services, "write_budget", 0.3)
        run_id = (await me.start(plan))["runId"]
        is_full, append = True, engine.log.append_prepared

        async def full(*arguments: Any, **conditions: Any) -> Any:
            if is_full:
                raise rw.RunwrightError(rw.ErrorCode.STORE_FULL, "The disk is full.")
            return await append(*arguments, **conditions)

        monkeypatch.setattr(engine.log, "append_prepared", full)
        async with worker(server):
            await asyncio.sleep(1.5)
            is_full = False
            assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"


async def test_a_step_does_not_wait_for_one_whose_driver_is_busy(file_store: str, tmp_path: Path) -> None:
    """A worker claims both at once; if one waited for the other, its lease would expire before it starts."""
    mark = tmp_path / "mark"
    async with running_server(file_store, steps="workers") as server:
        me, table, engine = server.caller(), server.service.task_queue, server.service.operations.engine
        busy = (await me.start(TWO_AT_ONCE[0]))["runId"]
        first, lease_no = await claim_task(server, "w1")
        await wait_for_state(server, first, "STARTED")
        is_available, put = asyncio.Event(), engine.services.results.put

        async def blocked_put(*arguments: Any) -> None:
            await is_available.wait()
            await put(*arguments)

        engine.services.results.put = blocked_put
        await table.store_outcome(first, lease_no, "w1", msgspec.json.encode({"result": "x" * 100_000}))
        quick = (await me.start({"plan": "p", "steps": [{"id": "a", "shell": f"echo x >> {mark}; sleep 1"}]}))["runId"]

        async def offered() -> bool:
            return ("OFFERED", 2) in [
                tuple(row) for row in await server.service.log.store.side_tables.read("task_counts")
            ]

        await until(offered)
        async with worker(server):
            assert (await me.get(f"{run_path(quick)}?wait=30s"))["status"] == "COMPLETED"
            assert mark.read_text() == "x\n"
            is_available.set()
            assert (await me.get(f"{run_path(busy)}?wait=30s"))["status"] == "COMPLETED"


async def test_stopping_worker_releases_its_steps(store: str, tmp_path: Path) -> None:
    async with running_server(store, steps="workers") as server:
        me = server.caller()
        mark = tmp_path / "mark"
        plan = {"plan": "p", "steps": [{"id": "a", "shell": f"test -e {mark} || {{ touch {mark}; sleep 60; }}"}]}
        run_id = (await me.start(plan))["runId"]
        async with worker(server, "w1", drain=0.0):

            async def begun() -> bool:
                return mark.exists()

            await until(begun)
        async with worker(server, "w2"):
            assert (await me.get(f"{run_path(run_id)}?wait=30s"))["status"] == "COMPLETED"


async def test_recovered_run_keeps_its_worker(store: str, tmp_path: Path) -> None:
    """The server that drives the run stops; the worker continues, and the next server receives its result."""
    once = tmp_path / "once"
    plan = {"plan": "p", "steps": [{"id": "a", "shell": f"echo x >> {once}; sleep 1.5"}, {"id": "b", "noop": {}}]}
    port = free_port()
    async with running_server(store, steps="workers", drain=0.0) as first:
        transport = HttpTransport([first.address, f"http://127.0.0.1:{port}"], None, retry_seconds=None)
        made = Worker(transport, "w1", all_tools(), EnvironmentSecrets())
        stop = asyncio.Event()
        running = asyncio.create_task(made.run(stop, 5))
        run_id = (await first.caller().start(plan))["runId"]

        async def begun() -> bool:
            return once.exists()

        await until(begun)
    async with running_server(store, steps="workers", port=port) as second:
        ended = await second.caller().get(f"{run_path(run_id)}?wait=30s")
        assert ended["status"] == "COMPLETED"
        assert once.read_text() == "x\n"
        stop.set()
        await running
        await transport.close()


async def test_a_worker_is_bound_to_its_tenant(store: str) -> None:
    async with running_server(store, steps="workers") as server:
        mine, other = (
            await server.caller_with("Engineer", tenant="acme"),
            await server.caller_with("Engineer", tenant="other"),
        )
        theirs = await server.caller_with(scopes=("steps",), tenant="other")
        run_id = (await mine.start())["runId"]
        async with worker(server, token=theirs.token):
            await other.run()
            assert (await mine.get(f"{run_path(run_id)}/status"))["status"] == "RUNNING"
        assert ("StepStarted", "greet") not in await event_types(mine, run_id)
        denied = await mine.post("/v1/leases", {"worker": "x", "queues": ["default"]}, 403)
        assert denied["code"] == "AUTHZ_DENIED"


async def test_lease_can_be_used_only_by_its_worker(file_store: str) -> None:
    async with running_server(file_store, steps="workers") as server:
        engineer = await server.caller_with("Engineer")
        one = await server.caller_with(scopes=("steps",), name="one")
        two = await server.caller_with(scopes=("steps",), name="two")
        await engineer.start()
        (lease,) = (await one.post("/v1/leases", {"worker": "w", "queues": ["default"]}))["leases"]
        path = f"/v1/leases/{lease['leaseId']}"
        for caller, worker_name in ((two, "w"), (one, "v")):
            query = f"worker={worker_name}"
            for action, body in (
                ("result", {"result": 1}),
                ("release", None),
                ("checkpoint", {"state": 1}),
                ("output", {"parts": []}),
            ):
                refused = await caller.post(f"{path}/{action}?{query}", body, 409)
                assert refused["code"] == "LEASE_LOST"
            reply = await caller.post("/v1/leases/beat", {"worker": worker_name, "leases": [lease["leaseId"]]})
            assert reply["leases"] == {lease["leaseId"]: "lost"}
        for nonsense in ("x", "1", "1-2-3", "-1-1", "9" * 40 + "-1"):
            assert (await one.post(f"/v1/leases/{nonsense}/release?worker=w", None, 409))["code"] == "LEASE_LOST"
        reply = await one.post("/v1/leases/beat", {"worker": "w", "leases": [lease["leaseId"]]})
        assert reply["leases"] == {lease["leaseId"]: "go on"}
        await one.post(f"{path}/result?worker=w", {"result": {"exitCode": 0}})


async def test_heartbeat_goes_to_the_next_server_if_one_is_silent(store: str) -> None:
    """A server that is stopped accepts connections and does not respond."""

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with running_server(store) as server, await asyncio.start_server(keep_silent, "127.0.0.1", 0) as silent:
        address = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        transport = HttpTransport([address, server.address], None, retry_seconds=None)
        answer = await transport.post("/v1/leases/beat", {"worker": "w", "leases": ["1-1"]}, timeout=0.3)
        assert answer == {"leases": {"1-1": "lost"}}
        await transport.close()
