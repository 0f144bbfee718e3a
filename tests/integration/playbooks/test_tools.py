"""The tools that only playbooks have: NATS, and secrets that never reach the log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runwright.plans.loader import plan_from_dict
from runwright.plans.problems import PlanInvalid
from runwright.tools.registry import all_tools
from support.components import Nats
from support.engine import engine
from support.playbooks import arcs_to, noop, otherwise, playbook, python_task, result_of, rules, run_playbook, when


def nats_task(operation: str, url: str = "{{ url }}", **more: Any) -> dict[str, Any]:
    return {"kind": "nats", "operation": operation, "url": url, **more}


async def test_nats_tasks_store_and_list_keys_and_objects(file_store: str, nats: Nats) -> None:
    document = playbook(
        {
            "step": "a",
            "tool": [
                {"put": nats_task("kv_put", bucket="sessions", key="k.1", value={"user": 7})},
                {"get": nats_task("kv_get", bucket="sessions", key="k.1")},
                {"keys": nats_task("kv_keys", bucket="sessions")},
                {"gone": nats_task("kv_delete", bucket="sessions", key="k.1")},
                {"after": nats_task("kv_keys", bucket="sessions")},
                {"store": nats_task("object_put", bucket="files", key="a.txt", value="hello")},
                {"files": nats_task("object_list", bucket="files")},
                {"text": nats_task("object_get", bucket="files", key="a.txt")},
                {"away": nats_task("object_delete", bucket="files", key="a.txt")},
                {"empty": nats_task("object_list", bucket="files")},
                {"end": noop({
                    "value": "{{ get.value.user }}", "keys": "{{ [keys['keys'], after['keys']] }}",
                    "files": "{{ [files.objects, empty.objects] }}", "text": "{{ text.value }}",
                })},
            ],
        },
        workload={"url": nats.url},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", "\n".join(lines)
        assert await result_of(operations, snapshot) == {
            "value": 7,
            "keys": [["k.1"], []],
            "files": [[{"key": "a.txt", "size_bytes": 5}], []],
            "text": "hello",
        }


async def test_nats_tasks_send_messages_and_report_errors(file_store: str, nats: Nats) -> None:
    import nats as client

    received: list[bytes] = []
    connection = await client.connect(nats.url)

    async def respond(message: Any) -> None:
        received.append(message.data)
        if message.reply:
            await message.respond(b'{"pong": true}')

    await connection.subscribe("ping", cb=respond)
    await connection.flush()
    continue_always = {"policy": {"rules": [{"else": {"then": {"do": "continue"}}}]}}
    document = playbook(
        {
            "step": "a",
            "tool": [
                {"ask": nats_task("request", subject="ping", value="hi")},
                {"tell": nats_task("publish", subject="ping", value={"n": 1})},
                {"nobody": {**nats_task("request", subject="void", wait=1), "spec": continue_always}},
                {"missing": {**nats_task("kv_get", bucket="nothing", key="k"), "spec": continue_always}},
                {
                    "away": {
                        **nats_task("kv_get", url="nats://127.0.0.1:1", bucket="b", key="k"),
                        "spec": continue_always,
                    }
                },
                {"end": noop("{{ ask.data.pong }}")},
            ],
        },
        workload={"url": nats.url},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) is True
        ends = [
            r.payload or {} for r in await operations.log.read(snapshot.run_id) if r.event_type == "TaskAttemptFailed"
        ]
    assert [(end["outcome"]["error"]["code"], end["outcome"]["error"]["kind"]) for end in ends] == [
        ("NATS_NO_RESPONDERS", "nats"), ("NATS_NOT_FOUND", "nats"), ("NATS_FAILED", "nats")
    ]  # fmt: skip
    await asyncio.sleep(0.05)
    await connection.close()
    assert received == [b"hi", b'{"n":1}']


async def test_secrets_are_passed_by_name_and_masked(file_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hunter2-and-more")
    document = playbook(
        {
            "step": "a",
            "tool": [
                {"keys": {"kind": "secrets", "map": {"api": "API_KEY"}}},
                {"use": python_task("result = {'length': len(key), 'told': key}", key="{{ keys.api }}")},
            ],
        },
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == {"length": 16, "told": "***"}
        log = b"".join(bytes(record.raw_payload) for record in await operations.log.read(snapshot.run_id))
        assert b"hunter2" not in log
        monkeypatch.delenv("API_KEY")
        missing = playbook({"step": "a", "tool": [{"keys": {"kind": "secrets", "names": ["API_KEY"]}}]})
        with pytest.raises(Exception, match="API_KEY"):
            await run_playbook(operations, missing)


async def test_only_secrets_tasks_can_pass_secret_references(file_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hunter2-and-more")
    forged = python_task("result = {'api': {'secret': 'API_KEY'}}")
    as_text = "result = str(key)"
    document = playbook(
        {"step": "keys", "tool": {"kind": "secrets", "map": {"api": "API_KEY"}}, "next": arcs_to("mixed")},
        {
            "step": "mixed",
            "tool": [{"first": {"kind": "secrets", "map": {"api": "API_KEY"}}}, {"then": forged}],
            "next": arcs_to("use"),
        },
        {
            "step": "use",
            "tool": [
                {"right": python_task(as_text, key="{{ keys.api }}")},
                {"wrong": python_task(as_text, key="{{ mixed.api }}")},
                {"worse": python_task(as_text, key="{{ keys.api if false else mixed.api }}")},
                {"all": {"kind": "noop", "result": ["{{ right }}", "{{ wrong }}", "{{ worse }}"]}},
            ],
        },
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        reference = "{'secret': 'API_KEY'}"
        assert await result_of(operations, snapshot) == ["***", reference, reference]


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (nats_task("kv_gut", bucket="b", key="k"), "`operation` must be one of publish, request, kv_get"),
        (nats_task("kv_put", bucket="b", key="k"), "`kv_put` requires `value`"),
        (
            {"kind": "nats", "operation": "kv_keys", "bucket": "b"},
            "Set `auth` .the name of a secret with the server URL. or `url`",
        ),
        (nats_task("kv_keys", bucket="b", buckets=1), "Unknown field 'buckets'"),
        ({"kind": "secrets"}, "Set `names` .a list of secrets. or `map`"),
    ],
)
def test_invalid_tasks_are_refused(task: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanInvalid, match=sentence):
        plan_from_dict(playbook({"step": "a", "tool": task}), all_tools())


def test_old_event_names_are_read_as_current_ones() -> None:
    retry = {"when": "{{ outcome.status == 'error' }}", "then": {"do": "retry", "attempts": 3, "backoff": "fixed"}}
    document = playbook(
        {
            "step": "a",
            "tool": {**noop(), "spec": {"policy": {"rules": [retry, {"else": {"then": {"do": "continue"}}}]}}},
            "next": {
                "arcs": [
                    {"step": "b", "when": "{{ event.name == 'call.done' }}"},
                    {"step": "b", "when": '{{ event.name in ["step.exit", "call.error"] }}'},
                ]
            },
        },
        {"step": "b", "tool": noop()},
        workload={"pg_credential": "pg_local"},
    )
    loaded = plan_from_dict(document, all_tools())
    route = loaded.plan.steps[0].route
    assert route is not None
    assert [arc.when for arc in route.arcs] == [
        "{{ event.name == 'step.done' }}",
        '{{ event.name in ["step.done", "step.failed"] }}',
    ]
    assert [str(warning) for warning in loaded.warnings if "is interpreted as" in str(warning)]
    with pytest.raises(PlanInvalid, match="looks like a secret"):
        plan_from_dict({**document, "workload": {"pg_credential": "S3cret!x"}}, all_tools())


@pytest.mark.slow
async def test_policies_distinguish_postgres_errors(file_store: str, empty_postgres_url: str) -> None:
    def task(query: str, state: str) -> dict[str, Any]:
        known = (
            f"outcome.pg.code == '{state}' and outcome.pg.sqlstate == '{state}' and outcome.error.kind == 'postgres'"
        )
        spec = rules(when(known, "continue"), otherwise("fail"))
        return {"kind": "postgres", "connection": "{{ url }}", "query": query, "args": {"n": 1}, "spec": spec}

    twice = "create table t (n integer primary key); insert into t values (:n); insert into t values (:n)"
    document = playbook(
        {"step": "a", "tool": [{"typo": task("selec :n", "42601")}, {"twice": task(twice, "23505")}]},
        workload={"url": empty_postgres_url},
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", "\n".join(lines)


async def test_missing_query_argument_is_named(file_store: str) -> None:
    document = playbook({"step": "a", "tool": {"kind": "sqlite", "path": "x.db", "query": "select :there"}})
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
    assert snapshot.root_cause.message == "The query uses :there, but `args` has no 'there'."
