"""What Prometheus is told at `/metrics`: of this process, and of the store as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from runwright._version import __version__

if TYPE_CHECKING:
    from .service import Service

disable_created_metrics()  # pyright: ignore[reportUnknownMemberType]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Measures:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "runwright_http_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "runwright_http_request_seconds", "How long they took.", ["route"], registry=self._registry, buckets=BUCKETS
        )
        self._known: dict[tuple[str, str, int], Any] = {}
        self._registry.register(_Now(service, self))
        self.stored: dict[str, dict[str, int]] = {}

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, status)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = (self._requests.labels(method, route, str(status)), self._seconds.labels(route))
        found[0].inc()
        found[1].observe(seconds)

    async def page(self) -> bytes:
        """All of it, in the text format of Prometheus."""
        self.stored = await self._service.log.census()
        return generate_latest(self._registry)


class _Now(Collector):
    """What is true at the moment it is asked for."""

    def __init__(self, service: Service, measures: Measures) -> None:
        self._service = service
        self._measures = measures

    def collect(self) -> Iterator[Any]:
        service, engine = self._service, self._service.operations.engine
        tally = service.log.tally
        yield _gauge("runwright_info", "This process.", {(__version__,): 1}, ["version"])
        yield _gauge("runwright_runs_driven", "Runs that this process drives.", {(): len(engine.driven)})
        yield _gauge("runwright_listeners", "Open streams of events.", {(): service.hub.count})
        yield _count("runwright_late_results", "Results of steps whose run had gone elsewhere.", engine.late_results)
        yield _count("runwright_events_appended", "Events that this process appended.", tally.appended)
        yield _count("runwright_events_deduplicated", "Events that were there already.", tally.duplicates)
        yield _count("runwright_events_refused", "Events that were refused.", tally.refused)
        for name, help_text, label in (
            ("runs", "Runs in the store.", "status"),
            ("alerts", "Alerts in the store.", "code"),
        ):
            found = self._measures.stored.get(name, {})
            yield _gauge(f"runwright_{name}", help_text, {(key,): value for key, value in found.items()}, [label])


def _gauge(name: str, text: str, values: dict[Any, float], labels: list[str] | None = None) -> Any:
    family = GaugeMetricFamily(name, text, labels=labels or [])
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


def _count(name: str, text: str, value: float) -> Any:
    return CounterMetricFamily(name, text, value=value)
