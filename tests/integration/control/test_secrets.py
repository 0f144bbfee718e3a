"""Secrets: only the step that names a secret gets its value, and no stored byte contains it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from runwright.tools.secret_mask import Mask
from runwright.tools.secrets import CommandSecrets, FileSecrets, SecretContext, create_provider
from support.engine import engine, run_plan, step_of

VALUE = 'p4ss/w0rd"with quotes + ünïcode'
CONTEXT = SecretContext()


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DB_PASSWORD", VALUE)


LEAKS: dict[str, dict[str, Any]] = {
    "printed by a process": {"shell": {"command": 'echo "it is $P"; echo "$P" >&2', "env": {"P": {"secret": "DB_PASSWORD"}}}},
    "given back by a process": {
        "shell": {"command": ["python3", "-c", "import os,json; print(json.dumps({'p': os.environ['P']}))"],
                  "env": {"P": {"secret": "DB_PASSWORD"}}},
    },
    "given back": {"python": {"code": "{'password': p, p: [p]}", "args": {"p": {"secret": "DB_PASSWORD"}}}},
    "in an error": {"python": {"code": "raise ValueError(f'cannot log in with {p}')", "args": {"p": {"secret": "DB_PASSWORD"}}}},
    "encoded": {
        "python": {"code": "import base64, urllib.parse\nprint(urllib.parse.quote(p))\nbase64.b64encode(p.encode()).decode()",
                   "args": {"p": {"secret": "DB_PASSWORD"}}},
    },
    "in pieces": {
        "python": {"code": "import sys, time\nfor c in p:\n    sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.02)",
                   "args": {"p": {"secret": "DB_PASSWORD"}}},
    },
    "by name": {"secretRefs": ["DB_PASSWORD"], "python": {"call": "support.engine_steps:tell_secrets", "args": {}}},
    "in the environment": {"secretRefs": ["DB_PASSWORD"], "shell": "env; exit 3"},
    "from a process of its own": {
        "class": "isolation", "secretRefs": ["DB_PASSWORD"], "python": {"call": "support.engine_steps:tell_secrets", "args": {}},
    },
    "read back from a database": {
        "sql": {"connection": "sqlite://", "query": "select :p as p", "args": {"p": {"secret": "DB_PASSWORD"}}},
    },
    "in a checkpoint": {"python": {"call": "support.engine_steps:keep", "args": {"value": {"secret": "DB_PASSWORD"}}}},
}  # fmt: skip


def encoded_values() -> list[bytes]:
    import json
    from urllib.parse import quote

    texts = [VALUE, json.dumps(VALUE)[1:-1], json.dumps(VALUE, ensure_ascii=False)[1:-1], quote(VALUE)]
    return [*(text.encode() for text in texts), base64.b64encode(VALUE.encode())]


@pytest.mark.parametrize("leak", LEAKS)
async def test_no_stored_byte_contains_the_secret(durable_url: str, tmp_path: Path, leak: str) -> None:
    async with engine(durable_url) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [{"id": "a", **LEAKS[leak]}]})
        records = [record async for record in operations.events(snapshot.run_id)]
        stored = [bytes(record.raw_payload) for record in records]
        await operations.engine.step_logs.aclose()  # On Postgres, output and large values are in the store.
        stored += [
            bytes(row[3])
            for row in await operations.log.store.side_tables.read("read_output", snapshot.run_id, 0, 1000)
        ]
    stored += [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    for form in encoded_values():
        assert not any(form in data for data in stored)
    assert any(b"***" in data for data in stored), "the masked value is stored"


async def test_the_step_itself_gets_the_value(tmp_path: Path) -> None:
    code = "from pathlib import Path; Path(file).write_text(p)"
    steps = [{"id": "a", "python": {"code": code, "args": {"p": {"secret": "DB_PASSWORD"}, "file": "seen"}}}]
    async with engine("memory://") as operations:
        assert (await run_plan(operations, {"plan": "p", "steps": steps})).status == "COMPLETED"
    assert (tmp_path / "seen").read_text() == VALUE


async def test_secret_references_in_data_are_not_resolved() -> None:
    """A remote server could otherwise choose which secret the next request carries."""
    steps = [
        {"id": "a", "python": {"code": "{'secret': 'DB_PASSWORD'}"}},
        {
            "id": "b",
            "python": {"code": "str(p)", "args": {"p": "{{ steps.a.result }}", "q": [{"r": "{{ params.p }}"}]}},
        },
        {"id": "c", "python": {"code": "len(p)", "args": {"p": {"secret": "{{ params.which }}_PASSWORD"}}}},
    ]
    document = {"plan": "p", "params": {"p": {"secret": "DB_PASSWORD"}, "which": "DB"}, "steps": steps}
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, document)
        assert await operations.result(snapshot.run_id, "b") == "{'secret': 'DB_PASSWORD'}"
        assert await operations.result(snapshot.run_id, "c") == len(VALUE)


async def test_missing_secret_is_reported_before_the_run_starts(store_url: str) -> None:
    steps = [{"id": "load", "shell": {"command": "true", "env": {"P": {"secret": "NO_SUCH"}}}}]
    async with engine(store_url) as operations:
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.start(operations.load({"plan": "p", "steps": steps}))
        assert (await operations.log.list_runs()).runs == []
    assert caught.value.code == "SECRET_NOT_AVAILABLE"
    assert "'load'" in caught.value.detail
    assert "'NO_SUCH'" in caught.value.detail


async def test_secret_missing_at_step_start_fails_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        {"id": "a", "python": {"code": "import os; os.environ.pop('DB_PASSWORD')"}},
        {"id": "b", "shell": {"command": "true", "env": {"P": {"secret": "DB_PASSWORD"}}}},
    ]
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
    error = step_of(snapshot, "b").error
    assert error is not None
    assert error.code == "SECRET_NOT_AVAILABLE"


# Providers


def test_secret_file_must_be_readable_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "secrets.toml"
    file.write_text('A = "everybody"\nB = "b"\n[prod]\nA = "prod"\n')
    file.chmod(0o640)
    with pytest.raises(rw.RunwrightError, match="chmod 600"):
        FileSecrets(file).resolve(["A"], CONTEXT)
    file.chmod(0o600)
    assert FileSecrets(file).resolve(["A", "B"], CONTEXT) == {"A": "everybody", "B": "b"}
    assert FileSecrets(file).resolve(["A"], SecretContext(environment_id="prod")) == {"A": "prod"}
    assert FileSecrets(file).missing(["A", "C"], CONTEXT) == ["C"]
    with pytest.raises(rw.RunwrightError, match="'C'"):
        FileSecrets(file).resolve(["C"], CONTEXT)
    file.write_text("A = hunter2 is not TOML")
    with pytest.raises(rw.RunwrightError) as caught:
        FileSecrets(file).resolve(["A"], CONTEXT)
    assert "hunter2" not in str(caught.value)


def test_secret_command_is_run_for_each_secret(tmp_path: Path) -> None:
    script = tmp_path / "vault"
    script.write_text('#!/bin/sh\n[ "$1" = BAD ] && { echo leaked; exit 4; }\necho "$RUNWRIGHT_TENANT_ID-$1"\n')
    script.chmod(0o755)
    provider = CommandSecrets([str(script)])
    assert provider.resolve(["A", "B"], SecretContext("acme")) == {"A": "acme-A", "B": "acme-B"}
    with pytest.raises(rw.RunwrightError, match="exit code 4") as caught:
        provider.resolve(["BAD"], CONTEXT)
    assert "leaked" not in str(caught.value)
    with pytest.raises(rw.RunwrightError, match="FileNotFoundError"):
        CommandSecrets(["/nosuch"]).resolve(["A"], CONTEXT)


async def test_the_provider_is_set_in_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "runwright.toml").write_text('[secrets]\nprovider = "file"\nfile = "mine.toml"\n')
    (tmp_path / "mine.toml").write_text('TOKEN = "from the file"\n')
    os.chmod("mine.toml", 0o600)
    steps = [{"id": "a", "python": {"code": "len(p)", "args": {"p": {"secret": "TOKEN"}}}}]
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        assert await operations.result(snapshot.run_id, "a") == len("from the file")


@pytest.mark.parametrize(
    "settings", [{"provider": "nosuch"}, {"provider": "command"}, {"provider": "command", "command": []}]
)
def test_settings_that_name_no_provider_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(rw.RunwrightError) as caught:
        create_provider(settings)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_masked_json_stays_valid_json() -> None:
    mask = Mask(["1234", 'a"b'])
    assert (
        mask.mask_json(b'{"pin":1234,"x":"12345","a\\"b":["a\\"b"],"n":12}')
        == b'{"pin":"***","x":"***5","***":["***"],"n":12}'
    )
    assert mask.mask_json(b'{"n": 1}') == b'{"n": 1}'
    assert Mask(["-----BEGIN\nsecretline\n-----END"]).mask_bytes(b"x secretline y") == b"x *** y"


@pytest.mark.parametrize("value", ["code", "message", "retryable"])
async def test_secret_equal_to_a_field_name_masks_only_values(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", value)
    step = {"python": {"code": "raise ValueError(f'not with {p}')", "args": {"p": {"secret": "DB_PASSWORD"}}}}
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [{"id": "a", **step}]})
        error = step_of(snapshot, "a").error
    assert error.code == "STEP_RAISED"
    assert error.message.startswith("ValueError: not with ***")
    assert error.retryable is not None


SECRET = 'k3y-Zx9/Qw+7 \\Tr"4é'
FORMS = {
    "Basic": lambda: base64.b64encode(f"user:{SECRET}".encode()),
    "base64 with a newline": lambda: base64.b64encode(f"{SECRET}\n".encode()),
    "base64 for URLs": lambda: base64.urlsafe_b64encode(SECRET.encode()),
    "form": lambda: quote_plus(SECRET).encode(),
    "JSON": lambda: json.dumps({"k": SECRET}).encode(),
    "JSON in JSON": lambda: json.dumps(json.dumps({"k": SECRET})).encode(),
    "repr": lambda: repr(SECRET).encode(),
    "repr of bytes": lambda: repr(SECRET.encode()).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_common_encodings_of_a_secret_are_masked(form: str) -> None:
    encoded = FORMS[form]()
    masked = Mask([SECRET]).mask_bytes(b"before " + encoded + b" after")
    assert b"***" in masked
    assert masked.startswith(b"before ")
    assert masked.endswith(b" after")
    assert len(masked) < len(b"before  after") + len(encoded) - len(SECRET) + 12


def test_lower_case_percent_encoding_is_masked() -> None:
    assert Mask(["a/b c:d"]).mask_text("x=a%2fb%20c%3ad&y=a%2fb+c%3ad") == "x=***&y=***"


@given(
    before=st.binary(max_size=7), after=st.binary(max_size=7), value=st.text(st.characters(codec="ascii"), min_size=9)
)
def test_base64_of_a_secret_is_masked_at_every_position(before: bytes, after: bytes, value: str) -> None:
    encoded = base64.b64encode(before + value.encode() + after)
    masked = Mask([value]).mask_bytes(encoded)
    assert b"***" in masked
    first, last = -(-len(before) * 8 // 6), (len(before) + len(value)) * 8 // 6
    assert encoded[first:last] not in masked


CUT = "0123456789abcdefghijklmnopqrst"
CUTS: dict[str, dict[str, Any]] = {
    "the end of a message": {"python": {"code": "raise ValueError('x' * 1975 + p)"}},
    "the end of a message of a process": {
        "class": "isolation",
        "python": {"call": "support.engine_steps:fail_with", "args": {"text": {"secret": "DB_PASSWORD"}, "pad": 1975}},
    },
    "a traceback": {"python": {"code": "raise ValueError(p + 'x' * 1985)"}},
    "the last line of stderr": {"shell": {"command": "printf '%0490d%s' 0 \"$P\" >&2; exit 1"}},
    "the beginning of stdout": {"shell": {"command": "printf '%s%08180d\\n' \"$P\" 0"}},
    "a long line": {"python": {"code": "print('x' * 65516 + p + 'y' * 70000)"}},
}


@pytest.mark.parametrize("cut", CUTS)
async def test_text_is_masked_before_it_is_shortened(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    monkeypatch.setenv("DB_PASSWORD", CUT)
    step: dict[str, Any] = {"id": "a", **CUTS[cut]}
    if "shell" in step:
        step["shell"] = {**step["shell"], "env": {"P": {"secret": "DB_PASSWORD"}}}
    elif "args" not in step["python"]:
        step["python"] = {**step["python"], "args": {"p": {"secret": "DB_PASSWORD"}}}
    async with engine(durable_url) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
        stored = [bytes(record.raw_payload) async for record in operations.events(snapshot.run_id)]
        await operations.engine.step_logs.aclose()
        rows = await operations.log.store.side_tables.read("read_output", snapshot.run_id, 0, 1000)
        stored += [bytes(row[3]) for row in rows]
    stored += [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    parts = [CUT[start : start + 8].encode() for start in range(len(CUT) - 7)]
    assert not [part for part in parts for body in stored if part in body]


@pytest.mark.parametrize(
    "step",
    [
        {"approval": {"prompt": {"secret": "DB_PASSWORD"}}},
        {"approval": {"prompt": "?", "fields": {"a": {"type": "string", "label": {"secret": "DB_PASSWORD"}}}}},
        {"wait": {"event": {"secret": "DB_PASSWORD"}}},
        {"wait": {"event": "e", "key": {"secret": "DB_PASSWORD"}}},
        {"approval": "?", "secretRefs": ["DB_PASSWORD"]},
    ],
)
async def test_secret_in_an_input_that_is_logged_is_refused(step: dict[str, Any]) -> None:
    async with engine("memory://") as operations:
        with pytest.raises(rw.RunwrightError, match="stored in the log"):
            operations.load({"plan": "p", "steps": [{"id": "a", **step}]})


async def test_override_cannot_put_a_secret_into_the_log() -> None:
    steps = [{"id": "first", "wait": {"event": "go"}}, {"id": "ask", "approval": "Go?"}]
    async with engine("memory://") as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": steps}))
        override = {"stepId": "ask", "override": {"prompt": {"secret": "DB_PASSWORD"}}}
        await operations.signal(run_id, "INJECT_OVERRIDE", override, reason="test")
        await operations.signal(run_id, "EVENT", {"name": "go"})
        snapshot = await operations.wait(run_id, 20)
        assert step_of(snapshot, "ask").error.code == "INVALID_STEP_SCHEMA"
