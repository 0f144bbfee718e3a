"""`runwright artifacts`: list, fetch and delete the artifacts of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import runwright

PLAN = """
plan: p
steps:
  - {id: write, shell: "printf hello > note.txt"}
  - {id: keep, artifact: {put: note.txt, kind: note}}
  - {id: each, foreach: {in: [1, 2]}, artifact: {put: note.txt, kind: copy}}
  - {id: fail, shell: "exit 1"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "runwright.toml").write_text("[artifacts.retention]\nnote = '1d'\n")
    assert runwright(tmp_path, "run", "plan.yaml", "--run-id", "r").returncode == 1
    return tmp_path


def test_artifacts_are_listed_fetched_and_pruned_when_expired(folder: Path) -> None:
    listed = json.loads(runwright(folder, "artifacts", "list", "r", "--json").stdout)
    found = [(each["stepId"], each["kind"]) for each in listed]
    assert found[0] == ("keep", "note")
    assert sorted(found[1:]) == [("each[0]", "copy"), ("each[1]", "copy")]
    shown = runwright(folder, "artifacts", "list", "r").stdout.splitlines()
    assert shown[0].split() == ["step", "kind", "bytes", "expires", "uri"]
    assert shown[1].split()[:3] == ["keep", "note", "5"]
    got = runwright(folder, "artifacts", "get", listed[0]["uri"], "-o", "copy.txt")
    assert (got.returncode, got.stdout) == (0, "copy.txt: 5 bytes\n")
    assert (folder / "copy.txt").read_text() == "hello"
    assert runwright(folder, "artifacts", "prune").stdout == "0 deleted\n"
    file = next((folder / ".runwright" / "artifacts" / "note").rglob("*/*"))
    file.parent.rename(file.parent.with_name("2026-01-01"))
    pruned = json.loads(runwright(folder, "artifacts", "prune", "--json").stdout)
    assert len(pruned["deleted"]) == 1
    assert runwright(folder, "artifacts", "get", listed[0]["uri"], "-o", "copy.txt").returncode == 2


def test_damaged_and_unknown_artifacts_are_refused(folder: Path) -> None:
    listed = json.loads(runwright(folder, "artifacts", "list", "r", "--json").stdout)
    next((folder / ".runwright" / "artifacts" / "note").rglob("*/*")).write_text("something else")
    damaged = runwright(folder, "artifacts", "get", listed[0]["uri"], "-o", "copy.txt")
    assert damaged.returncode == 2
    assert "is damaged" in damaged.stderr
    assert not (folder / "copy.txt").exists()
    assert "not the address" in runwright(folder, "artifacts", "get", "nonsense", "-o", "x").stderr
    assert runwright(folder, "artifacts", "list", "nobody").returncode == 2
