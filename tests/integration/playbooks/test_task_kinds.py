"""Requests, queries and outputs of tasks: http, SQL, Python, the shell, files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from runwright.contract.timestamps import to_micros
from support.engine import engine
from support.flaky_server import FlakyServer, flaky_server
from support.playbooks import arcs_to, noop, otherwise, playbook, python_task, result_of, rules, run_playbook, when


async def run_tasks(store: str, *tools: dict[str, Any], **more: Any) -> Any:
    """Run the tasks in one step and return the result of the last."""
    async with engine(store) as operations:
        snapshot, lines = await run_playbook(operations, playbook({"step": "a", "tool": list(tools)}, **more))
        assert snapshot.status == "COMPLETED", (snapshot.root_cause, lines)
        return await result_of(operations, snapshot)


def post(server: FlakyServer, **more: Any) -> dict[str, Any]:
    return {"kind": "http", "method": "POST", "url": f"{server.url}/echo", **more}


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("given", "sent", "kind"),
    [
        ({"body": "name={{ who }}", "headers": FORM}, "name=Ada", FORM["Content-Type"]),
        ({"body": "<n>{{ who }}</n>"}, "<n>Ada</n>", "text/plain; charset=utf-8"),
        ({"data": {"name": "{{ who }}", "tag": ["a", "b"]}, "headers": FORM}, "name=Ada&tag=a&tag=b", FORM["Content-Type"]),
        ({"data": {"name": "{{ who }}"}}, '{"name":"Ada"}', "application/json"),
        ({"body": "{{ row }}"}, '{"id":1}', "application/json"),
        ({"json": "{{ who }}"}, '"Ada"', "application/json"),
        ({"payload": '{"as": "written"}'}, '{"as": "written"}', "text/plain; charset=utf-8"),
    ],
)  # fmt: skip
async def test_http_body_is_sent_as_written(file_store: str, given: dict[str, Any], sent: str, kind: str) -> None:
    with flaky_server() as server:
        await run_tasks(file_store, {"t": post(server, **given)}, workload={"who": "Ada", "row": {"id": 1}})
        (request,) = server.requests
    assert request["body"].replace(": ", ":") == sent.replace(": ", ":")
    assert request["headers"]["content-type"] == kind


async def test_list_in_http_params_repeats_its_name(file_store: str) -> None:
    with flaky_server() as server:
        params = {"tag": ["a", "b"], "none": None, "on": True, "n": "{{ 1 + 1 }}"}
        await run_tasks(file_store, {"t": {"kind": "http", "url": f"{server.url}/echo", "params": params}})
        assert server.requests[0]["path"] == "/echo?n=2&on=true&tag=a&tag=b"


async def test_http_retry_waits_for_the_time_the_server_names(file_store: str) -> None:
    with flaky_server() as server:
        again = rules(when("outcome.error.retryable", "retry", attempts=2, delay=0.01), otherwise("continue"))
        got = await run_tasks(file_store, {"t": {"kind": "http", "url": f"{server.url}/later", "spec": again}})
        assert got["data"] == "at last"
        async with engine(file_store) as operations:
            (run,) = (await operations.log.list_runs()).runs
            records = await operations.log.read(run.identity.run_id)
    started = [record.emitted_at for record in records if record.event_type == "TaskAttemptStarted"]
    waited = to_micros(started[1]) - to_micros(started[0])
    assert waited > 0.9e6  # the server names a time two seconds ahead, rounded to a second


async def test_binary_http_response_has_its_encoding(file_store: str) -> None:
    with flaky_server() as server:
        got = await run_tasks(file_store, {"t": {"kind": "http", "url": f"{server.url}/binary"}})
        small = {"kind": "http", "url": f"{server.url}/binary", "max_bytes": 2}
        async with engine(file_store) as operations:
            snapshot, _ = await run_playbook(operations, playbook({"step": "a", "tool": small}))
    assert (got["data"][:8], got["encoding"]) == ("AAECAwQF", "base64")
    assert (snapshot.root_cause.code, "`max_bytes`" in snapshot.root_cause.message) == ("HTTP_TOO_LARGE", True)


DATABASES = ["sqlite", "duckdb", pytest.param("postgres", marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", DATABASES)
async def test_rows_of_the_last_sql_statement_are_returned(
    file_store: str, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    database: dict[str, Any] = {"path": str(tmp_path / "shop.db")}
    if kind == "postgres":
        database = {"connection": request.getfixturevalue("empty_postgres_url")}
    make = "CREATE TABLE c(id INTEGER, name TEXT); INSERT INTO c VALUES (1, 'a;b'); SELECT count(*) AS n FROM c -- all"
    got = await run_tasks(file_store, {"t": {"kind": kind, "query": make, **database}})
    assert got == {"rows": [{"n": 1}], "row_count": 1}
    twice = {"kind": kind, "query": "SELECT * FROM c JOIN c AS d ON c.id = d.id", **database}
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "tool": twice}))
    assert (snapshot.root_cause.code, "'id'" in snapshot.root_cause.message) == ("SQL_RESULT", True)


async def test_sql_trigger_is_one_statement(file_store: str, tmp_path: Path) -> None:
    make = """CREATE TABLE c(id INTEGER); CREATE TABLE d(id INTEGER);
        CREATE TRIGGER t AFTER INSERT ON c BEGIN INSERT INTO d VALUES (new.id); SELECT 1; END;
        INSERT INTO c VALUES (7); SELECT * FROM d"""
    got = await run_tasks(file_store, {"t": {"kind": "sqlite", "path": str(tmp_path / "shop.db"), "query": make}})
    assert got["rows"] == [{"id": 7}]
    alone = "CREATE TRIGGER u AFTER INSERT ON c BEGIN INSERT INTO d VALUES (new.id); SELECT 1; END"
    got = await run_tasks(file_store, {"t": {"kind": "sqlite", "path": str(tmp_path / "shop.db"), "query": alone}})
    assert got["rows"] == []


async def test_failed_code_prints_the_line_of_the_error(file_store: str) -> None:
    text = "def f(x):\n    return 1 / x\ndef main():\n    return f(0)"
    for body, kind, line in (
        (text, "ZeroDivisionError", "line 2"),
        ("import sys\nsys.exit(3)", "SystemExit", "line 2"),
    ):
        async with engine(file_store) as operations:
            seen = rules(otherwise("continue", set_ctx={"e": "{{ outcome.py.exception_type }}"}))
            document = playbook({"step": "a", "tool": {**python_task(body), "spec": seen}, "next": arcs_to("b")},
                                {"step": "b", "tool": noop("{{ ctx.e }}")})  # fmt: skip
            snapshot, lines = await run_playbook(operations, document)
            assert await result_of(operations, snapshot) == kind, lines
            output = "".join(line.text for line in operations.engine.step_logs.read(snapshot.run_id, "a/a"))
        assert kind in output
        assert f'File "<code>", {line}' in output


async def test_chdir_in_a_task_does_not_move_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        got = await run_tasks(
            "sqlite:///.runwright/runs.db",
            {"go": python_task("import os; os.chdir('/')")},
            {"large": python_task("result = 'x' * 100_000")},
            {"look": python_task("import os; result = os.getcwd()")},
        )
    finally:
        os.chdir(tmp_path)
    assert got == "/"
    assert [file.stat().st_size for file in tmp_path.rglob("results/**/*") if file.is_file()] == [100_002]


async def test_artifact_path_and_shell_can_be_chosen(file_store: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / "x.json"
    get = {"kind": "artifact", "action": "get", "ref": "{{ put }}", "path": str(target)}
    await run_tasks(file_store, {"put": {"kind": "artifact", "action": "put", "data": {"x": 1}}}, {"get": get})
    assert target.read_text() == '{"x":1}'
    assert await run_tasks(
        file_store, {"sh": {"kind": "shell", "shell": "bash", "command": "[[ a == a ]] && echo '[1]'"}}
    ) == [1]
