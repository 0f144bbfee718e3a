"""One step executed by a worker: its context, its output and its outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runwright.client.transport import HttpTransport
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import ArtifactRef
from runwright.log.system_clock import SystemClock
from runwright.plans.secret_refs import insert_secrets
from runwright.runtimes.embedded.task_queue import LEASE_SECONDS, StepAssignment, StepOutcome
from runwright.runtimes.executor.work import Outcome, Work
from runwright.storage.json_encoding import check_checkpoint, encode_result
from runwright.tools.base import StepContext, Tool
from runwright.tools.python import make_file_importable
from runwright.tools.secret_mask import Mask
from runwright.tools.secrets import SecretContext, SecretsProvider

T = TypeVar("T")

MAX_BUFFERED_BYTES = 10 * 1024 * 1024
"""Limit of output that waits to be sent. More is dropped, and the number of dropped bytes is reported."""
CHUNK_BYTES = 256 * 1024
SAFETY = 0.9
"""Part of a lease after which no step is started under it without another confirmation."""


class WorkerJob:
    """A claimed step. Implements the artifacts of its StepContext, and buffers its output until it is sent."""

    def __init__(
        self, transport: HttpTransport, worker: str, lease_id: str, assignment: StepAssignment, confirmed_at: float
    ) -> None:
        self.assignment = assignment
        self.lease_id = lease_id
        self.confirmed_at = confirmed_at  # when the last request was sent whose answer confirmed the lease
        self._transport = transport
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._artifacts: list[ArtifactRef] = []
        self._mask: Mask | None = None
        self._output: list[tuple[str, bytes]] = []  # stream and data, in the order of writing
        self._partial_lines: dict[str, bytes] = {}  # by stream: the rest of the line may complete a secret
        self._buffered_bytes = 0
        self._dropped_bytes = 0
        self._lock = threading.Lock()

    def prepare(self, tools: dict[str, Tool], secrets: SecretsProvider) -> Work:
        """Resolve secrets and decode inputs. Blocks on the secrets provider, so it must not run on an event loop."""
        assignment = self.assignment
        tool = tools.get(assignment.step.kind)
        if tool is None:
            raise RunwrightError(
                ErrorCode.INVALID_STEP_SCHEMA, f"Tool {assignment.step.kind!r} not found. Install it on the worker."
            )
        if assignment.source is not None and Path(assignment.source).exists():
            make_file_importable(Path(assignment.source))
        names = list(dict.fromkeys([*assignment.step.secret_refs, *(secret.name for secret in assignment.secrets)]))
        found: dict[str, str] = {}
        if names:
            found = dict(secrets.resolve(names, SecretContext(assignment.tenant_id, assignment.environment_id)))
            self._mask = Mask(found.values())
        try:
            inputs = msgspec.convert(insert_secrets(assignment.inputs, assignment.secrets, found), tool.inputs)
        except msgspec.ValidationError as error:
            detail = str(error) if not names else "a secret does not have the type that the step expects"
            message = f"Invalid inputs after evaluating expressions: {detail}."
            raise RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, message) from None
        context = StepContext(
            run_id=assignment.run_id,
            step_id=assignment.path,
            attempt=assignment.attempt,
            engine_attempt=assignment.engine_attempt,
            restored=assignment.restored,
            write=self.write,
            save=self._save,
            secrets={name: found[name] for name in assignment.step.secret_refs},
            artifacts=self,
            resolve=self._resolve,
            mask_text=None if self._mask is None else self._mask.mask_text,
            lease_remaining=self.lease_remaining,
        )
        lane = tool.lane(inputs, assignment.step)
        return Work(tool, lane, inputs, assignment.step, context)

    def lease_remaining(self) -> float:
        """Seconds in which the lease is certainly held. It may expire while this process is stopped. Thread-safe."""
        return self.confirmed_at + LEASE_SECONDS * SAFETY - SystemClock.monotonic()

    # Called by the step, on its own thread

    def write(self, stream: str, data: bytes) -> None:
        with self._lock:
            if self._buffered_bytes + len(data) > MAX_BUFFERED_BYTES:
                self._dropped_bytes += len(data)
                return
            self._buffered_bytes += len(data)
            self._output.append(("err" if stream == "err" else "out", data))

    def _save(self, state: Any) -> None:
        body = encode_result(state)
        if self._mask is not None:
            body = self._mask.mask_json(body)
        check_checkpoint(body)
        self._request("checkpoint", {"state": msgspec.Raw(body)})

    def store(self, source: Path | bytes, kind: str) -> ArtifactRef:
        content = source if isinstance(source, bytes) else source.read_bytes()
        path = f"/v1/leases/{self.lease_id}/artifacts"
        document = self._wait(self._transport.post(path, content=content, worker=self._worker, kind=kind))
        ref = msgspec.convert(document, ArtifactRef)
        self._artifacts.append(ref)
        return ref

    def fetch(self, ref: ArtifactRef | str, target: Path) -> int:
        artifact = ArtifactRef(ref, "file") if isinstance(ref, str) else ref
        path = f"/v1/leases/{self.lease_id}/fetch"
        body = self._wait(self._transport.post_for_bytes(path, artifact, worker=self._worker))
        return target.write_bytes(body)

    def _resolve(self, ref: Any) -> Any:
        return self._request("resolve", {"ref": ref})["value"]

    def _request(self, operation: str, body: Any) -> Any:
        return self._wait(self._transport.post(f"/v1/leases/{self.lease_id}/{operation}", body, worker=self._worker))

    def _wait(self, request: Coroutine[Any, Any, T]) -> T:
        """Run a request on the worker's loop, from the thread of the step, and wait for its result."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(request, self._loop)
        return future.result()

    # Called by the worker, on its loop

    async def send_output(self, *, is_last: bool = False) -> None:
        """Send the output written since the last call; if secrets are masked, only whole lines unless `is_last`."""
        while parts := self._next_chunk(is_last):
            body = {"parts": [{"stream": stream, "text": data.decode(errors="replace")} for stream, data in parts]}
            await self._transport.post(f"/v1/leases/{self.lease_id}/output", body, worker=self._worker)

    def _next_chunk(self, is_last: bool) -> list[tuple[str, bytes]]:
        with self._lock:
            writes = self._pop_writes()
            dropped, self._dropped_bytes = self._dropped_bytes, 0
        joined: dict[str, bytes] = {}
        for stream, data in writes:
            joined[stream] = joined.get(stream, b"") + data
        parts = [(stream, data) for stream in ("out", "err") if (data := self._masked(stream, joined, is_last))]
        if dropped:
            parts.append(("err", f"... {dropped:,} bytes of output dropped ...\n".encode()))
        return parts

    def _pop_writes(self) -> list[tuple[str, bytes]]:
        size = count = 0
        while count < len(self._output) and size < CHUNK_BYTES:
            size += len(self._output[count][1])
            count += 1
        writes, self._output = self._output[:count], self._output[count:]
        self._buffered_bytes -= size
        return writes

    def _masked(self, stream: str, joined: dict[str, bytes], is_last: bool) -> bytes:
        data = self._partial_lines.pop(stream, b"") + joined.get(stream, b"")
        if self._mask is None:
            return data
        if not is_last:
            data, _, rest = data.rpartition(b"\n")
            self._partial_lines[stream] = rest
            data += b"\n" if data else b""
        return self._mask.mask_bytes(data)

    async def report_outcome(self, outcome: Outcome) -> None:
        """Report the outcome, with secrets masked. It is durable once this returns."""
        with suppress(RunwrightError):  # Lost output, because of a lost lease or its size, must not prevent the result.
            await self.send_output(is_last=True)
        masked = outcome.masked(self._mask)
        body = StepOutcome(
            result=None if masked.result is None else msgspec.Raw(masked.result),
            error=masked.error,
            artifacts=[*self._artifacts, *masked.artifacts],
        )
        await self._transport.post(f"/v1/leases/{self.lease_id}/result", body, worker=self._worker)

    async def release(self) -> None:
        await self._transport.post(f"/v1/leases/{self.lease_id}/release", None, worker=self._worker)
