"""Find the plan of a run, and compare the code of its steps with that at its start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.plan import check_schema_version
from runwright.contract.refs import PlanRef
from runwright.contract.snapshot import Alert
from runwright.core.fold.payload_reader import read_payload
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.run_log import RunLog
from runwright.plans.store import PlanStore
from runwright.tools.python import changed_functions, make_file_importable, make_importable

logger = logging.getLogger("runwright.runtimes")


class PlanResolver:
    def __init__(self, log: RunLog, plans: PlanStore, check: Callable[[PlanGraph], None]) -> None:
        self._log = log
        self._plans = plans
        self._check = check

    async def to_drive(self, run: RunIdentity, provider: str) -> tuple[PlanGraph, payloads.RunStarted]:
        """As `find`, for a process that wants to drive the run: it must belong to the same runtime."""
        graph, started = await self.find(run)
        if started.engine_type not in (None, provider):
            raise RunwrightError(
                ErrorCode.CAPABILITY_NOT_SUPPORTED,
                f"Run {run.run_id!r} belongs to the runtime {started.engine_type}; this is {provider}.",
            )
        self._check(graph)
        return graph, started

    async def graph_of(self, run: RunIdentity) -> PlanGraph:
        """The plan of a run, verified against its hash."""
        return (await self.find(run))[0]

    async def find(self, run: RunIdentity) -> tuple[PlanGraph, payloads.RunStarted]:
        """The plan of a run, and the payload of its RunStarted."""
        record = await self._log.find_event(run.run_id, "RunStarted")
        started = None if record is None else read_payload(payloads.RunStarted, record)
        if started is None or started.plan_ref is None:
            raise RunwrightError(
                ErrorCode.PLAN_NOT_FOUND,
                f"Run {run.run_id!r} does not name its plan: it was created by another engine.",
            )
        _check(run, started.plan_ref)
        if started.source is not None:
            make_file_importable(Path(started.source))  # where the process that started the run found its modules
        if started.working_directory is not None:
            make_importable(started.working_directory)
        try:
            return await self._plans.graph(started.plan_ref.sha256, run.tenant_id), started
        except RunwrightError as error:
            if error.code == ErrorCode.PLAN_INTEGRITY_VALIDATION_FAILED:
                alert = Alert(code=error.code, severity="P1", detail=error.detail, run_id=run.run_id)
                await self._log.raise_alerts([alert])
            raise

    async def compare_code(self, run_id: str, code: dict[str, str]) -> None:
        """Warn if the code of a step has changed since the run started. The run continues with the new code."""
        changed = await asyncio.to_thread(changed_functions, code)
        if not changed:
            return
        names = ", ".join(changed)
        detail = f"The code of {names} has changed since the run started; the run continues with the new code."
        logger.warning("Run %s: %s", run_id, detail)
        alert = Alert(code="CODE_CHANGED", severity="P2", detail=detail, run_id=run_id, subject=names)
        await self._log.raise_alerts([alert])


def _check(run: RunIdentity, reference: PlanRef) -> None:
    check_schema_version(reference.schema_version)
    if (reference.plan_id, reference.plan_version) != (run.plan_id, run.plan_version):
        raise RunwrightError(
            ErrorCode.PLAN_REF_MISMATCH,
            f"Run {run.run_id!r} is a run of plan {run.plan_id} {run.plan_version}, but refers to "
            f"{reference.plan_id} {reference.plan_version}.",
        )
