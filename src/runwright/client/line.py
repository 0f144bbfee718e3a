"""The line to servers: requests that are tried again until somebody answers, or patience ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from runwright._version import __version__
from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.clock import SystemClock
from runwright.plans.problems import PlanInvalid, Problem

logger = logging.getLogger("runwright.client")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
PASSING = frozenset({429, 502, 503, 504})
"""Answers that another try may change."""
PATIENCE, FIRST_PATIENCE = 15.0, 1.0
"""Seconds for which a server that does not answer is asked again; and one that never did."""


class Line:
    """Any of the servers will do: they share their store. After a failure, the next one is asked.

    Everything that is sent may be sent twice: starts and signals have ids of their own.
    """

    def __init__(
        self, servers: list[str], token: str | None, *, patience: float | None = PATIENCE, name: str = "runwright"
    ) -> None:
        headers = {"user-agent": f"{name}/{__version__}"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._servers = [_address(server) for server in servers]
        self._http = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(75.0, connect=5.0))
        self._patience = patience  # None: for ever
        self.clock: Clock = SystemClock()
        self._turn = 0
        self._was_there = False

    def _left(self, patience: float) -> float:
        """A server that was there comes back more often than not; one that never answered is most likely not there."""
        return patience if self._was_there else min(patience, FIRST_PATIENCE)

    def add_server(self, server: str) -> None:
        self._servers.append(_address(server))

    @property
    def server(self) -> str:
        return self._servers[self._turn % len(self._servers)]

    async def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return msgspec.json.decode((await self.send("GET", path, query=query)).content)

    async def post(self, path: str, body: Any = None, *, content: bytes | None = None, **query: str) -> Any:
        kind = "application/json" if content is None else "application/octet-stream"
        data = msgspec.json.encode(body) if content is None else content
        answer = await self.send("POST", path, data=data, kind=kind, query=query)
        return msgspec.json.decode(answer.content) if answer.content else None

    async def fetch(self, path: str, body: Any, **query: str) -> bytes:
        answer = await self.send("POST", path, data=msgspec.json.encode(body), kind="application/json", query=query)
        return answer.content

    async def send(
        self,
        method: str,
        path: str,
        *,
        data: bytes | None = None,
        kind: str | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Ask until there is an answer. What is refused is raised; a server that is away is asked again."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        more = {**(headers or {}), **({} if kind is None else {"content-type": kind})}
        until = None if self._patience is None else self.clock.monotonic() + self._left(self._patience)
        pause = FIRST_PAUSE
        while True:
            server = self.server
            try:
                answer = await self._http.request(method, f"{server}{path}", content=data, params=given, headers=more)
                self._was_there = True
                if answer.status_code < 300 or answer.status_code == 304:
                    return answer
                trouble = refusal(answer)
                if answer.status_code not in PASSING:
                    raise trouble
            except httpx.TransportError as error:
                trouble = _unreachable(server, error)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise _unreachable(server, error) from None
            if until is not None and self.clock.monotonic() + pause > until:
                raise trouble
            logger.debug("%s: %s; trying again", server, trouble)
            self._turn += 1
            await self.clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    @asynccontextmanager
    async def stream(self, path: str, headers: Mapping[str, str]) -> AsyncGenerator[httpx.Response]:
        """An answer that goes on and on; nobody tries again but the caller."""
        server = self.server
        timeout = httpx.Timeout(5.0, read=60.0)
        try:
            async with self._http.stream("GET", f"{server}{path}", headers=dict(headers), timeout=timeout) as answer:
                if answer.status_code >= 300:
                    await answer.aread()
                    raise refusal(answer)
                yield answer
        except httpx.TransportError as error:
            self._turn += 1
            raise _unreachable(server, error) from None

    async def close(self) -> None:
        await self._http.aclose()


def _address(server: str) -> str:
    if not server.startswith(("http://", "https://")):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, f"{server!r} is no server's address. Write it as http://host:8484."
        )
    return server.rstrip("/")


def _unreachable(server: str, error: Exception) -> RunwrightError:
    why = str(error) or type(error).__name__
    return RunwrightError(ErrorCode.SERVER_UNREACHABLE, f"{server} does not answer: {why}. Is it running?")


def refusal(answer: httpx.Response) -> RunwrightError:
    """What a problem says, as the error that the embedded app would raise."""
    try:
        problem: dict[str, Any] = msgspec.json.decode(answer.content)
        code, detail = ErrorCode(problem["code"]), str(problem["detail"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        sentence = f"It answered {answer.status_code}. Is this a Runwright server?"
        return RunwrightError(ErrorCode.SERVER_UNREACHABLE, sentence)
    if problem.get("errors"):
        return PlanInvalid(
            Problem("plan", each.get("line"), each.get("column"), each["code"], each["detail"], each.get("path") or "")
            for each in problem["errors"]
        )
    facts = {"decision": problem["decision"]} if problem.get("decision") else {}
    return RunwrightError(code, detail, **facts)
