"""How patient an engine is."""

from __future__ import annotations

from .lease import DEFAULT_TTL


class EngineSettings:
    def __init__(
        self,
        *,
        lease_ttl: float = DEFAULT_TTL,
        drain_timeout: float = 300.0,
        cancel_deadline: float = 60.0,
        park_after: float = 2.0,
        recover: bool = False,
        alone: bool = False,
        workers: str = "none",
    ) -> None:
        self.lease_ttl = lease_ttl
        self.drain_timeout = drain_timeout  # seconds a pause waits for running steps
        self.cancel_deadline = cancel_deadline  # seconds a cancel waits for steps that must not be interrupted
        self.park_after = park_after  # a run with nothing to do for longer is dropped from memory
        self.recover = recover  # take over runs whose process died
        self.workers = workers  # which steps are left to workers: none, those that name a queue (named), all
        self.alone = alone  # nobody else uses the store: nothing is polled, and no lease can be lost
