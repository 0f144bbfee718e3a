"""Commands on the log: printed text, JSON output and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import apsw
import msgspec
import pytest

import runwright as rw
from support.commands import Shell, parsed
from support.components import Bucket
from support.events import History
from support.paths import RECORDED_RUN


@pytest.fixture
def recorded(runwright: Shell) -> Shell:
    runwright("append", str(RECORDED_RUN))
    return runwright


def lines(*events: rw.RunEventWrite) -> bytes:
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


def test_duplicate_append_returns_the_metadata_of_the_first(runwright: Shell) -> None:
    first = parsed(runwright("append", str(RECORDED_RUN), "--json"))
    second = parsed(runwright("append", str(RECORDED_RUN), "--json"))
    assert {receipt["status"] for receipt in second} == {"duplicate"}
    for one, two in zip(first, second, strict=True):
        assert set(one) == {"status", "eventId", "runSeq", "persistedAt", "idempotent", "persisted"}
        for name in ("eventId", "runSeq", "persistedAt"):
            assert one[name] == two[name]
        assert (two["idempotent"], two["persisted"]) == (True, False)


def test_an_illegal_transition_stops_its_run_and_no_other(runwright: Shell) -> None:
    one, two = History("one"), History("two")
    stream = lines(one("RunQueued"), two("RunQueued"), one("StepCompleted", "a"), one("RunStarted"), two("RunStarted"))
    answers = parsed(runwright("append", "-", "--json", stdin=stream, exits=2))
    assert [answer["status"] for answer in answers] == ["appended", "appended", "refused", "not_attempted", "appended"]
    assert (answers[2]["code"], answers[2]["line"]) == ("INVALID_TRANSITION", 3)
    again = parsed(runwright("append", "-", "--json", stdin=lines(one("StepCompleted", "a")), exits=2))
    assert {name: again[0][name] for name in ("code", "detail")} == {
        name: answers[2][name] for name in ("code", "detail")
    }
    assert "INVALID_TRANSITION" in runwright("append", "-", stdin=lines(one("StepCompleted", "a")), exits=2)


def test_atomic_append_stores_nothing_of_a_refused_run(runwright: Shell) -> None:
    one, two = History("one"), History("two")
    stream = lines(one("RunQueued"), two("RunQueued"), one("StepCompleted", "a")) + b"{not json}\n"
    answers = parsed(runwright("append", "-", "--atomic", "--json", stdin=stream, exits=2))
    assert [answer["status"] for answer in answers] == ["not_attempted", "appended", "refused", "refused"]
    assert [row["runId"] for row in parsed(runwright("list", "--json"))] == ["two"]


def test_bad_lines_are_refused_one_by_one_with_their_numbers(runwright: Shell) -> None:
    good = History("good")
    stream = (
        b"\xef\xbb\xbf" + lines(good("RunQueued")) + b"\n\nnot json\n\xff\xfe\n[]\n" + b'{"eventType": 3}\n'
        + b'{"a":' * 5000 + b"\n" + lines(good("RunStarted")).replace(b"\n", b"\r\n")
    )  # fmt: skip
    answers = parsed(runwright("append", "-", "--json", stdin=stream, exits=2))
    assert [(answer["status"], answer.get("line")) for answer in answers] == [
        ("appended", None), *(("refused", number) for number in (4, 5, 6, 7, 8)), ("appended", None),
    ]  # fmt: skip
    assert all(answer["code"] == "SCHEMA_VALIDATION_FAILED" for answer in answers[1:-1])


def test_oversized_line_is_refused_and_the_next_is_appended(runwright: Shell) -> None:
    stream = b'{"runId":"' + b"x" * (9 << 20) + b'"}\n' + lines(*History("after").started())
    answers = parsed(runwright("append", "-", "--json", stdin=stream, exits=2))
    assert [answer["status"] for answer in answers] == ["refused", "appended", "appended"]


def test_receipts_come_while_standard_input_is_still_open(runwright: Shell) -> None:
    events = History("stream")
    command = [sys.executable, "-m", "runwright", "append", "-", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=runwright.folder, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, event in enumerate([*events.started(), events("StepStarted", "a")], start=1):
            process.stdin.write(lines(event))
            process.stdin.flush()
            receipt = json.loads(process.stdout.readline())
            assert (receipt["status"], receipt["runSeq"]) == ("appended", number)
        process.stdin.close()
        assert process.wait(20) == 0


def test_list_shows_runs_and_filters_them(recorded: Shell) -> None:
    recorded("append", "-", stdin=lines(*History("second", plan_id="other").started()))
    text = recorded("list")
    assert "orders-2026-01-31" in text
    assert "second" in text
    (row,) = parsed(recorded("list", "--json", "--status", "completed"))
    assert {name: row[name] for name in ("runId", "status", "planId", "lastEventSeq")} == {
        "runId": "orders-2026-01-31",
        "status": "COMPLETED",
        "planId": "orders",
        "lastEventSeq": 22,
    }
    assert str(row["startedAt"]).startswith("2026-01-31T06:00:00")
    assert [row["runId"] for row in parsed(recorded("list", "--json", "--plan", "other"))] == ["second"]
    assert [row["runId"] for row in parsed(recorded("list", "--json", "--limit", "1"))] == ["second"]
    assert len(parsed(recorded("list", "--json", "--since", "1h"))) == 2
    assert recorded("list", "--since", "2999-01-01T00:00:00Z") == "No runs.\n"
    recorded("list", "--since", "lately", exits=2)
    assert "INVALID_ARGUMENT" in recorded.stderr


def test_show_prints_the_run_now_and_at_any_event(recorded: Shell) -> None:
    now = json.loads(recorded("show", "@last", "--json"))
    assert (now["status"], now["pauses"], now["lastEventSeq"]) == ("COMPLETED", 2, 22)
    then = json.loads(recorded("show", "orders-2026-01-31", "--at", "11", "--json"))
    assert (then["status"], then["substatus"]) == ("PAUSED", "DRAINING")
    assert json.loads(recorded("show", "orders", "--at", "2999-01-01T00:00:00Z", "--json"))["lastEventSeq"] == 22
    text = recorded("show", "@last", "--at", "4")
    assert "as of event 4 of 22" in text
    assert "HTTP_503" in text
    recorded("show", "@last", "--at", "99", exits=2)
    recorded("show", "nothing", exits=2)
    assert recorded.stderr.startswith("RUN_NOT_FOUND")


def test_events_prints_one_line_per_event_without_truncation(recorded: Shell) -> None:
    text = recorded("events", "@last").splitlines()
    assert len(text) == 22
    assert "signal/5f0c2c5e-9a51-4c39-8b0e-0f3a7b6c1d22" in text[9]
    records = parsed(recorded("events", "@last", "--json", "--after", "20"))
    assert [record["runSeq"] for record in records] == [21, 22]
    assert records[0]["payload"] == {"reasonCode": "CONDITION_FALSE", "reason": "there was nothing to report"}


def test_events_follow_shows_appends_of_another_process(recorded: Shell) -> None:
    run = json.loads(recorded("show", "@last", "--json"))
    names = {"planId": "plan_id", "planVersion": "plan_version", "tenantId": "tenant_id"}
    names |= {"projectId": "project_id", "environmentId": "environment_id"}
    events = History("orders-2026-01-31", **{python: run[wire] for wire, python in names.items()})
    command = [sys.executable, "-m", "runwright", "events", "@last", "--follow", "--json", "--after", "22"]
    with subprocess.Popen(command, cwd=recorded.folder, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        recorded("append", "-", stdin=lines(events("RunArchived")))
        assert json.loads(follower.stdout.readline())["eventType"] == "RunArchived"
        follower.kill()


def test_verify_finds_changes_and_with_an_anchor_deletions(recorded: Shell) -> None:
    assert recorded("verify").startswith("ok  1 run, 22 events")
    recorded("anchor", "-o", "anchor.json")
    assert json.loads(recorded("verify", "--anchor", "anchor.json", "--json")) == {
        "ok": True, "runs": 1, "events": 22, "findings": [],
    }  # fmt: skip
    database = apsw.Connection(str(recorded.folder / ".runwright/runs.db"))
    database.execute("UPDATE event SET payload = replace(payload, '18204', '19204') WHERE run_seq = 7")
    found = json.loads(recorded("verify", "--json", exits=1))["findings"]
    assert [(finding["runId"], finding["runSeq"], finding["kind"]) for finding in found] == [
        ("orders-2026-01-31", 7, "CHANGED")
    ]
    assert "orders-2026-01-31  7" in recorded("verify", "orders", exits=1)
    database.execute("DELETE FROM event; DELETE FROM run")
    recorded("verify", exits=0)  # The hash chain alone does not show deleted runs.
    for command in (["verify"], ["verify", "orders-2026-01-31"]):
        (gone,) = json.loads(recorded(*command, "--anchor", "anchor.json", "--json", exits=1))["findings"]
        assert (gone["runId"], gone["kind"]) == ("orders-2026-01-31", "MISSING")
    recorded("verify", "--key", ".runwright/anchor-key.pem", exits=2)


def test_changed_anchor_or_anchor_of_another_key_is_refused(recorded: Shell) -> None:
    content = recorded("anchor")
    (recorded.folder / "touched.json").write_text(content.replace('"orders-', '"orderz-'))
    recorded("verify", "--anchor", "touched.json", exits=2)
    assert "ANCHOR_INVALID" in recorded.stderr
    recorded("verify", "--anchor", "nowhere.json", exits=2)
    (recorded.folder / "whole.json").write_text(content)
    key = recorded.folder / ".runwright/anchor-key.pem"
    assert key.stat().st_mode & 0o777 == 0o600
    key.rename(recorded.folder / "first.pem")
    recorded("anchor", "-o", "second.json")  # This command creates a new key.
    recorded("verify", "--anchor", "whole.json", exits=2)
    assert "another key" in recorded.stderr
    recorded("verify", "--anchor", "whole.json", "--key", "first.pem")
    recorded("anchor", "-o", "third.json", "--key", "first.pem")
    recorded("verify", "--anchor", "third.json", "--key", "first.pem")


def test_rebuild_finds_and_mends_a_changed_summary(recorded: Shell) -> None:
    assert recorded("rebuild", "--check") == "1 run folded, 0 differ\n"
    database = apsw.Connection(str(recorded.folder / ".runwright/runs.db"))
    before = database.execute("SELECT status, summary FROM run").fetchall()
    database.execute("UPDATE run SET status = 'FAILED'")
    assert json.loads(recorded("rebuild", "--check", "--json", exits=1))["different"] == ["orders-2026-01-31"]
    recorded("rebuild")
    assert database.execute("SELECT status, summary FROM run").fetchall() == before
    recorded("rebuild", "--check")


def test_a_run_moves_to_another_store_with_its_history(recorded: Shell) -> None:
    exported = recorded("export", "@last")
    assert len(exported.splitlines()) == 22
    (recorded.folder / "run.jsonl").write_text(exported)
    other_store = ("--store", "sqlite:///elsewhere.db")
    assert recorded("import", "run.jsonl", *other_store) == "22 events imported, 0 duplicates, 0 refused\n"
    assert recorded("import", "run.jsonl", *other_store) == "0 events imported, 22 duplicates, 0 refused\n"
    original, moved = (json.loads(recorded("show", "@last", "--json", *option)) for option in ((), other_store))
    assert original == moved
    recorded("verify", *other_store)


def test_inconsistent_log_is_imported_and_marked(runwright: Shell) -> None:
    run = History("foreign")
    stream = lines(*run.started(), run("RunCancelled"), run("RunCompleted"))
    runwright("import", "-", stdin=stream)
    snapshot = json.loads(runwright("show", "foreign", "--json"))
    assert (snapshot["status"], snapshot["inconsistent"]) == ("CANCELLED", True)
    assert "INCONSISTENT" in runwright("list")
    assert "INVALID_TRANSITION" in runwright("show", "foreign")
    (alert,) = json.loads(runwright("alerts", "--json"))
    assert alert["code"] == "INVALID_TRANSITION"
    again = json.loads(runwright("import", "-", "--json", stdin=stream + b"nonsense\n", exits=2))
    assert (again["imported"], again["duplicates"]) == (0, 4)
    assert [(line["line"], line["code"]) for line in again["refused"]] == [(5, "SCHEMA_VALIDATION_FAILED")]
    assert len(json.loads(runwright("alerts", "foreign", "--json"))) == 1


def test_key_command_prints_preimage_and_key(runwright: Shell) -> None:
    arguments = (
        "--run-id",
        "r",
        "--step-id",
        "s",
        "--attempt",
        "2",
        "--type",
        "StepFailed",
        "--plan-id",
        "p",
        "--plan-version",
        "1",
    )
    document = json.loads(runwright("key", *arguments, "--json"))
    assert document["preimage"] == "r|s|2|StepFailed|p|1"
    assert document["key"] == rw.idempotency_key("r", "s", 2, "StepFailed", "p", "1")
    assert runwright("key", *arguments).splitlines() == [document["preimage"], document["key"]]
    runwright(
        "key", "--run-id", "a|b", "--attempt", "1", "--type", "T", "--plan-id", "p", "--plan-version", "1", exits=2
    )


def test_the_store_is_named_by_flag_then_environment_then_file(runwright: Shell) -> None:
    stream = lines(*History("x").started())
    runwright("append", "-", "--store", "sqlite:///flag.db", stdin=stream, RUNWRIGHT_STORE="sqlite:///env.db")
    runwright("append", "-", stdin=stream, RUNWRIGHT_STORE="sqlite:///env.db")
    (runwright.folder / "runwright.toml").write_text('store = "sqlite:///file.db"\n')
    runwright("append", "-", stdin=stream)
    assert all((runwright.folder / f"{name}.db").exists() for name in ("flag", "env", "file"))
    assert not (runwright.folder / ".runwright").exists()
    (runwright.folder / "runwright.toml").write_text("store = [")
    runwright("list", exits=2)


def test_read_commands_create_no_store_and_name_the_missing_one(runwright: Shell) -> None:
    assert "none yet" in runwright("doctor")
    for command in (["list"], ["show", "x"], ["events", "x"], ["verify"], ["export", "x"]):
        runwright(*command, exits=3)
        assert "STORE_UNAVAILABLE There is no store at .runwright/runs.db yet." in runwright.stderr
    assert list(runwright.folder.iterdir()) == []


def test_unusable_store_is_refused_without_showing_secrets(runwright: Shell) -> None:
    (runwright.folder / "text.db").write_text("this is no database, however long one looks at it\n" * 50)
    runwright("list", "--store", "sqlite:///text.db", exits=3)
    assert "STORE_FOREIGN" in runwright.stderr
    apsw.Connection(str(runwright.folder / "other.db")).execute("CREATE TABLE t (x); PRAGMA user_version = 7")
    runwright("append", "-", "--store", "sqlite:///other.db", exits=3)
    assert "STORE_FOREIGN" in runwright.stderr
    for wrong in ("mysql://me:secret@host/db", "postgresql:/me:secret@host/db", "me:secret@host", "secret"):
        runwright("list", "--store", wrong, exits=2)
        assert "STORE_URL_INVALID" in runwright.stderr
        assert "secret" not in runwright.stderr
    runwright("list", "--store", "postgresql://me:secret@127.0.0.1:1/db", exits=3)
    assert "STORE_UNAVAILABLE" in runwright.stderr
    assert "secret" not in runwright.stderr


def test_a_store_newer_than_the_code_is_refused(recorded: Shell) -> None:
    apsw.Connection(str(recorded.folder / ".runwright/runs.db")).execute("PRAGMA user_version = 99")
    recorded("list", exits=3)
    assert recorded.stderr.startswith("STORE_TOO_NEW")
    assert "Upgrade Runwright" in recorded.stderr


def test_errors_are_json_where_json_was_asked_for(runwright: Shell) -> None:
    runwright("list", "--json", exits=3)
    assert json.loads(runwright.stderr)["code"] == "STORE_UNAVAILABLE"


def test_doctor_reports_store_and_runs_as_ok(recorded: Shell) -> None:
    facts = {fact["name"]: fact for fact in json.loads(recorded("doctor", "--json"))}
    assert facts["store"]["value"] == "sqlite"
    assert facts["runs"]["value"] == "1"
    assert {fact["state"] for fact in facts.values()} == {"ok"}


@pytest.mark.slow
def test_doctor_checks_the_result_stores(runwright: Shell, bucket: dict[str, str]) -> None:
    settings = runwright.folder / "runwright.toml"
    bucket_table = f'[results.s3]\nurl = "{bucket["store"]}"\nendpoint = "{bucket["endpoint"]}"\nregion = "us-east-1"\n'
    settings.write_text(f'{bucket_table}[results.nats_object]\nurl = "nats://127.0.0.1:1"\n')

    def found(exits: int, **variables: str) -> dict[str, tuple[str, str]]:
        facts = json.loads(runwright("doctor", "--json", exits=exits, **{**Bucket.CREDENTIALS, **variables}))
        return {fact["name"]: (fact["state"], fact["value"]) for fact in facts if "results" in fact["name"]}

    facts = found(1)
    assert facts["[results.s3]"] == ("ok", "written, read, deleted")
    state, why = facts["[results.nats_object]"]
    assert state == "wrong" and "is unavailable" in why
    settings.write_text(bucket_table)
    state, why = found(1, AWS_SECRET_ACCESS_KEY="not-the-one")["[results.s3]"]
    assert state == "wrong" and "STORE_UNAVAILABLE" in why and "not-the-one" not in why
    settings.write_text('[results]\nstore = "s3"\n')
    assert found(1)["[results]"][0] == "wrong"
    settings.unlink()
    assert found(0) == {"[results]": ("ok", "defaults")}


@pytest.mark.slow
def test_command_that_used_a_bucket_exits_with_0(runwright: Shell, bucket: dict[str, str]) -> None:
    """Regression test: coroutines of the client aborted one process in five at exit."""
    table = f'[results.s3]\nurl = "{bucket["store"]}"\nendpoint = "{bucket["endpoint"]}"\nregion = "us-east-1"\n'
    (runwright.folder / "runwright.toml").write_text(table)
    with ThreadPoolExecutor(3) as threads:
        ends = list(threads.map(lambda _: runwright.process("doctor", **Bucket.CREDENTIALS).returncode, range(12)))
    assert ends == [0] * 12


def test_closed_output_pipe_is_not_an_error(recorded: Shell) -> None:
    done = subprocess.run(
        f"{sys.executable} -m runwright events @last --json | head -n 1",
        shell=True,
        cwd=recorded.folder,
        capture_output=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == b""


def test_control_characters_from_a_log_are_not_printed(runwright: Shell) -> None:
    rude = History("rude\x1b]0;title\x07")
    error = {"code": "X", "message": "two\nlines \x1b[31mred"}
    stream = lines(*rude.started(), rude("StepStarted", "a\x1b[2J"), rude("StepFailed", "a\x1b[2J", error=error))
    runwright("append", "-", stdin=stream)
    for command in (["list"], ["show", "@last"], ["events", "@last"]):
        text = runwright(*command)
        assert "rude" in text or "red" in text
        assert not set(text) & {"\x1b", "\x07"}


def test_ctrl_c_ends_a_waiting_append_at_once(runwright: Shell) -> None:
    command = [sys.executable, "-m", "runwright", "append", "-", "--json"]
    pipe = subprocess.PIPE

    def restore_sigint() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # A shell makes background processes ignore SIGINT.

    with subprocess.Popen(
        command, cwd=runwright.folder, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=restore_sigint
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(lines(*History("x").started()))
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("arguments", [["nonsense"], ["show"], ["list", "--limit", "0"], ["append"], ["key"]])
def test_wrong_use_exits_with_2(runwright: Shell, arguments: list[str]) -> None:
    runwright(*arguments, exits=2)


def test_help_names_each_log_command(runwright: Shell) -> None:
    text = runwright("--help")
    for name in (
        "append",
        "list",
        "show",
        "events",
        "verify",
        "anchor",
        "rebuild",
        "export",
        "import",
        "key",
        "doctor",
    ):
        assert f"  {name} " in text
        assert "--store" in runwright(name, "--help")


def test_append_stores_all_events_if_receipts_are_not_read(runwright: Shell) -> None:
    events = History("unread")
    many = lines(*events.started(), *(events("StepStarted", f"s{number}") for number in range(3000)))
    (runwright.folder / "many.jsonl").write_bytes(many)
    command = f"{sys.executable} -m runwright append many.jsonl --json | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=runwright.folder, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""
    assert json.loads(runwright("show", "unread", "--json"))["lastEventSeq"] == 3002


def test_store_files_are_accessible_to_the_owner_only(recorded: Shell) -> None:
    assert (recorded.folder / ".runwright").stat().st_mode & 0o777 == 0o700
    for path in (recorded.folder / ".runwright").iterdir():
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "@last", "--at", "999999999d"],
        ["show", "@last", "--at", "99999999999999999999"],
        ["show", b"\xff"],
        ["list", "--since", "99999999999999999999d"],
        ["events", "@last", "--after", "99999999999999999999"],
        ["key", "--run-id", b"\xff", "--attempt", "1", "--type", "T", "--plan-id", "p", "--plan-version", "1"],
    ],
)
def test_odd_arguments_are_answered_without_a_traceback(recorded: Shell, arguments: list[str | bytes]) -> None:
    done = recorded.process(*arguments)
    assert done.returncode in (0, 2)
    assert b"Traceback" not in done.stderr
    assert b"CORRUPT" not in done.stderr
