"""Gzip compression of responses. Large bodies are compressed on another thread: the event loop stays free."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping, Sequence
from typing import Any

MIN_BYTES = 1024
_MAX_ON_LOOP = 64 * 1024
_LEVEL = 5
_TYPES = (b"application/json", b"application/problem+json", b"application/yaml", b"text/plain")
"""Types that are compressed. Artifacts and event streams are not."""

Headers = Sequence[tuple[bytes, bytes]]


def accepts_gzip(request_headers: Mapping[bytes, bytes]) -> bool:
    """Whether Accept-Encoding includes gzip, with a weight other than 0."""
    for part in request_headers.get(b"accept-encoding", b"").lower().split(b","):
        name, _, parameters = part.strip().partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return parameters.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


class ResponseCompressor:
    """Sends the response of one request, compressed if it is complete, large enough and of a listed type."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._start: Any = None  # held back until the body is known

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            if _is_compressible(message["headers"]):
                self._start = message
            else:
                await self._send(message)
            return
        if self._start is not None:
            start, self._start = self._start, None
            body = message.get("body", b"")
            if not message.get("more_body") and len(body) >= MIN_BYTES:
                body = await _compress(body)
                message = {**message, "body": body}
                start["headers"] = _compressed_headers(start["headers"], len(body))
            await self._send(start)
        await self._send(message)


def _is_compressible(headers: Headers) -> bool:
    values = {name.lower(): value for name, value in headers}
    content_type = values.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return content_type in _TYPES and b"content-encoding" not in values


async def _compress(body: bytes) -> bytes:
    if len(body) <= _MAX_ON_LOOP:
        return gzip.compress(body, _LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, _LEVEL, mtime=0)


def _compressed_headers(headers: Headers, size: int) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    added = [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"), (b"content-length", str(size).encode())]
    return [*kept, *added]
