"""ResultReader: the results of steps, tasks and runs, also those that are stored by reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.result_ref import parse_result_address, ref_digest
from runwright.contract.snapshot import StepSnapshot
from runwright.contract.transitions import ENDED, RunStatus, StepStatus
from runwright.core.decider import Decider
from runwright.core.scheduling.stored_values import MissingValues, may_be_stored_item, stored_item
from runwright.runtimes.recovery import fold_run
from runwright.runtimes.result_loader import load_result_body
from runwright.runtimes.services import RunServices

T = TypeVar("T")

MAX_BYTES_ON_LOOP = 256 * 1024


class ResultReader:
    def __init__(self, services: RunServices) -> None:
        self._services = services
        self._log = services.log

    async def step_result(self, run_id: str, step_id: str) -> bytes:
        """The result of a step, or of the task of a playbook that a result address names, as JSON."""
        run = (await self._log.find_run(run_id)).identity
        if (address := parse_result_address(step_id)) is not None:
            if address.run_id != run_id:
                message = f"The result address belongs to run {address.run_id!r}, not to run {run_id!r}."
                raise RunwrightError(ErrorCode.REFERENCE_NOT_AVAILABLE, message)
            return await load_result_body(self._log, self._services.results, step_id, run.tenant_id)
        snapshot = await self._log.snapshot(run_id)
        step = next((step for step in snapshot.steps if step.step_id == step_id), None)
        if step is None:
            raise RunwrightError(
                ErrorCode.STEP_NOT_FOUND, f"Step {step_id!r} of run {run_id!r} not found, or not started."
            )
        return await self._completed_result(run, step)

    async def _completed_result(self, run: RunIdentity, step: StepSnapshot) -> bytes:
        for event_type in ("StepCompleted", "StepSkipped"):
            record = await self._log.find_event(run.run_id, event_type, step.step_id, step.logical_attempt_id)
            if record is not None and record.payload is not None:
                reference = record.payload.get("resultRef")
                if reference is None:
                    body = msgspec.json.encode(record.payload.get("result"))
                else:
                    body = await self._services.results.get(run, reference)
                return await self._with_iterations(run, body) if step.iterations else body
        advice = " Wait for its end." if step.status in (StepStatus.PENDING, StepStatus.RUNNING) else ""
        message = f"Step {step.step_id!r} has no result: it is {step.status}.{advice}"
        raise RunwrightError(ErrorCode.STEP_NOT_TERMINAL, message)

    async def run_result(self, run_id: str) -> Any:
        """The result of a completed run, as its plan defines it."""
        return await self._evaluate(*await self._completed_run(run_id), lambda value: value)

    async def run_result_body(self, run_id: str) -> bytes:
        """The result of a completed run, as JSON."""
        run, decider = await self._completed_run(run_id)
        stored = decider.scheduler.stored_result()
        if stored is None:
            return await self._evaluate(run, decider, msgspec.json.encode)
        return stored.raw or b"null" if stored.ref is None else await self._services.results.get(run, stored.ref)

    async def _completed_run(self, run_id: str) -> tuple[RunIdentity, Decider]:
        row = await self._log.find_run(run_id)
        graph = await self._services.run_plans.graph_of(row.identity)
        if row.status is not RunStatus.COMPLETED:
            has_ended = row.status in ENDED
            code = ErrorCode.RUN_TERMINAL if has_ended else ErrorCode.RUN_NOT_TERMINAL
            advice = "" if has_ended else " Wait for its end."
            raise RunwrightError(code, f"Run {run_id!r} has no result: it is {row.status}.{advice}")
        return row.identity, Decider(graph, await fold_run(self._log, run_id, graph.result_steps), row.identity)

    async def _evaluate(self, run: RunIdentity, decider: Decider, convert: Callable[[Any], T]) -> T:
        fetched = dict[str, bytes]()
        size = sum(len(stored.raw or b"") for stored in decider.execution.results.values())

        def work() -> T:
            for digest, body in fetched.items():
                decider.values.cache.add(digest, msgspec.json.decode(body), 0)
            return convert(decider.scheduler.result())

        try:
            while True:
                try:
                    if size <= MAX_BYTES_ON_LOOP:
                        return work()
                    return await self._services.loop.run_in_executor(self._services.result_thread, work)
                except MissingValues as missing:
                    get = self._services.results.get
                    fetched = {ref_digest(ref): await get(run, ref) for ref in missing.refs.values()}
                    size += sum(map(len, fetched.values()))
        finally:
            decider.values.cache.clear()  # the decider is garbage that is collected late

    async def _with_iterations(self, run: RunIdentity, body: bytes) -> bytes:
        """Collected results of a loop, with references replaced by what they refer to."""
        if not body.startswith(b"["):
            return body
        parts = msgspec.json.decode(body, type=list[msgspec.Raw])
        return b"[" + b",".join([await self._iteration_result(run, bytes(part)) for part in parts]) + b"]"

    async def _iteration_result(self, run: RunIdentity, part: bytes) -> bytes:
        stored = stored_item(msgspec.json.decode(part)) if may_be_stored_item(part) else None
        if stored is None:
            return part
        return stored.raw or b"null" if stored.ref is None else await self._services.results.get(run, stored.ref)
