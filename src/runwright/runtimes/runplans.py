"""The plans that runs follow, and the code of their steps, as a process finds them that takes a run up."""

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
from runwright.core.net import Net
from runwright.core.reading import read_payload
from runwright.log.base import RunLog
from runwright.plans.store import PlanStore
from runwright.tools.python import changed_functions, make_importable

logger = logging.getLogger("runwright.engine")


class RunPlans:
    def __init__(self, log: RunLog, plans: PlanStore, check: Callable[[Net], None]) -> None:
        self._log = log
        self._plans = plans
        self._check = check

    async def to_drive(self, run: RunIdentity, provider: str) -> tuple[Net, payloads.RunStarted]:
        """The same, for whoever wants to carry the plan out: one that was only played must not be."""
        net, started = await self.find(run)
        if started.engine_type not in (None, provider):
            raise RunwrightError(
                ErrorCode.CAPABILITY_NOT_SUPPORTED,
                f"Run {run.run_id!r} belongs to the runtime {started.engine_type}; this is {provider}.",
            )
        self._check(net)
        return net, started

    async def net(self, run: RunIdentity) -> Net:
        """The plan that a run follows, proved to be the one it names."""
        return (await self.find(run))[0]

    async def find(self, run: RunIdentity) -> tuple[Net, payloads.RunStarted]:
        """The same, and how the run was started."""
        record = await self._log.find_event(run.run_id, "RunStarted")
        started = None if record is None else read_payload(payloads.RunStarted, record)
        if started is None or started.plan_ref is None:
            raise RunwrightError(
                ErrorCode.PLAN_NOT_FOUND,
                f"Run {run.run_id!r} does not say which plan it follows: it was made by another engine.",
            )
        _check(run, started.plan_ref)
        if started.source is not None:
            make_importable(str(Path(started.source).parent))  # where the run's own process found its modules
        try:
            return await self._plans.net(started.plan_ref.sha256, run.tenant_id), started
        except RunwrightError as error:
            if error.code == ErrorCode.PLAN_INTEGRITY_VALIDATION_FAILED:
                alert = Alert(code=error.code, severity="P1", detail=error.detail, run_id=run.run_id)
                await self._log.raise_alerts([alert])
            raise

    async def compare_code(self, run_id: str, code: dict[str, str]) -> None:
        """Say so if a step's code is not what it was when the run started. The run goes on all the same."""
        changed = await asyncio.to_thread(changed_functions, code)
        if not changed:
            return
        names = ", ".join(changed)
        detail = f"The code of {names} has changed since the run started; the run goes on with the new code."
        logger.warning("Run %s: %s", run_id, detail)
        alert = Alert(code="CODE_CHANGED", severity="P2", detail=detail, run_id=run_id, subject=names)
        await self._log.raise_alerts([alert])


def _check(run: RunIdentity, reference: PlanRef) -> None:
    check_schema_version(reference.schema_version)
    if (reference.plan_id, reference.plan_version) != (run.plan_id, run.plan_version):
        raise RunwrightError(
            ErrorCode.PLAN_REF_MISMATCH,
            f"Run {run.run_id!r} is of plan {run.plan_id} {run.plan_version}, and refers to "
            f"{reference.plan_id} {reference.plan_version}.",
        )
