"""Producers of events in other languages: the examples run unchanged against a server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runwright.contract.keys import idempotency_key, preimage
from support.components import Missing, have_or_skip
from support.live_server import LiveServer
from support.paths import ROOT

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples" / "producers"
VECTORS = EXAMPLES / "key-vectors.json"
TYPESCRIPT = ("typescript@5.9.3", "@types/node@20.19.0")
TSC_OPTIONS = ("--strict", "--target", "es2022", "--module", "nodenext", "--types", "node")

Producer = Callable[..., "subprocess.CompletedProcess[str]"]


def _run(*command: str, folder: Path, token: str = "", expect: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RUNWRIGHT_TOKEN": token}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def _build_go(folder: Path) -> list[str]:
    if shutil.which("go") is None:
        raise Missing("the Go toolchain is not installed")
    shutil.copytree(EXAMPLES / "go", folder, dirs_exist_ok=True)
    _run("go", "vet", "./...", folder=folder)
    _run("go", "build", "-o", "producer", ".", folder=folder)
    return [str(folder / "producer")]


def _build_typescript(folder: Path) -> list[str]:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Missing("Node.js is not installed")
    shutil.copytree(EXAMPLES / "typescript", folder, dirs_exist_ok=True)
    _run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", *TYPESCRIPT, folder=folder)
    _run("node", "node_modules/typescript/bin/tsc", *TSC_OPTIONS, "producer.ts", folder=folder)
    return ["node", str(folder / "producer.js")]


@pytest.fixture(params=["go", "node"], scope="module")
def producer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Producer:
    folder = tmp_path_factory.mktemp(request.param)
    build = _build_go if request.param == "go" else _build_typescript
    command: Any = have_or_skip(request.param, lambda: build(folder))
    return lambda *arguments, **options: _run(*command, *arguments, folder=folder, **options)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    made = LiveServer(tmp_path)
    yield made
    made.stop()


def test_key_vectors_are_those_of_the_contract() -> None:
    for vector in json.loads(VECTORS.read_text()):
        expected, text = vector.pop("idempotencyKey"), vector.pop("preimage")
        fields = [
            vector[name] for name in ("runId", "stepId", "logicalAttemptId", "eventType", "planId", "planVersion")
        ]
        assert (preimage(*fields), idempotency_key(*fields)) == (text, expected)


def test_producer_computes_the_keys_of_the_vectors(producer: Producer) -> None:
    expected = [vector["idempotencyKey"] for vector in json.loads(VECTORS.read_text())]
    assert producer("--keys", str(VECTORS)).stdout.split() == expected


def test_producer_appends_a_run_once(producer: Producer, server: LiveServer) -> None:
    """It is started twice: events with the same keys count once, also with other ids."""
    token = server.headers["Authorization"].removeprefix("Bearer ")
    for status in ("appended", "duplicate"):
        lines = producer(server.address, "nightly-42", token=token).stdout.splitlines()
        receipts = [json.loads(line) for line in lines]
        assert [receipt["runSeq"] for receipt in receipts] == [1, 2, 3, 4, 5]
        assert {receipt["status"] for receipt in receipts} == {status}
    run = httpx.get(f"{server.address}/v1/runs/nightly-42", headers=server.headers).raise_for_status().json()
    assert (run["status"], run["completedSteps"]) == ("COMPLETED", 1)
    result = httpx.get(f"{server.address}/v1/runs/nightly-42/events?afterSeq=3&limit=1", headers=server.headers).json()
    assert result["events"][0]["payload"] == {"result": {"rows": 3, "place": "Zürich"}}


def test_producer_reports_why_it_was_refused(producer: Producer, server: LiveServer) -> None:
    done = producer(server.address, "nightly-42", token="rwt_0_unknown", expect=1)
    assert "AUTHN_FAILED" in done.stderr
