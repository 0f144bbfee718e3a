"""Commands with a server instead of a store: the same behaviour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.commands import TextResult, runwright
from support.waiting import wait_until

pytestmark = pytest.mark.slow

PLAN = """
plan: shop
params: {n: 1}
onFailure: wait
steps:
  - {id: first, shell: "echo one {{ params.n | quote }}"}
  - {id: ok, approval: {prompt: "Go?"}}
  - {id: last, shell: "test -e go || exit 3"}
"""


class ServerShell:
    """A server in a separate process, and commands that use it."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address

    def __call__(self, *arguments: str, code: int = 0, stdin: str | None = None, **env: str) -> str:
        done = self.run(*arguments, stdin=stdin, **env)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def run(
        self, *arguments: str, stdin: str | None = None, **env: str
    ) -> TextResult | subprocess.CompletedProcess[str]:
        if stdin is None:
            return runwright(self.folder, *arguments, **{"RUNWRIGHT_SERVER": self.address, **env})
        return subprocess.run(
            [sys.executable, "-m", "runwright", *arguments],
            cwd=self.folder,
            env={**os.environ, "RUNWRIGHT_SERVER": self.address, **env},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))


@contextmanager
def served(folder: Path) -> Iterator[ServerShell]:
    (folder / "shop.yaml").write_text(PLAN)
    (folder / "quick.yaml").write_text("plan: quick\nsteps:\n  - {id: a, shell: echo hi}\n")
    with (
        (folder / "server.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "runwright", "serve", "--port", "0", "--json", "--store", "sqlite:///runs.db"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as server,
    ):
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        try:
            yield ServerShell(folder, address)
        finally:
            server.terminate()
        assert server.wait(20) == 0


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerShell]:
    with served(tmp_path_factory.mktemp("served")) as found:
        yield found


def test_run_is_started_controlled_and_completed(shell: ServerShell) -> None:
    run_id = shell("run", "shop.yaml", "--param", "n=7", "--detach", "--run-id", "steered").strip()
    assert run_id == "steered"
    assert shell.json("show", "steered")["status"] == "RUNNING"
    assert "PAUSED" in shell("pause", "steered", "--reason", "a look")
    assert shell.json("resume", "@last")["engineResult"] == "RESUMED"
    wait_until(lambda: shell.json("show", "steered").get("substatus"))
    assert shell.json("show", "steered")["substatus"] == "WAITING_APPROVAL"
    assert "the step continues" in shell("approve", "steered")
    wait_until(lambda: shell.json("show", "steered").get("substatus") == "embedded/WAITING_OPERATOR")
    (shell.folder / "go").touch()
    shell("retry", "steered", "last")
    assert "COMPLETED" in shell("watch", "steered")
    assert shell("logs", "steered", "first").strip() == "one 7"
    (shell.folder / "go").unlink()


def test_run_waits_for_the_end_and_returns_its_exit_code(shell: ServerShell) -> None:
    (shell.folder / "bad.yaml").write_text("plan: bad\nsteps:\n  - {id: a, shell: 'echo no; exit 3'}\n")
    assert "COMPLETED" in shell("run", "quick.yaml")
    output = shell("run", "bad.yaml", code=1)
    assert "exit 3" in output or "code 3" in output
    lines = shell("run", "quick.yaml", "--json").splitlines()
    assert json.loads(lines[-1])["eventType"] == "RunCompleted"
    again = shell("rerun", "@last", "--force")
    assert "COMPLETED" in again


def test_code_next_to_the_plan_is_imported(shell: ServerShell, tmp_path: Path) -> None:
    """Imports relative to the folder of the plan; the server runs in another one."""
    (tmp_path / "nearby.py").write_text("def answer() -> int:\n    return 42\n")
    (tmp_path / "near.yaml").write_text("plan: near\nsteps:\n  - {id: a, python: 'nearby:answer'}\n")
    assert "COMPLETED" in shell("run", str(tmp_path / "near.yaml"))
    (tmp_path / "flow.py").write_text(
        "import runwright as rw\n\n@rw.step\ndef two() -> int:\n    return 2\n\n@rw.plan\ndef both():\n    return two()\n\n"
        "if __name__ == '__main__':\n    with rw.connect() as app:\n        print(app.start(both).wait().status)\n"
    )
    assert "COMPLETED" in shell("run", str(tmp_path / "flow.py"))
    done = subprocess.run(
        [sys.executable, "flow.py"],
        cwd=tmp_path,
        env={**os.environ, "RUNWRIGHT_SERVER": shell.address},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "COMPLETED\n", done.stderr


INNER = """
apiVersion: noetl.io/v10
kind: Playbook
metadata: {name: inner}
workflow:
- {step: a, tool: {kind: noop, result: "{{ n + 1 }}"}}
"""
OUTER = """
apiVersion: noetl.io/v10
kind: Playbook
metadata: {name: outer}
workload: {n: 1}
workbook:
- {name: twice, loop: {in: [1, 2], iterator: x}, tool: [{one: {kind: noop, result: "{{ iter.x * n }}"}}]}
workflow:
- step: a
  tool:
  - sub: {kind: playbook, path: inner.yaml, args: {n: "{{ n }}"}}
  - all: {kind: workbook, name: twice}
  - both: {kind: noop, result: ["{{ sub }}", "{{ all }}"]}
"""


def test_nested_playbooks_run_on_a_server(shell: ServerShell) -> None:
    (shell.folder / "inner.yaml").write_text(INNER)
    (shell.folder / "outer.yaml").write_text(OUTER)
    shell("run", "outer.yaml", "--param", "n=7", "--run-id", "outer")
    assert shell.json("results", "get", "outer", "a") == [8, [7, 14]]


def test_read_commands_work_with_a_server(shell: ServerShell) -> None:
    shell("run", "quick.yaml", "--run-id", "looked-at")
    rows = [json.loads(line) for line in shell("list", "--plan", "quick", "--json").splitlines()]
    assert "looked-at" in {row["runId"] for row in rows}
    assert shell.json("show", "looked", "--at", "3")["status"] == "RUNNING"
    assert len(shell("events", "looked-at", "--json").splitlines()) == 5
    assert len(shell("events", "looked-at", "--after", "3").splitlines()) == 2
    assert shell("alerts").strip() != ""
    assert shell.json("artifacts", "list", "looked-at") == []
    assert shell.json("verify", "looked-at")["ok"] is True
    assert shell.json("rebuild", "--check")["different"] == []
    shell("anchor", "-o", "anchor.json")
    assert shell.json("verify", "--anchor", "anchor.json")["ok"] is True
    names = {fact["name"]: fact["state"] for fact in shell.json("doctor")}
    assert names["ready"] == names["you are"] == names["store"] == "ok"
    assert "recover abandoned runs automatically" in shell.run("recover").stderr


def test_events_are_exported_imported_and_appended(shell: ServerShell) -> None:
    shell("run", "quick.yaml", "--run-id", "exported")
    lines = shell("export", "exported")
    renamed = lines.replace('"exported"', '"imported"')
    result = json.loads(shell("import", "-", "--json", stdin=renamed, code=2))
    assert result["imported"] == 0  # The idempotency keys depend on the run id.
    assert json.loads(shell("import", "-", "--json", stdin=lines))["duplicates"] == 5
    key = shell.json(
        "key", "--run-id", "new", "--attempt", "1", "--type", "RunQueued", "--plan-id", "p", "--plan-version", "1"
    )
    event = {
        "eventId": "0e9d2f86-2d6a-4c3f-8f7a-61d5e1a0b9c4",
        "eventType": "RunQueued",
        "runId": "new",
        "tenantId": "default",
        "projectId": "default",
        "environmentId": "default",
        "planId": "p",
        "planVersion": "1",
        "engineAttemptId": 1,
        "logicalAttemptId": 1,
        "idempotencyKey": key["key"],
        "emittedAt": "2026-01-31T08:00:00Z",
    }
    receipts = shell("append", "-", "--json", stdin=f"{json.dumps(event)}\n{json.dumps(event)}\n")
    assert [json.loads(line)["status"] for line in receipts.splitlines()] == ["appended", "duplicate"]
    refused = shell("append", "-", "--json", stdin="nonsense\n", code=2)
    assert json.loads(refused)["code"] == "SCHEMA_VALIDATION_FAILED"


def test_errors_and_exit_codes_match_those_of_a_store(shell: ServerShell) -> None:
    assert "RUN_NOT_FOUND" in shell.run("show", "nosuch").stderr
    assert shell.run("show", "nosuch").returncode == 2
    done = shell.run("list", RUNWRIGHT_SERVER="http://127.0.0.1:1")
    assert (done.returncode, "SERVER_UNREACHABLE" in done.stderr) == (3, True)
    both = shell.run("list", "--store", "sqlite:///x.db", "--server", shell.address)
    assert both.returncode == 2
    assert "STORE_UNAVAILABLE" in shell.run("list", "--store", "sqlite:///nosuch.db").stderr


def test_first_token_makes_authentication_mandatory(tmp_path: Path) -> None:
    with served(tmp_path) as shell:
        shell("run", "quick.yaml", "--run-id", "mine")
        made = shell.json("token", "create", "root", "--role", "Admin")
        env = {"RUNWRIGHT_TOKEN": made["token"]}
        assert "AUTHN_REQUIRED" in shell.run("list").stderr
        shell("list", **env)
        second = json.loads(shell("token", "create", "vera", "--role", "viewer", "--tenant", "acme", "--json", **env))
        assert "vera" in shell("token", "list", **env)
        assert shell.run("cancel", "mine", RUNWRIGHT_TOKEN=second["token"]).returncode == 2
        shell("token", "revoke", second["details"]["tokenId"], **env)
        assert "AUTHN_FAILED" in shell.run("list", RUNWRIGHT_TOKEN=second["token"]).stderr
