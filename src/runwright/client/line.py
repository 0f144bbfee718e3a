"""The line from a worker to its servers: requests that are tried again until somebody answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError

logger = logging.getLogger("runwright.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


class Line:
    """Any of the servers will do: they share their store. After a failure, the next one is asked."""

    def __init__(self, servers: list[str], token: str | None) -> None:
        headers = {"user-agent": "runwright-worker"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._servers = [server.rstrip("/") for server in servers]
        self._http = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(45.0, connect=5.0))
        self._turn = 0

    async def post(self, path: str, body: Any = None, *, content: bytes | None = None, **query: str) -> Any:
        """Ask until there is an answer. LEASE_LOST and other refusals are raised; a server that is away is not."""
        answer = await self._send(path, body, content, query)
        return msgspec.json.decode(answer.content) if answer.content else None

    async def fetch(self, path: str, body: Any, **query: str) -> bytes:
        return (await self._send(path, body, None, query)).content

    async def _send(self, path: str, body: Any, content: bytes | None, query: dict[str, str]) -> httpx.Response:
        kind = "application/json" if content is None else "application/octet-stream"
        data = msgspec.json.encode(body) if content is None else content
        pause = FIRST_PAUSE
        while True:
            server = self._servers[self._turn % len(self._servers)]
            try:
                answer = await self._http.post(
                    f"{server}{path}", content=data, params=query, headers={"content-type": kind}
                )
                if answer.status_code < 300:
                    return answer
                if answer.status_code not in (429, 500, 502, 503, 504):
                    raise _refusal(answer)
                logger.warning("%s answers %s; trying again", server, answer.status_code)
            except httpx.TransportError as error:
                logger.warning("%s does not answer: %r; trying again", server, error)
            self._turn += 1
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def close(self) -> None:
        await self._http.aclose()


def _refusal(answer: httpx.Response) -> RunwrightError:
    try:
        problem = msgspec.json.decode(answer.content)
        return RunwrightError(ErrorCode(problem["code"]), problem["detail"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        sentence = f"The server answered {answer.status_code}. Is this a Runwright server?"
        return RunwrightError(ErrorCode.SERVER_UNREACHABLE, sentence)
