"""Prometheus metrics at `/metrics`: of this process, and of the whole store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from runwright._version import __version__
from runwright.log.run_log import RunLog
from runwright.runtimes.embedded.engine import Engine

from .event_broadcaster import EventBroadcaster

disable_created_metrics()  # pyright: ignore[reportUnknownMemberType]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _RequestMetrics(NamedTuple):
    """The labelled metrics of one method, route and status. Cached, because resolving labels is slow."""

    requests: Counter
    seconds: Histogram


class Metrics:
    def __init__(self, log: RunLog, engine: Engine, broadcaster: EventBroadcaster) -> None:
        self._log = log
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "runwright_http_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "runwright_http_request_seconds",
            "Duration of requests.",
            ["route"],
            registry=self._registry,
            buckets=BUCKETS,
        )
        self._by_labels: dict[tuple[str, str, int], _RequestMetrics] = {}
        self._state = _StateCollector(log, engine, broadcaster)
        self._registry.register(self._state)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, status)
        found = self._by_labels.get(key)
        if found is None:
            requests = self._requests.labels(method, route, str(status))
            found = self._by_labels[key] = _RequestMetrics(requests, self._seconds.labels(route))
        found.requests.inc()
        found.seconds.observe(seconds)

    async def render(self) -> bytes:
        """Render all metrics in the Prometheus text format."""
        self._state.store_counts = await self._log.store.counts()
        return generate_latest(self._registry)


class _StateCollector(Collector):
    """Metrics read at the time of the scrape. `store_counts` is loaded before, because `collect` cannot wait."""

    def __init__(self, log: RunLog, engine: Engine, broadcaster: EventBroadcaster) -> None:
        self._log = log
        self._engine = engine
        self._broadcaster = broadcaster
        self.store_counts: dict[str, dict[str, int]] = {}

    def collect(self) -> Iterator[Any]:
        engine, counters = self._engine, self._log.store.counters
        yield _gauge("runwright_info", "This process.", {(__version__,): 1}, ["version"])
        yield _gauge("runwright_runs_driven", "Runs that this process drives.", {(): len(engine.driven)})
        yield _gauge("runwright_listeners", "Open event streams.", {(): self._broadcaster.subscriber_count})
        yield _count(
            "runwright_late_results",
            "Step results that arrived after another process had claimed the run or the step.",
            engine.services.late_results,
        )
        yield _count("runwright_events_appended", "Events appended by this process.", counters.appended)
        yield _count("runwright_events_deduplicated", "Events that were already in the log.", counters.duplicates)
        yield _count("runwright_events_refused", "Events refused by the log.", counters.refused)
        for name, help_text, label in (
            ("runs", "Runs in the store.", "status"),
            ("alerts", "Alerts in the store.", "code"),
        ):
            found = self.store_counts.get(name, {})
            yield _gauge(f"runwright_{name}", help_text, {(key,): value for key, value in found.items()}, [label])


def _gauge(name: str, text: str, values: dict[Any, float], labels: list[str] | None = None) -> Any:
    family = GaugeMetricFamily(name, text, labels=labels or [])
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


def _count(name: str, text: str, value: float) -> Any:
    return CounterMetricFamily(name, text, value=value)
