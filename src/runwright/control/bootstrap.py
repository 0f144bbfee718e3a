"""Composition root: from the URL of a store to operations with an engine, or to signals without one."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from runwright.config.artifact_store import artifact_store
from runwright.config.limits import read_limits
from runwright.config.result_stores import result_tiers
from runwright.config.settings import settings_table
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.factory import DEFAULT_STORE, open_log
from runwright.log.run_log import RunLog
from runwright.plans.store import PlanStore
from runwright.runtimes.embedded.dispatcher import queues_of
from runwright.runtimes.embedded.engine import Engine
from runwright.runtimes.executor.executor import Executor
from runwright.runtimes.mock import MockExecutor
from runwright.runtimes.services import RunServices
from runwright.runtimes.settings import EngineSettings
from runwright.storage.file_store import FileStore
from runwright.storage.output.files import StepLogs
from runwright.storage.output.log_table import StepLogTable
from runwright.storage.values import FileValueBackend, LogValueBackend, SupportsValues
from runwright.tools.base import Tool
from runwright.tools.http import HttpTool
from runwright.tools.playbook.http import PlaybookHttpTool
from runwright.tools.registry import all_tools
from runwright.tools.secrets import create_provider
from runwright.tools.shell import ShellTool

from .confirmation_policy import read_policy
from .operations import Operations


def state_folder(store: str) -> Path:
    """The folder of files that belong to a store: next to a SQLite file, else .runwright. Absolute, because a step may
    change the working directory."""
    scheme, _, rest = store.partition("://")
    folder = Path(rest[1:]).parent if scheme == "sqlite" and len(rest) > 1 else Path(".runwright")
    return folder.absolute()


def new_owner() -> str:
    """A unique owner name for this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def installed_tools() -> dict[str, Tool]:
    """All tools, configured by runwright.toml."""
    tools = {**all_tools(), ShellTool.kind: ShellTool(read_limits().step_output)}
    allowed = settings_table("http").get("allow")
    if allowed is None:
        return tools
    if not isinstance(allowed, list) or not all(isinstance(host, str) for host in cast("list[Any]", allowed)):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, 'runwright.toml: [http] allow is a list of hosts, such as ["*.example.org"].'
        )
    http = HttpTool(cast("list[str]", allowed))
    return {**tools, http.kind: http, PlaybookHttpTool.kind: PlaybookHttpTool(http)}


def is_shared(store: str) -> bool:
    """Whether processes on several machines may use this store, so that step output and values are stored in it too."""
    return store.startswith("postgres")


def step_logs_of(log: RunLog, store: str) -> StepLogs | StepLogTable:
    """Step output: in the store if machines share it, else in files next to it."""
    if is_shared(store):
        return StepLogTable(log.store.side_tables)
    return StepLogs(state_folder(store) / "logs")


@asynccontextmanager
async def open_operations(
    store: str | None = None, *, settings: EngineSettings | None = None, runtime: str = "embedded"
) -> AsyncGenerator[Operations]:
    """Operations on a store, with an engine. The runtime `mock` runs plans without executing anything."""
    url = store or os.environ.get("RUNWRIGHT_STORE") or DEFAULT_STORE
    async with open_log(url) as log, open_engine(log, url, settings, runtime) as operations:
        yield operations


@asynccontextmanager
async def open_engine(
    log: RunLog, url: str, settings: EngineSettings | None = None, runtime: str = "embedded"
) -> AsyncGenerator[Operations]:
    """Operations on an open log, with an engine."""
    settings = settings or EngineSettings()
    store = log.store
    folder, tools, step_logs = state_folder(url), installed_tools(), step_logs_of(log, url)
    side_tables = (lambda: store.side_tables) if is_shared(url) else None
    tiers = result_tiers(settings_table("results"), folder, log.clock.now, side_tables)
    files = FileStore(folder / "results")
    values = LogValueBackend(store) if isinstance(store, SupportsValues) else FileValueBackend(files)
    services = RunServices(
        log,
        MockExecutor() if runtime == "mock" else Executor(asyncio.get_running_loop()),
        tools,
        PlanStore(log, queues_of(settings.workers, tools), tiers.default_store),
        values,
        step_logs,
        settings,
        secrets=create_provider(settings_table("secrets")),
        provider=runtime,
        artifacts=artifact_store(settings_table("artifacts"), folder, log.clock.now),
        tiers=tiers,
    )
    engine = Engine(services, new_owner())
    await engine.open()
    try:
        yield Operations(log, engine, policy=read_policy(settings_table("policy")))
    finally:
        await engine.close()
        await step_logs.aclose()
