"""Secrets of attempts: resolved in a thread, because a provider may be slow, before the attempt is launched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunIdentity
from runwright.core.scheduling.scheduler import Timeout
from runwright.tools.base import StepError
from runwright.tools.secrets import SecretContext

from .services import RunServices

AttemptKey = tuple[str, int]
"""Path and attempt."""


class SecretsNeeded(Exception):
    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names


class SecretResolver:
    def __init__(self, services: RunServices, run: RunIdentity) -> None:
        self._services = services
        self._run = run
        self.pending: dict[str, int] = {}  # attempts whose secrets are being resolved
        self._resolved: dict[AttemptKey, Mapping[str, str]] = {}  # until the attempt is launched

    def cancel(self) -> None:
        self.pending.clear()

    def get(self, path: str, attempt: int, names: list[str]) -> Mapping[str, str]:
        """The secrets of an attempt. Raises SecretsNeeded if they must be resolved first."""
        if (path, attempt) not in self._resolved:
            raise SecretsNeeded(names)
        return self._resolved.pop((path, attempt))

    def resolve(
        self,
        path: str,
        attempt: int,
        names: list[str],
        timeout: Timeout | None,
        *,
        on_resolved: Callable[[str, int], None],
        on_failed: Callable[[str, int, RunwrightError | StepError], None],
        on_timeout: Callable[[str, int, Timeout], None],
    ) -> None:
        """Resolve secrets in the background, then call back: once, and not after `cancel`."""
        self.pending[path] = attempt

        def expire(timeout: Timeout) -> None:
            if self._finish(path, attempt):
                on_timeout(path, attempt, timeout)

        async def work() -> None:
            try:
                values = await self._fetch(names)
            except (RunwrightError, StepError) as error:
                if self._finish(path, attempt):
                    on_failed(path, attempt, error)
                return
            if self._finish(path, attempt):
                self._resolved[path, attempt] = values
                on_resolved(path, attempt)

        if timeout is not None:
            self._services.call_later(timeout.seconds, partial(expire, timeout))
        self._services.spawn(work())

    async def _fetch(self, names: list[str]) -> Mapping[str, str]:
        context = SecretContext(self._run.tenant_id, self._run.environment_id)
        try:
            return await asyncio.to_thread(self._services.secrets.resolve, names, context)
        except RunwrightError:
            raise
        except Exception as error:  # a provider is user code
            message = f"The provider of secrets failed: {type(error).__name__}."
            raise StepError("SECRET_NOT_AVAILABLE", message) from None

    def _finish(self, path: str, attempt: int) -> bool:
        """Whether the attempt still waits for its secrets; true once."""
        if self.pending.get(path) != attempt:
            return False
        del self.pending[path]
        return True
