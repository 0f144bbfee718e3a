"""Random plans, playbooks, parameters, signals, events and bodies, sent to a live server: it refuses, and never fails.

Each case is made from its number alone, so that it can be repeated.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runwright.contract.keys import idempotency_key
from support.live_server import LiveServer

pytestmark = pytest.mark.slow

PROFILE = os.environ.get("RUNWRIGHT_PROFILE", "quick")
CASES = {"quick": 60, "full": 600, "soak": 10_000}[PROFILE]

ODD_VALUES: list[Callable[[random.Random], Any]] = [
    lambda _: None,
    lambda _: True,
    lambda r: r.choice([0, -1, 1, 2**31, 2**53, 2**63, -(2**63), 10**40]),
    lambda r: r.choice([0.5, -0.0, 1e308, 1e-308]),
    lambda r: r.choice(
        ["", " ", "\x00", "\ud800", "\ufeff", "a\nb", "\x1b[2J", "é" * 300, "x" * 5000, ".", "..", "a/b"]
    ),
    lambda r: "{{ " + r.choice(EXPRESSIONS) + " }}",
    lambda r: r.choice(["1s", "30d", "-1s", "1e9s", "soon", "2026-01-31T00:00:00Z"]),
    lambda r: [None] * r.choice([0, 1, 50]),
    lambda r: nested(r.choice([1, 20, 70, 300])),
    lambda _: {},
    lambda r: {r.choice(["", "id", "steps", "a" * 600, "\x00"]): r.randint(0, 3)},
    lambda _: {"secret": "TOKEN"},
]
EXPRESSIONS = [
    "params.n",
    "steps.a.result",
    "params['n'] * 10 ** 9",
    "range(100000)|map('string')|join(',')",
    "'%c'|format(55296)",
    "'x' * 10000000",
    "params|tojson|fromjson",
    "steps[params.n]",
    "((((((((1))))))))",
    "a b",
    "1 / 0",
    "params.l|map(attribute='a.b.c')|list",
    "[]|first",
    "'a'|int",
    "none.x",
    "x|unknown",
    "2 ** 4000",
    "workload.n",
    "(range(1000)|list)|batch(0)|list",
]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def plan(r: random.Random) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"noop": {"result": {"a": [1, 2]}}},
        {"shell": "true"},
        {"python": {"code": "1 + 1"}},
        {"wait": "10ms"},
        {"wait": {"event": "paid"}},
        {"approval": {"prompt": "Ship?", "fields": {"n": "integer"}}},
        {"noop": {}, "foreach": {"in": [1, 2, 3], "maxParallel": 2}},
        {"noop": {}, "when": "{{ params.n > 0 }}", "retry": {"maxAttempts": 2}, "timeout": "5s"},
        {"sql": {"connection": "sqlite:///:memory:", "query": "select 1"}},
    ]
    steps = [{"id": name, **r.choice(kinds)} for name in "abc"]
    return {"plan": "p", "params": {"n": 1, "l": [{"a": 1}]}, "steps": steps, "result": "{{ steps.a.result }}"}


def playbook(r: random.Random) -> dict[str, Any]:
    tool = r.choice([{"kind": "noop"}, {"kind": "python", "code": "result = 1"}, {"kind": "shell", "command": "true"}])
    first = {
        "step": "a",
        "tool": tool,
        "loop": {"in": "{{ workload.items }}", "iterator": "item"},
        "next": {"spec": {"mode": "exclusive"}, "arcs": [{"step": "b", "when": "{{ workload.n == 1 }}"}]},
    }
    return {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "p"},
        "workload": {"n": 1, "items": [1, 2]},
        "workflow": [first, {"step": "b", "tool": {"kind": "noop"}}],
    }


def signal(r: random.Random, _server: LiveServer) -> dict[str, Any]:
    kind = r.choice(
        ["PAUSE", "RESUME", "RETRY_STEP", "SKIP_STEP", "UPDATE_PARAMS", "INJECT_OVERRIDE", "APPROVE", "EVENT"]
    )
    payload: dict[str, Any] = {
        "RETRY_STEP": {"stepId": "wait"},
        "SKIP_STEP": {"stepId": "after"},
        "UPDATE_PARAMS": {"params": {"n": 2}},
        "INJECT_OVERRIDE": {"stepId": "after", "override": {"result": 1}},
        "APPROVE": {"stepId": "a", "answer": {"n": 1}},
        "EVENT": {"name": "paid", "payload": {"n": 1}},
    }.get(kind, {})
    signal_id = f"00000000-0000-4000-8000-{r.randrange(10**12):012}"
    return {"signalId": signal_id, "signalType": kind, "payload": payload, "reason": "a test"}


def event(r: random.Random) -> dict[str, Any]:
    event_type = r.choice(["RunQueued", "RunStarted", "StepStarted", "StepCompleted", "LoopStarted", "Other"])
    run_id, step_id = r.choice(["fuzz", "held", f"r{r.randrange(50)}"]), r.choice([None, "a", "a[0]", "a@2/t"])
    return {
        "idempotencyKey": idempotency_key(run_id, step_id, 1, event_type, "p", "1"),
        "eventId": f"00000000-0000-4000-8000-{r.randrange(10**12):012}",
        "eventType": event_type,
        "runId": run_id,
        "tenantId": "default",
        "projectId": "default",
        "environmentId": "default",
        "planId": "p",
        "planVersion": "1",
        "engineAttemptId": 1,
        "logicalAttemptId": 1,
        "stepId": step_id,
        "emittedAt": "2026-01-31T00:00:00.000000Z",
        "payload": {"n": 1},
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def mutate(r: random.Random, document: Any) -> Any:
    """Change some values of a document: replace, delete, duplicate or rename them."""
    for _ in range(r.choice([0, 1, 1, 2, 4])):
        path = r.choice(list(places(document)))
        if not path:
            continue
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        change = r.randrange(4)
        if change == 0:
            del holder[path[-1]]
        elif change == 1 and isinstance(holder, dict):
            holder[r.choice(["", "id", "unknown", "x" * 700])] = holder.pop(path[-1])
        elif change == 2 and isinstance(holder, list):
            holder.append(holder[path[-1]])
        else:
            holder[path[-1]] = r.choice(ODD_VALUES)(r)
    return document


def encode(r: random.Random, document: Any) -> bytes:
    body = json.dumps(document, ensure_ascii=r.random() < 0.9).encode(errors="surrogatepass")
    if r.random() < 0.1:  # damage the bytes
        at = r.randrange(len(body) + 1)
        body = body[:at] + r.choice([b"", b"\xff", b"\x00", b"NaN", b"{", b'"', b"\xed\xa0\x80"]) + body[at + 1 :]
    return body


def worker_request(r: random.Random) -> tuple[str, Any]:
    lease = r.choice(["1-1", "999999-1", "x", "1-", "0"])
    return r.choice(
        [
            ("/v1/leases", {"worker": "w", "queues": ["default"], "most": 1, "waitSeconds": 0}),
            ("/v1/leases/beat", {"worker": "w", "leases": [lease]}),
            (f"/v1/leases/{lease}/result?worker=w", {"result": {"n": 1}, "artifacts": []}),
            (f"/v1/leases/{lease}/output?worker=w", {"parts": [{"stream": "out", "text": "a"}]}),
            (f"/v1/leases/{lease}/checkpoint?worker=w", {"state": {"n": 1}}),
        ]
    )


def request(r: random.Random, server: LiveServer) -> tuple[str, bytes]:
    kind = r.randrange(8)
    if kind in (0, 1):
        document: Any = plan(r) if kind == 0 else playbook(r)
        document = mutate(r, document)
        sent = json.dumps(document) if r.random() < 0.2 else document  # the text of a file, too
        body = {"plan": sent, "params": mutate(r, {"n": 1})}
        return "/v1/runs", encode(r, body if r.random() < 0.8 else mutate(r, body))
    if kind == 2:
        return "/v1/runs/held/signals", encode(r, mutate(r, signal(r, server)))
    if kind == 3:
        body = {"plan": mutate(r, plan(r)), "params": mutate(r, {"n": 1}), "fromStep": r.choice([None, "a"])}
        return "/v1/runs/done%2Fby%20us/rerun", encode(r, body)
    if kind == 4:
        events = [mutate(r, event(r)) for _ in range(r.choice([1, 3]))]
        return "/v1/events", encode(r, events if r.random() < 0.5 else events[0])
    if kind == 5:
        path, document = worker_request(r)
        return path, encode(r, mutate(r, document))
    if kind == 6:
        confirmed = signal(r, server)["signalId"]
        return f"/v1/runs/held/signals/{confirmed}", encode(r, mutate(r, {"decision": "ACCEPTED", "reason": "a"}))
    return r.choice(["/v1/runs", "/v1/events", "/v1/tokens", "/v1/leases"]), r.randbytes(r.choice([0, 10, 300]))


class HealthProbe:
    """Calls /healthz all the time, and records the longest answer."""

    def __init__(self, address: str) -> None:
        self.longest = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(address,), daemon=True)
        self._thread.start()

    def _run(self, address: str) -> None:
        with httpx.Client(base_url=address, timeout=60) as http:
            while not self._stop.wait(0.05):
                began = time.monotonic()
                http.get("/healthz").raise_for_status()
                self.longest = max(self.longest, time.monotonic() - began)

    def stop(self) -> float:
        self._stop.set()
        self._thread.join()
        return self.longest


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    made = LiveServer(tmp_path)
    yield made
    made.stop()


def test_random_documents_never_cause_a_server_error(server: LiveServer) -> None:
    probe = HealthProbe(server.address)
    answers: dict[int, int] = {}
    headers = {**server.headers, "content-type": "application/json"}
    with httpx.Client(base_url=server.address, headers=headers, timeout=60) as http:
        for number in range(CASES):
            path, body = request(random.Random(number), server)
            answer = http.post(path, content=body)
            answers[answer.status_code] = answers.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, f"case {number}: POST {path} {body!r}: {answer.status_code} {answer.text}"
    longest = probe.stop()
    assert server.is_alive()
    assert server.complaints() == []
    assert answers.get(201, 0) > CASES / 20, answers
    assert sum(count for status, count in answers.items() if 400 <= status < 500) > CASES / 4, answers
    if PROFILE == "soak":
        assert longest < 1.0
