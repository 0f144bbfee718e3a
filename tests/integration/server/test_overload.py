"""Requests and plans whose cost their caller chooses: they end, and the server goes on."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from runwright.control.plan_loader import read_sent
from runwright.plans.load_limits import check_cancelled
from runwright.server import compression
from runwright.server.event_broadcaster import MAX_QUEUED_BYTES
from support.events import History
from support.server import HELLO, RunningServer, run_path, running_server
from support.waiting import until

POISON = "{{ range(100000)|map('string')|join(',')|length }}"


async def _artifact_path(server: RunningServer, size: int) -> str:
    content = f"file.write_bytes(os.urandom(1024) * {size // 1024})"
    code = f"import os, pathlib, runwright as rw\nfile = pathlib.Path('large')\n{content}\nrw.current_step().keep(file, 'x')"
    steps = [{"id": "make", "python": {"code": code}}]
    me = server.caller()
    run_id = await me.run({"plan": "p", "steps": steps})
    (found,) = (await me.get(f"{run_path(run_id)}/artifacts"))["artifacts"]
    return f"{run_path(run_id)}/artifacts/{found['artifact']['sha256']}"


@pytest.mark.parametrize("steps", ["here", "workers"])
async def test_run_with_an_expensive_expression_fails(store: str, steps: str) -> None:
    async with running_server(store, steps=steps) as server:
        me = server.caller()
        plan = {"plan": "poison", "steps": [{"id": "a", "noop": {"result": [POISON] * 200}}]}
        run = await me.get(f"{run_path(await me.run(plan))}")
        assert (run["status"], run["steps"][0]["error"]["code"]) == ("FAILED", "EXPRESSION_ERROR")


async def test_steps_with_expensive_inputs_all_run(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        steps = [{"id": f"s{number}", "noop": {"result": POISON}} for number in range(12)]
        run = await me.get(run_path(await me.run({"plan": "p", "order": "graph", "steps": steps})))
        assert (run["status"], run["completedSteps"]) == ("COMPLETED", 12)


async def test_artifacts_are_sent_in_parts_and_not_compressed(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running_server(store) as server:
        path = await _artifact_path(server, 3 * 1024 * 1024)
        async with server.caller().http.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
            assert "content-encoding" not in answer.headers
            assert int(answer.headers["content-length"]) == (tmp_path / "large").stat().st_size
            parts = [part async for part in answer.aiter_raw()]
        assert b"".join(parts) == (tmp_path / "large").read_bytes()
        assert max(map(len, parts)) < 1024 * 1024


async def test_download_that_is_not_read_leaves_no_file_open(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running_server(store) as server:
        path = await _artifact_path(server, 30 * 1024 * 1024)
        before = len(os.listdir("/proc/self/fd"))
        caller = server.caller()
        async with caller.http.stream("GET", path) as answer:
            assert answer.status_code == 200
        await caller.http.aclose()
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize("size", [100, 2000, 300_000])
async def test_compressed_responses_are_complete(store: str, size: int) -> None:
    async with running_server(store) as server:
        me = server.caller()
        run_id = await me.run({"plan": "p", "steps": [{"id": "a", "noop": {"result": ["x" * size]}}]})
        path = f"{run_path(run_id)}/results/a"
        async with me.http.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
            raw = b"".join([part async for part in answer.aiter_raw()])
            encoding = answer.headers.get("content-encoding")
        plain = (await me.http.get(path, headers={"accept-encoding": "identity"})).content
        assert encoding == (None if len(plain) < compression.MIN_BYTES else "gzip")
        assert (gzip.decompress(raw) if encoding else raw) == plain


async def _append_large_events(server: RunningServer, first: int, count: int) -> None:
    event = History("big")
    for number in range(first, first + count):
        await server.service.log.append([event("StepStarted", f"s{number}", payload={"text": "x" * 900_000})])


async def test_event_pages_end_at_their_size(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        await server.service.log.append(History("big").started())
        await _append_large_events(server, 0, 7)
        for query in ("", "&types=RunQueued,RunStarted,StepStarted"):
            after, pages = 0, list[int]()
            while after is not None:
                page = await me.get(f"/v1/runs/big/events?limit=10000&afterSeq={after}{query}")
                pages.append(len(page["events"]))
                after = page["nextAfterSeq"]
            assert pages == [7, 2]


async def test_stream_of_large_events_catches_up_from_the_log(store: str) -> None:
    """A reader that is slower than the writer has at most some MiB queued for it, and loses nothing."""
    async with running_server(store) as server:
        me = server.caller()
        await server.service.log.append(History("big").started())
        stream = me.stream("/v1/runs/big/stream")
        received = [await anext(stream), await anext(stream)]
        count = 3 * MAX_QUEUED_BYTES // 900_000
        await _append_large_events(server, 0, count)
        while len(received) < count + 2:
            received.append(await anext(stream))
        await stream.aclose()
        assert [event["data"]["runSeq"] for event in received] == list(range(1, count + 3))


async def test_plans_of_callers_that_have_gone_delay_no_other(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began = 0

    def read(document: Any, tools: Any) -> Any:
        nonlocal began
        if document["plan"] == "hello":
            return read_sent(document, tools)
        began += 1
        while True:  # an expensive plan
            check_cancelled()

    monkeypatch.setattr("runwright.server.routes.runs.read_sent", read)
    async with running_server(store) as server:
        slow = [await server.caller_with("Engineer", name=f"slow{number}") for number in range(2)]
        other = await server.caller_with("Engineer")
        for caller in slow * 3:
            with pytest.raises(httpx.ReadTimeout):
                await caller.http.post("/v1/runs", json={"plan": {"plan": "slow"}}, timeout=0.3)
        await other.run()
        assert began <= 6


async def test_a_caller_has_one_plan_read_at_a_time(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    reading: list[int] = []  # how many plans of the caller were being read, at the beginning of each
    count = 0

    def read(document: Any, tools: Any) -> Any:
        nonlocal count
        if document["plan"] != "hello":
            count += 1
            reading.append(count)
            go.wait(20)
            count -= 1
        return read_sent({**HELLO, "plan": document["plan"]}, tools)

    monkeypatch.setattr("runwright.server.routes.runs.read_sent", read)
    async with running_server(store) as server:
        slow, other = await server.caller_with("Engineer", name="slow"), await server.caller_with("Engineer")
        waiting = [asyncio.create_task(slow.start({"plan": f"slow{number}"})) for number in range(8)]
        await asyncio.sleep(0.2)
        await other.run()
        go.set()
        await asyncio.gather(*waiting)
        assert reading == [1] * 8


async def test_replaced_store_file_is_noticed(tmp_path: Path) -> None:
    """Writes into a file that was moved away would be lost: every request gets 503 instead."""
    file, backup = tmp_path / "runs.db", tmp_path / "backup.db"
    async with running_server(f"sqlite:///{file}") as server:
        me = server.caller()
        await me.run()
        await asyncio.to_thread(shutil.copy, file, backup)
        await asyncio.to_thread(file.rename, tmp_path / "moved.db")
        await asyncio.to_thread(backup.rename, file)
        answer = await me.start(expected=503)
        assert answer["code"] == "STORE_REPLACED"
        assert (await me.get("/v1/runs", 503))["code"] == "STORE_REPLACED"
        assert (await me.get("/readyz", 503))["status"] == "unavailable"
        assert (await me.get("/healthz", 503))["status"] == "failed"
        assert str(tmp_path) not in str(answer)
        await asyncio.to_thread((tmp_path / "moved.db").rename, file)
        await me.run()


async def test_deleted_store_file_is_noticed_without_a_request(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    async with running_server(f"sqlite:///{file}") as server:
        for each in tmp_path.glob("runs.db*"):
            each.unlink()

        async def is_unavailable() -> bool:
            return (await server.caller().http.get("/readyz")).status_code == 503

        await until(is_unavailable)


async def test_large_results_are_evaluated_apart_from_other_requests(store: str) -> None:
    """The caller leaves before the body arrives; health checks are answered meanwhile."""
    code = "result=[{'key': number, 'text': 'x' * 20} for number in range(400_000)]"
    plan = {"plan": "p", "steps": [{"id": "a", "python": {"code": code}}], "result": {"rows": "{{ steps.a.result }}"}}
    async with running_server(store) as server:
        me = server.caller()
        path = f"{run_path(await me.run(plan))}/results"
        delays: list[float] = []

        async def check_health() -> None:
            while True:
                began = time.monotonic()
                await server.caller().get("/healthz")
                delays.append(time.monotonic() - began)
                await asyncio.sleep(0.01)

        async def leave() -> None:
            async with asyncio.timeout(0.2):
                await me.get(path)

        checks = asyncio.create_task(check_health())
        await asyncio.gather(*(leave() for _ in range(12)), return_exceptions=True)
        assert len((await me.get(path, timeout=60))["rows"]) == 400_000
        checks.cancel()
        assert len(delays) > 1
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("runwright-result")]
        assert len(threads) == 1


async def test_result_of_a_step_is_sent_in_parts(store: str) -> None:
    code = "result=['x' * 1000] * 5000"
    async with running_server(store) as server:
        me = server.caller()
        run_id = await me.run({"plan": "p", "steps": [{"id": "a", "python": {"code": code}}]})
        async with me.http.stream("GET", f"{run_path(run_id)}/results/a") as answer:
            sizes = [len(part) async for part in answer.aiter_raw()]
        assert sum(sizes) == int(answer.headers["content-length"]) > 5_000_000
        small = await me.run({"plan": "q", "steps": [{"id": "a", "noop": {"result": "x" * 2000}}]})
        assert await me.get(f"{run_path(small)}/results/a") == "x" * 2000
        problem = await me.get(f"{run_path(small)}/results/b", 404)
        assert problem["code"] == "STEP_NOT_FOUND"
