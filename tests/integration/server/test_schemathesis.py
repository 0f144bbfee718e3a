"""The server against its own description: whatever schemathesis can make of it, the server answers as it says.

One real server, in a process of its own; every operation gets good data and bad, each alone and then in chains
(a run that was started is looked at, a token that was made is revoked).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis.errors import HypothesisWarning

schemathesis = pytest.importorskip("schemathesis")

from schemathesis import Case, Config, GenerationMode, HookContext  # noqa: E402
from schemathesis.engine import StopReason, events, from_schema  # noqa: E402

from support.server import HELLO, WAITING  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(f"ignore::{HypothesisWarning.__module__}.HypothesisWarning")]

PROFILE = os.environ.get("RUNWRIGHT_PROFILE", "quick")
CASES = {"quick": 4, "full": 12, "soak": 300}[PROFILE]
"""Cases made up for each operation, and twice as many chains of them."""
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
]
REFUSALS = ["400", "401", "403", "404", "405", "409", "413", "415", "422", "429"]
LEFT_OUT = ["/v1/stream"]
"""It never ends while it has nothing to refuse; tests/integration/server/test_streams.py is about it. A run's own stream stays
in: it ends with its run, and only runs that have ended are named to it here."""
SSE_SCHEMA = "SSE event violates schema"
"""Schemathesis holds each event of a stream to the schema of its answer. OpenAPI 3.1 can only describe the answer as
a whole, and that is a text; what is in the events is for tests/integration/server/test_streams.py."""
EVERYTHING = ("Admin", "System")
SCOPES = ("events:server", "steps", "metrics")


class Server:
    """A server in a process of its own, somebody who may do everything there, and some runs to look at."""

    def __init__(self, folder: Path) -> None:
        (folder / "runwright.toml").write_text("[server]\nrate = 0\n")
        self._folder = folder
        store = f"sqlite:///{folder}/runs.db"
        self._log = (folder / "server.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runwright", "serve", "--port", "0", "--json", "--no-access-log", "--store", store],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (folder / "server.log").read_text()
        self.address: str = json.loads(line)["address"]
        made = self._post("/v1/tokens", {"name": "tester", "roles": EVERYTHING, "scopes": SCOPES})
        self.token_id: str = made["details"]["tokenId"]
        self.headers = {"Authorization": f"Bearer {made['token']}"}
        self.ended: str = self._post("/v1/runs", {"plan": HELLO, "context": {"runId": "done/by us"}})["runId"]
        self.held: str = self._post("/v1/runs", {"plan": WAITING, "context": {"runId": "held"}})["runId"]
        self._get(f"/v1/runs/{quote(self.ended, safe='')}?wait=30s")

    def _post(self, path: str, body: Any) -> Any:
        headers = getattr(self, "headers", {})
        return httpx.post(self.address + path, json=body, headers=headers, timeout=30).raise_for_status().json()

    def _get(self, path: str) -> Any:
        return httpx.get(self.address + path, headers=self.headers, timeout=60).raise_for_status().json()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def complaints(self) -> list[str]:
        """What it logged as a fault of its own."""
        self._log.flush()
        lines = (self._folder / "server.log").read_text(errors="replace").splitlines()
        return [line for line in lines if '"level":"error"' in line or "Traceback" in line]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)

    def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
        _steer(case, made)

    schemathesis.hook(before_call)
    try:
        yield made
    finally:
        schemathesis.hooks.unregister(before_call)
        made.stop()


def _schema(server: Server, **phases: Any) -> Any:
    every = ("examples", "coverage", "fuzzing", "stateful")
    options = {
        # The same cases every time, so that what passed once passes again; a soak looks for new ones.
        "generation": {"max-examples": CASES, "deterministic": PROFILE != "soak", "with-security-parameters": False},
        "headers": server.headers,
        "request-timeout": 20.0,
        "workers": 1,
        "phases": {name: phases.get(name, {"enabled": False}) for name in every},
    }
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json", config=Config.from_dict(options))
    schema.config.checks.update(included_check_names=CHECKS)
    # Of a list of events, those that are none are refused each in its place, and the rest goes in.
    schema.config.checks.negative_data_rejection.expected_statuses = [*REFUSALS, "207"]
    for path in LEFT_OUT:
        schema = schema.exclude(path=path)
    return schema


def _steer(case: Case, server: Server) -> None:
    """Keep a case from waiting, or from revoking what it shows; and let good ones be about runs that are there."""
    body: Any = case.body
    if case.operation.path == "/v1/leases" and isinstance(body, dict):
        wait = body.get("waitSeconds", 20)
        if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= 30:
            case.body = {**body, "waitSeconds": wait / 1000}
    parameters: dict[str, Any] = case.path_parameters or {}
    if parameters.get("tokenId") == server.token_id:
        parameters["tokenId"] = server.token_id[::-1]
    if "runId" not in parameters or case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    choice = sum(str(parameters["runId"]).encode(errors="replace")) % 3
    if case.operation.path.endswith("/stream") or choice == 0:
        parameters["runId"] = quote(server.ended, safe="")
    elif choice == 1:
        parameters["runId"] = server.held
    if case.query and "wait" in case.query:
        case.query["wait"] = "10ms"


def _run(schema: Any, server: Server) -> None:
    """All that the engine makes of the schema; fails with every failure it found, each once."""
    found: dict[tuple[str, str, str], str] = {}
    cases = 0
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError):
            found[event.label, "error", str(event.value)] = repr(event.value)
        elif isinstance(event, events.FatalError):
            raise event.exception
        elif isinstance(event, events.EngineFinished):
            assert event.stop_reason is StopReason.COMPLETED, event.stop_reason
        elif isinstance(event, events.ScenarioFinished):
            cases += len(event.recorder.interactions)
            for label, title, text in _failures(event):
                found.setdefault((label, title, text.partition("\n")[0]), text)
    assert cases > len(schema), "hardly anything was sent"
    texts = [f"{label}: {title}\n{text}" for (label, title, _), text in found.items()]
    assert not texts, f"{len(texts)} of {cases} cases\n\n" + "\n\n".join(texts)
    assert server.is_alive()
    assert server.complaints() == []


def _failures(event: events.ScenarioFinished) -> Iterator[tuple[str, str, str]]:
    recorder = event.recorder
    for case_id, nodes in recorder.checks.items():
        for node in nodes:
            if node.failure_info is None:
                continue
            failure = node.failure_info.failure
            if failure.title == SSE_SCHEMA:
                continue
            case = recorder.cases[case_id].value
            answered = recorder.interactions[case_id].response
            told = "nothing" if answered is None else f"{answered.status_code} {answered.text[:500]}"
            text = f"{failure.message}\n{node.failure_info.code_sample}\nanswered: {told}"
            yield case.operation.label, failure.title, text


def test_each_operation_conforms_to_its_description(server: Server) -> None:
    on = {"enabled": True}
    # Every boundary of every value, some forty cases an operation: not in the quick profile.
    coverage = {"enabled": PROFILE != "quick", "generate-duplicate-query-parameters": True}
    _run(_schema(server, examples=on, coverage=coverage, fuzzing=on), server)


def test_chained_operations_conform_to_their_description(server: Server) -> None:
    chains = {"enabled": True, "max-steps": 8, "generation": {"max-examples": 2 * CASES}}
    _run(_schema(server, stateful=chains), server)
