"""Settings of an engine: leases, timeouts and pauses."""

from __future__ import annotations

DEFAULT_LEASE_TTL = 5.0  # seconds


class EngineSettings:
    def __init__(
        self,
        *,
        lease_ttl: float = DEFAULT_LEASE_TTL,
        loop_timeout: float = 60.0,
        drain_timeout: float = 300.0,
        cancel_deadline: float = 60.0,
        stop_grace: float = 5.0,
        store_retry: float = 0.5,
        park_after: float = 2.0,
        recover: bool = False,
        alone: bool = False,
        workers: str = "none",
    ) -> None:
        self.lease_ttl = lease_ttl
        self.loop_timeout = loop_timeout  # seconds after which a process whose event loop does not answer is given up
        self.drain_timeout = drain_timeout  # seconds that a pause waits for running steps
        self.cancel_deadline = cancel_deadline  # seconds that a cancel waits for steps that are not cancellable
        self.stop_grace = stop_grace  # seconds between asking a step to stop and stopping it by force
        self.store_retry = store_retry  # seconds until an unavailable store is tried again
        self.park_after = park_after  # a run that is idle for more seconds is evicted from memory
        self.recover = recover  # claim runs whose process died
        self.workers = workers  # steps that workers execute: none, those that name a queue (named), all
        self.alone = alone  # no other process uses the store: nothing is polled, and the lease cannot be lost
