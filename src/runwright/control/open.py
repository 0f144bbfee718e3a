"""From a store's URL to a working engine: everything put together."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.base import RunLog
from runwright.log.open import DEFAULT_STORE, open_log
from runwright.plans.store import PlanStore
from runwright.results.logtable import StepLogTable
from runwright.results.steplogs import StepLogs
from runwright.results.store import ResultStore
from runwright.results.values import ValueKeeper, ValuesInFiles, ValuesWithLog
from runwright.runtimes.dispatch import queues_of
from runwright.runtimes.engine import Engine, EngineSettings
from runwright.runtimes.executor import Executor
from runwright.runtimes.mock import MockExecutor
from runwright.tools.base import Tool
from runwright.tools.http import HttpTool
from runwright.tools.playbook_http import PlaybookHttpTool
from runwright.tools.registry import all_tools
from runwright.tools.secrets import provider_from

from .artifacts import artifact_store
from .operations import Operations
from .policy import read_policy
from .results import result_tiers
from .settings import settings_table


def state_folder(store: str) -> Path:
    """Where what is kept apart from the log lies: beside a SQLite file, or in .runwright. As a path that stays the
    same whatever folder a step changes to."""
    scheme, _, rest = store.partition("://")
    folder = Path(rest[1:]).parent if scheme == "sqlite" and len(rest) > 1 else Path(".runwright")
    return folder.absolute()


def new_owner() -> str:
    """A name for this life of this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def tools_here() -> dict[str, Tool]:
    """All tools, held to what runwright.toml allows."""
    allowed = settings_table("http").get("allow")
    if allowed is None:
        return all_tools()
    if not isinstance(allowed, list) or not all(isinstance(host, str) for host in cast("list[Any]", allowed)):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, 'runwright.toml: [http] allow is a list of hosts, such as ["*.example.org"].'
        )
    http = HttpTool(cast("list[str]", allowed))
    return {**all_tools(), http.kind: http, PlaybookHttpTool.kind: PlaybookHttpTool(http)}


def is_shared(store: str) -> bool:
    """Whether processes of several machines may use this store, so that all that is kept beside the log lies in it."""
    return store.startswith("postgres")


def step_logs_of(log: RunLog, store: str) -> StepLogs | StepLogTable:
    """Where steps' output is: in the store, if many processes share it; else in files beside it."""
    if is_shared(store):
        return StepLogTable(log.desk)
    return StepLogs(state_folder(store) / "logs")


@asynccontextmanager
async def open_operations(
    store: str | None = None, *, settings: EngineSettings | None = None, runtime: str = "embedded"
) -> AsyncGenerator[Operations]:
    """Operations on a store. The runtime `mock` plays plans without carrying anything out."""
    url = store or os.environ.get("RUNWRIGHT_STORE") or DEFAULT_STORE
    folder = state_folder(url)
    settings, tools = settings or EngineSettings(), tools_here()
    async with open_log(url) as log:
        step_logs = step_logs_of(log, url)
        tiers = result_tiers(
            settings_table("results"), folder, log.clock.now, (lambda: log.desk) if is_shared(url) else None
        )
        engine = Engine(
            log,
            MockExecutor() if runtime == "mock" else Executor(asyncio.get_running_loop()),
            tools,
            PlanStore(log, queues_of(settings.workers, tools), tiers.usual),
            ValuesWithLog(log) if isinstance(log, ValueKeeper) else ValuesInFiles(ResultStore(folder / "results")),
            step_logs,
            new_owner(),
            settings,
            provider_from(settings_table("secrets")),
            runtime,
            artifact_store(settings_table("artifacts"), folder, log.clock.now),
            tiers,
        )
        await engine.open()
        try:
            yield Operations(log, engine, policy=read_policy(settings_table("policy")))
        finally:
            await engine.close()
            await step_logs.aclose()
