"""The client: code for `rw.open()` runs against a server after a change of one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from support.server import server_in_thread

TWO = {
    "plan": "two",
    "params": {"n": 1},
    "steps": [{"id": "a", "shell": "echo {{ params.n | quote }}"}, {"id": "b", "noop": {}}],
}


@pytest.fixture(params=["embedded", "server"])
def app(request: pytest.FixtureRequest, file_store: str) -> Iterator[rw.App]:
    if request.param == "embedded":
        with rw.open(file_store) as opened:
            yield opened
        return
    with server_in_thread(file_store) as address, rw.connect(address) as connected:
        yield connected


def test_app_runs_plans_embedded_and_on_a_server(app: rw.App) -> None:
    run = app.start(TWO, n=3)
    assert run.wait().status == "COMPLETED"
    assert str(run.status) == "COMPLETED"
    assert run.result("a")["stdout"] == "3\n"
    types = [record.event_type for record in run.events()]
    assert types[0] == "RunQueued"
    assert types[-1] == "RunCompleted"
    assert run.snapshot(at=3).status == "RUNNING"
    again = app.run(run.run_id)
    assert again.wait(5).status == "COMPLETED"


def test_events_are_followed_and_signals_decided(app: rw.App) -> None:
    run = app.start({"plan": "held", "steps": [{"id": "w", "wait": {"event": "go"}}]})
    paused = run.signal("PAUSE", reason="a look")
    assert paused.decision == "ACCEPTED"
    assert run.status == "PAUSED"
    run.signal("RESUME")
    run.signal("EVENT", {"name": "go"})
    types = [record.event_type for record in run.events(follow=True)]
    assert types[-1] == "RunCompleted"
    refused = run.signal("PAUSE")
    assert (refused.decision, refused.code) == ("REJECTED", "RUN_TERMINAL")


def test_errors_have_the_same_codes_on_a_server(app: rw.App) -> None:
    for work, code in (
        (lambda: app.run("nosuch"), "RUN_NOT_FOUND"),
        (lambda: app.start(TWO, nosuch=1), "INVALID_ARGUMENT"),
        (lambda: app.start({"plan": "p", "steps": []}), "INVALID_PLAN_SCHEMA"),
        (lambda: app.start(TWO).result("nosuch"), "STEP_NOT_FOUND"),
    ):
        wanted: Callable[[], Any] = work
        with pytest.raises(rw.RunwrightError) as caught:
            wanted()
        assert caught.value.code == code


def test_failed_run_can_be_rerun(app: rw.App) -> None:
    run = app.start({"plan": "bad", "steps": [{"id": "a", "noop": {}}, {"id": "b", "shell": "exit 3"}]})
    assert run.wait().status == "FAILED"
    again = app.rerun(run.run_id, from_step="b")
    ended = again.wait()
    assert (ended.status, ended.origin_run_id) == ("FAILED", run.run_id)


FLOW = """
import runwright as rw

@rw.step
def double(n: int) -> int:
    return 2 * n

@rw.plan
def twice(n: int):
    return double(double(n))
"""


def test_python_plan_runs_with_its_code(app: rw.App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server finds the steps' code where the plan's file is; here that is the same machine."""
    name = f"flow_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(name)
    run = app.start(module.twice, n=5)
    assert run.wait().status == "COMPLETED"
    assert run.result() == 20
    sys.modules.pop(name)


def test_plan_can_run_another_plan(app: rw.App, tmp_path: Path) -> None:
    (tmp_path / "child.yaml").write_text(
        "plan: child\nsteps:\n  - {id: x, python: {code: 3 + 4}}\nresult: '{{ steps.x.result }}'\n"
    )
    (tmp_path / "parent.yaml").write_text("plan: parent\nsteps:\n  - {id: sub, plan: {path: child.yaml}}\n")
    run = app.start(tmp_path / "parent.yaml")
    assert run.wait().status == "COMPLETED"
    assert run.result("sub") == 7


async def test_async_client_runs_plans(file_store: str) -> None:
    with server_in_thread(file_store) as address:
        async with rw.connect_async(address) as app:
            run = await app.start(TWO)
            assert (await run.wait()).status == "COMPLETED"
            assert (await run.result("a"))["exitCode"] == 0
            assert [record.run_seq async for record in run.events()][:3] == [1, 2, 3]


def test_unreachable_server_is_reported() -> None:
    with pytest.raises(rw.RunwrightError) as caught, rw.connect("http://127.0.0.1:1") as app:
        app.run("x")
    assert caught.value.code == "SERVER_UNREACHABLE"
    with pytest.raises(rw.RunwrightError) as caught:
        rw.connect("ftp://example.org")
    assert caught.value.code == "INVALID_ARGUMENT"


def test_wrong_token_is_refused(file_store: str) -> None:
    with server_in_thread(file_store) as address:
        with rw.connect(address) as app:
            app.start(TWO).wait()
        with rw.connect(address, "rwt_0123456789abcdef_nonsense") as app, pytest.raises(rw.RunwrightError) as caught:
            app.run("@last")
        assert caught.value.code == "AUTHN_FAILED"
