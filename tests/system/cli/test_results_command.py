"""`runwright results`: print the results of runs, steps and tasks, and prune stored results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import runwright

PLAYBOOK = """
apiVersion: noetl.io/v10
kind: Playbook
metadata: {name: p}
workflow:
- step: a
  tool:
  - big:
      kind: python
      code: "result = ['x' * 100] * 1000"
      spec: {result: {store: {scope: workflow}}}
  next: {arcs: [{step: b}]}
- step: b
  tool: {kind: noop, result: "{{ a | length }}"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(PLAYBOOK)
    assert runwright(tmp_path, "run", "p.yaml", "--run-id", "r").returncode == 0
    return tmp_path


def test_results_are_printed_and_pruned(folder: Path) -> None:
    address = "noetl://execution/r/step/a/task/big/run/1.1/attempt/1"
    assert runwright(folder, "results", "get", "r").stdout == "1000\n"
    assert runwright(folder, "results", "get", "@last", "b").stdout == "1000\n"
    assert json.loads(runwright(folder, "results", "get", "r", address).stdout) == ["x" * 100] * 1000
    pruned = runwright(folder, "results", "prune")
    assert (pruned.returncode, pruned.stdout) == (0, "local: 1 deleted\n"), pruned.stderr
    gone = runwright(folder, "results", "get", "r", address)
    assert gone.returncode == 2
    assert "REFERENCE_NOT_AVAILABLE" in gone.stderr
    assert "stored for the workflow only" in gone.stderr
    assert json.loads(runwright(folder, "results", "prune", "--json").stdout) == {"deleted": {"local": 0}}


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("[results]\nstore = 's3'", "Configure 's3' in [results.s3]"),
        ("[results.s3]\nurl = 'gs://x'", "[results.s3] url must be s3://bucket/prefix"),
        ("[results.nats_object]\nbucket = 'b'", "[results.nats_object] requires url"),
        (
            "[results.nats]\nurl = 'nats://x'",
            "Unknown field 'nats' in [results]. Allowed: store, local, s3, nats_object, postgres.",
        ),
        ("[results.local]\nfolder = 3", "[results.local] folder must be a non-empty string"),
    ],
)
def test_invalid_result_settings_are_reported(folder: Path, toml: str, sentence: str) -> None:
    (folder / "runwright.toml").write_text(toml)
    done = runwright(folder, "results", "get", "r")
    assert done.returncode == 2
    assert sentence in done.stderr, done.stderr


def test_prune_names_unavailable_stores_and_prunes_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_port = "127.0.0.1:9"
    bucket = f'[results.s3]\nurl = "s3://bucket/x"\nendpoint = "http://{closed_port}"\n'
    (folder / "runwright.toml").write_text(f'{bucket}[results.nats_object]\nurl = "nats://{closed_port}"\n')
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    pruned = runwright(folder, "results", "prune")
    assert (pruned.returncode, pruned.stdout) == (3, "local: 1 deleted\n"), pruned.stderr
    for name in ("nats_object", "s3"):
        assert f"Result store '{name}' is unavailable" in pruned.stderr
