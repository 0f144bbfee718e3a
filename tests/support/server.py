"""Helpers for tests of the server: a server on a real socket, and callers with or without a token."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote

import httpx

from runwright.server.main import open_server
from runwright.server.service import Service
from runwright.server.settings import ServerSettings
from support.waiting import until

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of http:// addresses: loading the certificates of the system takes longer than a request."""
HELLO = {"plan": "hello", "steps": [{"id": "greet", "shell": "echo hello"}]}
WAITING = {"plan": "held", "steps": [{"id": "wait", "wait": "1h"}, {"id": "after", "noop": {}}]}


class Caller:
    """A client of a server, with or without a token."""

    def __init__(self, service: Service, address: str, token: str | None = None) -> None:
        self.service = service
        self.address = address
        self.token = token
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.http = httpx.AsyncClient(base_url=address, headers=headers, timeout=60, verify=NO_TLS)

    async def request(self, method: str, path: str, expected: int = 200, **more: Any) -> Any:
        """Send a request, check the status of the response, and return its body."""
        answer = await self.http.request(method, path, **more)
        assert answer.status_code == expected, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content and "json" in answer.headers.get("content-type", "") else answer.text

    async def get(self, path: str, expected: int = 200, **more: Any) -> Any:
        return await self.request("GET", path, expected, **more)

    async def post(self, path: str, body: Any = None, expected: int = 200, **more: Any) -> Any:
        return await self.request("POST", path, expected, json=body, **more)

    async def start(self, plan: Any = None, expected: int = 201, **more: Any) -> Any:
        return await self.post("/v1/runs", {"plan": plan or HELLO, **more}, expected)

    async def run(self, plan: Any = None, **more: Any) -> str:
        """Run a plan to its end."""
        run_id = (await self.start(plan, **more))["runId"]
        ended = await self.get(f"{run_path(run_id)}?wait=30s")
        assert ended["status"] in ("COMPLETED", "FAILED", "CANCELLED"), ended
        return run_id

    async def start_waiting(self, run_id: str) -> Any:
        """Start a run and wait until its step waits; from then on, only requests add events to its log."""
        await self.start(WAITING, context={"runId": run_id})

        async def waits() -> bool:
            return (await self.get(f"{run_path(run_id)}/events?eventType=StepDelayed&stepId=wait"))["events"] != []

        await until(waits)
        return await self.get(f"{run_path(run_id)}/events")

    async def signal(self, run_id: str, kind: str, expected: int = 200, **more: Any) -> Any:
        body = {"signalId": self.service.log.ids.event_id(), "signalType": kind, **more}
        return await self.post(f"{run_path(run_id)}/signals", body, expected)

    async def stream(self, path: str, **headers: str) -> AsyncGenerator[dict[str, Any]]:
        """Yield server-sent events as they arrive."""
        async with self.http.stream("GET", path, headers=headers, timeout=60) as answer:
            assert answer.status_code == 200, (answer.status_code, await answer.aread())
            event: dict[str, Any] = {}
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name in ("id", "event"):
                    event[name] = value
                elif name == "data":
                    event["data"] = json.loads(value)
                elif not line and "data" in event:
                    yield event
                    event = {}


def run_path(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"


class RunningServer:
    """A server and its callers."""

    def __init__(self, service: Service, address: str) -> None:
        self.service = service
        self.address = address
        self.callers: list[Caller] = []
        self.anonymous = self.caller()

    def caller(self, token: str | None = None) -> Caller:
        made = Caller(self.service, self.address, token)
        self.callers.append(made)
        return made

    async def caller_with(
        self, *roles: str, tenant: str | None = None, name: str | None = None, scopes: tuple[str, ...] = (), **more: Any
    ) -> Caller:
        """Create a token and return a caller that uses it."""
        name = name or "-".join((*roles, *scopes, tenant or "all"))
        by = self.service.local_user(None, None)
        _, text = await self.service.tokens.create(name, by=by, tenant_id=tenant, roles=roles, scopes=scopes, **more)
        return self.caller(text)


@asynccontextmanager
async def running_server(store: str, **settings: Any) -> AsyncGenerator[RunningServer]:
    """Run a server for a store, on a real socket."""
    wanted = ServerSettings(**{"port": 0, "rate": 0, **settings})
    async with open_server(store, wanted) as (service, address):
        made = RunningServer(service, address)
        try:
            yield made
        finally:
            await asyncio.gather(*(caller.http.aclose() for caller in made.callers))


@contextmanager
def server_in_thread(store: str, **settings: Any) -> Iterator[str]:
    """Run a server in a separate thread; yield its address."""
    ready, stop = threading.Event(), threading.Event()
    found: list[str] = []

    async def live() -> None:
        async with open_server(store, ServerSettings(port=0, rate=0, **settings)) as (_, address):
            found.append(address)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        stop.set()
        thread.join()
