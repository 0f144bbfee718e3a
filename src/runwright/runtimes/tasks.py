"""The table of steps that workers carry out: offered by whoever drives a run, taken by a worker, ended by it.

Between the three lies a lease. It has a number that is raised with each taker, so that whoever was late finds that
nobody listens to it any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.plan import Step
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.log.base import RunLog
from runwright.plans.secrets import SecretPlace

LEASE_SECONDS = 5.0
STOP, KILL = 1, 2


class Task(msgspec.Struct, frozen=True):
    """A step on offer, as its driver sees it."""

    task_id: int
    run_id: str
    path: str
    attempt: int
    state: str
    worker: str | None
    lease_no: int
    losses: int
    outcome: bytes | None

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.run_id, self.path, self.attempt)


class StepOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a worker is to do. Secrets are named; it is the worker who knows them."""

    run_id: str
    tenant_id: str
    environment_id: str
    path: str
    attempt: int
    engine_attempt: int
    step: Step
    inputs: dict[str, Any]
    secrets: list[SecretPlace] = []
    restored: Any = None
    source: str | None = None
    """The file that the plan's code lies beside."""


class StepOutcome(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What became of it."""

    result: Any = None
    error: ErrorInfo | None = None
    artifacts: list[ArtifactRef] = []


class TaskTable:
    def __init__(self, log: RunLog) -> None:
        self._desk = log.desk
        self._log = log

    def _until(self) -> int:
        return self._log.store_time() + int(LEASE_SECONDS * 1e6)

    # For drivers

    async def offer(self, run: RunIdentity, path: str, attempt: int, queue: str, owner: str) -> Task:
        """Offer a step, or take on the offer that an earlier driver made; as it now is."""
        row = (await self._desk.write("offer_task", run.run_id, run.tenant_id, path, attempt, queue, owner))[0]
        await self._log.ring()
        return Task(*row)

    async def to_see_to(self, owner: str) -> list[Task]:
        """What was taken or is done, and what has lost its worker."""
        return [Task(*row) for row in await self._desk.read("tasks_to_see_to", owner, self._log.store_time())]

    async def start(self, task: Task, order: StepOrder) -> bool:
        """Give the worker its order: the start is in the log. False if it is not that worker's any more."""
        done = await self._desk.write(
            "start_task", task.task_id, task.lease_no, msgspec.json.encode(order), self._until()
        )
        await self._log.ring()
        return bool(done)

    async def put_back(self, task: Task, *, hold: bool = False, lost: bool = False) -> bool:
        """Nobody has it any more: it is on offer again, or held back."""
        state = "HELD" if hold else "OFFERED"
        done = await self._desk.write("put_back_task", task.task_id, task.lease_no, state, int(lost))
        await self._log.ring()
        return bool(done)

    async def hold(self, run_id: str) -> None:
        await self._desk.write("hold_tasks", run_id)

    async def stop(self, task_id: int, how: int) -> None:
        await self._desk.write("stop_task", task_id, how)
        await self._log.ring()

    async def drop(self, run_id: str, path: str, attempt: int) -> None:
        await self._desk.write("drop_task", run_id, path, attempt)

    async def drop_all(self, run_id: str) -> None:
        await self._desk.write("drop_reports", run_id)
        await self._desk.write("drop_tasks", run_id)

    async def sweep(self) -> None:
        """Clear up after drivers that died with their runs ended."""
        await self._desk.write("drop_old_tasks")
        await self._desk.write("drop_old_reports")

    async def reports(self, owner: str) -> list[tuple[int, str, str, int, bytes]]:
        """Checkpoints that workers want written: number, run, path, attempt, state."""
        return [tuple(row) for row in await self._desk.read("reports_to_see_to", owner)]

    async def answer(self, report_no: int, trouble: str) -> None:
        await self._desk.write("answer_report", report_no, trouble)
        await self._log.ring()

    # For workers, by way of a server

    async def claim(
        self, worker: str, queues: Sequence[str], tenant_id: str | None, most: int
    ) -> list[tuple[int, int]]:
        """Take steps that are on offer: the number of each, and of its lease."""
        names = msgspec.json.encode(list(queues)).decode()
        rows = await self._desk.write("claim_tasks", worker, self._until(), names, tenant_id, most)
        if rows:
            await self._log.ring()
        return [(row[0], row[1]) for row in rows]

    async def orders(self, worker: str, claimed: dict[int, int]) -> tuple[dict[int, bytes], set[int]]:
        """Of what was claimed: the orders that have come, and what will not come any more."""
        ids = msgspec.json.encode(list(claimed)).decode()
        rows = await self._desk.read("orders_of", worker, ids)
        held = {row[0]: row for row in rows if row[1] == claimed[row[0]]}
        ready = {task_id: row[6] for task_id, row in held.items() if row[2] == "STARTED"}
        return ready, set(claimed) - set(held)

    async def find(self, task_id: int) -> Any:
        rows = await self._desk.read("find_task", task_id)
        return rows[0] if rows else None

    async def beat(self, task_id: int, lease_no: int, worker: str) -> int | None:
        """Keep a lease. Whether its step is to stop (1) or to be killed (2); None if the lease is lost."""
        rows = await self._desk.write("beat_task", task_id, lease_no, worker, self._until())
        return rows[0][0] if rows else None

    async def end(self, task_id: int, lease_no: int, worker: str, outcome: bytes) -> bool:
        """Keep what a worker says became of a step. False if nobody listens to it any more."""
        rows = await self._desk.write("end_task", task_id, lease_no, worker, outcome)
        if rows:
            await self._log.ring()
        return bool(rows)

    async def give_back(self, task_id: int, lease_no: int) -> None:
        """A worker that stops lets go of what it had."""
        await self._desk.write("put_back_task", task_id, lease_no, "OFFERED", 0)
        await self._log.ring()

    async def report(self, task_id: int, lease_no: int, body: bytes) -> int:
        rows = await self._desk.write("put_report", task_id, lease_no, body)
        await self._log.ring()
        return rows[0][0]

    async def keep(self, task_id: int, lease_no: int, ref: ArtifactRef) -> None:
        """Note an artifact that a worker handed over: only those count as made by its step."""
        await self._desk.write("put_kept", task_id, lease_no, msgspec.json.encode(ref))

    async def kept(self, task_id: int) -> list[ArtifactRef]:
        rows = await self._desk.read("kept_of", task_id)
        return [msgspec.json.decode(row[0], type=ArtifactRef) for row in rows]

    async def take_answer(self, report_no: int) -> str | None:
        rows = await self._desk.write("take_answer", report_no)
        return rows[0][0] if rows else None
