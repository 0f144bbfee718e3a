"""The server: the cost of HTTP compared with the log, and latencies as the store grows."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import harmonic_mean, median, quantiles
from typing import TYPE_CHECKING

import msgspec

import runwright as rw

from . import pgserver
from .samples import events
from .scale import Scale
from .table import Measurement, Row
from .targets import TARGETS

if TYPE_CHECKING:
    from tests.support.components import Postgres

_CONNECTIONS = 64
_BATCH = 500
_SLICES = 5


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    rounds = scale.rounds
    if "server-single" in wanted:
        yield Row(TARGETS["server-single"], [asyncio.run(_single(scale)) for _ in range(rounds)])
    if "server-batch" in wanted:
        yield Row(TARGETS["server-batch"], [asyncio.run(_batch(scale)) for _ in range(rounds)])
    if "server-start" in wanted:
        yield Row(TARGETS["server-start"], [asyncio.run(_start(scale)) for _ in range(scale.size(5, 3))])
    if "server-sse" in wanted:
        yield Row(TARGETS["server-sse"], [asyncio.run(_subscribers(scale)) for _ in range(scale.size(5, 3))])
    if "server-takeover" in wanted:
        yield Row(TARGETS["server-takeover"], _takeovers(scale))
    reads = [name for name in ("server-get", "server-list") if name in wanted]
    if reads:
        rounds_by_name = _measure_reads(scale)
        for name in reads:
            yield Row(TARGETS[name], rounds_by_name[name])


# A server in a child process


@contextmanager
def _served(folder: Path, store: str) -> Iterator[str]:
    with _process(folder, store) as (_, address):
        yield address


@contextmanager
def _process(folder: Path, store: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    (folder / "runwright.toml").write_text("[server]\nrate = 0\nconnections = 4096\n")
    command = [sys.executable, "-m", "bench.server_process", store]
    root = str(Path(__file__).parent.parent)
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, env={"PYTHONPATH": root, "PATH": "/usr/bin:/bin"}
    ) as server:
        assert server.stdout is not None
        yield server, json.loads(server.stdout.readline())["address"]
        server.send_signal(signal.SIGCONT)
        server.terminate()


class _Connection:
    """A minimal HTTP client, so that the server is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def send(self, request: bytes) -> bytes:
        self.writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        assert status < 300, (status, body)
        return body


@asynccontextmanager
async def _connected(address: str, count: int) -> AsyncIterator[list[_Connection]]:
    host, port = address.removeprefix("http://").split(":")
    connections = [_Connection(*await asyncio.open_connection(host, int(port))) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.writer.close()


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    headers = ("Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(body)}")
    return "\r\n".join([f"{method} {path} HTTP/1.1", *headers, "", ""]).encode() + body


async def _rate(connections: list[_Connection], requests: list[list[bytes]]) -> float:
    """Return requests per second; each connection sends its own requests sequentially."""

    async def send_all(connection: _Connection, own: list[bytes]) -> None:
        for request in own:
            await connection.send(request)

    started = time.perf_counter()
    await asyncio.gather(*(send_all(connection, own) for connection, own in zip(connections, requests, strict=True)))
    return sum(map(len, requests)) / (time.perf_counter() - started)


# Appending events


async def _single(scale: Scale) -> Measurement:
    """One event per request, 64 callers; against the same requests to a route that only reads them."""
    each = scale.size(150, 40)
    with scale.new_folder() as folder, _served(folder, f"sqlite:///{folder}/runs.db") as address:
        async with _connected(address, _CONNECTIONS) as connections:
            bodies = [
                [msgspec.json.encode(event) for event in events(f"run-{number}", each)]
                for number in range(_CONNECTIONS)
            ]
            idle = [[_request("POST", "/v1/noop", body) for body in own] for own in bodies]
            real = [[_request("POST", "/v1/events", body) for body in own] for own in bodies]
            await _rate(connections, [own[:10] for own in idle])
            rates: list[tuple[float, float]] = []
            for start in range(0, each, each // _SLICES):  # Alternately, because the machine's speed varies.
                part = slice(start, start + each // _SLICES)
                reference = await _rate(connections, [own[part] for own in idle])
                rates.append((await _rate(connections, [own[part] for own in real]), reference))
    return Measurement(*(harmonic_mean(rate) for rate in zip(*rates, strict=True)))


async def _batch(scale: Scale) -> Measurement:
    """Batches of 500, four callers; against the log itself with the same batches."""
    count = scale.size(40, 12)

    def batches(name: str) -> list[list[bytes]]:
        return [[msgspec.json.encode(event) for event in events(f"{name}-{number}", _BATCH)] for number in range(count)]

    with scale.new_folder() as folder:
        async with rw.open_log(f"sqlite:///{folder}/own.db") as log:
            own = batches("own")
            started = time.perf_counter()
            await asyncio.gather(*(_ingest(log, own[caller::4]) for caller in range(4)))
            reference = count * _BATCH / (time.perf_counter() - started)
        with _served(folder, f"sqlite:///{folder}/runs.db") as address:
            async with _connected(address, 4) as connections:
                sent = [_request("POST", "/v1/events", b"[" + b",".join(lines) + b"]") for lines in batches("sent")]
                ours = _BATCH * await _rate(connections, [sent[caller::4] for caller in range(4)])
    return Measurement(ours, reference)


async def _ingest(log: rw.RunLog, batches: list[list[bytes]]) -> None:
    for lines in batches:
        await log.ingest(lines)


# From the request to the first step


async def _start(scale: Scale) -> Measurement:
    plan = {"plan": "p", "steps": [{"id": "a", "python": {"code": "import time\ntime.monotonic()"}}]}
    latencies: list[float] = []
    with scale.new_folder() as folder, _served(folder, f"sqlite:///{folder}/runs.db") as address:
        async with _connected(address, 1) as (connection,):
            for number in range(scale.size(100, 30)):
                run_id = f"run-{number}"
                body = json.dumps({"plan": plan, "context": {"runId": run_id}}).encode()
                started = time.monotonic()
                await connection.send(_request("POST", "/v1/runs", body))
                await connection.send(_request("GET", f"/v1/runs/{run_id}?wait=10s"))
                result = await connection.send(_request("GET", f"/v1/runs/{run_id}/results/a"))
                latencies.append((json.loads(result) - started) * 1000)
    return Measurement(median(latencies[5:]), 0.0)


# Many subscribers


async def _subscribers(scale: Scale) -> Measurement:
    """Ten events per second to a thousand subscribers; the p95 of the delivery latency in ms."""
    count, seconds = scale.size(1000, 200), scale.size(5, 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    latencies: list[float] = []
    with scale.new_folder() as folder, _served(folder, f"sqlite:///{folder}/runs.db") as address:
        run = rw.new_run("streamed", "p")
        async with _connected(address, count + 1) as (producer, *subscribers):
            await producer.send(_request("POST", "/v1/events", msgspec.json.encode(rw.new_event("RunQueued", run))))

            async def listen(connection: _Connection) -> None:
                connection.writer.write(b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                while True:
                    line = await connection._reader.readline()
                    if line.startswith(b"data: "):
                        sent = float(line.split(b'"sent":')[1].split(b"}")[0])
                        latencies.append((time.monotonic() - sent) * 1000)

            listening = [asyncio.create_task(listen(connection)) for connection in subscribers]
            await asyncio.sleep(2)
            for number in range(10 * seconds):
                event = rw.new_event("Noted", run, step_id=f"n{number}", payload={"sent": time.monotonic()})
                await producer.send(_request("POST", "/v1/events", msgspec.json.encode(event)))
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
    assert len(latencies) == count * 10 * seconds, f"{len(latencies)} of {count * 10 * seconds} events were delivered"
    return Measurement(quantiles(latencies, n=20)[18], 0.0)


# A server that is gone


def _takeovers(scale: Scale) -> list[Measurement]:
    """From the moment a server falls silent to the next step of its run at another, in ms.

    It is stopped, not killed: a process that died on this machine is seen at once, as it would not be on another.
    """
    server = pgserver.start()
    try:
        return [_takeover(server, scale) for _ in range(scale.size(5, 1))]
    finally:
        server.stop()


def _takeover(server: Postgres, scale: Scale) -> Measurement:
    steps = [{"id": f"s{number}", "shell": "sleep 0.1"} for number in range(200)]
    plan = {"plan": "p", "steps": steps}
    body = json.dumps({"plan": plan, "context": {"runId": "moving"}}).encode()
    with (
        scale.new_folder() as folder,
        pgserver.database(server) as store,
        _process(folder, store) as (first, address),
        _served(folder, store) as other,
    ):
        return Measurement(asyncio.run(_next_step(first, address, other, body)), 0.0)


async def _next_step(first: subprocess.Popen[bytes], address: str, other: str, body: bytes) -> float:
    async with _connected(address, 1) as (producer,), _connected(other, 1) as (watcher,):

        async def last_seq() -> int:
            return json.loads(await watcher.send(_request("GET", "/v1/runs/moving")))["lastEventSeq"]

        await producer.send(_request("POST", "/v1/runs", body))
        await asyncio.sleep(1)
        first.send_signal(signal.SIGSTOP)
        stopped_at = time.perf_counter()
        await asyncio.sleep(0.2)  # Requests in flight arrive.
        seq = await last_seq()
        while await last_seq() == seq:  # noqa: ASYNC110 - waits for another process
            await asyncio.sleep(0.02)
        return (time.perf_counter() - stopped_at) * 1000


# Reads from a store that has grown


def _measure_reads(scale: Scale) -> dict[str, list[Measurement]]:
    """GET of a run and of a list of one tenant among several, with few runs in the store and with many."""
    few, many = 1000, scale.size(100_000, 10_000)
    server = pgserver.start()
    try:
        with scale.new_folder() as folder, pgserver.database(server) as store, _served(folder, store) as address:
            asyncio.run(_fill(store, 0, few))
            before = [asyncio.run(_time_reads(address)) for _ in range(scale.rounds)]
            asyncio.run(_fill(store, few, many))
            server.sql("ANALYZE", store.rpartition("/")[2])
            after = [asyncio.run(_time_reads(address)) for _ in range(scale.rounds)]
    finally:
        server.stop()
    return {
        name: [Measurement(ours[name], reference[name]) for ours, reference in zip(after, before, strict=True)]
        for name in ("server-get", "server-list")
    }


async def _fill(store: str, first: int, last: int) -> None:
    async with rw.open_log(store) as log:
        for start in range(first, last, 1000):
            queued = [
                rw.new_event("RunQueued", rw.new_run(f"run-{number:06}", "p", tenant_id=f"t{number % 10}"))
                for number in range(start, min(start + 1000, last))
            ]
            await log.ingest(queued)


async def _time_reads(address: str) -> dict[str, float]:
    async with _connected(address, 1) as (connection,):
        times: dict[str, list[float]] = {"server-get": [], "server-list": []}
        for number in range(100):
            for name, path in (
                ("server-get", f"/v1/runs/run-{number * 9:06}"),
                ("server-list", "/v1/runs?tenantId=t3&limit=50"),
            ):
                started = time.perf_counter()
                await connection.send(_request("GET", path))
                times[name].append((time.perf_counter() - started) * 1000)
        return {name: median(durations) for name, durations in times.items()}
