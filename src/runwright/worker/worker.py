"""A worker: takes steps, carries them out as the embedded engine would, and says what became of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from runwright.client.line import Line
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import ErrorInfo
from runwright.runtimes.executor import Executor
from runwright.runtimes.executor_work import Outcome, Work
from runwright.runtimes.tasks import LEASE_SECONDS, StepOrder
from runwright.runtimes.work import Execution
from runwright.tools.base import Tool
from runwright.tools.secrets import SecretsProvider

from .job import Job

logger = logging.getLogger("runwright.worker")

BEAT_SECONDS = LEASE_SECONDS / 4
OUTPUT_SECONDS = 0.3
WAIT_SECONDS = 20.0
STOP_GRACE = 5.0


class Worker:
    def __init__(
        self,
        line: Line,
        name: str,
        tools: dict[str, Tool],
        secrets: SecretsProvider,
        *,
        queues: Sequence[str] = ("default",),
        slots: int = 8,
    ) -> None:
        self._line = line
        self._name = name
        self._tools = tools
        self._secrets = secrets
        self._queues = list(queues)
        self._slots = slots
        self._executor = Executor(asyncio.get_running_loop())
        self._jobs: dict[str, Job] = {}
        self._running: dict[str, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = asyncio.Condition()
        self.done = 0

    @property
    def count(self) -> int:
        return len(self._jobs)

    async def run(self, stop: asyncio.Event, drain: float) -> None:
        """Work until asked to stop; then let what is under way end, for so long, and give the rest back."""
        beating = asyncio.create_task(self._beat())
        telling = asyncio.create_task(self._tell())
        taking = asyncio.create_task(self._take())
        try:
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({stopping, taking}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if taking.done():
                taking.result()  # it never ends by itself: say why it did
            taking.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=drain)
            await self._give_back()
        finally:
            for task in (taking, beating, telling, *self._tasks):
                task.cancel()
            await asyncio.gather(taking, beating, telling, *self._tasks, return_exceptions=True)
            self._executor.close()

    async def _take(self) -> None:
        """Take steps as long as there is room for them."""
        while True:
            async with self._free:
                await self._free.wait_for(lambda: len(self._jobs) < self._slots)
            most = self._slots - len(self._jobs)
            wanted = {"worker": self._name, "queues": self._queues, "most": most, "waitSeconds": WAIT_SECONDS}
            answer = await self._line.post("/v1/leases", wanted)
            for lease in answer["leases"]:
                order = msgspec.convert(lease["order"], StepOrder)
                job = Job(self._line, self._name, lease["leaseId"], order)
                self._jobs[job.lease_id] = job
                task = asyncio.create_task(self._work(job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _work(self, job: Job) -> None:
        try:
            outcome = await self._carry_out(job)
            if outcome is not None:
                await job.end(outcome)
                self.done += 1
        except RunwrightError as error:
            logger.warning("What became of %s of run %s is not heard: %s", job.order.path, job.order.run_id, error)
        finally:
            self._jobs.pop(job.lease_id, None)
            self._running.pop(job.lease_id, None)
            async with self._free:
                self._free.notify_all()

    async def _carry_out(self, job: Job) -> Outcome | None:
        """How it ended; None if it was given up because its lease was lost."""
        try:
            work: Work = await asyncio.to_thread(job.prepare, self._tools, self._secrets)
        except RunwrightError as error:
            return Outcome(error=ErrorInfo(error.code, error.detail, retryable=False, category="plan"))
        except Exception as error:  # a provider of secrets, or a tool from elsewhere
            message = f"The step could not be prepared: {type(error).__name__}."
            return Outcome(error=ErrorInfo("STEP_RAISED", message, retryable=True, category="system"))
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            if not ended.done():
                ended.set_result(outcome)

        self._running[job.lease_id] = self._executor.start(work, done)
        outcome = await ended
        return outcome if job.lease_id in self._jobs else None

    async def _beat(self) -> None:
        """Keep the leases, and stop what is to be stopped."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            leases = list(self._jobs)
            if not leases:
                continue
            try:
                answer = await self._line.post("/v1/leases/beat", {"worker": self._name, "leases": leases})
            except RunwrightError as error:
                logger.warning("The beat was refused: %s", error)
                continue
            for lease_id, word in answer["leases"].items():
                self._heed(lease_id, word)

    def _heed(self, lease_id: str, word: str) -> None:
        execution = self._running.get(lease_id)
        if word == "stop" and execution is not None:
            execution.cancel(STOP_GRACE)
        elif word == "kill" and execution is not None:
            execution.kill()
        elif word == "lost" and lease_id in self._jobs:
            job = self._jobs.pop(lease_id)
            logger.warning("The lease of %s of run %s was lost", job.order.path, job.order.run_id)
            if execution is not None:
                execution.kill()

    async def _tell(self) -> None:
        """Send what steps print, soon after they do."""
        while True:
            await asyncio.sleep(OUTPUT_SECONDS)
            for job in list(self._jobs.values()):
                try:
                    await job.send_output()
                except RunwrightError as error:
                    if error.code != ErrorCode.LEASE_LOST:
                        logger.warning("Output of %s was refused: %s", job.order.path, error)

    async def _give_back(self) -> None:
        jobs, self._jobs = self._jobs, {}  # so that nobody says what became of them
        for lease_id, job in jobs.items():
            execution = self._running.get(lease_id)
            if execution is not None:
                execution.kill()
            try:
                async with asyncio.timeout(5):
                    await job.release()
            except (RunwrightError, TimeoutError):
                pass  # its lease runs out
