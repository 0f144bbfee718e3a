"""Worker loop: claim steps, execute them as the embedded engine does, and report their outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from runwright.client.transport import HttpTransport
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import ErrorInfo
from runwright.log.system_clock import SystemClock
from runwright.runtimes.embedded.task_queue import LEASE_SECONDS, StepAssignment
from runwright.runtimes.executor.executor import Executor
from runwright.runtimes.executor.work import NOT_STARTED, Outcome, Work
from runwright.runtimes.protocols import Execution
from runwright.tools.base import Tool
from runwright.tools.secrets import SecretsProvider

from .job import WorkerJob

logger = logging.getLogger("runwright.worker")

HEARTBEAT_SECONDS = LEASE_SECONDS / 4
HEARTBEAT_TIMEOUT_SECONDS = LEASE_SECONDS / 2
"""Then the heartbeat is sent to the next server: one that does not respond must not cost the lease."""
OUTPUT_SECONDS = 0.3
CLAIM_WAIT_SECONDS = 20.0
CLAIM_TIMEOUT_SECONDS = 35.0
STOP_GRACE_SECONDS = 5.0
RELEASE_SECONDS = 5.0
RETRY_SECONDS = 0.5


class Worker:
    """Executes up to `slots` steps of some queues at a time. `completed_count`: outcomes reported so far."""

    def __init__(
        self,
        transport: HttpTransport,
        name: str,
        tools: dict[str, Tool],
        secrets: SecretsProvider,
        *,
        queues: Sequence[str] = ("default",),
        slots: int = 8,
    ) -> None:
        self._transport = transport
        self._name = name
        self._tools = tools
        self._secrets = secrets
        self._queues = list(queues)
        self._slots = slots
        self._executor = Executor(asyncio.get_running_loop())
        self._jobs: dict[str, WorkerJob] = {}
        self._running: dict[str, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slot_freed = asyncio.Condition()
        self.completed_count = 0

    @property
    def job_count(self) -> int:
        return len(self._jobs)

    async def run(self, stop: asyncio.Event, drain: float) -> None:
        """Execute steps until `stop` is set; then let running ones finish for `drain` seconds, and release the rest."""
        heartbeats = asyncio.create_task(self._send_heartbeats())
        output = asyncio.create_task(self._send_output())
        claims = asyncio.create_task(self._claim_steps())
        try:
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({stopping, claims}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if claims.done():
                claims.result()  # Claiming ends only with an error: raise it.
            claims.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=drain)
            await self._release_jobs()
        finally:
            for task in (claims, heartbeats, output, *self._tasks):
                task.cancel()
            await asyncio.gather(claims, heartbeats, output, *self._tasks, return_exceptions=True)
            self._executor.close()

    async def _claim_steps(self) -> None:
        """Claim steps whenever a slot is free."""
        while True:
            async with self._slot_freed:
                await self._slot_freed.wait_for(lambda: len(self._jobs) < self._slots)
            free = self._slots - len(self._jobs)
            request = {"worker": self._name, "queues": self._queues, "most": free, "waitSeconds": CLAIM_WAIT_SECONDS}
            requested_at = SystemClock.monotonic()
            response = await self._transport.post("/v1/leases", request, timeout=CLAIM_TIMEOUT_SECONDS)
            for lease in response["leases"]:
                assignment = msgspec.convert(lease["order"], StepAssignment)
                job = WorkerJob(self._transport, self._name, lease["leaseId"], assignment, requested_at)
                self._jobs[job.lease_id] = job
                task = asyncio.create_task(self._run_job(job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _run_job(self, job: WorkerJob) -> None:
        try:
            outcome = await self._execute(job)
            if outcome is not None:
                await job.report_outcome(outcome)
                self.completed_count += 1
        except RunwrightError as error:
            assignment = job.assignment
            logger.warning("Result of step %s of run %s was rejected: %s", assignment.path, assignment.run_id, error)
        finally:
            self._jobs.pop(job.lease_id, None)
            self._running.pop(job.lease_id, None)
            async with self._slot_freed:
                self._slot_freed.notify_all()

    async def _execute(self, job: WorkerJob) -> Outcome | None:
        """Execute a step. None if its lease was lost or released meanwhile: then nothing may be reported."""
        try:
            work: Work = await asyncio.to_thread(job.prepare, self._tools, self._secrets)
        except RunwrightError as error:
            return Outcome(error=ErrorInfo(error.code, error.detail, retryable=False, category="plan"))
        except Exception as error:  # Secrets providers and installed tools may raise anything.
            message = f"Preparing the step failed: {type(error).__name__}."
            return Outcome(error=ErrorInfo("STEP_RAISED", message, retryable=True, category="system"))
        while True:
            outcome = await self._start(job.lease_id, work) if work.may_start() else NOT_STARTED
            if outcome is NOT_STARTED and not await self._confirm([job.lease_id]):
                await asyncio.sleep(RETRY_SECONDS)
            if job.lease_id not in self._jobs:
                return None
            if outcome is not NOT_STARTED:
                return outcome

    async def _start(self, lease_id: str, work: Work) -> Outcome:
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            if not ended.done():
                ended.set_result(outcome)

        self._running[lease_id] = self._executor.start(work, done)
        return await ended

    async def _send_heartbeats(self) -> None:
        """Extend the leases at intervals."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self._jobs:
                await self._confirm(list(self._jobs))

    async def _confirm(self, leases: list[str]) -> bool:
        """Send one heartbeat, and obey its answer. False if there was none."""
        requested_at = SystemClock.monotonic()
        try:
            document = {"worker": self._name, "leases": leases}
            response = await self._transport.post("/v1/leases/beat", document, timeout=HEARTBEAT_TIMEOUT_SECONDS)
        except RunwrightError as error:
            logger.warning("Heartbeat rejected: %s", error)
            return False
        for lease_id, command in response["leases"].items():
            self._apply_command(lease_id, command)
        for lease_id in leases:
            if lease_id in self._jobs:
                self._jobs[lease_id].confirmed_at = requested_at
        return True

    def _apply_command(self, lease_id: str, command: str) -> None:
        execution = self._running.get(lease_id)
        if command == "stop" and execution is not None:
            execution.cancel(STOP_GRACE_SECONDS)
        elif command == "kill" and execution is not None:
            execution.kill()
        elif command == "lost" and lease_id in self._jobs:
            job = self._jobs.pop(lease_id)
            logger.warning("Lost the lease of step %s of run %s", job.assignment.path, job.assignment.run_id)
            if execution is not None:
                execution.kill()

    async def _send_output(self) -> None:
        """Send the output of running steps every OUTPUT_SECONDS."""
        while True:
            await asyncio.sleep(OUTPUT_SECONDS)
            for job in list(self._jobs.values()):
                try:
                    await job.send_output()
                except RunwrightError as error:
                    if error.code != ErrorCode.LEASE_LOST:
                        logger.warning("Output of step %s was rejected: %s", job.assignment.path, error)

    async def _release_jobs(self) -> None:
        """Kill the remaining steps and release their leases, so that other workers execute them."""
        jobs, self._jobs = self._jobs, {}  # Forgotten first, so that no outcome of a killed step is reported.
        for lease_id, job in jobs.items():
            execution = self._running.get(lease_id)
            if execution is not None:
                execution.kill()
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await job.release()
            except (RunwrightError, TimeoutError):
                pass  # The lease expires by itself.
