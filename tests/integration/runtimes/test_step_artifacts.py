"""Artifacts that light and isolated steps store and fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runwright.contract.refs import ArtifactRef
from support.engine import engine, run_plan, step_of, wait_for_event

REPORT = {"call": "support.engine_steps:keep_report", "args": {"text": "all is well"}}
READ = {"call": "support.engine_steps:read_artifact", "args": {"ref": "{{ steps.make.result }}"}}


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("step_class", ["light", "isolation"])
async def test_a_step_keeps_a_file_and_another_reads_it(store_url: str, step_class: str) -> None:
    steps = [
        {"id": "make", "class": step_class, "python": REPORT},
        {"id": "read", "class": step_class, "python": READ},
    ]
    async with engine(store_url) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        assert snapshot.status == "COMPLETED", snapshot.root_cause
        assert await operations.result(snapshot.run_id, "read") == "all is well"
        (artifact,) = step_of(snapshot, "make").artifacts
        assert (artifact.kind, artifact.size_bytes) == ("report", 11)
        assert snapshot.artifacts == (artifact,), "the snapshot of a run lists the artifacts of its steps"
        ended = await wait_for_event(operations, snapshot.run_id, "RunCompleted")
        assert len((ended.payload or {})["artifactRefs"]) == 1


async def test_artifact_steps_put_and_get(tmp_path: Path) -> None:
    steps = [
        {"id": "write", "shell": "printf hello > note.txt"},
        {"id": "keep", "artifact": {"put": "note.txt", "kind": "note"}},
        {"id": "fetch", "artifact": {"get": "{{ steps.keep.result }}", "to": "copy.txt"}},
        {"id": "by_name", "artifact": {"get": "{{ steps.keep.result.uri }}", "to": "copy2.txt"}},
    ]
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        assert snapshot.status == "COMPLETED", snapshot.root_cause
        assert await operations.result(snapshot.run_id, "fetch") == {"path": "copy.txt", "sizeBytes": 5}
    assert (tmp_path / "copy.txt").read_text() == (tmp_path / "copy2.txt").read_text() == "hello"


@pytest.mark.parametrize(
    ("artifact", "message"),
    [
        ({}, "exactly one of `put`"),
        ({"put": "a", "get": "b"}, "exactly one of `put`"),
        ({"get": "b"}, "requires `to`"),
        ({"put": "a", "to": "b"}, "`to` requires `get`"),
    ],
)
async def test_a_wrong_artifact_step_is_refused(artifact: dict[str, Any], message: str) -> None:
    async with engine("memory://") as operations:
        with pytest.raises(Exception, match=message):
            operations.load({"plan": "p", "steps": [{"id": "a", "artifact": artifact}]})


async def test_a_missing_file_and_a_damaged_artifact_fail_their_steps(tmp_path: Path) -> None:
    steps = [
        {"id": "keep", "artifact": {"put": "nothing.txt"}},
    ]
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        assert "No such file" in step_of(snapshot, "keep").error.message
        steps = [
            {"id": "make", "python": REPORT},
            {"id": "spoil", "shell": "find .runwright/artifacts -type f -exec sh -c 'echo x >> {}' ';'"},
            {"id": "read", "python": READ},
        ]
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        error = step_of(snapshot, "read").error
        assert error.code == "REFERENCE_NOT_AVAILABLE"
        assert "damaged" in error.message


@pytest.mark.parametrize("step_class", ["light", "isolation"])
async def test_step_output_sets_status_error_and_artifacts(step_class: str) -> None:
    def step(status: str) -> dict[str, Any]:
        return {
            "plan": "p",
            "steps": [
                {
                    "id": "s",
                    "class": step_class,
                    "python": {"call": "support.engine_steps:step_output", "args": {"status": status}},
                }
            ],
        }

    made = ArtifactRef("s3://elsewhere/report", "report", "0" * 64, 7)
    async with engine("memory://") as operations:
        good = await run_plan(operations, step("SUCCESS"))
        assert await operations.result(good.run_id, "s") == {"rows": 3}
        assert step_of(good, "s").artifacts == (made,)
        bad = await run_plan(operations, step("FAILED"))
        assert step_of(bad, "s").error.code == "NO_STOCK"
        assert step_of(bad, "s").artifacts == (made,)


async def test_artifacts_of_iterations_are_in_the_log(tmp_path: Path) -> None:
    steps = [{"id": "each", "foreach": {"in": ["a", "b"]}, "python": {**REPORT, "args": {"text": "{{ item }}"}}}]
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        done = await wait_for_event(operations, snapshot.run_id, "LoopIterationDone", "each[1]")
        assert [ref["kind"] for ref in (done.payload or {})["artifactRefs"]] == ["report"]


@pytest.mark.slow
async def test_runwright_toml_selects_a_bucket_for_artifacts(tmp_path: Path, bucket: dict[str, str]) -> None:
    lines = [f'{name} = "{value}"' for name, value in bucket.items()]
    (tmp_path / "runwright.toml").write_text(
        "[artifacts]\n" + "\n".join(lines) + '\n[artifacts.retention]\ndefault = "30d"\n'
    )
    steps = [{"id": "make", "python": REPORT}, {"id": "read", "python": READ}]
    async with engine("memory://") as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        assert snapshot.status == "COMPLETED", snapshot.root_cause
        (artifact,) = snapshot.artifacts
        assert artifact.uri.startswith("s3://artifacts/")
        assert artifact.expires_at is not None
        assert await operations.result(snapshot.run_id, "read") == "all is well"
