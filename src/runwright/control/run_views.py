"""Views of runs that combine the log with the liveness of processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from runwright.contract.events import RunEventRecord
from runwright.contract.refs import ArtifactRef
from runwright.contract.snapshot import RunSnapshot, StepSnapshot
from runwright.contract.transitions import ENDED, RunStatus, StepStatus
from runwright.core.fold.run_state import substatus
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.model import RunRow
from runwright.log.protocols import LogReader
from runwright.runtimes.alerts import DRIVER_FAILED

_RECOVERING = {
    "substatus": "RECOVERING",
    "message": "No process is driving this run. Continue with: runwright recover, or start it by its id.",
}
_DRIVER_FAILED = {
    "substatus": "embedded/DRIVER_FAILED",
    "message": "The process that drove this run failed on it, see its alerts. Cancel it, or start it again by its id.",
}


async def undriven_runs(log: LogReader, rows: Sequence[RunRow]) -> dict[str, dict[str, str]]:
    """The runs of the embedded engine that are running and that no live process drives, each with the fields that its
    documents have instead of those of the log, which knows no processes."""
    ours = [row for row in rows if row.summary.provider in ("embedded", "mock")]
    active = ((RunStatus.RUNNING, None), (RunStatus.PAUSED, "DRAINING"))
    stuck = [row for row in ours if (row.status, substatus(row.summary)[0]) in active]
    living = await log.owners() if stuck else frozenset[tuple[str, int]]()
    undriven = [row for row in stuck if (row.owner, row.epoch) not in living]
    return {row.identity.run_id: _DRIVER_FAILED if await _has_failed(log, row) else _RECOVERING for row in undriven}


async def _has_failed(log: LogReader, row: RunRow) -> bool:
    """Whether a driver failed on the run as it is. No process takes such a run over by itself: it was released."""
    if row.owner is not None:
        return False
    alerts = await log.alerts(row.identity.run_id)
    return any(alert.code == DRIVER_FAILED and alert.subject == str(row.last_seq) for alert in alerts)


def with_pending(snapshot: RunSnapshot, graph: PlanGraph) -> list[StepSnapshot]:
    """All steps of the plan in its order; those without an event are PENDING. Of a playbook: its visits and, while it
    runs, the steps that were not visited."""
    seen = {step.step_id: step for step in snapshot.steps}
    if not graph.runs_steps_once:
        names = () if snapshot.status in ENDED else tuple(graph.index)
        return [*snapshot.steps, *(StepSnapshot(name, StepStatus.PENDING, 1) for name in names if name not in seen)]
    return [
        seen.get(node.step.step_id) or StepSnapshot(node.step.step_id, StepStatus.PENDING, 1) for node in graph.nodes
    ]


async def artifacts_of(log: LogReader, run_id: str) -> list[tuple[str, ArtifactRef]]:
    """The artifacts of the steps of a run, also of a failed or running one."""
    found: list[tuple[str, ArtifactRef]] = []
    async for record in log.events(run_id):
        if record.step_id is not None and "artifactRefs" in (record.payload or {}):
            try:
                refs = msgspec.convert((record.payload or {})["artifactRefs"], list[ArtifactRef])
            except msgspec.ValidationError:
                continue  # an event of another engine uses the name otherwise
            found += [(record.step_id, ref) for ref in refs]
    return found


async def follow_to_end(log: LogReader, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
    """The events of a run, including later ones, until it has ended."""
    async for record in log.follow(run_id, after):
        yield record
        if record.event_type in ("RunCompleted", "RunFailed", "RunCancelled"):
            if (await log.find_run(run_id)).status not in ENDED:
                continue  # a foreign log may contain an end that was not legal
            async for last in log.events(run_id, record.run_seq):
                yield last
            return
