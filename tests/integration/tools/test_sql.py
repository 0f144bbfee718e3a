"""sql steps on real databases."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runwright.contract.errors import RunwrightError
from support.engine import engine, run_plan, step_of, wait_for_end, wait_for_event


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "duckdb", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return "sqlite:///shop.db"
    if request.param == "duckdb":
        return "duckdb:///shop.duckdb"
    return request.getfixturevalue("empty_postgres_url")


def step(step_id: str, connection: str, query: str, **more: Any) -> dict[str, Any]:
    return {"id": step_id, "sql": {"connection": connection, "query": query, **more}}


async def results_of(*steps: dict[str, Any], **document: Any) -> list[Any]:
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": list(steps), **document})
        assert snapshot.status == "COMPLETED", snapshot.root_cause
        return [await operations.result(snapshot.run_id, each["id"]) for each in steps]


async def error_of(one: dict[str, Any], **document: Any) -> Any:
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [one], **document})
        assert snapshot.status == "FAILED"
        return step_of(snapshot, one["id"]).error


async def test_tables_are_made_filled_and_read_with_bound_values(database: str) -> None:
    made, filled, read = await results_of(
        step("make", database, "create table orders (id integer, day date, name text)"),
        step(
            "fill",
            database,
            "insert into orders values (:id, :day, :name), (2, '2026-01-02', 'x')",
            args={"id": 1, "day": "{{ params.day }}", "name": "it's; drop table orders --"},
        ),
        step("read", database, "select id, name from orders where day = :day", args={"day": "{{ params.day }}"}),
        params={"day": "2026-01-01"},
    )
    assert made["rows"] == []
    assert filled == {"rows": [], "rowCount": 2}
    assert read == {"rows": [{"id": 1, "name": "it's; drop table orders --"}], "rowCount": 1}


async def test_a_name_is_quoted_by_ident(database: str) -> None:
    name = 'odd "table"; drop'
    _, counted = await results_of(
        step("make", database, "create table {{ params.table | ident }} (n integer)"),
        step("count", database, "select count(*) as n from {{ params.table | ident }}"),
        params={"table": name},
    )
    assert counted["rows"] == [{"n": 0}]


async def test_a_step_is_one_transaction(database: str) -> None:
    error = await error_of(step("s", database, "create table t (n integer); insert into nowhere values (1)"))
    assert (error.code, error.retryable) == ("SQL_ERROR", False)
    (made,) = await results_of(step("again", database, "create table t (n integer)"))
    assert made["rows"] == [], "the table of the failed step was rolled back"


async def test_several_statements_run_in_one_step(database: str) -> None:
    script = "create table t (n integer); insert into t values (1); insert into t values (2);"
    _, read = await results_of(step("make", database, script), step("read", database, "select sum(n) as n from t"))
    assert int(read["rows"][0]["n"]) == 3


async def test_each_of_several_statements_has_its_own_values(database: str) -> None:
    script = """create table t (n integer, word text);
        insert into t values (:n, ':n; :word'); insert into t values (:m, :word);
        select n, word from t where n >= :n order by n"""
    (read,) = await results_of(step("s", database, script, args={"n": 1, "m": 2, "word": "two; words"}))
    assert read["rows"] == [{"n": 1, "word": ":n; :word"}, {"n": 2, "word": "two; words"}]
    error = await error_of(
        step("again", database, "insert into t values (:n, 'x'); insert into nowhere values (:n)", args={"n": 3})
    )
    assert error.code == "SQL_ERROR"
    (count,) = await results_of(step("count", database, "select count(*) as n from t"))
    assert count["rows"] == [{"n": 2}], "all statements are one transaction"


@pytest.mark.parametrize(
    ("last", "rows", "count"),
    [
        ("-- what is there\nselect n from t", [{"n": 1}, {"n": 2}], 2),
        ("insert into t values (3) returning n", [{"n": 3}], 1),
        ('select count(*) as "Count" from t', [{"Count": 2}], 1),
        ("delete from t where n = 1", [], 1),
        ("select 5 as n; -- select 5 as n", [{"n": 5}], 1),
    ],
)
async def test_result_is_that_of_the_last_statement(
    database: str, last: str, rows: list[dict[str, Any]], count: int
) -> None:
    script = f"create table t (n integer); insert into t values (1), (2);\n{last}"
    (read,) = await results_of(step("s", database, script))
    assert read == {"rows": rows, "rowCount": count}


async def test_a_trigger_has_statements_of_its_own() -> None:
    script = """create table t (n integer); create table u (n integer);
        create trigger g after insert on t begin insert into u values (new.n); insert into u values (0); end;
        insert into t values (:n); select n from u"""
    (read,) = await results_of(step("s", "sqlite:///shop.db", script, args={"n": 4}))
    assert read["rows"] == [{"n": 4}, {"n": 0}]


async def test_values_of_every_kind_come_back_as_json(database: str) -> None:
    query = "select 1.5 as half, null as missing, 'ü' as text, 12345678901 as large"
    (read,) = await results_of(step("s", database, query))
    (row,) = read["rows"]
    assert (float(row["half"]), row["missing"], row["text"], row["large"]) == (1.5, None, "ü", 12345678901)


async def test_too_many_rows_are_refused(database: str) -> None:
    query = "select 1 as n union all select 2 union all select 3"
    assert (await error_of(step("s", database, query, maxRows=2))).code == "SQL_TOO_MANY_ROWS"
    (read,) = await results_of(step("s", database, query, maxRows=3))
    assert read["rowCount"] == 3


async def test_refused_result_rolls_the_statement_back(database: str) -> None:
    await results_of(
        step("make", database, "create table t (n integer)"), step("fill", database, "insert into t values (1)")
    )
    update = "update t set n = n + 1 returning n, n as m, 1 as a, 1 as b"
    error = await error_of(step("s", database, f"{update}, 2 as a"))
    assert error.code == "SQL_RESULT"
    (read,) = await results_of(step("read", database, "select n from t; -- all of them"))
    assert read["rows"] == [{"n": 1}]


async def test_two_columns_of_one_name_are_refused(database: str) -> None:
    assert (await error_of(step("s", database, "select 1 as n, 2 as n"))).code == "SQL_RESULT"


async def test_many_rows_become_a_reference(database: str) -> None:
    rows = " union all ".join(f"select {number} as n, '{'x' * 400}' as filler" for number in range(300))
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step("s", database, rows)]})
        done = await wait_for_event(operations, snapshot.run_id, "StepCompleted", "s")
        assert "resultRef" in (done.payload or {})
        assert len((await operations.result(snapshot.run_id, "s"))["rows"]) == 300


SLOW = {
    "sqlite": "with recursive c(n) as (select 1 union all select n + 1 from c) select count(*) as n from c",
    "duckdb": "select count(*) as n from range(1000000) a, range(1000000) b where a.range % 7 = b.range % 5",
    "postgresql": "select pg_sleep(60)",
}


async def test_a_cancelled_query_stops(database: str) -> None:
    async with engine("memory://") as operations:
        query = SLOW[database.partition("://")[0]]
        run_id = await operations.start(operations.load({"plan": "p", "steps": [step("s", database, query)]}))
        await wait_for_event(operations, run_id, "StepStarted", "s")
        began = time.monotonic()
        await operations.signal(run_id, "CANCEL")
        assert (await wait_for_end(operations, run_id)).status == "CANCELLED"
        assert time.monotonic() - began < 4


@pytest.mark.slow
async def test_postgres_converts_text_to_its_own_types(empty_postgres_url: str) -> None:
    query = (
        "select :d::date as d, :t::timestamptz as t, :n::numeric as n, :j::jsonb as j, :u::uuid as u, :l::int[] as l"
    )
    args = {
        "d": "2026-01-02",
        "t": "2026-01-02T03:04:05+00:00",
        "n": "12.50",
        "j": {"a": [1]},
        "u": "7f6b2f3e-5f0e-4b3b-9c0a-0a2a0d7f1d11",
        "l": [1, 2],
    }
    (read,) = await results_of(step("s", empty_postgres_url, query, args=args))
    (row,) = read["rows"]
    assert row == {**args, "t": "2026-01-02T03:04:05Z"}
    assert (await error_of(step("s", empty_postgres_url, "select :d::date", args={"d": "soon"}))).code == "SQL_ERROR"


@pytest.mark.slow
async def test_unknown_and_unreachable_databases_differ_in_code(empty_postgres_url: str) -> None:
    wrong = await error_of(step("s", empty_postgres_url.rpartition("/")[0] + "/no_such_database", "select 1"))
    assert (wrong.code, wrong.retryable) == ("DATABASE_REFUSED", False)
    unreachable = await error_of(step("s", "postgresql://someone@127.0.0.1:9/shop", "select 1"))
    assert (unreachable.code, unreachable.retryable) == ("DATABASE_UNREACHABLE", True)
    assert "shop at 127.0.0.1" in unreachable.message


async def test_database_file_that_cannot_be_opened_is_unreachable(tmp_path: Path) -> None:
    error = await error_of(step("s", "sqlite:///no/such/folder/shop.db", "select 1"))
    assert (error.code, error.retryable) == ("DATABASE_UNREACHABLE", True)
    (tmp_path / "not.duckdb").write_text("this is no database")
    assert (await error_of(step("s", "duckdb:///not.duckdb", "select 1"))).code == "DATABASE_UNREACHABLE"


async def test_locked_sqlite_file_is_a_retryable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runwright.tools.sql.databases.BUSY_SECONDS", 0.05)
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    connection.execute("create table t (n integer)")
    connection.execute("begin immediate")
    error = await error_of(step("s", "sqlite:///shop.db", "insert into t values (1)"))
    assert (error.code, error.retryable) == ("SQL_ERROR", True)
    connection.close()


@pytest.fixture
def duckdb_file_in_use(tmp_path: Path) -> Iterator[None]:
    """Another process holds the DuckDB file for a second."""
    hold = "import duckdb, time; c = duckdb.connect('shop.duckdb'); print('held', flush=True); time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", hold], cwd=tmp_path, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield


async def test_step_waits_for_a_duckdb_file_in_use(duckdb_file_in_use: None) -> None:
    (read,) = await results_of(step("s", "duckdb:///shop.duckdb", "select 1 as n"))
    assert read["rows"] == [{"n": 1}]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ({"connection": "oracle://x", "query": "select 1"}, "Invalid `connection`"),
        ({"connection": "sqlite:///x.db", "query": " "}, "`query` must not be empty"),
        ({"connection": "sqlite:///x.db", "query": "select :a"}, "`args` has no 'a'"),
        ({"connection": "sqlite:///x.db", "query": "select 1", "args": {"a": 1}}, "does not use :a"),
        ({"connection": "sqlite:///x.db", "query": "select {{ params.a }}"}, "must end in `| ident`"),
        ({"connection": "sqlite:///x.db", "query": "{{ params.a }}"}, "must end in `| ident`"),
        ({"connection": "sqlite:///x.db", "query": "select {{ params.a | ident | upper }}"}, "must end in `| ident`"),
        ({"connection": "sqlite:///x.db", "query": "select '{{ params.a | ident }}'"}, "inside quotes or a comment"),
        ({"connection": "sqlite:///x.db", "query": "select 1 -- {{ params.a | ident }}"}, "inside quotes or a comment"),
        ({"connection": "sqlite:///x.db", "query": "select {{ params.a | ident }}, :b"}, "`args` has no 'b'"),
        ({"query": "select 1"}, "requires `connection`"),
    ],
)
async def test_a_wrong_input_is_refused_before_anything_runs(sql: dict[str, Any], message: str) -> None:
    async with engine("memory://") as operations:
        with pytest.raises(RunwrightError, match=message.replace("|", r"\|")):
            operations.load({"plan": "p", "params": {"a": "b"}, "steps": [{"id": "s", "sql": sql}]})
