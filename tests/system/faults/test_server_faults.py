"""Several server and worker processes on one Postgres, and recovery when they are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from runwright.contract.noetl.checker import NoetlChecker
from support.components import Postgres
from support.fleet import Fleet, events_of, request, wait_for_end
from support.playbooks import playbook
from support.waiting import until

pytestmark = pytest.mark.slow
RUNS = int(os.environ.get("RUNWRIGHT_KILLS", "80"))


@pytest.fixture
def fleet(tmp_path: Path, postgres_url: str) -> Iterator[Fleet]:
    (tmp_path / "runwright.toml").write_text('[server]\nrate = 0\nsteps = "workers"\ndrain = "2s"\n')
    created = Fleet(tmp_path, postgres_url)
    yield created
    created.end()


PLAN = {
    "plan": "chain",
    "steps": [
        {"id": "a", "shell": "sleep 0.05; echo {{ run.id | quote }} a >> done.txt"},
        {"id": "b", "shell": "sleep 0.05; echo {{ run.id | quote }} b >> done.txt"},
        {"id": "c", "noop": {}},
    ],
}


async def test_runs_complete_when_a_server_and_a_worker_are_killed(fleet: Fleet) -> None:
    """With three servers and two workers, one of each killed, every run completes and every step once."""
    addresses = [fleet.server() for _ in range(3)]
    for _ in range(2):
        fleet.worker()
    async with httpx.AsyncClient(timeout=30) as http:
        run_ids = [f"run-{number}" for number in range(RUNS)]

        async def start(number: int) -> None:
            body = {"plan": PLAN, "context": {"runId": run_ids[number]}}
            rotated = addresses[number % 3 :] + addresses[: number % 3]
            await request(http, rotated, "POST", "/v1/runs", json=body)

        await asyncio.gather(*(start(number) for number in range(RUNS // 2)))
        fleet.servers[addresses[0]].kill()
        fleet.workers[0].kill()
        remaining = addresses[1:]
        addresses[:] = remaining
        await asyncio.gather(*(start_on(http, remaining, run_ids[number]) for number in range(RUNS // 2, RUNS)))
        ended = Counter[str]()
        for run_id in run_ids:
            ended[(await wait_for_end(http, remaining, run_id))["status"]] += 1
        assert ended == {"COMPLETED": RUNS}, fleet.log_tails()
        for run_id in run_ids:
            kinds = Counter((e["eventType"], e.get("stepId")) for e in await events_of(http, remaining, run_id))
            for step in ("a", "b", "c"):
                assert kinds["StepStarted", step] == kinds["StepCompleted", step] == 1, (run_id, kinds)
            assert kinds["RunCompleted", None] == 1
        report = await request(http, remaining, "GET", "/v1/verify")
        assert report["ok"] is True


async def test_playbook_loop_survives_a_killed_server_and_worker(fleet: Fleet) -> None:
    """Every iteration continues at the task that was running, and the loop is done once."""
    first, second = fleet.server(), fleet.server()
    for _ in range(2):
        fleet.worker()
    shell = {"kind": "shell", "command": "sleep 0.05; echo {{ _task | quote }} {{ iter.n | quote }} >> done.txt"}
    loop = {"in": "{{ range(60) | list }}", "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 16}}
    step = {"step": "many", "loop": loop, "tool": [{"one": shell}, {"two": shell}]}
    done = fleet.folder / "done.txt"
    async with httpx.AsyncClient(timeout=30) as http:
        body = {"plan": playbook(step), "context": {"runId": "r"}}
        await request(http, [first], "POST", "/v1/runs", json=body)

        async def half_done() -> bool:
            return done.exists() and len(done.read_text().splitlines()) >= 40

        await until(half_done)
        fleet.workers[0].kill()
        fleet.servers[first].kill()
        snapshot = await wait_for_end(http, [second], "r")
        records = (await request(http, [second], "GET", "/v1/runs/r/events?limit=1000"))["events"]
        assert snapshot["status"] == "COMPLETED", (records[-5:], fleet.log_tails())
        kinds = Counter((event["eventType"], event.get("stepId")) for event in records)
        for path in (f"many[{number}]/{label}" for number in range(60) for label in ("one", "two")):
            assert kinds["TaskStarted", path] == kinds["TaskDone", path] == 1, path
        assert kinds["LoopDone", "many"] == 1
        noetl_events = (await request(http, [second], "GET", "/v1/runs/r/events?format=noetl&limit=1000"))["events"]
        assert NoetlChecker().check(noetl_events) == []
    lines = Counter(done.read_text().splitlines())
    assert len(lines) == 120
    assert sum(lines.values()) - 120 <= 8  # at most the tasks that the killed worker was running


async def start_on(http: httpx.AsyncClient, addresses: list[str], run_id: str) -> None:
    await request(http, addresses, "POST", "/v1/runs", json={"plan": PLAN, "context": {"runId": run_id}})


async def test_run_of_a_killed_server_continues_on_another(fleet: Fleet) -> None:
    """The server is killed with SIGKILL, and the other server completes its run."""
    first, second = fleet.server(), fleet.server()
    fleet.worker()
    plan = {"plan": "p", "steps": [{"id": "w", "wait": "1s"}, {"id": "a", "shell": "true"}]}
    async with httpx.AsyncClient(timeout=30) as http:
        await request(http, [first], "POST", "/v1/runs", json={"plan": plan, "context": {"runId": "r"}})
        fleet.servers[first].kill()
        began = time.monotonic()
        while True:
            events = await events_of(http, [second], "r")
            if any(event["eventType"] == "RunCompleted" for event in events):
                break
            assert time.monotonic() - began < 60, fleet.log_tails()
            await asyncio.sleep(0.05)
        status = await request(http, [second], "GET", "/v1/runs/r/status")
        assert status["status"] == "COMPLETED"


async def test_stopping_server_releases_its_runs_to_another(fleet: Fleet) -> None:
    first, second = fleet.server(), fleet.server()
    fleet.worker()
    plan = {"plan": "p", "steps": [{"id": "a", "shell": "sleep 1; echo x >> once.txt"}, {"id": "b", "shell": "true"}]}
    async with httpx.AsyncClient(timeout=30) as http:
        await request(http, [first], "POST", "/v1/runs", json={"plan": plan, "context": {"runId": "r"}})
        fleet.servers[first].send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(fleet.servers[first].wait, 20) == 0
        snapshot = await request(http, [second], "GET", "/v1/runs/r?wait=30s")
        assert snapshot["status"] == "COMPLETED"
        assert (fleet.folder / "once.txt").read_text() == "x\n"


async def test_runs_complete_when_postgres_restarts_under_load(fleet: Fleet, postgres: Postgres) -> None:
    """Callers get 503 with Retry-After, or wait; acknowledged events are stored once, and runs continue."""
    addresses = [fleet.server() for _ in range(2)]
    fleet.worker()
    count = 40
    async with httpx.AsyncClient(timeout=60) as http:

        async def start(number: int) -> None:
            await asyncio.sleep(number * 0.05)
            await start_on(http, addresses, f"run-{number}")

        starting = asyncio.gather(*(start(number) for number in range(count)))
        await asyncio.sleep(0.7)
        postgres.kill()
        await asyncio.sleep(0.5)
        postgres.start()  # not in a thread: the server dies with the thread that started it
        await starting
        for number in range(count):
            snapshot = await wait_for_end(http, addresses, f"run-{number}")
            assert snapshot["status"] == "COMPLETED", (snapshot, fleet.log_tails())
            kinds = Counter(
                (e["eventType"], e.get("stepId")) for e in await events_of(http, addresses, f"run-{number}")
            )
            assert max(kinds.values()) == 1, kinds
        assert (await request(http, addresses, "GET", "/v1/verify"))["ok"] is True


async def test_step_output_is_available_from_every_server(fleet: Fleet) -> None:
    first, second = fleet.server(), fleet.server()
    fleet.worker()
    plan = {"plan": "p", "steps": [{"id": "a", "shell": "echo said here"}]}
    async with httpx.AsyncClient(timeout=30) as http:
        await request(http, [first], "POST", "/v1/runs", json={"plan": plan, "context": {"runId": "r"}})
        await request(http, [second], "GET", "/v1/runs/r?wait=30s")
        for address in (first, second):
            lines = (await request(http, [address], "GET", "/v1/runs/r/logs/a"))["lines"]
            assert [line["text"] for line in lines] == ["said here"]


async def test_stopped_worker_does_not_repeat_a_finished_step(fleet: Fleet) -> None:
    """The worker is stopped while it waits for work, and goes on after another one has executed the step."""
    server = fleet.server()
    stopped = fleet.worker()
    plan = {"plan": "p", "steps": [{"id": "a", "shell": "echo charged >> once.txt"}]}
    async with httpx.AsyncClient(timeout=30) as http:
        await request(http, [server], "POST", "/v1/runs", json={"plan": plan, "context": {"runId": "warm-up"}})
        assert (await wait_for_end(http, [server], "warm-up"))["status"] == "COMPLETED"
        await asyncio.sleep(0.5)  # it waits for the next step
        stopped.send_signal(signal.SIGSTOP)
        await request(http, [server], "POST", "/v1/runs", json={"plan": plan, "context": {"runId": "r"}})
        fleet.worker()
        assert (await wait_for_end(http, [server], "r"))["status"] == "COMPLETED"
        stopped.send_signal(signal.SIGCONT)
        await request(http, [server], "POST", "/v1/runs", json={"plan": plan, "context": {"runId": "last"}})
        assert (await wait_for_end(http, [server], "last"))["status"] == "COMPLETED"
        await asyncio.sleep(2)
        assert (fleet.folder / "once.txt").read_text() == "charged\n" * 3, fleet.log_tails()
