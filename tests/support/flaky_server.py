"""An HTTP server with faults by path."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs


class FlakyServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: Counter[str] = Counter()  # by path
        self.requests: list[dict[str, Any]] = []
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients close connections on purpose."""


class _Handler(BaseHTTPRequestHandler):
    server: FlakyServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def _handle(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        path = self.path.partition("?")[0]
        self.server.seen[path] += 1
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = {"method": self.command, "path": self.path, "headers": headers, "body": body.decode()}
        self.server.requests.append(request)
        getattr(self, f"on{path.replace('/', '_')}", self.on_missing)(request)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _handle  # noqa: N815

    def answer(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def on_missing(self, _request: dict[str, Any]) -> None:
        self.answer(404, b'{"error": "no such thing"}')

    def on_gone(self, _request: dict[str, Any]) -> None:
        """Answer 404 with a long body."""
        self.answer(404, json.dumps({"pad": "x" * 20_000}).encode())

    def on_echo(self, request: dict[str, Any]) -> None:
        self.answer(200, json.dumps(request).encode(), Set_Cookie="session=abc")

    def on_redirect(self, request: dict[str, Any]) -> None:
        """Redirect to the address in the query, with the status in the query."""
        query = parse_qs(request["path"].partition("?")[2])
        self.answer(int(query["status"][0]), b"", "text/plain", Location=query["to"][0])

    def on_orders(self, _request: dict[str, Any]) -> None:
        self.answer(200, b'{"rows": [1, 2, 3]}')

    def on_flaky(self, _request: dict[str, Any]) -> None:
        if self.server.seen["/flaky"] < 3:
            self.answer(503, b"busy", "text/plain", Retry_After="1")
        else:
            self.answer(200, b'"at last"')

    def on_later(self, _request: dict[str, Any]) -> None:
        if self.server.seen["/later"] < 2:
            moment = formatdate(time.time() + 2, usegmt=True)
            self.answer(429, b"", "text/plain", Retry_After=moment)
        else:
            self.answer(200, b'"at last"')

    def on_broken(self, _request: dict[str, Any]) -> None:
        self.answer(500, b'{"error": "broken"}')

    def on_pages(self, request: dict[str, Any]) -> None:
        """Answer one of three pages of two items; the first request for each page gets a 503."""
        page = int(request["path"].partition("page=")[2])
        self.server.seen[f"page {page}"] += 1
        if self.server.seen[f"page {page}"] == 1:
            self.answer(503, b"busy", "text/plain")
            return
        body = {"items": [2 * page - 1, 2 * page], "has_more": page < 3}
        self.answer(200, json.dumps(body).encode())

    def on_hang_up(self, _request: dict[str, Any]) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def on_half(self, _request: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"only this")
        self.wfile.flush()
        self.on_hang_up(_request)

    def on_slow(self, _request: dict[str, Any]) -> None:
        time.sleep(30)

    def on_large(self, _request: dict[str, Any]) -> None:
        self.answer(200, b"x" * 100_000, "text/plain")

    def on_binary(self, _request: dict[str, Any]) -> None:
        self.answer(200, bytes(range(256)), "application/octet-stream")

    def on_not_json(self, _request: dict[str, Any]) -> None:
        self.answer(200, b"{half", "application/json")

    def on_latin(self, _request: dict[str, Any]) -> None:
        self.answer(200, "über".encode("latin-1"), "text/plain; charset=latin-1")

    def on_moved(self, _request: dict[str, Any]) -> None:
        self.answer(302, Location="/orders")

    def on_elsewhere(self, _request: dict[str, Any]) -> None:
        self.answer(302, Location=f"http://localhost:{self.server.server_address[1]}/orders")

    def on_circle(self, _request: dict[str, Any]) -> None:
        self.answer(302, Location="/circle")

    def on_empty(self, _request: dict[str, Any]) -> None:
        self.answer(204)


@contextmanager
def flaky_server() -> Iterator[FlakyServer]:
    server = FlakyServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
