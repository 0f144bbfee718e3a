"""Server-sent events: nothing is lost and nothing is told twice, however the caller comes and goes."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from typing import Any

import pytest

import runwright as rw
from runwright.server import event_broadcaster as hub
from runwright.server.service import Service
from support.server import WAITING, Caller, run_path, running_server
from support.waiting import until


def noted(event: dict[str, Any]) -> tuple[str, int]:
    return event["data"]["runId"], event["data"]["runSeq"]


async def test_a_run_is_followed_to_its_end(store: str) -> None:
    async with running_server(store) as there:
        me = there.caller()
        run_id = (await me.start({"plan": "p", "steps": [{"id": "a", "wait": "0.3s"}, {"id": "b", "noop": {}}]}))[
            "runId"
        ]
        told = [event async for event in me.stream(f"{run_path(run_id)}/stream")]
        assert [int(event["id"]) for event in told] == list(range(1, len(told) + 1))
        assert told[-1]["event"] == "RunCompleted"
        assert [event["data"] for event in told] == (await me.get(f"{run_path(run_id)}/events"))["events"]
        answer = await me.http.get(f"{run_path(run_id)}/stream", headers={"last-event-id": told[-1]["id"]})
        assert answer.status_code == 204


async def test_streams_speak_noetls_words_where_they_are_asked_to(store: str) -> None:
    async with running_server(store) as there:
        me = there.caller()
        run_id = (await me.start({"plan": "p", "steps": [{"id": "a", "wait": "0.3s"}]}))["runId"]
        told = [event async for event in me.stream(f"{run_path(run_id)}/stream?format=noetl")]
        assert told[-1]["event"] == "playbook.finished"
        assert [event["data"] for event in told] == (await me.get(f"{run_path(run_id)}/events?format=noetl"))["events"]
        start = await there.service.log.end_cursor()
        other = await me.run({"plan": "p", "steps": [{"id": "a", "noop": {}}]})
        wanted = (await me.get(f"{run_path(other)}/events?format=noetl"))["events"]
        async with aclosing(me.stream(f"/v1/stream?after={start}&format=noetl")) as events:
            assert [(await anext(events))["data"] for _ in wanted] == wanted
        await me.get("/v1/stream?format=other", 400)


async def test_who_comes_back_gets_the_rest(store: str) -> None:
    async with running_server(store) as there:
        me = there.caller()
        run_id = await me.run({"plan": "p", "steps": [{"id": f"s{n}", "noop": {}} for n in range(5)]})
        seen: list[int] = []
        while True:
            headers = {"last-event-id": str(seen[-1])} if seen else {}
            if (
                await me.http.send(
                    me.http.build_request("GET", f"{run_path(run_id)}/stream", headers=headers), stream=True
                )
            ).status_code == 204:
                break
            async for event in me.stream(f"{run_path(run_id)}/stream", **headers):
                seen.append(int(event["id"]))
                if len(seen) % 3 == 0:
                    break
        assert seen == list(range(1, len(seen) + 1))
        by_query = [event async for event in me.stream(f"{run_path(run_id)}/stream?afterSeq=4")]
        assert [int(event["id"]) for event in by_query] == seen[4:]


async def test_all_runs_are_followed_across_breaks(store: str) -> None:
    """Runs go on while a listener of all of them leaves and comes back, again and again."""
    async with running_server(store) as there:
        me = there.caller()
        seen: list[tuple[str, int]] = []
        begun = asyncio.Event()
        finished = asyncio.Event()

        async def listen() -> None:
            last: str | None = None
            while not finished.is_set():
                headers = {} if last is None else {"last-event-id": last}
                begun.set() if last else None
                async for event in me.stream("/v1/stream", **headers):
                    begun.set()
                    last = event["id"]
                    seen.append(noted(event))
                    if event["data"]["runId"] == "end":
                        finished.set()
                    if len(seen) % 7 == 0 or finished.is_set():
                        break

        listening = asyncio.create_task(listen())
        await _until_heard(there.service, 1)
        plan = {"plan": "p", "steps": [{"id": f"s{n}", "noop": {}} for n in range(6)]}
        runs = await asyncio.gather(*(me.run(plan) for _ in range(8)))
        await there.service.log.append([rw.new_event("RunQueued", rw.new_run("end", "p"))])
        await asyncio.wait_for(listening, 30)
        assert len(seen) == len(set(seen))
        for run_id in runs:
            count = (await me.get(f"{run_path(run_id)}/events"))["lastEventSeq"]
            assert [seq for each, seq in seen if each == run_id] == list(range(1, count + 1))


async def _until_heard(service: Service, count: int) -> None:
    async def enough() -> bool:
        return service.broadcaster.subscriber_count >= count

    await until(enough, "a listener")


async def _until_nobody_listens(service: Service) -> None:
    async def nobody() -> bool:
        return service.broadcaster.subscriber_count == 0

    await until(nobody, "the end of the last listener")


async def test_a_tenant_hears_of_its_own_runs_alone(file_store: str) -> None:
    async with running_server(file_store) as there:
        mine, other = (
            await there.caller_with("Engineer", tenant="acme"),
            await there.caller_with("Engineer", tenant="other"),
        )
        heard: list[str] = []

        async def listen() -> None:
            async for event in mine.stream("/v1/stream"):
                heard.append(event["data"]["tenantId"])
                if event["event"] == "RunCompleted":
                    return

        listening = asyncio.create_task(listen())
        await _until_heard(there.service, 1)
        await other.run()
        await mine.run()
        await asyncio.wait_for(listening, 20)
        assert set(heard) == {"acme"}


@pytest.mark.parametrize("path", ["/v1/runs/busy/stream?afterSeq=1", "/v1/stream"])
async def test_who_falls_behind_reads_on_from_the_log(store: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_QUEUED_EVENTS", 3)
    async with running_server(store) as there:
        me = there.caller()
        run = rw.new_run("busy", "p")
        log = there.service.log
        await log.append([rw.new_event("RunQueued", run)])
        seen: list[int] = []

        async def listen() -> None:
            async for event in me.stream(path):
                seen.append(event["data"]["runSeq"])
                if event["data"]["runSeq"] == 201:
                    return

        listening = asyncio.create_task(listen())
        await _until_heard(there.service, 1)
        for start in range(0, 200, 50):
            await log.append([rw.new_event("Noted", run, step_id=f"n{start + n}") for n in range(50)])
        await asyncio.wait_for(listening, 30)
        assert seen == list(range(2, 202))


async def test_who_never_reads_costs_nobody_else_anything(file_store: str) -> None:
    """A caller opens a stream and leaves it unread; it is cut off, and the others hear all of it meanwhile."""
    async with running_server(file_store, send_seconds=1.0) as there:
        me = there.caller()
        run = rw.new_run("busy", "p")
        log = there.service.log
        await log.append([rw.new_event("RunQueued", run)])
        host, port = there.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.sendall(b"GET /v1/runs/busy/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await _until_heard(there.service, 1)
            heard = asyncio.create_task(_count(me, "/v1/runs/busy/stream", 1001))
            await _until_heard(there.service, 2)
            large = "x" * 20_000
            for start in range(0, 1000, 50):
                await log.append(
                    [rw.new_event("Noted", run, step_id=f"n{start + n}", payload={"t": large}) for n in range(50)]
                )
            assert await asyncio.wait_for(heard, 30) == 1001
            await _until_nobody_listens(there.service)


async def _count(caller: Caller, path: str, until: int) -> int:
    count = 0
    async for _ in caller.stream(path):
        count += 1
        if count == until:
            break
    return count


async def test_who_leaves_is_forgotten(file_store: str) -> None:
    async with running_server(file_store) as there:
        me = there.caller()
        run_id = (await me.start(WAITING))["runId"]
        async with aclosing(me.stream(f"{run_path(run_id)}/stream")) as events:
            await anext(events)
        await _until_nobody_listens(there.service)
        await me.signal(run_id, "CANCEL")


@pytest.mark.parametrize(
    ("path", "given"), [("/v1/stream", "nonsense"), ("/v1/stream", "1.2.3.x"), ("run", "-1"), ("run", "1e3")]
)
async def test_a_place_that_is_none(file_store: str, path: str, given: str) -> None:
    async with running_server(file_store) as there:
        me = there.caller()
        run_id = await me.run()
        address = f"{run_path(run_id)}/stream" if path == "run" else path
        assert (await me.get(address, 400, headers={"last-event-id": given}))["code"] == "INVALID_CURSOR"
