"""Several server and worker processes on one store, and requests to those of them that answer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx


class Fleet:
    """Server and worker processes on one store."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self.servers: dict[str, subprocess.Popen[str]] = {}
        self.workers: list[subprocess.Popen[str]] = []
        self._logs: list[Any] = []

    def _spawn(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        log = (self.folder / f"{arguments[0]}-{len(self._logs)}.log").open("w")
        self._logs.append(log)
        return subprocess.Popen(
            [sys.executable, "-m", "runwright", *arguments], cwd=self.folder, stderr=log, text=True, **options
        )

    def server(self, port: int = 0, **variables: str) -> str:
        options = ("--port", str(port), "--json", "--no-access-log", "--store", self.store)
        process = self._spawn("serve", *options, stdout=subprocess.PIPE, env={**os.environ, **variables})
        assert process.stdout is not None
        address: str = json.loads(process.stdout.readline())["address"]
        self.servers[address] = process
        return address

    def worker(self, **variables: str) -> subprocess.Popen[str]:
        addresses = ",".join(self.servers)
        environment = {**os.environ, **variables}
        process = self._spawn("worker", "--server", addresses, stdout=subprocess.DEVNULL, env=environment)
        self.workers.append(process)
        return process

    def end(self) -> None:
        for process in (*self.workers, *self.servers.values()):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for log in self._logs:
            log.close()

    def log_tails(self) -> str:
        return "\n".join(file.read_text()[-3000:] for file in self.folder.glob("*.log"))


async def request(http: httpx.AsyncClient, addresses: list[str], method: str, path: str, **options: Any) -> Any:
    """Send a request to the first server that answers, like a client behind a load balancer."""
    deadline = time.monotonic() + 60
    turn = 0
    while time.monotonic() < deadline:
        address = addresses[turn % len(addresses)]
        turn += 1
        with suppress(httpx.TransportError):
            answer = await http.request(method, f"{address}{path}", **options)
            if answer.status_code < 500:
                assert answer.status_code < 400, (answer.status_code, answer.text)
                return answer.json()
            assert answer.status_code == 503, answer.text
            assert answer.headers["retry-after"]
        await asyncio.sleep(0.1)
    raise AssertionError(f"no server answers {method} {path}")


async def events_of(http: httpx.AsyncClient, addresses: list[str], run_id: str) -> list[dict[str, Any]]:
    return (await request(http, addresses, "GET", f"/v1/runs/{run_id}/events"))["events"]


async def wait_for_end(
    http: httpx.AsyncClient, addresses: list[str], run_id: str, seconds: float = 100
) -> dict[str, Any]:
    """Wait for the end of a run, for some time; return its snapshot."""
    deadline = time.monotonic() + seconds
    while True:
        snapshot = await request(http, addresses, "GET", f"/v1/runs/{run_id}?wait=10s")
        if snapshot["status"] != "RUNNING" or time.monotonic() > deadline:
            return snapshot
