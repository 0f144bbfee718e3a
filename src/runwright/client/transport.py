"""HTTP transport to one or more servers: retries with backoff, and failover to the next server."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from runwright._version import __version__
from runwright.config.local_token import find_local_token
from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.system_clock import SystemClock
from runwright.plans.problems import PlanInvalid, Problem

logger = logging.getLogger("runwright.client")

REQUEST_TIMEOUT = httpx.Timeout(75.0, connect=5.0)
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 5.0
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
RETRY_SECONDS, FIRST_RETRY_SECONDS = 15.0, 1.0
"""How long a request is retried: once a server has responded, and before any server has."""


class HttpTransport:
    """Requests to any of several servers, which share their store. After a failure the next server is tried.

    Every request may be sent twice: starts and signals have ids of their own.
    """

    def __init__(
        self,
        servers: list[str],
        token: str | None,
        *,
        retry_seconds: float | None = RETRY_SECONDS,
        name: str = "runwright",
    ) -> None:
        headers = {"user-agent": f"{name}/{__version__}"}
        token = token or find_local_token(servers[0])
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._servers = [check_server_url(server).rstrip("/") for server in servers]
        self._http = httpx.AsyncClient(headers=headers, timeout=REQUEST_TIMEOUT)
        self._retry_seconds = retry_seconds  # None: without limit
        self.clock: Clock = SystemClock()
        self._server_index = 0
        self._has_connected = False

    def _retry_limit(self, retry_seconds: float) -> float:
        """Retry only briefly before the first response: a server that never responded is most likely not running."""
        return retry_seconds if self._has_connected else min(retry_seconds, FIRST_RETRY_SECONDS)

    @property
    def server(self) -> str:
        return self._servers[self._server_index % len(self._servers)]

    async def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return msgspec.json.decode((await self.send("GET", path, query=query)).content)

    async def post(
        self, path: str, body: Any = None, *, content: bytes | None = None, timeout: float | None = None, **query: str
    ) -> Any:
        """Post a document as JSON, or `content` as bytes; return the decoded response, None if it is empty."""
        content_type = "application/json" if content is None else "application/octet-stream"
        encoded = msgspec.json.encode(body) if content is None else content
        response = await self.send(
            "POST", path, content=encoded, content_type=content_type, query=query, timeout=timeout
        )
        return msgspec.json.decode(response.content) if response.content else None

    async def post_for_bytes(self, path: str, body: Any, **query: str) -> bytes:
        encoded = msgspec.json.encode(body)
        response = await self.send("POST", path, content=encoded, content_type="application/json", query=query)
        return response.content

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        content_type: str | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """Send a request, and retry while servers are unreachable or overloaded.

        `timeout`: seconds to wait for each response, and at most between two attempts.
        Raises the error of a response that is not a success, and SERVER_UNREACHABLE once the retry time is over.
        """
        params = {name: value for name, value in (query or {}).items() if value is not None}
        all_headers = {**(headers or {}), **({} if content_type is None else {"content-type": content_type})}
        deadline = (
            None if self._retry_seconds is None else self.clock.monotonic() + self._retry_limit(self._retry_seconds)
        )
        limits = REQUEST_TIMEOUT if timeout is None else httpx.Timeout(timeout)
        backoff = MIN_BACKOFF_SECONDS
        while True:
            server = self.server
            try:
                response = await self._http.request(
                    method, f"{server}{path}", content=content, params=params, headers=all_headers, timeout=limits
                )
                self._has_connected = True
                if response.status_code < 300 or response.status_code == 304:
                    return response
                failure = error_from_response(response)
                if response.status_code not in RETRYABLE_STATUSES:
                    raise failure
            except httpx.TransportError as error:
                failure = _unreachable(server, error)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise _unreachable(server, error) from None
            if deadline is not None and self.clock.monotonic() + backoff > deadline:
                raise failure
            logger.debug("%s: %s; retrying", server, failure)
            self._server_index += 1
            await self.clock.sleep(backoff)
            backoff = min(backoff * 2, timeout or MAX_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)

    @asynccontextmanager
    async def stream(self, path: str, headers: Mapping[str, str]) -> AsyncGenerator[httpx.Response]:
        """Open a streamed response. It is not retried: only the caller knows how far it has read."""
        server = self.server
        timeout = httpx.Timeout(5.0, read=60.0)
        try:
            async with self._http.stream("GET", f"{server}{path}", headers=dict(headers), timeout=timeout) as response:
                if response.status_code >= 300:
                    await response.aread()
                    raise error_from_response(response)
                yield response
        except httpx.TransportError as error:
            self._server_index += 1
            raise _unreachable(server, error) from None

    async def close(self) -> None:
        await self._http.aclose()


def check_server_url(server: str) -> str:
    if not server.startswith(("http://", "https://")):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Invalid server URL {server!r}. Expected http://host:8484.")
    return server


def _unreachable(server: str, error: Exception) -> RunwrightError:
    cause = str(error) or type(error).__name__
    return RunwrightError(ErrorCode.SERVER_UNREACHABLE, f"{server} is unreachable: {cause}. Is it running?")


def error_from_response(response: httpx.Response) -> RunwrightError:
    """Decode a problem document into the error that the embedded app would raise."""
    try:
        problem: dict[str, Any] = msgspec.json.decode(response.content)
        code, detail = ErrorCode(problem["code"]), str(problem["detail"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        message = f"Unexpected response with status {response.status_code}. Is this a Runwright server?"
        return RunwrightError(ErrorCode.SERVER_UNREACHABLE, message)
    if problem.get("errors"):
        return PlanInvalid(
            Problem("plan", each.get("line"), each.get("column"), each["code"], each["detail"], each.get("path") or "")
            for each in problem["errors"]
        )
    facts = {"decision": problem["decision"]} if problem.get("decision") else {}
    return RunwrightError(code, detail, **facts)
