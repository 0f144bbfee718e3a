"""Middleware: hosts, headers, bodies, rate limits, and hostile callers."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from unittest.mock import AsyncMock

import pytest

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.server.settings import ServerSettings, is_loopback, read_server_settings
from support.server import HELLO, Caller, RunningServer, run_path, running_server
from support.waiting import until


async def raw(
    server: RunningServer, head: bytes, *, wait: float = 10.0, body: bytes = b"", close: bool = False
) -> bytes:
    """Send bytes and return the response, until the server closes the connection or the wait ends."""
    host, port = server.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head + body)
        await writer.drain()
        if close:
            writer.write_eof()
        received = b""
        async with asyncio.timeout(wait):
            while part := await reader.read(65536):
                received += part
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return received


def problem_in(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def test_every_response_has_a_request_id(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        own = await me.http.get("/v1/runs", headers={"x-request-id": "abc-1"})
        assert own.headers["x-request-id"] == "abc-1"
        given = await me.http.get("/nope", headers={"x-request-id": "no spaces, please"})
        assert given.json()["requestId"] == given.headers["x-request-id"] != "no spaces, please"


async def test_without_tokens_only_the_local_user_has_access(file_store: str) -> None:
    """A request with a foreign host name or through a proxy is not from the local user."""
    async with running_server(file_store) as server:
        me = server.caller()
        await me.get("/v1/runs")
        for headers in ({"host": "evil.example"}, {"x-forwarded-for": "192.0.2.1"}, {"forwarded": "for=192.0.2.1"}):
            assert (await me.get("/v1/runs", 401, headers=headers))["code"] == "AUTHN_REQUIRED"
        for name in ("localhost:80", "127.0.0.1", "[::1]:8484"):
            await me.get("/v1/runs", headers={"host": name})


async def test_first_token_ends_access_without_a_token(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        made = await me.post("/v1/tokens", {"name": "first", "roles": ["Admin"]}, 201)
        assert (await me.get("/v1/runs", 401))["code"] == "AUTHN_REQUIRED"
        await server.caller(made["token"]).get("/v1/runs")


async def test_public_address_requires_a_token(file_store: str) -> None:
    with pytest.raises(RunwrightError) as caught:
        async with running_server(file_store, host="0.0.0.0"):
            pass
    assert caught.value.code == "AUTHN_REQUIRED"
    async with running_server(file_store) as server:
        admin = await server.caller_with("Admin")
    async with running_server(file_store, host="0.0.0.0") as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        server.address = address
        await server.caller(admin.token).get("/v1/runs")
        assert (await server.caller().get("/v1/runs", 401))["code"] == "AUTHN_REQUIRED"


def test_loopback_hosts_are_recognized() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.1", "localhost.evil.example", "", "127.0.0.1.evil")))


def test_settings_are_checked() -> None:
    assert read_server_settings({"port": 1, "drain": "2s"}, port=None, host="::1") == ServerSettings(
        host="::1", port=1, drain=2.0
    )
    for table in ({"prot": 1}, {"port": "x"}, {"drain": "soon"}, {"steps": "nowhere"}):
        with pytest.raises(RunwrightError) as caught:
            read_server_settings(table)
        assert "runwright.toml" in caught.value.detail


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
async def test_post_requires_a_json_content_type(file_store: str, kind: str | None) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        headers = {} if kind is None else {"content-type": kind}
        body = json.dumps({"plan": HELLO}).encode()
        answer = await me.http.post("/v1/runs", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "MEDIA_TYPE_NOT_SUPPORTED")


async def test_bodies_over_the_limit_are_refused(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        large = {"plan": HELLO, "params": {"x": "y" * (3 << 20)}}
        assert (await me.post("/v1/runs", large, 413))["code"] == "PAYLOAD_TOO_LARGE"

        async def parts() -> Any:
            for _ in range(40):
                yield b"y" * 65536

        answer = await me.http.post("/v1/runs", content=parts(), headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
        await me.get("/v1/runs")


@pytest.mark.parametrize(
    "body",
    [
        {"plan": HELLO, "unknown": 1},
        {"plan": HELLO, "context": {"runid": "x"}},
        {"plan": HELLO, "context": {"runId": "a|b"}},
        {"plan": HELLO, "context": {"runId": ""}},
        {"plan": HELLO, "context": {"runId": "x" * 513}},
        {"plan": HELLO, "context": {"runId": "a\u0000b"}},
        {"plan": HELLO, "params": {"x": "a\u0000b"}},
        {"plan": 3},
        {},
        [],
        None,
    ],
)
async def test_invalid_bodies_are_refused(file_store: str, body: Any) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        answer = await me.http.post("/v1/runs", json=body)
        assert answer.status_code in (400, 422), answer.text
        assert answer.headers["content-type"].startswith("application/problem+json")
        assert (await me.get("/v1/runs"))["runs"] == []


async def test_numbers_that_are_not_finite_are_refused(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        for number in (b"1e999", b"NaN", b"Infinity"):
            body = (
                b'{"plan": {"plan": "p", "params": {"x": 1}, "steps": [{"id": "a", "noop": {}}]}, "params": {"x": %b}}'
                % number
            )
            answer = await me.http.post("/v1/runs", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400, answer.text


async def test_rate_limit_is_per_caller(file_store: str) -> None:
    async with running_server(file_store, rate=5) as server:
        me, other = await server.caller_with("Viewer", name="a"), await server.caller_with("Viewer", name="b")
        answers = [await me.http.get("/v1/whoami") for _ in range(15)]
        late = [answer for answer in answers if answer.status_code == 429]
        assert late
        assert (late[0].json()["code"], late[0].headers["retry-after"]) == ("RATE_LIMITED", "1")
        await other.get("/v1/whoami")


async def test_guessing_tokens_is_rate_limited(file_store: str) -> None:
    async with running_server(file_store) as server:
        await server.caller_with("Admin")
        guesser = server.caller("rwt_0123456789abcdef_guess")
        codes = [(await guesser.http.get("/v1/runs")).status_code for _ in range(40)]
        assert codes[0] == 401
        assert 429 in codes


async def test_unfinished_headers_time_out(file_store: str) -> None:
    async with running_server(file_store, header_seconds=0.5) as server:
        began = time.monotonic()
        status, problem = problem_in(await raw(server, b"GET /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "))
        assert (status, problem["status"]) == (408, 408)
        assert time.monotonic() - began < 8
        assert await raw(server, b"") == b""
        await server.caller().get("/v1/runs")


async def test_slow_body_times_out(file_store: str) -> None:
    async with running_server(file_store, body_seconds=0.5) as server:
        head = b"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{"
        status, problem = problem_in(await raw(server, head))
        assert (status, problem["code"]) == (408, "REQUEST_TIMEOUT")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Big: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /v1/runs HTTP/1.1\r\n" + b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(5000)) + b"\r\n",
    ],
)
async def test_too_large_headers_are_refused(file_store: str, head: bytes) -> None:
    async with running_server(file_store) as server:
        status, problem = problem_in(await raw(server, head))
        assert (status, problem["status"]) == (431, 431)
        await server.caller().get("/v1/runs")


@pytest.mark.parametrize(
    "head",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/runs/%FF HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /v1/runs/\xff HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /v1/runs/a%00b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nzz\r\n",
    ],
)
async def test_malformed_requests_are_refused(file_store: str, head: bytes) -> None:
    async with running_server(file_store) as server:
        answer = await raw(server, head, wait=3)
        assert answer.split()[1] in (b"400", b"404", b"505"), answer[:200]
        await server.caller().get("/v1/runs")


async def test_half_closed_connection_gets_its_response(file_store: str) -> None:
    async with running_server(file_store) as server:
        head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        assert b'"ok"' in await raw(server, head, close=True)
        half = b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        await raw(server, half, close=True, wait=1)
        await server.caller().get("/v1/runs")


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


async def test_connections_over_the_limit_get_503(file_store: str) -> None:
    """Health checks are answered nevertheless: a busy server must not be restarted."""
    async with running_server(file_store, connections=5) as server:
        me = server.caller()
        await me.start_waiting("held")
        await me.http.aclose()
        head = b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        host, port = server.address.removeprefix("http://").split(":")
        streams = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        for reader, writer in streams:
            writer.write(head)
            assert b"200" in await reader.readline()
        refused = await raw(server, head, wait=5)
        assert refused.split()[1] == b"503"
        assert b"retry-after: 1" in refused
        assert b"SERVER_BUSY" in refused
        assert (await raw(server, HEALTH, wait=5)).split()[1] == b"200"
        assert (await raw(server, HEALTH.replace(b"healthz", b"readyz"), wait=5)).split()[1] == b"200"
        for _, writer in streams:
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost:"])
async def test_connections_without_a_request_make_room(file_store: str, sent: bytes) -> None:
    async with running_server(file_store, connections=5) as server:
        host, port = server.address.removeprefix("http://").split(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        for _, writer in opened:
            writer.write(sent)
        await server.caller().get("/v1/runs")
        await server.caller().get("/healthz")
        for _, writer in opened:
            writer.close()


async def test_concurrent_requests_of_one_caller_are_limited(file_store: str) -> None:
    async with running_server(file_store, connections_per_caller=3) as server:
        greedy, other = await server.caller_with("Viewer", name="greedy"), await server.caller_with("Viewer")
        streams = [greedy.stream("/v1/stream?after=0") for _ in range(3)]
        await server.anonymous.http.aclose()
        admin = await server.caller_with("Admin")
        await admin.run()
        for stream in streams:
            await anext(stream)
        refused = await greedy.http.get("/v1/runs")
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (
            429,
            "RATE_LIMITED",
            "1",
        )
        await other.get("/v1/runs")
        await streams[0].aclose()
        await until(lambda: _is_allowed(greedy))
        for stream in streams[1:]:
            await stream.aclose()


async def _is_allowed(caller: Caller) -> bool:
    return (await caller.http.get("/v1/runs")).status_code == 200


async def test_long_responses_are_compressed(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        run_id = await me.run({"plan": "p", "steps": [{"id": f"s{n}", "noop": {}} for n in range(50)]})
        answer = await me.http.get(f"{run_path(run_id)}/events")
        assert answer.headers["content-encoding"] == "gzip"
        assert len(answer.json()["events"]) > 100


async def test_closing_server_answers_503_and_ends_its_streams(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        run_id = (await me.start({"plan": "p", "steps": [{"id": "w", "wait": "1h"}]}))["runId"]
        received = asyncio.Event()

        async def listen() -> None:
            async for _ in me.stream(f"{run_path(run_id)}/stream"):
                received.set()

        listening = asyncio.create_task(listen())
        await received.wait()
        server.service.is_closing = True
        unready = await me.http.get("/readyz")
        assert (unready.status_code, unready.json()["status"], unready.headers["retry-after"]) == (503, "closing", "1")
        await me.get("/healthz")
        answer = await me.http.get("/v1/runs")
        problem = answer.json()
        assert (answer.status_code, problem["code"], answer.headers["retry-after"]) == (503, "SERVER_CLOSING", "1")
        server.service.broadcaster.close()
        await asyncio.wait_for(listening, 5)
    async with running_server(file_store) as server:
        row = await server.service.log.find_run(run_id)
        assert row.status == "RUNNING"


async def test_metrics_count_runs_requests_and_events(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        await me.run()
        page = await me.get("/metrics")
        assert 'runwright_runs{status="COMPLETED"} 1.0' in page
        assert 'runwright_http_requests_total{method="POST",route="/v1/runs",status="201"} 1.0' in page
        assert "runwright_events_appended_total 5.0" in page


BODIES = ["/v1/runs", "/v1/tokens", "/v1/leases", f"{run_path('r')}/signals", f"{run_path('r')}/rerun"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", [b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xe2\x82'])
async def test_body_that_is_not_utf8_is_refused(file_store: str, path: str, body: bytes) -> None:
    async with running_server(file_store) as server:
        answer = await server.caller().http.post(path, content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT"), answer.text


async def test_readiness_does_not_disclose_the_store(file_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_server(file_store) as server:
        message = "Postgres at 10.0.0.7:5432/runwright cannot be reached"
        failing = AsyncMock(side_effect=RunwrightError(ErrorCode.STORE_UNAVAILABLE, message))
        monkeypatch.setattr(server.service.log.store.side_tables, "read", failing)
        answer = await server.caller().http.get("/readyz")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "10.0.0.7" not in answer.text


@pytest.mark.parametrize("run_id", [".", ".."])
async def test_run_ids_that_paths_cannot_address_are_refused(file_store: str, run_id: str) -> None:
    async with running_server(file_store) as server:
        refused = await server.caller().start(HELLO, 400, context={"runId": run_id})
        assert refused["code"] == "SCHEMA_VALIDATION_FAILED"
