"""Runs as people look at them: what the log says, and what only the processes at work can add to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from runwright.contract.events import RunEventRecord
from runwright.contract.refs import ArtifactRef
from runwright.contract.snapshot import RunSnapshot, StepSnapshot
from runwright.contract.transitions import ENDED, RunStatus, StepStatus
from runwright.core.net import Net
from runwright.core.state import substatus
from runwright.log.model import RunRow
from runwright.log.reader import LogReader

RECOVERING = {
    "substatus": "RECOVERING",
    "message": "No process drives this run. `runwright recover` takes it up, and so does whatever starts it by its id.",
}


async def left_behind(log: LogReader, rows: Sequence[RunRow]) -> frozenset[str]:
    """The runs of our own engine that are under way and that no living process drives. The log cannot tell."""
    ours = [row for row in rows if row.summary.provider in ("embedded", "mock")]
    at_work = ((RunStatus.RUNNING, None), (RunStatus.PAUSED, "DRAINING"))
    stuck = [row for row in ours if (row.status, substatus(row.summary)[0]) in at_work]
    living = await log.owners() if stuck else frozenset[tuple[str, int]]()
    return frozenset(row.identity.run_id for row in stuck if (row.owner, row.epoch) not in living)


def with_pending(snapshot: RunSnapshot, net: Net) -> list[StepSnapshot]:
    """All steps of the plan in its order; those that no event names yet are PENDING. Of a playbook: its visits, and
    while it runs the steps that were not visited."""
    seen = {step.step_id: step for step in snapshot.steps}
    if net.routes is not None:
        names = () if snapshot.status in ENDED else tuple(net.index)
        return [*snapshot.steps, *(StepSnapshot(name, StepStatus.PENDING, 1) for name in names if name not in seen)]
    return [seen.get(node.step.step_id) or StepSnapshot(node.step.step_id, StepStatus.PENDING, 1) for node in net.nodes]


async def artifacts_of(log: LogReader, run_id: str) -> list[tuple[str, ArtifactRef]]:
    """What the steps of a run made, also of one that failed or still runs."""
    found: list[tuple[str, ArtifactRef]] = []
    async for record in log.events(run_id):
        if record.step_id is not None and "artifactRefs" in (record.payload or {}):
            try:
                refs = msgspec.convert((record.payload or {})["artifactRefs"], list[ArtifactRef])
            except msgspec.ValidationError:
                continue  # another engine's event says something else by that name
            found += [(record.step_id, ref) for ref in refs]
    return found


async def to_its_end(log: LogReader, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
    """A run's events, those to come included, until it has ended and all of it was given."""
    async for record in log.follow(run_id, after):
        yield record
        if record.event_type in ("RunCompleted", "RunFailed", "RunCancelled"):
            if (await log.find_run(run_id)).status not in ENDED:
                continue  # a foreign log may hold an end that was none
            async for last in log.events(run_id, record.run_seq):
                yield last
            return
