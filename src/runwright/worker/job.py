"""One step at a worker: its context, its output, and what became of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runwright.client.line import Line
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import ArtifactRef
from runwright.plans.secrets import with_secrets
from runwright.results.encoding import check_checkpoint, encode_result
from runwright.runtimes.executor_work import Outcome, Work
from runwright.runtimes.tasks import StepOrder, StepOutcome
from runwright.tools.base import StepContext, Tool
from runwright.tools.python import make_importable
from runwright.tools.secrets import Mask, SecretContext, SecretsProvider

T = TypeVar("T")

LARGEST_OUTPUT = 10 * 1024 * 1024
"""Bytes of output that wait to be sent; what comes on top is dropped and counted."""
PART = 256 * 1024


class Job:
    def __init__(self, line: Line, worker: str, lease_id: str, order: StepOrder) -> None:
        self.order = order
        self.lease_id = lease_id
        self._line = line
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._artifacts: list[ArtifactRef] = []
        self._mask: Mask | None = None
        self._output: list[tuple[str, bytes]] = []
        self._unfinished: dict[str, bytes] = {}  # lines that may still turn into a secret
        self._held = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def prepare(self, tools: dict[str, Tool], secrets: SecretsProvider) -> Work:
        """What is to be done. Looks secrets up, which may take a while: not for a loop."""
        order = self.order
        tool = tools.get(order.step.kind)
        if tool is None:
            raise RunwrightError(
                ErrorCode.INVALID_STEP_SCHEMA, f"This worker has no tool {order.step.kind!r}. Install it there."
            )
        if order.source is not None and Path(order.source).exists():
            make_importable(str(Path(order.source).parent))
        names = list(dict.fromkeys([*order.step.secret_refs, *(place.name for place in order.secrets)]))
        found: dict[str, str] = {}
        if names:
            found = dict(secrets.resolve(names, SecretContext(order.tenant_id, order.environment_id)))
            self._mask = Mask(found.values())
        try:
            inputs = msgspec.convert(with_secrets(order.inputs, order.secrets, found), tool.inputs)
        except msgspec.ValidationError as error:
            detail = str(error) if not names else "a secret is not what the step takes there"
            raise RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, f"With its values filled in: {detail}.") from None
        context = StepContext(
            run_id=order.run_id,
            step_id=order.path,
            attempt=order.attempt,
            engine_attempt=order.engine_attempt,
            restored=order.restored,
            write=self.write,
            save=self._save,
            secrets={name: found[name] for name in order.step.secret_refs},
            artifacts=self,
            resolve=self._resolve,
        )
        return Work(tool, tool.lane(inputs, order.step), inputs, order.step, context)

    # For the step, wherever it runs

    def write(self, stream: str, data: bytes) -> None:
        with self._lock:
            if self._held + len(data) > LARGEST_OUTPUT:
                self._dropped += len(data)
                return
            self._held += len(data)
            self._output.append(("err" if stream == "err" else "out", data))

    def _save(self, state: Any) -> None:
        body = encode_result(state)
        if self._mask is not None:
            body = self._mask.json(body)
        check_checkpoint(body)
        self._ask("checkpoint", {"state": msgspec.Raw(body)})

    def keep(self, source: Path | bytes, kind: str) -> ArtifactRef:
        content = source if isinstance(source, bytes) else source.read_bytes()
        answer = self._wait(
            self._line.post(f"/v1/leases/{self.lease_id}/artifacts", content=content, worker=self._worker, kind=kind)
        )
        ref = msgspec.convert(answer, ArtifactRef)
        self._artifacts.append(ref)
        return ref

    def fetch(self, ref: ArtifactRef | str, target: Path) -> int:
        wanted = ArtifactRef(ref, "file") if isinstance(ref, str) else ref
        path = f"/v1/leases/{self.lease_id}/fetch"
        body = self._wait(self._line.fetch(path, wanted, worker=self._worker))
        return target.write_bytes(body)

    def _resolve(self, ref: Any) -> Any:
        return self._ask("resolve", {"ref": ref})["value"]

    def _ask(self, what: str, body: Any) -> Any:
        return self._wait(self._line.post(f"/v1/leases/{self.lease_id}/{what}", body, worker=self._worker))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """From the step's thread: have it done on the worker's loop, and wait."""
        answer: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return answer.result()

    # For the worker

    async def send_output(self, *, to_the_end: bool = False) -> None:
        """Send what the step printed since the last time. Where secrets are to be hidden, only whole lines."""
        while parts := self._some_output(to_the_end):
            body = {"parts": [{"stream": stream, "text": data.decode(errors="replace")} for stream, data in parts]}
            await self._line.post(f"/v1/leases/{self.lease_id}/output", body, worker=self._worker)

    def _some_output(self, to_the_end: bool) -> list[tuple[str, bytes]]:
        with self._lock:
            taken, size = self._taken()
            self._held -= size
            dropped, self._dropped = self._dropped, 0
        joined: dict[str, bytes] = {}
        for stream, data in taken:
            joined[stream] = joined.get(stream, b"") + data
        parts = [(stream, data) for stream in ("out", "err") if (data := self._masked(stream, joined, to_the_end))]
        if dropped:
            parts.append(("err", f"... {dropped:,} bytes of output are not kept ...\n".encode()))
        return parts

    def _taken(self) -> tuple[list[tuple[str, bytes]], int]:
        size = count = 0
        while count < len(self._output) and size < PART:
            size += len(self._output[count][1])
            count += 1
        taken, self._output = self._output[:count], self._output[count:]
        return taken, size

    def _masked(self, stream: str, fresh: dict[str, bytes], to_the_end: bool) -> bytes:
        data = self._unfinished.pop(stream, b"") + fresh.get(stream, b"")
        if self._mask is None:
            return data
        if not to_the_end:
            data, _, rest = data.rpartition(b"\n")
            self._unfinished[stream] = rest
            data += b"\n" if data else b""
        return self._mask.data(data)

    async def end(self, outcome: Outcome) -> None:
        """Say what became of it; once this returns, that is durable."""
        with suppress(RunwrightError):  # the lease is lost, or the output was too much: the result matters more
            await self.send_output(to_the_end=True)
        said = outcome.masked(self._mask)
        body = StepOutcome(
            result=None if said.result is None else msgspec.Raw(said.result),
            error=said.error,
            artifacts=[*self._artifacts, *said.artifacts],
        )
        await self._line.post(f"/v1/leases/{self.lease_id}/result", body, worker=self._worker)

    async def release(self) -> None:
        await self._line.post(f"/v1/leases/{self.lease_id}/release", None, worker=self._worker)
