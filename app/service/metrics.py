"""Figures for Prometheus. Each service has a registry of its own, and no label carries a tenant or an id."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Gauges(Collector):
    """Figures that are read at the moment when Prometheus asks for them."""

    def __init__(
        self, jobs: Callable[[], dict[str, int]], workers: Callable[[], int], answers: Callable[[], dict[str, int]]
    ) -> None:
        self._jobs = jobs
        self._workers = workers
        self._answers = answers

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Answers by state, and unless the database is away jobs by status and ready workers, as of now."""
        answers = GaugeMetricFamily(
            "meshwright_answers", "Evaluations, judgements, launch files and pages by state.", labels=["state"]
        )
        for state, count in self._answers().items():
            answers.add_metric([state], count)
        yield answers
        try:
            counts, ready = self._jobs(), self._workers()
        except SQLAlchemyError:
            return  # `meshwright_database_up` says so, and what is known without the database is told all the same
        jobs = GaugeMetricFamily("meshwright_jobs", "Stored jobs by status.", labels=["status"])
        for status, count in counts.items():
            jobs.add_metric([status], count)
        yield jobs
        yield GaugeMetricFamily(
            "meshwright_workers_ready", "Worker processes that run jobs, on all machines.", value=ready
        )

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing, because registering must not read the database."""
        return []


class Metrics:
    """Counts requests as they are answered; reads jobs and workers when asked."""

    def __init__(
        self,
        *,
        jobs: Callable[[], dict[str, int]],
        workers: Callable[[], int],
        answers: Callable[[], dict[str, int]] = dict,
        more: Collector | None = None,
    ) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "meshwright_http_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "meshwright_http_request_seconds",
            "Seconds until the answer was sent.",
            ["method", "route"],
            registry=self._registry,
        )
        self._registry.register(_Gauges(jobs, workers, answers))
        if more is not None:
            self._registry.register(more)

    def watch(self, figures: Collector) -> None:
        """Adds figures that are read when Prometheus asks."""
        self._registry.register(figures)

    def count_request(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one answered request; `route` is the path template."""
        # A client may send any word as a method, and every distinct label is a time series that is kept for ever.
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)
