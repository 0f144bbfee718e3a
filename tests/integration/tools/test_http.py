"""http steps, against a server that behaves badly."""

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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_what_is_sent_is_what_the_plan_says(server: FlakyServer) -> None:
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


async def test_a_busy_server_is_asked_again_after_the_time_it_wants(server: FlakyServer) -> None:
    retry = {"maxAttempts": 3, "initial": "10ms", "jitter": False}
    async with engine("memory://") as operations:
        began = time.monotonic()
        snapshot = await run_plan(operations, plan({"url": f"{server.url}/flaky"}, retry=retry))
        assert time.monotonic() - began >= 2
        assert (await operations.result(snapshot.run_id, "call"))["body"] == "at last"
        failed = await wait_for_event(operations, snapshot.run_id, "StepFailed", "call")
        assert (failed.payload or {})["error"]["facts"] == {"status": 503, "retryAfter": 1.0}
    assert server.seen["/flaky"] == 3


async def test_a_server_may_name_the_time_from_which_on_it_can_be_asked(server: FlakyServer) -> None:
    retry = {"maxAttempts": 2, "initial": "10ms", "jitter": False}
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, plan({"url": f"{server.url}/later"}, retry=retry))
        assert snapshot.status == "COMPLETED"
        failed = await wait_for_event(operations, snapshot.run_id, "StepFailed", "call")
        assert 1 <= (failed.payload or {})["error"]["facts"]["retryAfter"] <= 3


async def test_an_answer_that_was_not_expected_fails_the_step(server: FlakyServer) -> None:
    error = await error_of({"url": f"{server.url}/nothing?token=abc"}, retry={"maxAttempts": 3})
    assert error.code == "HTTP_STATUS"
    assert "returned 404 Not Found" in error.message
    assert "no such thing" in error.message
    assert "token" not in error.message
    assert server.seen["/nothing"] == 1, "asking again will not make it be there"
    assert (await result_of({"url": f"{server.url}/nothing", "expect": [200, 404]}))["status"] == 404
    assert (await error_of({"url": f"{server.url}/orders", "expect": "404"})).code == "HTTP_STATUS"


@pytest.mark.parametrize("path", ["hang_up", "half"])
async def test_a_server_that_hangs_up_is_a_failure_that_may_pass(server: FlakyServer, path: str) -> None:
    error = await error_of({"url": f"{server.url}/{path}"})
    assert (error.code, error.retryable, error.category) == ("HTTP_UNREACHABLE", True, "network")


async def test_nobody_at_the_address(server: FlakyServer) -> None:
    error = await error_of({"url": "http://127.0.0.1:9/"})
    assert (error.code, error.retryable) == ("HTTP_UNREACHABLE", True)


async def test_a_server_that_says_nothing_is_waited_for_only_so_long(server: FlakyServer) -> None:
    error = await error_of({"url": f"{server.url}/slow", "idleTimeout": "200ms"})
    assert error.code == "HTTP_TIMEOUT"


async def test_a_cancelled_call_hangs_up(server: FlakyServer) -> None:
    async with engine("memory://") as operations:
        run_id = await operations.start(operations.load(plan({"url": f"{server.url}/slow"})))
        await wait_for_event(operations, run_id, "StepStarted", "call")
        began = time.monotonic()
        await operations.signal(run_id, "CANCEL")
        assert (await wait_for_end(operations, run_id)).status == "CANCELLED"
        assert time.monotonic() - began < 4


async def test_no_more_is_read_than_was_said(server: FlakyServer) -> None:
    error = await error_of({"url": f"{server.url}/large", "maxBytes": 1000})
    assert (error.code, error.retryable) == ("HTTP_TOO_LARGE", False)


async def test_redirects_are_followed_but_not_for_ever(server: FlakyServer) -> None:
    assert (await result_of({"url": f"{server.url}/moved"}))["body"] == {"rows": [1, 2, 3]}
    assert (await error_of({"url": f"{server.url}/circle"})).code == "HTTP_REDIRECTS"


async def test_only_allowed_hosts_are_called_also_by_redirect(server: FlakyServer, tmp_path: Path) -> None:
    (tmp_path / "runwright.toml").write_text('[http]\nallow = ["127.0.0.1"]\n')
    assert (await result_of({"url": f"{server.url}/orders"}))["status"] == 200
    assert (await error_of({"url": f"{server.url}/elsewhere"})).code == "HTTP_NOT_ALLOWED"
    assert server.seen["/orders"] == 1
    (tmp_path / "runwright.toml").write_text('[http]\nallow = "127.0.0.1"\n')
    with pytest.raises(RunwrightError, match="allow is a list of hosts"):
        await result_of({"url": f"{server.url}/orders"})


async def test_a_cookie_that_one_step_is_given_is_not_sent_by_another(server: FlakyServer) -> None:
    steps = [{"id": f"s{number}", "http": {"url": f"{server.url}/echo"}} for number in range(2)]
    async with engine("memory://") as operations:
        assert (await run_plan(operations, {"plan": "p", "steps": steps})).status == "COMPLETED"
    assert not any("cookie" in request["headers"] for request in server.requests)


async def test_the_addresss_own_query_stays(server: FlakyServer) -> None:
    result = await result_of({"url": f"{server.url}/echo?a=1", "query": {"b": 2}})
    assert result["body"]["path"] == "/echo?a=1&b=2"


async def test_connections_are_used_again(server: FlakyServer) -> None:
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
    ("http", "sentence"),
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
async def test_a_wrong_input_is_refused_before_anything_runs(http: dict[str, Any], sentence: str) -> None:
    async with engine("memory://") as operations:
        with pytest.raises(RunwrightError, match=sentence):
            operations.load(plan(http))


async def test_what_is_filled_in_is_looked_at_too(server: FlakyServer) -> None:
    async with engine("memory://") as operations:
        document = {**plan({"url": "{{ params.url }}"}), "params": {"url": "file:///etc/passwd"}}
        snapshot = await run_plan(operations, document)
        assert step_of(snapshot, "call").error.code == "INVALID_INPUT"
