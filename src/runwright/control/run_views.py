"""Views of runs that combine the log with the liveness of processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from runwright.contract.events import RunEventRecord
from runwright.contract.refs import ArtifactRef
from runwright.contract.snapshot import RunSnapshot, StepSnapshot
from runwright.contract.transitions import ENDED, RunStatus, StepStatus
from runwright.core.fold.state import substatus
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.model import RunRow
from runwright.log.protocols import LogReader

RECOVERING = {
    "substatus": "RECOVERING",
    "message": "No process is driving this run. Continue with: runwright recover, or start it by its id.",
}


async def abandoned_runs(log: LogReader, rows: Sequence[RunRow]) -> frozenset[str]:
    """The runs of the embedded engine that are running and that no live process drives. The log has no liveness."""
    ours = [row for row in rows if row.summary.provider in ("embedded", "mock")]
    active = ((RunStatus.RUNNING, None), (RunStatus.PAUSED, "DRAINING"))
    stuck = [row for row in ours if (row.status, substatus(row.summary)[0]) in active]
    living = await log.owners() if stuck else frozenset[tuple[str, int]]()
    return frozenset(row.identity.run_id for row in stuck if (row.owner, row.epoch) not in living)


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
