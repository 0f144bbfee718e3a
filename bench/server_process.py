"""The server process of bench/server.py: the standard server with one more route, which only reads its request."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

from litestar import asgi

from runwright.auth.roles import Action
from runwright.server.main import open_server, run_server
from runwright.server.request_context import get_request_context
from runwright.server.routes.events import read_body
from runwright.server.settings import ServerSettings

RESPONSE = b'{"results":[],"appended":[],"deduped":[]}'


async def noop(scope: Any, receive: Any, send: Any) -> None:
    get_request_context(scope).permit(Action.APPEND)
    await read_body(receive)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(RESPONSE))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": RESPONSE})


async def main(store: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = ServerSettings(port=0, rate=0, connections=4096)
    async with open_server(store, settings, asgi("/v1/noop", copy_scope=False)(noop)) as (_, address):
        sys.stdout.write(json.dumps({"address": address}) + "\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    run_server(main(sys.argv[1]))
