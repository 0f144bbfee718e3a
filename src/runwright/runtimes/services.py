"""RunServices: what every runtime needs to drive runs and execute steps, in the engine or in a worker process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from runwright.contract.errors import RETRYABLE_STORE_CODES, RunwrightError
from runwright.contract.snapshot import Alert
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.run_log import RunLog
from runwright.plans.store import PlanStore
from runwright.storage.artifacts import ArtifactStore
from runwright.storage.output.files import StepLogs
from runwright.storage.output.log_table import StepLogTable
from runwright.storage.result_stores import Tiers
from runwright.storage.values import ValueBackend, ValueStore
from runwright.tools.base import Tool
from runwright.tools.secrets import EnvironmentSecrets, SecretsProvider

from .background import BackgroundTasks
from .clock_jumps import ClockJumps
from .plan_resolver import PlanResolver
from .protocols import ExecutorProtocol, SubRunStarter
from .settings import EngineSettings
from .timers import MAX_SLEEP, Timers

logger = logging.getLogger("runwright.runtimes")

FOREVER = 1e9  # seconds


class RunServices:
    def __init__(
        self,
        log: RunLog,
        executor: ExecutorProtocol,
        tools: dict[str, Tool],
        plans: PlanStore,
        values: ValueBackend,
        step_logs: StepLogs | StepLogTable,
        settings: EngineSettings,
        *,
        secrets: SecretsProvider | None = None,
        provider: str = "embedded",
        artifacts: ArtifactStore | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self.log = log
        self.clock = log.clock
        self.ids = log.ids
        self.executor = executor
        self.tools = tools
        self.plans = plans
        self.run_plans = PlanResolver(log, plans, self.check_stores)
        self.results = ValueStore(values, tiers or Tiers({}, "local", self.clock.now))
        self.step_logs = step_logs
        self.settings = settings
        self.write_budget = log.store.append_queue.budget  # seconds after which the facts of an append are given up
        self.provider = provider
        self.artifacts = artifacts
        self.secrets: SecretsProvider = secrets or EnvironmentSecrets()
        self.sub_runs: SubRunStarter | None = None  # set by the layer that can start runs
        self.late_results = 0  # attempts that ended after their run had moved to another process
        self.is_closing = False
        self.loop = asyncio.get_running_loop()
        self.background = BackgroundTasks()
        self.result_thread = ThreadPoolExecutor(1, thread_name_prefix="runwright-result")
        """Decodes and encodes large results. That lets no other thread run, so one at a time leaves the event loop its
        turns."""
        self._deferred = asyncio.Lock()
        longest = FOREVER if settings.alone else MAX_SLEEP
        self.clock_jumps = ClockJumps(self.clock)
        # Due times are read from the wall clock, durations from the monotonic clock, which is never set.
        self.wall_timers = Timers(self.clock.now, 1e-6, self._sleep, longest)
        self.monotonic_timers = Timers(self.clock.monotonic, 1.0, self._sleep, longest)

    def _sleep(self, seconds: float) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.clock.sleep(seconds))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something in the background."""
        self.background.spawn(work)

    def call_threadsafe(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call something on the event loop, from any thread."""
        self.loop.call_soon_threadsafe(work, *arguments)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.monotonic_timers.set(self.clock.monotonic() + seconds, call)

    def check_stores(self, graph: PlanGraph) -> None:
        """Refuse a playbook that names a result store which is not configured here."""
        self.results.tiers.check(graph.result_stores)

    async def wait_for_store(self) -> None:
        """Pause before an unavailable store is tried again."""
        await self.clock.sleep(self.settings.store_retry)

    async def next_slice(self) -> None:
        """Let everything else on the event loop run before an expensive decision continues. One decision continues at
        a time, in the order of arrival, however many runs have one."""
        async with self._deferred:
            await asyncio.sleep(0)

    def alert(self, alert: Alert) -> None:
        self.spawn(self._raise_alert(alert))

    async def _raise_alert(self, alert: Alert) -> None:
        """Store an alert, retrying while the store is unavailable: most alerts arise just then."""
        while True:
            try:
                await self.log.raise_alerts([alert])
                return
            except RunwrightError as error:
                if error.code not in RETRYABLE_STORE_CODES or self.is_closing:
                    logger.warning("Storing the alert %s failed: %s", alert.code, error)
                    return
            await self.wait_for_store()

    async def close(self) -> None:
        await self.results.tiers.close()
        self.result_thread.shutdown(wait=False, cancel_futures=True)
        self.executor.close()
