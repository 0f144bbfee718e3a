"""Large results of tasks: stored outside the log, read by reference, gathered in manifests, and deleted after use."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runwright as rw
from runwright.contract.paths import EntityPath
from runwright.contract.result_ref import parse_result_address, result_address
from runwright.control.operations import Operations
from runwright.storage.result_stores import FolderTier, MemoryTier, Tiers, in_memory_tiers
from support.components import Nats
from support.engine import engine, lines_of_types
from support.playbooks import arcs_to, noop, otherwise, playbook, python_task, result_of, rules, run_playbook, when
from support.waiting import until

LARGE = "result = {'rows': list(range(30000)), 'paging': {'next': 'c7', 'more': True}}"


def storing(tool: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {**tool, "spec": {**tool.get("spec", {}), "result": options}}


@pytest.fixture(params=["local", "s3", "nats_object", pytest.param("postgres", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Configure a result store of each kind in runwright.toml."""
    monkeypatch.chdir(tmp_path)
    kind: str = request.param
    if kind == "s3":
        given = request.getfixturevalue("bucket")
        table = {"url": given["store"], "endpoint": given["endpoint"], "region": given["region"]}
    elif kind == "nats_object":
        table = {"url": request.getfixturevalue("nats").url, "bucket": f"b{tmp_path.name}".replace("_", "-")[-30:]}
    elif kind == "postgres":
        table = {"url": request.getfixturevalue("empty_postgres_url")}
    else:
        table = {"folder": str(tmp_path / "kept")}
    lines = [f"[results.{kind}]", *(f'{name} = "{value}"' for name, value in table.items())]
    Path("runwright.toml").write_text("\n".join(lines))
    return kind


async def stored_keys(operations: Operations, kind: str) -> list[str]:
    tier = await operations.engine.services.results.tiers._tier(kind)
    found: AsyncIterator[str] = tier.list_keys("")
    return [name async for name in found]


async def events(operations: Operations, run_id: str, event_type: str) -> list[rw.RunEventRecord]:
    return [record for record in await operations.log.read(run_id) if record.event_type == event_type]


async def test_large_result_is_stored_by_reference_and_read_back(kind: str, file_store: str) -> None:
    large = storing(
        python_task(LARGE),
        store={"kind": kind, "compression": "gzip"},
        select=[{"path": "$.paging.next", "as": "cursor"}],
        preview_max_bytes=20,
    )
    document = playbook(
        {"step": "a", "tool": [{"big": large}], "next": arcs_to("b")},
        {"step": "b", "tool": noop({"cursor": "{{ a.cursor }}", "sum": "{{ a.rows | sum }}"})},
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == {"cursor": "c7", "sum": sum(range(30000))}
        stored = (await events(operations, snapshot.run_id, "ResultStored"))[0].payload
        ended = (await events(operations, snapshot.run_id, "TaskDone"))[0]
        whole = await operations.result(snapshot.run_id, "a")
        address = f"noetl://execution/{snapshot.run_id}/step/a/task/big/run/1.1/attempt/1"
        assert await operations.result(snapshot.run_id, address) == whole
    assert lines_of_types(lines, "ResultStored") == ["ResultStored a/big"]
    assert stored is not None
    ref = stored["result_ref"]
    body = msgspec.json.encode(whole)
    assert ref == {
        "kind": "result_ref",
        "ref": address,
        "store": kind,
        "scope": "permanent",
        "meta": {
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "content_type": "application/json",
            "compression": "gzip",
        },
        "extracted": {"cursor": "c7"},
        "preview": {"truncated": True, "bytes": len(body), "sample": '{"rows":[0,1,2,3,4,5'},
    }
    assert stored["extracted"] == {"cursor": "c7"}
    assert ended.payload is not None
    assert ended.payload["result_ref"] == ref
    assert "result" not in ended.payload["outcome"]
    assert len(ended.raw_payload) < 2000


async def test_results_are_deleted_at_the_end_of_their_scope(kind: str, file_store: str) -> None:
    def large(scope: str) -> dict[str, Any]:
        return storing(python_task(LARGE), store={"kind": kind, "scope": scope})

    document = playbook(
        {"step": "a", "tool": [{"x": large("step")}, {"y": noop("{{ x.paging.next }}")}], "next": arcs_to("b")},
        {"step": "b", "tool": [{"x": large("execution")}], "next": arcs_to("c")},
        {"step": "c", "tool": [{"x": large("permanent")}, {"y": noop("{{ [a, b.paging.next] }}")}]},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == ["c7", "c7"]

        async def has_only_permanent() -> bool:
            return [name.partition("/")[0] for name in await stored_keys(operations, kind)] == ["permanent"]

        await until(has_only_permanent, "only permanent results")
        with pytest.raises(rw.RunwrightError, match="stored for the execution only") as error:
            await operations.result(snapshot.run_id, "b")
        assert error.value.code == "REFERENCE_NOT_AVAILABLE"


async def test_prune_deletes_results_whose_scope_has_ended(kind: str, file_store: str) -> None:
    async def is_over(_run: str, whole: bool) -> bool:
        return not whole

    async with engine(file_store) as operations:
        tiers = operations.engine.services.results.tiers
        tier = await tiers._tier(kind)
        digest = "0" * 64
        ended = [f"execution/r/-/kept-{digest}", f"step/r/a/kept-{digest}", f"expiring/r/-/12-{digest}"]
        remaining = [f"workflow/r/-/kept-{digest}", f"expiring/r/-/9999999999-{digest}", f"permanent/r/-/kept-{digest}"]
        for key in [*ended, *remaining]:
            await tier.put(key, b"x")
        assert (await tiers.prune(is_over))[kind] == 3
        assert sorted(await stored_keys(operations, kind)) == sorted(remaining)
        for key in [*remaining, *remaining]:
            await tier.delete(key)
        assert await stored_keys(operations, kind) == []
        with pytest.raises(FileNotFoundError):
            await tier.get(remaining[0])


async def test_small_results_are_inline_unless_the_limit_is_lower(file_store: str) -> None:
    document = playbook(
        {
            "step": "a",
            "tool": [
                {
                    "small": storing(
                        python_task("result = {'id': 7, 'pad': 'x' * 100}"), select=[{"path": "id", "as": "nr"}]
                    )
                },
                {"moved": storing(python_task("result = [1, 2, 3]"), inline_max_bytes=0)},
                {"listed": storing(python_task("result = [{'n': 4}]"), select=[{"path": "$[0].n", "as": "first"}])},
                {"seen": noop("{{ listed.first }}")},
                {
                    "end": noop(
                        {
                            "nr": "{{ small.nr }}",
                            "whole": "{{ small.id }}",
                            "list": "{{ moved }}",
                            "first": "{{ seen }}",
                            "all": "{{ listed }}",
                        }
                    )
                },
            ],
        },
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == {
            "nr": 7, "whole": 7, "list": [1, 2, 3], "first": 4, "all": [{"n": 4}]
        }  # fmt: skip
    assert lines_of_types(lines, "ResultStored") == ["ResultStored a/moved"]


async def test_selected_fields_are_read_without_fetching(file_store: str) -> None:
    """Selected fields are in the event, so the stored result is not read."""
    document = playbook(
        {"step": "a", "tool": [{"big": storing(python_task(LARGE), select=[{"path": "paging.more", "as": "more"}])}],
         "next": {"arcs": [{"step": "b", "when": "{{ a.more }}"}]}},
        {"step": "b", "tool": [{"end": noop({"more": "{{ a.more }}", "from": "{{ a._ref.store }}"})}]},
    )  # fmt: skip
    async with engine(file_store) as operations:
        fetched: list[Any] = []
        get = operations.engine.services.results.tiers.get

        async def recording(run_id: str, ref: Any) -> bytes:
            fetched.append(ref)
            return await get(run_id, ref)

        operations.engine.services.results.tiers.get = recording  # type: ignore[method-assign]
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == {"more": True, "from": "local"}
        assert fetched == []


async def test_policy_can_retry_while_a_result_is_unavailable(file_store: str) -> None:
    """REFERENCE_NOT_AVAILABLE is an ordinary outcome: a policy may retry it."""
    document = playbook(
        {"step": "a", "tool": [{"big": storing(python_task(LARGE))}], "next": arcs_to("hold")},
        {"step": "hold", "tool": python_task("open('reached', 'w').close()\nwhile not __import__('os').path.exists('go'): __import__('time').sleep(0.01)"),
         "next": arcs_to("b")},
        {"step": "b", "tool": [{"use": {
            **noop("{{ a.rows | length }}"),
            "spec": rules(when("outcome.error.code == 'REFERENCE_NOT_AVAILABLE' and outcome.error.retryable", "retry", attempts=100, delay=0.02), otherwise("continue")),
        }}]},
    )  # fmt: skip
    async with engine(file_store) as first:
        run_id = await first.start(first.load(document))
        await until(lambda: asyncio.to_thread(Path("reached").exists))
    async with engine(file_store, alone=True) as operations:
        tier = await operations.engine.services.results.tiers._tier("local")
        (key,) = [name async for name in tier.list_keys("")]
        body = await tier.get(key)
        await tier.delete(key)
        Path("go").touch()
        await operations.resume(run_id)
        await until(lambda: operations.log.find_event(run_id, "TaskAttemptFailed", "b/use", 2))
        await tier.put(key, body)
        snapshot = await operations.wait(run_id, 20)
        assert (snapshot.status, await operations.run_result(run_id)) == ("COMPLETED", 30000)
        await tier.put(key, body[:-1] + b"]")
        with pytest.raises(rw.RunwrightError, match="damaged"):
            await operations.result(run_id, "a")


@pytest.mark.parametrize("scope", ["execution", "permanent", "step", "workflow"])
async def test_results_of_runs_with_long_names_are_stored(kind: str, file_store: str, scope: str) -> None:
    """Names of runs and steps may be longer than the keys that stores accept."""
    run_id, step = "é" * 255 + "/" + "x" * 200, "ü" * 200
    large = storing(python_task("result = 'x' * 70000"), store={"kind": kind, "scope": scope})
    use = noop("{{ big | length }}")
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(
            operations, playbook({"step": step, "tool": [{"big": large}, {"use": use}]}), run_id=run_id
        )
        assert (snapshot.status, await operations.result(run_id, step)) == ("COMPLETED", 70000)
        if scope == "workflow":
            assert (await operations.engine.prune_results())[kind] == 1
        expected = 1 if scope == "permanent" else 0

        async def has_expected_count() -> bool:
            return len(await stored_keys(operations, kind)) == expected

        await until(has_expected_count)


async def test_prune_deletes_results_before_the_id_of_their_run() -> None:
    """After a crash in between, the next prune can still identify the run."""
    tier, deleted = MemoryTier(), []
    run = f"execution/~{'0' * 64}"
    tier.bodies = {
        f"{run}/id": b"long",
        f"{run}/~{'1' * 64}/kept-{'2' * 64}": b"x",
        f"execution/~{'3' * 64}/id": b"alone",
    }
    delete = tier.delete

    async def recording(key: str) -> None:
        deleted.append(key)
        await delete(key)

    tier.delete = recording  # type: ignore[method-assign]
    asked: list[str] = []

    async def is_over(run_id: str, whole: bool) -> bool:
        asked.append(run_id)
        return True

    gone = await in_memory_tiers(lambda: 0, tier).prune(is_over)
    assert (sorted(set(asked)), tier.bodies, max(gone.values(), key=str)) == (["alone", "long"], {}, 1)
    assert deleted[0].endswith("2" * 64)


async def test_same_value_can_be_stored_compressed_and_plain(kind: str, file_store: str) -> None:
    packed, plain = ({"kind": kind, "compression": how} for how in ("gzip", "none"))
    value = python_task("result = 'x' * 70000")
    document = playbook(
        {"step": "a", "tool": [{"one": storing(value, store=packed)}], "next": arcs_to("b")},
        {"step": "b", "tool": [{"two": storing(value, store=plain)}], "next": arcs_to("c")},
        {"step": "c", "tool": [{"get": {"kind": "artifact", "action": "get", "ref": "{{ a._ref }}"}}, {"use": noop("{{ get | length }}")}]},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert (snapshot.status, await operations.result(snapshot.run_id, "c")) == ("COMPLETED", 70000)
        assert len(await operations.result(snapshot.run_id, "a")) == len(await operations.result(snapshot.run_id, "b"))


async def test_concurrent_put_does_not_disturb_readers(kind: str, file_store: str) -> None:
    async with engine(file_store) as operations:
        tier = await operations.engine.services.results.tiers._tier(kind)
        body = bytes(3_000_000)
        await tier.put("permanent/r/-/kept", body)

        async def put_again() -> None:
            for _ in range(10):
                await tier.put("permanent/r/-/kept", body)

        async with asyncio.timeout(25):
            found = await asyncio.gather(*(tier.get("permanent/r/-/kept") for _ in range(10)), put_again())
        assert found[:-1] == [body] * 10


async def test_prune_deletes_only_old_partial_files(file_store: str, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "tasks" / "execution" / "r" / "-"
    folder.mkdir(parents=True)
    old, new = folder / ".kept-1.77.0", folder / ".kept-2.77.0"
    for draft in (old, new):
        draft.write_bytes(b"half")
    os.utime(old, (1, 1))
    async with engine(file_store) as operations:
        assert (await operations.engine.prune_results())["local"] == 1
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("text", [LARGE, "import runwright as rw\nraise rw.StepError('X', 'x', result='x' * 70000)"])
async def test_run_can_be_cancelled_while_a_store_write_hangs(file_store: str, text: str) -> None:
    """The value is the result of a task, or belongs to its failure."""
    async with engine(file_store) as operations:
        tier = await operations.engine.services.results.tiers._tier("local")
        asked = asyncio.Event()

        async def hang(key: str, body: bytes) -> None:
            asked.set()
            await asyncio.Event().wait()

        tier.put = hang  # type: ignore[method-assign]
        run_id = await operations.start(operations.load(playbook({"step": "a", "tool": storing(python_task(text))})))
        await asked.wait()
        await operations.signal(run_id, "CANCEL")
        assert (await operations.wait(run_id, 20)).status == "CANCELLED"


async def test_policy_can_retry_until_the_store_can_be_opened(
    file_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that cannot be opened is unavailable like any other: a policy may wait for it."""
    tries = rules(
        when("outcome.error.code == 'REFERENCE_NOT_AVAILABLE'", "retry", attempts=100, delay=0.05),
        otherwise("continue"),
    )
    document = playbook(
        {"step": "a", "tool": [{"big": storing(python_task(LARGE))}], "next": arcs_to("hold")},
        {"step": "hold", "tool": python_task("open('reached', 'w').close()\nwhile not __import__('os').path.exists('go'): __import__('time').sleep(0.01)"), "next": arcs_to("b")},
        {"step": "b", "tool": [{"use": {**noop("{{ a.rows | length }}"), "spec": tries}}]},
    )  # fmt: skip
    async with engine(file_store) as first:
        run_id = await first.start(first.load(document))
        await until(lambda: asyncio.to_thread(Path("reached").exists))
    Path("go").touch()
    async with engine(file_store, alone=True) as operations:
        tiers = operations.engine.services.results.tiers
        opening = tiers._stores["local"]

        async def unavailable() -> Any:
            raise ConnectionRefusedError("nobody is there")

        monkeypatch.setitem(tiers._stores, "local", unavailable)  # type: ignore[arg-type]
        await operations.resume(run_id)
        await until(lambda: operations.log.find_event(run_id, "TaskAttemptFailed", "b/use", 2))
        monkeypatch.setitem(tiers._stores, "local", opening)  # type: ignore[arg-type]
        snapshot = await operations.wait(run_id, 20)
        assert (snapshot.status, await operations.run_result(run_id)) == ("COMPLETED", 30000)


async def test_result_expires_after_its_ttl(file_store: str) -> None:
    document = playbook(
        {"step": "a", "tool": [{"big": storing(python_task(LARGE), store={"ttl": "50ms"})}]},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        await asyncio.sleep(0.1)
        with pytest.raises(rw.RunwrightError, match="expired at 20"):
            await operations.result(snapshot.run_id, "a")
        ref = (await events(operations, snapshot.run_id, "ResultStored"))[0].payload
        assert ref is not None
        assert ref["result_ref"]["expires_at"] > "2026"


async def test_expired_result_is_not_read_from_memory(file_store: str) -> None:
    document = playbook(
        {"step": "a", "tool": storing(python_task(LARGE), store={"ttl": "50ms"}), "next": arcs_to("wait")},
        {"step": "wait", "tool": python_task("import time\ntime.sleep(0.1)"), "next": arcs_to("b")},
        {"step": "b", "tool": noop("{{ a }}")},
    )
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
    assert (snapshot.status, snapshot.root_cause.code) == ("FAILED", "REFERENCE_NOT_AVAILABLE")


async def test_new_result_with_the_bytes_of_an_expired_one_is_read(file_store: str) -> None:
    late = rules(when("page | length > 0 and page is defined", "continue"), otherwise("fail"))
    document = playbook(
        {"step": "page", "tool": storing(python_task(LARGE), store={"ttl": "300ms"}), "next": arcs_to("look")},
        {"step": "look", "tool": {**python_task("import time\ntime.sleep(wait)", wait="{{ 0.5 - (ctx.n | default(0)) }}"), "spec": late},
         "next": {"arcs": [{"step": "page", "when": "{{ event.name == 'step.failed' and ctx.n is not defined }}", "set": {"ctx.n": 0.5}}]}},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
    assert "TaskFailed look/look REFERENCE_NOT_AVAILABLE" in lines
    assert snapshot.status == "COMPLETED", lines


async def test_the_pages_of_a_task_are_gathered_in_a_manifest(store: str) -> None:
    turning = rules(
        when("_task == 'page' and outcome.result.more", "jump", to="page", set_iter={"n": "{{ outcome.result.n }}"}),
        otherwise("continue"),
    )
    page = "result = {'rows': [[n, 'x' * 400]] * 5, 'n': n + 1, 'more': n < 3}"

    def step(name: str, strategy: str, **more: Any) -> dict[str, Any]:
        task = {**python_task(page, n="{{ iter.n | default(0) }}"), "spec": turning}
        gathered = storing(task, manifest={"as": "pages", "strategy": strategy, **more})
        return {"step": name, "tool": [{"page": gathered}, {"all": noop("{{ pages }}")}]}

    document = playbook(
        {**step("append", "append"), "next": arcs_to("concat")},
        {**step("concat", "concat", path="$.rows"), "next": arcs_to("merge")},
        {**step("merge", "merge"), "next": arcs_to("replace")},
        {**step("replace", "replace", path="n"), "next": arcs_to("end")},
        {"step": "end", "tool": noop({"a": "{{ append | map(attribute='n') | list }}", "c": "{{ concat | length }}",
                                      "m": "{{ merge.n }}", "r": "{{ replace }}"})},
    )  # fmt: skip
    async with engine(store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == {"a": [1, 2, 3, 4], "c": 20, "m": 4, "r": 4}
        grown = await events(operations, snapshot.run_id, "ResultManifestUpdated")
    assert [record.step_id for record in grown[:4]] == [
        "append/page", "append/page@2", "append/page@3", "append/page@4"
    ]  # fmt: skip
    last = grown[3].payload
    assert last is not None
    manifest = last["result_ref"]
    assert (manifest["kind"], manifest["name"], manifest["strategy"]) == ("manifest", "pages", "append")
    assert (manifest["total_parts"], manifest["total_bytes"] > 8000) == (4, True)
    assert manifest["part"]["ref"].endswith("/step/append/task/page/run/1.4/attempt/1")


async def test_loop_of_large_results_has_a_manifest(file_store: str) -> None:
    document = playbook(
        {"step": "a", "loop": {"in": "{{ [1, 2, 3] }}", "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 2}},
         "tool": [{"big": storing(python_task("result = [n] * 40000", n="{{ iter.n }}"), preview_max_bytes=0)}], "next": arcs_to("b")},
        {"step": "b", "tool": noop("{{ a | map('sum') | list }}")},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == [40000, 80000, 120000]
        (grown,) = await events(operations, snapshot.run_id, "ResultManifestUpdated")
        assert await operations.result(snapshot.run_id, "a") == [[1] * 40000, [2] * 40000, [3] * 40000]
    assert lines_of_types(lines, "ResultManifestUpdated") == ["ResultManifestUpdated a"]
    assert grown.payload is not None
    assert grown.payload["result_ref"] == {
        "kind": "manifest", "strategy": "append", "total_parts": 3, "total_bytes": 3 * 80001
    }  # fmt: skip


async def test_run_that_ends_with_a_loop_returns_its_values(file_store: str) -> None:
    document = playbook(
        {"step": "a", "loop": {"in": "{{ [1, 2] }}", "iterator": "n"},
         "tool": [{"big": storing(python_task("result = [n] * 40000", n="{{ iter.n }}"))}],
         "next": {"arcs": [{"step": "more", "when": "{{ a | length > 2 }}"}]}},
        {"step": "more", "tool": noop()},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == [[1] * 40000, [2] * 40000]


async def test_data_that_looks_like_a_reference_is_data(file_store: str) -> None:
    alike = [
        {"resultRef": {"uri": "result:sha256:" + "0" * 64, "sha256": "0" * 64, "sizeBytes": 1}},
        {"resultRef": {"kind": "result_ref", "ref": "noetl://execution/x", "store": "local"}},
        {"resultRef": 1},
        {"resultInline": {"resultRef": {"uri": "result:sha256:"}}},
        {"kind": "result_ref"},
    ]
    document = playbook(
        {"step": "a", "loop": {"in": "{{ alike }}", "iterator": "one"}, "tool": noop("{{ iter.one }}"),
         "next": arcs_to("b")},
        {"step": "b", "tool": noop("{{ a }}")},
        workload={"alike": alike},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "COMPLETED", lines
        assert await result_of(operations, snapshot) == alike
        assert await operations.result(snapshot.run_id, "a") == alike


async def test_parent_run_can_read_execution_results_of_a_sub_run(
    file_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scope `execution` ends with the parent run, not with the sub-run."""
    monkeypatch.chdir(tmp_path)
    inner = playbook({"step": "i", "tool": [{"big": storing(python_task(LARGE), store={"scope": "execution"})}]})
    Path("inner.yaml").write_bytes(msgspec.json.encode(inner))
    document = playbook(
        {"step": "sub", "tool": {"kind": "playbook", "path": "inner.yaml"}, "next": arcs_to("rest")},
        {"step": "rest", "tool": python_task("import time\ntime.sleep(0.3)"), "next": arcs_to("b")},
        {"step": "b", "tool": noop("{{ sub.rows | length }}")},
    )
    async with engine(file_store) as first:
        run_id = await first.start(first.load(document))
        await until(lambda: first.log.find_event(run_id, "StepStarted", "rest"))
    async with engine(file_store, alone=True) as operations:
        await operations.resume(run_id)
        snapshot = await operations.wait(run_id, 20)
        assert (snapshot.status, await operations.run_result(run_id)) == ("COMPLETED", 30000)


async def test_unavailable_reference_is_a_retryable_error(file_store: str) -> None:
    again = rules(when("outcome.error.retryable", "retry", attempts=3), otherwise("fail"))
    address = "noetl://execution/nobody/step/a/task/a/run/1/attempt/1"
    task = {"kind": "artifact", "action": "get", "ref": address, "spec": again}
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, playbook({"step": "a", "tool": task}))
        assert snapshot.root_cause is not None
        assert snapshot.root_cause.code == "REFERENCE_NOT_AVAILABLE"
        assert lines_of_types(lines, "TaskAttemptFailed") == [
            "TaskAttemptFailed a/a",
            "TaskAttemptFailed a/a #2",
            "TaskAttemptFailed a/a #3",
        ]


async def test_artifact_get_is_limited_to_results_of_the_tenant(file_store: str) -> None:
    document = playbook(
        {"step": "a", "tool": [{"big": storing(python_task(LARGE))}], "next": arcs_to("b")},
        {"step": "b", "tool": [
            {"whole": {"kind": "artifact", "action": "get", "ref": "{{ a._ref }}"}},
            {"end": noop("{{ whole.paging }}")},
        ]},
    )  # fmt: skip
    stranger = playbook({"step": "b", "tool": {"kind": "artifact", "action": "get", "ref": "{{ workload.ref }}"}},
                        workload={"ref": ""})  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        assert await result_of(operations, snapshot) == {"next": "c7", "more": True}
        address = result_address(snapshot.run_id, EntityPath("a", task="big"), 1)
        same, _ = await run_playbook(operations, stranger, params={"ref": address})
        assert (await result_of(operations, same))["paging"]["next"] == "c7"
        from runwright.control.run_scope import RunScope

        other, lines = await run_playbook(
            operations, stranger, params={"ref": address}, place=RunScope("other", "p", "e")
        )
        assert other.status == "FAILED"
        assert "TaskFailed b/b REFERENCE_NOT_AVAILABLE" in lines
        with pytest.raises(rw.RunwrightError, match="belongs to run"):
            await operations.result(same.run_id, address)


async def test_unknown_result_store_is_refused_at_start(file_store: str) -> None:
    document = playbook({"step": "a", "tool": [{"big": storing(python_task(LARGE), store={"kind": "s3"})}]})
    async with engine(file_store) as operations:
        with pytest.raises(rw.RunwrightError, match=r"Unknown result store 's3'.*\[results.s3\]") as error:
            await operations.start(operations.load(document))
        assert error.value.code == "CAPABILITY_NOT_SUPPORTED"
        assert (await operations.log.list_runs()).runs == []


async def test_task_waits_for_an_unavailable_result_store(
    file_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nats = Nats()
    try:
        Path("runwright.toml").write_text(
            f'[results]\nstore = "nats_object"\n[results.nats_object]\nurl = "{nats.url}"'
        )
        nats.kill()
        document = playbook({"step": "a", "tool": [{"big": storing(python_task(LARGE))}]})
        async with engine(file_store) as operations:
            run_id = await operations.start(operations.load(document))
            await asyncio.sleep(0.5)
            assert await operations.log.find_event(run_id, "TaskDone", "a/big") is None
            nats.start()
            snapshot = await operations.wait(run_id, 20)
            assert snapshot.status == "COMPLETED"
            assert (await operations.run_result(run_id))["paging"]["next"] == "c7"
    finally:
        nats.stop()


async def test_a_decision_waits_for_a_store_that_does_not_answer(
    file_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    hold = "import os, time\nopen('reached', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)"
    arcs = [{"step": "b", "when": "{{ a.rows | length > 5 }}"}, {"step": "c"}]
    document = playbook(
        {"step": "a", "tool": [{"big": storing(python_task(LARGE))}], "next": arcs_to("hold")},
        {"step": "hold", "tool": python_task(hold), "next": {"spec": {"mode": "exclusive"}, "arcs": arcs}},
        {"step": "b", "tool": noop("many")},
        {"step": "c", "tool": noop("few")},
    )
    nats = Nats()
    try:
        Path("runwright.toml").write_text(
            f'[results]\nstore = "nats_object"\n[results.nats_object]\nurl = "{nats.url}"'
        )
        async with engine(file_store) as first:
            run_id = await first.start(first.load(document))
            await until(lambda: asyncio.to_thread(Path("reached").exists))
        nats.kill()
        Path("go").touch()
        async with engine(file_store, alone=True) as operations:
            await operations.resume(run_id)
            await until(lambda: asyncio.sleep(0.05, "fetching a value failed" in caplog.text), "the warning")
            nats.start()
            snapshot = await operations.wait(run_id, 30)
            assert (snapshot.status, await operations.run_result(run_id)) == ("COMPLETED", "many")
    finally:
        nats.stop()


@pytest.mark.parametrize("signal", ["CANCEL", "EMERGENCY_STOP"])
async def test_a_run_can_be_stopped_while_a_store_does_not_answer(
    file_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, signal: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runwright.toml").write_text(
        '[results]\nstore = "postgres"\n[results.postgres]\nurl = "postgresql://127.0.0.1:9/no"'
    )
    document = playbook({"step": "a", "tool": [{"big": storing(python_task(LARGE))}]})
    async with engine(file_store) as operations:
        run_id = await operations.start(operations.load(document))
        await until(lambda: asyncio.sleep(0.05, "storing a large value failed" in caplog.text), "the warning")
        await operations.signal(
            run_id, signal, {"reason": "enough"} if signal == "EMERGENCY_STOP" else None, reason="enough"
        )
        snapshot = await operations.wait(run_id, 30)
        assert snapshot.status == "CANCELLED"
        assert [finding async for finding in operations.log.verify(run_id)] == []


async def test_unavailable_store_does_not_block_pruning_of_others(tmp_path: Path) -> None:
    async def unavailable() -> Any:
        raise OSError("nobody there")

    async def available() -> Any:
        return FolderTier(tmp_path)

    tiers = Tiers({"a": unavailable, "b": available}, "b", lambda: 10**18)
    await (await tiers._tier("b")).put(f"expiring/r/-/12-{'0' * 64}", b"x")
    gone = await tiers.prune(lambda _run, _whole: asyncio.sleep(0, False))
    assert gone["b"] == 1
    assert isinstance(gone["a"], rw.RunwrightError)


async def test_selecting_too_much_data_fails_the_task(file_store: str) -> None:
    document = playbook(
        {"step": "a", "tool": [{"big": storing(python_task(LARGE), select=[{"path": "rows", "as": "rows"}])}]}
    )
    async with engine(file_store) as operations:
        snapshot, lines = await run_playbook(operations, document)
        assert snapshot.status == "FAILED"
        assert "TaskFailed a/big RESULT_NOT_STORABLE" in lines


@pytest.mark.parametrize(
    "place",
    [EntityPath("a b/ü", 3, 1, (57,), "t/x", 2), EntityPath("a", task="b"), EntityPath("a", 1, 1, (0, 4), "b")],
)
def test_result_address_can_be_parsed_back(place: EntityPath) -> None:
    text = result_address("run 1/x", place, 4)
    read = parse_result_address(text)
    assert read is not None
    assert (read.run_id, read.path, read.attempt) == ("run 1/x", place, 4)


async def test_a_payload_over_the_cap_is_refused_at_append(store: str) -> None:
    """The limit is for events of other writers; the engine stores its own large results by reference."""
    async with engine(store) as operations:
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "tool": python_task(LARGE)}))
        assert max(len(record.raw_payload) for record in await operations.log.read(snapshot.run_id)) < 70_000
        run = (await operations.log.find_run(snapshot.run_id)).identity
        huge = {"outcome": {"status": "ok", "result": "x" * 1_100_000}}
        late = rw.new_event("TaskDone", run, step_id="z/z", payload=huge)
        with pytest.raises(rw.RunwrightError) as error:
            await operations.log.append([late])
        assert error.value.code == "PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize(
    "forged",
    [
        {"scope": "../.."},
        {"meta": {"bytes": 3, "sha256": "../../secret"}},
        {"expires_at": "never"},
        {"ref": "noetl://execution/r/step/a"},
        {"store": "elsewhere"},
        {"meta": None},
        {},
    ],
)
async def test_forged_reference_cannot_read_other_keys(file_store: str, tmp_path: Path, forged: dict[str, Any]) -> None:
    """A client that may write events can write any reference, but it can only read keys of the same run."""
    digest = hashlib.sha256(b"[1]").hexdigest()
    (tmp_path / digest).write_bytes(b"[1]")
    ref = {
        "kind": "result_ref", "ref": result_address("theirs", EntityPath("a", task="t"), 1), "store": "local",
        "scope": "permanent", "meta": {"bytes": 3, "sha256": digest},
    }  # fmt: skip
    async with engine(file_store) as operations:
        tiers = operations.engine.services.results.tiers
        await (await tiers._tier("local")).put(f"permanent/theirs/-/kept-{digest}", b"[1]")
        assert await tiers.get("theirs", ref) == b"[1]"
        with pytest.raises(rw.RunwrightError) as error:
            await tiers.get(
                "mine" if not forged else "theirs", {**ref, **forged} if forged else {**ref, "scope": "step"}
            )
        assert error.value.code in ("REFERENCE_NOT_AVAILABLE", "CAPABILITY_NOT_SUPPORTED")
