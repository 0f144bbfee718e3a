"""The other end of bench/server.py: the server as it is, and one route more that only reads what it is sent."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

from litestar import asgi

from runwright.control.access import Act
from runwright.server.call import call_of
from runwright.server.ingest import read_body
from runwright.server.serve import run_server, serving
from runwright.server.settings import ServerSettings

ANSWER = b'{"results":[],"appended":[],"deduped":[]}'


async def noop(scope: Any, receive: Any, send: Any) -> None:
    call_of(scope).permit(Act.APPEND)
    await read_body(receive)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


async def main(store: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = ServerSettings(port=0, rate=0, connections=4096)
    async with serving(store, settings, asgi("/v1/noop", copy_scope=False)(noop)) as (_, address):
        sys.stdout.write(json.dumps({"address": address}) + "\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    run_server(main(sys.argv[1]))
