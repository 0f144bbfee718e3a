"""TaskQueue: the table of steps that workers execute.

The driver of a run offers a step, a worker claims it, the driver starts it, and the worker stores its outcome. A claim
comes with a lease, whose number is raised by each claim: requests of a worker that lost its lease are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.plan import Step
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.log.store import Store
from runwright.plans.secret_refs import SecretPlace

LEASE_SECONDS = 5.0
STOP, KILL = 1, 2


class WorkerTask(msgspec.Struct, frozen=True):
    """A task as its driver needs it: the columns of its row."""

    task_id: int
    run_id: str
    path: str
    attempt: int
    state: str
    worker: str | None
    lease_no: int
    losses: int
    outcome: bytes | None
    renewals: int
    """How often the lease of this task, and of earlier claims, was renewed."""

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.run_id, self.path, self.attempt)


class StepAssignment(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The step that a worker executes. It contains the names of secrets; the worker resolves them."""

    run_id: str
    tenant_id: str
    project_id: str | None = None
    environment_id: str
    path: str
    attempt: int
    engine_attempt: int
    step: Step
    inputs: dict[str, Any]
    secrets: list[SecretPlace] = []
    restored: Any = None
    source: str | None = None
    """The plan file; the code of the plan is in the same folder."""


class StepOutcome(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """The outcome of a step that a worker executed."""

    result: Any = None
    error: ErrorInfo | None = None
    artifacts: list[ArtifactRef] = []


class CheckpointReport(NamedTuple):
    """A checkpoint that a worker wants to be written."""

    report_no: int
    run_id: str
    path: str
    attempt: int
    state: bytes


class ClaimedTask(NamedTuple):
    task_id: int
    lease_no: int


class TaskQueue:
    def __init__(self, store: Store) -> None:
        self._side_tables = store.side_tables
        self._store = store

    # For drivers. A task belongs to the process that drives its run: changes by an earlier driver have no effect.

    async def offer(self, run: RunIdentity, path: str, attempt: int, queue: str, owner: str) -> WorkerTask | None:
        """Offer a step, or become the owner of the offer of an earlier driver. Returns the task as it is now; None if
        another process owns the run."""
        rows = await self._side_tables.write("offer_task", run.run_id, run.tenant_id, path, attempt, queue, owner)
        await self._store.notify()
        return WorkerTask(*rows[0]) if rows else None

    async def pending_changes(self, owner: str) -> list[WorkerTask]:
        """Return the tasks that were claimed or completed."""
        return [WorkerTask(*row) for row in await self._side_tables.read("pending_tasks", owner)]

    async def list_started(self, owner: str) -> list[WorkerTask]:
        """Return the tasks that workers execute."""
        return [WorkerTask(*row) for row in await self._side_tables.read("started_tasks", owner)]

    async def start(self, task: WorkerTask, assignment: StepAssignment, owner: str) -> bool:
        """Assign the step to the worker that claimed it, after its start is in the log. False if the lease was lost."""
        body = msgspec.json.encode(assignment)
        done = await self._side_tables.write("start_task", task.task_id, task.lease_no, owner, body)
        await self._store.notify()
        return bool(done)

    async def requeue(self, task: WorkerTask, owner: str, *, hold: bool = False, lost: bool = False) -> bool:
        """Offer a task again, or hold it. `lost` counts a lost worker. False if its lease has changed."""
        state = "HELD" if hold else "OFFERED"
        done = await self._side_tables.write("requeue_task", task.task_id, task.lease_no, owner, state, int(lost))
        await self._store.notify()
        return bool(done)

    async def hold(self, run_id: str, owner: str) -> None:
        """Withdraw the offers of a run until they are offered again."""
        await self._side_tables.write("hold_tasks", run_id, owner)

    async def stop(self, task_id: int, owner: str, mode: int) -> None:
        """Request that the worker stops the step; `mode` is STOP or KILL. The worker learns of it by its heartbeat."""
        await self._side_tables.write("stop_task", task_id, owner, mode)
        await self._store.notify()

    async def drop(self, run_id: str, path: str, attempt: int, owner: str) -> None:
        await self._side_tables.write("delete_task", run_id, path, attempt, owner)

    async def drop_all(self, run_id: str) -> None:
        await self._side_tables.write("delete_reports", run_id)
        await self._side_tables.write("delete_tasks", run_id)

    async def delete_leftovers(self) -> None:
        """Delete the tasks and reports of finished runs whose driver died."""
        await self._side_tables.write("delete_orphaned_tasks")
        await self._side_tables.write("delete_orphaned_reports")

    async def pending_reports(self, owner: str) -> list[CheckpointReport]:
        """Return the checkpoints that workers want to be written and that are not answered yet."""
        return [CheckpointReport(*row) for row in await self._side_tables.read("pending_reports", owner)]

    async def answer_report(self, report_no: int, error: str) -> None:
        """Answer a report: with an empty text if the checkpoint is durable, otherwise with the error."""
        await self._side_tables.write("answer_report", report_no, error)
        await self._store.notify()

    # For workers, through a server

    async def claim(self, worker: str, queues: Sequence[str], tenant_id: str | None, limit: int) -> list[ClaimedTask]:
        """Claim up to `limit` offered tasks; of one tenant, unless `tenant_id` is None."""
        names = msgspec.json.encode(list(queues)).decode()
        rows = await self._side_tables.write("claim_tasks", worker, names, tenant_id, limit)
        if rows:
            await self._store.notify()
        return [ClaimedTask(row[0], row[1]) for row in rows]

    async def load_assignments(self, worker: str, claimed: dict[int, int]) -> tuple[dict[int, bytes], set[int]]:
        """Return the assignments that have arrived for claimed tasks, and the tasks whose lease was lost.

        `claimed` maps task ids to lease numbers.
        """
        ids = msgspec.json.encode(list(claimed)).decode()
        rows = await self._side_tables.read("task_assignments", worker, ids)
        held = {row[0]: row for row in rows if row[1] == claimed[row[0]]}
        ready = {task_id: row[6] for task_id, row in held.items() if row[2] == "STARTED"}
        return ready, set(claimed) - set(held)

    async def find(self, task_id: int) -> Any:
        rows = await self._side_tables.read("find_task", task_id)
        return rows[0] if rows else None

    async def heartbeat(self, task_id: int, lease_no: int, worker: str) -> int | None:
        """Renew a lease. Returns 0, STOP or KILL as the driver requested; None if the lease is lost."""
        rows = await self._side_tables.write("renew_task_lease", task_id, lease_no, worker)
        return rows[0][0] if rows else None

    async def store_outcome(self, task_id: int, lease_no: int, worker: str, outcome: bytes) -> bool:
        """Store the outcome that a worker reports. False if the worker has lost its lease."""
        rows = await self._side_tables.write("end_task", task_id, lease_no, worker, outcome)
        if rows:
            await self._store.notify()
        return bool(rows)

    async def release(self, task_id: int, lease_no: int) -> None:
        """Offer a task again, released by a worker that stops."""
        await self._side_tables.write("release_task", task_id, lease_no)
        await self._store.notify()

    async def add_report(self, task_id: int, lease_no: int, body: bytes) -> int:
        """Add a checkpoint for the driver to write. Returns the number of the report."""
        rows = await self._side_tables.write("insert_report", task_id, lease_no, body)
        await self._store.notify()
        return rows[0][0]

    async def record_artifact(self, task_id: int, lease_no: int, ref: ArtifactRef) -> None:
        """Record an artifact that a worker uploaded: only recorded artifacts count as artifacts of its step."""
        await self._side_tables.write("insert_task_artifact", task_id, lease_no, msgspec.json.encode(ref))

    async def list_artifacts(self, task_id: int) -> list[ArtifactRef]:
        rows = await self._side_tables.read("task_artifacts", task_id)
        return [msgspec.json.decode(row[0], type=ArtifactRef) for row in rows]

    async def pop_answer(self, report_no: int) -> str | None:
        """Delete a report that was answered and return the answer; None while there is none."""
        rows = await self._side_tables.write("pop_report_answer", report_no)
        return rows[0][0] if rows else None
