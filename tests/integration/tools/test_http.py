"""http steps against a faulty server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runwright.contract.errors import RunwrightError
from support.engine import engine, event_lines, run_plan, step_of, wait_for_end, wait_for_event
from support.flaky_server import FlakyServer, flaky_server


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server() -> Iterator[FlakyServer]:
    with flaky_server() as server:
        yield server


def plan(http: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"plan": "p", "steps": [{"id": "call", "http": http, **more}]}


async def result_of(http: dict[str, Any], **more: Any) -> Any:
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, plan(http, **more))
        assert snapshot.status == "COMPLETED", snapshot.root_cause
        return await operations.result(snapshot.run_id, "call")


async def error_of(http: dict[str, Any], **more: Any) -> Any:
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, plan(http, **more))
        assert snapshot.status == "FAILED"
        return step_of(snapshot, "call").error


async def test_an_answer_is_status_headers_and_body(server: FlakyServer) -> None:
    result = await result_of({"url": f"{server.url}/orders"})
    assert (result["status"], result["body"]) == (200, {"rows": [1, 2, 3]})
    assert result["headers"]["content-type"] == "application/json"


async def test_request_is_sent_as_the_plan_specifies(server: FlakyServer) -> None:
    result = await result_of(
        {
            "url": f"{server.url}/echo",
            "method": "post",
            "headers": {"X-Day": "monday", "X-Name": "ü"},
            "query": {"a": 1, "b": True},
            "json": {"rows": [1]},
        }
    )
    sent = result["body"]
    assert (sent["method"], sent["path"], sent["body"]) == ("POST", "/echo?a=1&b=true", '{"rows":[1]}')
    assert sent["headers"]["x-day"] == "monday"
    assert len(sent["headers"]["idempotency-key"]) == 64
    assert "set-cookie" not in result["headers"]


async def test_a_body_may_be_text_binary_or_nothing(server: FlakyServer) -> None:
    assert (await result_of({"url": f"{server.url}/latin"}))["body"] == "über"
    assert (await result_of({"url": f"{server.url}/not_json"}))["body"] == "{half"
    binary = await result_of({"url": f"{server.url}/binary"})
    assert (binary["encoding"], len(binary["body"])) == ("base64", 344)
    assert (await result_of({"url": f"{server.url}/empty"}))["body"] is None


async def test_retry_waits_for_the_retry_after_of_the_server(server: FlakyServer) -> None:
    retry = {"maxAttempts": 3, "initial": "10ms", "jitter": False}
    async with engine("memory://") as operations:
        began = time.monotonic()
        snapshot = await run_plan(operations, plan({"url": f"{server.url}/flaky"}, retry=retry))
        assert time.monotonic() - began >= 2
        assert (await operations.result(snapshot.run_id, "call"))["body"] == "at last"
        failed = await wait_for_event(operations, snapshot.run_id, "StepFailed", "call")
        assert (failed.payload or {})["error"]["facts"] == {"status": 503, "retryAfter": 1.0}
    assert server.seen["/flaky"] == 3


async def test_retry_after_may_be_a_date(server: FlakyServer) -> None:
    retry = {"maxAttempts": 2, "initial": "10ms", "jitter": False}
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, plan({"url": f"{server.url}/later"}, retry=retry))
        assert snapshot.status == "COMPLETED"
        failed = await wait_for_event(operations, snapshot.run_id, "StepFailed", "call")
        assert 1 <= (failed.payload or {})["error"]["facts"]["retryAfter"] <= 3


async def test_unexpected_status_fails_the_step(server: FlakyServer) -> None:
    error = await error_of({"url": f"{server.url}/nothing?token=abc"}, retry={"maxAttempts": 3})
    assert error.code == "HTTP_STATUS"
    assert "returned 404 Not Found" in error.message
    assert "no such thing" in error.message
    assert "token" not in error.message
    assert server.seen["/nothing"] == 1, "a 404 is not retried"
    assert (await result_of({"url": f"{server.url}/nothing", "expect": [200, 404]}))["status"] == 404
    assert (await error_of({"url": f"{server.url}/orders", "expect": "404"})).code == "HTTP_STATUS"


@pytest.mark.parametrize("path", ["hang_up", "half"])
async def test_closed_connection_is_a_retryable_error(server: FlakyServer, path: str) -> None:
    error = await error_of({"url": f"{server.url}/{path}"})
    assert (error.code, error.retryable, error.category) == ("HTTP_UNREACHABLE", True, "network")


async def test_unreachable_address_is_a_retryable_error(server: FlakyServer) -> None:
    error = await error_of({"url": "http://127.0.0.1:9/"})
    assert (error.code, error.retryable) == ("HTTP_UNREACHABLE", True)


async def test_silent_server_times_out_after_the_idle_timeout(server: FlakyServer) -> None:
    error = await error_of({"url": f"{server.url}/slow", "idleTimeout": "200ms"})
    assert error.code == "HTTP_TIMEOUT"


async def test_cancelled_call_is_interrupted(server: FlakyServer) -> None:
    async with engine("memory://") as operations:
        run_id = await operations.start(operations.load(plan({"url": f"{server.url}/slow"})))
        await wait_for_event(operations, run_id, "StepStarted", "call")
        began = time.monotonic()
        await operations.signal(run_id, "CANCEL")
        assert (await wait_for_end(operations, run_id)).status == "CANCELLED"
        assert time.monotonic() - began < 4


async def test_body_beyond_max_bytes_is_refused(server: FlakyServer) -> None:
    error = await error_of({"url": f"{server.url}/large", "maxBytes": 1000})
    assert (error.code, error.retryable) == ("HTTP_TOO_LARGE", False)


async def test_redirects_are_followed_up_to_a_limit(server: FlakyServer) -> None:
    assert (await result_of({"url": f"{server.url}/moved"}))["body"] == {"rows": [1, 2, 3]}
    assert (await error_of({"url": f"{server.url}/circle"})).code == "HTTP_REDIRECTS"


@pytest.mark.parametrize("status", [302, 307])
async def test_redirect_takes_no_secret_to_another_origin(
    server: FlakyServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("KEY", "TOPSECRETKEY")
    other = f"http://localhost:{server.server_address[1]}/echo"
    secret = {"secret": "KEY"}
    step = {
        "url": f"{server.url}/redirect",
        "query": {"status": status, "to": other},
        "method": "POST",
        "headers": {"X-Api-Key": secret, "Authorization": secret, "X-Kind": "report"},
        "json": {"key": secret},
    }
    result = await result_of(step)
    first, second = server.requests
    assert (first["headers"]["x-api-key"], first["body"]) == ("TOPSECRETKEY", '{"key":"TOPSECRETKEY"}')
    assert result["status"] == 200
    assert second["headers"]["x-kind"] == "report"
    assert second["body"] == ""
    assert not {"x-api-key", "authorization"} & second["headers"].keys()
    assert "TOPSECRETKEY" not in str(second)


async def test_redirect_within_an_origin_keeps_headers_and_body(
    server: FlakyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "TOPSECRETKEY")
    step = {
        "url": f"{server.url}/redirect",
        "query": {"status": 307, "to": f"{server.url}/echo"},
        "method": "POST",
        "headers": {"Authorization": {"secret": "KEY"}},
        "json": {"a": 1},
    }
    assert (await result_of(step))["status"] == 200
    received = server.requests[-1]
    assert (received["headers"]["authorization"], received["body"]) == ("TOPSECRETKEY", '{"a":1}')


async def test_redirects_can_be_switched_off(server: FlakyServer) -> None:
    step = {"url": f"{server.url}/moved", "redirects": False}
    assert (await error_of(step)).code == "HTTP_STATUS"
    result = await result_of({**step, "expect": "3xx"})
    assert result["headers"]["location"].endswith("/orders")
    assert server.seen["/orders"] == 0


async def test_only_allowed_hosts_are_called_also_by_redirect(server: FlakyServer, tmp_path: Path) -> None:
    (tmp_path / "runwright.toml").write_text('[http]\nallow = ["127.0.0.1"]\n')
    assert (await result_of({"url": f"{server.url}/orders"}))["status"] == 200
    assert (await error_of({"url": f"{server.url}/elsewhere"})).code == "HTTP_NOT_ALLOWED"
    assert server.seen["/orders"] == 1
    (tmp_path / "runwright.toml").write_text('[http]\nallow = "127.0.0.1"\n')
    with pytest.raises(RunwrightError, match="allow is a list of hosts"):
        await result_of({"url": f"{server.url}/orders"})


async def test_cookies_are_not_shared_between_steps(server: FlakyServer) -> None:
    steps = [{"id": f"s{number}", "http": {"url": f"{server.url}/echo"}} for number in range(2)]
    async with engine("memory://") as operations:
        assert (await run_plan(operations, {"plan": "p", "steps": steps})).status == "COMPLETED"
    assert not any("cookie" in request["headers"] for request in server.requests)


async def test_query_input_is_added_to_the_query_of_the_url(server: FlakyServer) -> None:
    result = await result_of({"url": f"{server.url}/echo?a=1", "query": {"b": 2}})
    assert result["body"]["path"] == "/echo?a=1&b=2"


async def test_connections_are_reused(server: FlakyServer) -> None:
    steps = [{"id": f"s{number}", "http": {"url": f"{server.url}/orders"}} for number in range(8)]
    async with engine("memory://") as operations:
        assert (await run_plan(operations, {"plan": "p", "steps": steps})).status == "COMPLETED"
    assert server.connections == 1


async def test_a_secret_in_a_header_is_in_no_event(server: FlakyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cr3t-value-of-the-token")
    async with engine("memory://") as operations:
        headers = {"Authorization": {"secret": "API_TOKEN"}}
        snapshot = await run_plan(operations, plan({"url": f"{server.url}/echo", "headers": headers}))
        assert snapshot.status == "COMPLETED"
        assert server.requests[-1]["headers"]["authorization"] == "s3cr3t-value-of-the-token"
        log = await operations.log.read(snapshot.run_id)
        assert not any("s3cr3t" in str(record.payload) for record in log), await event_lines(
            operations, snapshot.run_id
        )


@pytest.mark.parametrize(
    ("http", "message"),
    [
        ({"url": "ftp://x"}, "must begin with http"),
        ({"url": "http://"}, "no host"),
        ({"url": "http://x:99999/"}, "Invalid `url`"),
        ({"url": "http://[::1/"}, "Invalid `url`"),
        ({"url": "http://x", "method": "FETCH"}, "`method` must be one of"),
        ({"url": "http://x", "json": {}, "body": "x"}, "not both"),
        ({"url": "http://x", "expect": "20x"}, "`expect` must be a status"),
        ({"url": "http://x", "expect": 99}, "`expect` must be a status"),
        ({"url": "http://x", "headers": {"a b": "c"}}, "Invalid header name"),
        ({"url": "http://x", "headers": {"a": "b\r\nc: d"}}, "line break"),
        ({"url": "http://x", "headers": {"a": [1]}}, "must be text"),
        ({"url": "http://x", "maxBytes": 0}, "at least 1"),
        ({"url": "http://x", "idleTimeout": "soon"}, "a duration such as 30s"),
        ({"url": "http://x", "verb": "GET"}, "Unknown input 'verb'"),
        ({}, "requires `url`"),
    ],
)
async def test_a_wrong_input_is_refused_before_anything_runs(http: dict[str, Any], message: str) -> None:
    async with engine("memory://") as operations:
        with pytest.raises(RunwrightError, match=message):
            operations.load(plan(http))


async def test_evaluated_url_is_validated_too(server: FlakyServer) -> None:
    async with engine("memory://") as operations:
        document = {**plan({"url": "{{ params.url }}"}), "params": {"url": "file:///etc/passwd"}}
        snapshot = await run_plan(operations, document)
        assert step_of(snapshot, "call").error.code == "INVALID_INPUT"
