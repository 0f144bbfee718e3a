"""Server-sent events: none is lost or sent twice, even if the caller disconnects and reconnects."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from typing import Any

import pytest

import runwright as rw
from runwright.server import event_broadcaster as hub
from runwright.server.routes.streams import HEARTBEAT_SECONDS
from runwright.server.service import Service
from support.server import WAITING, Caller, run_path, running_server
from support.waiting import until


def run_and_seq(event: dict[str, Any]) -> tuple[str, int]:
    return event["data"]["runId"], event["data"]["runSeq"]


async def test_a_run_is_followed_to_its_end(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        run_id = (await me.start({"plan": "p", "steps": [{"id": "a", "wait": "0.3s"}, {"id": "b", "noop": {}}]}))[
            "runId"
        ]
        received = [event async for event in me.stream(f"{run_path(run_id)}/stream")]
        assert [int(event["id"]) for event in received] == list(range(1, len(received) + 1))
        assert received[-1]["event"] == "RunCompleted"
        assert [event["data"] for event in received] == (await me.get(f"{run_path(run_id)}/events"))["events"]
        answer = await me.http.get(f"{run_path(run_id)}/stream", headers={"last-event-id": received[-1]["id"]})
        assert answer.status_code == 204


async def test_stream_in_noetl_format_sends_noetl_events(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
        run_id = (await me.start({"plan": "p", "steps": [{"id": "a", "wait": "0.3s"}]}))["runId"]
        received = [event async for event in me.stream(f"{run_path(run_id)}/stream?format=noetl")]
        assert received[-1]["event"] == "playbook.finished"
        assert [event["data"] for event in received] == (await me.get(f"{run_path(run_id)}/events?format=noetl"))[
            "events"
        ]
        start = await server.service.log.end_cursor()
        other = await me.run({"plan": "p", "steps": [{"id": "a", "noop": {}}]})
        wanted = (await me.get(f"{run_path(other)}/events?format=noetl"))["events"]
        async with aclosing(me.stream(f"/v1/stream?after={start}&format=noetl")) as events:
            assert [(await anext(events))["data"] for _ in wanted] == wanted
        await me.get("/v1/stream?format=other", 400)


async def test_reconnecting_caller_gets_the_remaining_events(store: str) -> None:
    async with running_server(store) as server:
        me = server.caller()
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


async def test_stream_of_all_runs_continues_after_disconnects(store: str) -> None:
    """Runs continue while a subscriber to all of them disconnects and reconnects repeatedly."""
    async with running_server(store) as server:
        me = server.caller()
        seen: list[tuple[str, int]] = []
        has_begun = asyncio.Event()
        finished = asyncio.Event()

        async def listen() -> None:
            last: str | None = None
            while not finished.is_set():
                headers = {} if last is None else {"last-event-id": last}
                has_begun.set() if last else None
                async for event in me.stream("/v1/stream", **headers):
                    has_begun.set()
                    last = event["id"]
                    seen.append(run_and_seq(event))
                    if event["data"]["runId"] == "end":
                        finished.set()
                    if len(seen) % 7 == 0 or finished.is_set():
                        break

        listening = asyncio.create_task(listen())
        await _wait_for_subscribers(server.service, 1)
        plan = {"plan": "p", "steps": [{"id": f"s{n}", "noop": {}} for n in range(6)]}
        runs = await asyncio.gather(*(me.run(plan) for _ in range(8)))
        await server.service.log.append([rw.new_event("RunQueued", rw.new_run("end", "p"))])
        await asyncio.wait_for(listening, 30)
        assert len(seen) == len(set(seen))
        for run_id in runs:
            count = (await me.get(f"{run_path(run_id)}/events"))["lastEventSeq"]
            assert [seq for each, seq in seen if each == run_id] == list(range(1, count + 1))


async def _wait_for_subscribers(service: Service, count: int) -> None:
    async def has_enough() -> bool:
        return service.broadcaster.subscriber_count >= count

    await until(has_enough, "a subscriber")


async def _wait_for_no_subscribers(service: Service) -> None:
    async def has_none() -> bool:
        return service.broadcaster.subscriber_count == 0

    await until(has_none, "the end of the last subscription")


async def test_stream_has_only_runs_of_the_callers_tenant(file_store: str) -> None:
    async with running_server(file_store) as server:
        mine, other = (
            await server.caller_with("Engineer", tenant="acme"),
            await server.caller_with("Engineer", tenant="other"),
        )
        tenants: list[str] = []

        async def listen() -> None:
            async for event in mine.stream("/v1/stream"):
                tenants.append(event["data"]["tenantId"])
                if event["event"] == "RunCompleted":
                    return

        listening = asyncio.create_task(listen())
        await _wait_for_subscribers(server.service, 1)
        await other.run()
        await mine.run()
        await asyncio.wait_for(listening, 20)
        assert set(tenants) == {"acme"}


@pytest.mark.parametrize("path", ["/v1/runs/busy/stream?afterSeq=1", "/v1/stream"])
async def test_slow_subscriber_continues_from_the_log(store: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_QUEUED_EVENTS", 3)
    async with running_server(store) as server:
        me = server.caller()
        run = rw.new_run("busy", "p")
        log = server.service.log
        await log.append([rw.new_event("RunQueued", run)])
        seen: list[int] = []

        async def listen() -> None:
            async for event in me.stream(path):
                seen.append(event["data"]["runSeq"])
                if event["data"]["runSeq"] == 201:
                    return

        listening = asyncio.create_task(listen())
        await _wait_for_subscribers(server.service, 1)
        for start in range(0, 200, 50):
            await log.append([rw.new_event("Noted", run, step_id=f"n{start + n}") for n in range(50)])
        await asyncio.wait_for(listening, 30)
        assert seen == list(range(2, 202))


async def test_stalled_subscriber_is_cut_off_and_others_get_all(file_store: str) -> None:
    """A caller opens a stream and does not read it; it is disconnected, and the others receive every event."""
    async with running_server(file_store, stalled_reader_seconds=1.0) as server:
        me = server.caller()
        run = rw.new_run("busy", "p")
        log = server.service.log
        await log.append([rw.new_event("RunQueued", run)])
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.sendall(b"GET /v1/runs/busy/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await _wait_for_subscribers(server.service, 1)
            counting = asyncio.create_task(_count(me, "/v1/runs/busy/stream", 1001))
            await _wait_for_subscribers(server.service, 2)
            large = "x" * 20_000
            for start in range(0, 1000, 50):
                await log.append(
                    [rw.new_event("Noted", run, step_id=f"n{start + n}", payload={"t": large}) for n in range(50)]
                )
            assert await asyncio.wait_for(counting, 30) == 1001
            await _wait_for_no_subscribers(server.service)


async def _count(caller: Caller, path: str, until: int) -> int:
    count = 0
    async for _ in caller.stream(path):
        count += 1
        if count == until:
            break
    return count


async def test_disconnected_subscriber_is_removed(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        run_id = (await me.start(WAITING))["runId"]
        async with aclosing(me.stream(f"{run_path(run_id)}/stream")) as events:
            await anext(events)
        async with asyncio.timeout(HEARTBEAT_SECONDS / 2):  # noticed at once, not by the next heartbeat
            await _wait_for_no_subscribers(server.service)
        await me.signal(run_id, "CANCEL")


@pytest.mark.parametrize("path", ["/v1/stream", f"{run_path('held')}/stream"])
@pytest.mark.parametrize("end", ["revoked", "expired"])
async def test_stream_ends_with_the_token_of_its_caller(store: str, path: str, end: str) -> None:
    async with running_server(store) as server:
        admin = await server.caller_with("Admin", name="admin")
        await admin.start_waiting("held")
        lifetime = 2.0 if end == "expired" else None
        reader = await server.caller_with("Viewer", name="reader", lifetime=lifetime)
        token_id = (await reader.get("/v1/whoami"))["tokenId"]
        async with asyncio.timeout(HEARTBEAT_SECONDS / 2):
            async with aclosing(reader.stream(path)) as events:
                first = asyncio.create_task(anext(events))
                await asyncio.gather(first, admin.run())
                if end == "revoked":
                    await admin.request("DELETE", f"/v1/tokens/{token_id}", 204)
                async for _ in events:
                    pass
        await reader.get("/v1/whoami", 401)
        await _wait_for_no_subscribers(server.service)


async def test_stream_without_a_token_ends_when_one_is_created(file_store: str) -> None:
    async with running_server(file_store) as server:
        reader = server.caller()
        await reader.start_waiting("held")
        async with asyncio.timeout(HEARTBEAT_SECONDS / 2):
            async with aclosing(reader.stream("/v1/stream")) as events:
                await asyncio.gather(asyncio.create_task(anext(events)), reader.run())
                await server.caller_with("Admin")
                async for _ in events:
                    pass


@pytest.mark.parametrize(
    ("path", "given"), [("/v1/stream", "nonsense"), ("/v1/stream", "1.2.3.x"), ("run", "-1"), ("run", "1e3")]
)
async def test_invalid_cursor_is_refused(file_store: str, path: str, given: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        run_id = await me.run()
        address = f"{run_path(run_id)}/stream" if path == "run" else path
        assert (await me.get(address, 400, headers={"last-event-id": given}))["code"] == "INVALID_CURSOR"
