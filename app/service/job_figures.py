"""What Prometheus is told of jobs, workers and storage: read from the database when it asks, so that it covers all machines.

Jobs that ended since the last look are counted by how long they waited, how long they ran and how sure their answer is. Several services
on one database tell the same figures; add none of these up over services.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog
from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.service.db.figures import EndedJob, Figures, ended_since, figures_of
from app.service.db.jobs import JobKey

log = structlog.get_logger("meshwright.metrics")
# Times are those of transactions, and one that began earlier may be seen later. Nothing takes longer to store a result.
_OVERLAP = timedelta(seconds=30)
_WAIT_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_RUN_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 150, 300, 600)
_GAP = (0, 1e-6, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class JobFigures(Collector):
    """Figures of the database's jobs, workers and storage."""

    def __init__(self, engine: Engine, *, lease_s: float) -> None:
        """`lease_s`: seconds without a sign of life after which a process that runs jobs counts as gone."""
        self._engine = engine
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._looked_at: datetime | None = None
        self._counted: dict[JobKey, datetime] = {}
        # In no registry of their own: they are handed on with the rest.
        self._waited = Histogram(
            "meshwright_job_wait_seconds", "Seconds from asking for a job to its last start.", ["kind"],
            registry=None, buckets=_WAIT_S,
        )  # fmt: skip
        self._ran = Histogram(
            "meshwright_job_seconds", "Seconds from a job's last start to its end.", ["kind", "status"],
            registry=None, buckets=_RUN_S,
        )  # fmt: skip
        self._gap = Histogram(
            "meshwright_search_gap", "How far the best plan may be from the bound, as a share; 0 is proven best.",
            registry=None, buckets=_GAP,
        )  # fmt: skip
        self._without_plan = Counter(
            "meshwright_searches_without_plan", "Searches that found no plan, of which no gap is told.", registry=None
        )

    def collect(self) -> Iterable[Metric]:
        """All figures as of now; only that the database is away where it is."""
        try:
            with self._lock:
                now = figures_of(self._engine, lease_s=self._lease_s)
                self._count(now.at)
        except SQLAlchemyError as error:
            # What is known without the database is told all the same: it is most needed then.
            log.error("no figures from the database", error=str(error)[:300])  # noqa: TRY400
            yield GaugeMetricFamily("meshwright_database_up", "Whether the database answered.", value=0)
            return
        yield GaugeMetricFamily("meshwright_database_up", "Whether the database answered.", value=1)
        yield from _gauges(now)
        for each in (self._waited, self._ran, self._gap, self._without_plan):
            yield from each.collect()

    def describe(self) -> Iterable[Metric]:
        """Nothing, because registering must not read the database."""
        return []

    def _count(self, now: datetime) -> None:
        """Counts the jobs that have ended since the last look, each once; none that ended before the first."""
        if self._looked_at is None:
            self._looked_at = now
            self._counted = dict.fromkeys(
                (job.key for job in ended_since(self._engine, now - _OVERLAP) if job.finished_at <= now), now
            )
            return
        for job in ended_since(self._engine, self._looked_at - _OVERLAP):
            if job.key not in self._counted:
                self._counted[job.key] = job.finished_at
                self._observe(job)
        self._looked_at = now
        # Twice the overlap, since a job that is forgotten too early would be counted again.
        self._counted = {key: at for key, at in self._counted.items() if at > now - 2 * _OVERLAP}

    def _observe(self, job: EndedJob) -> None:
        if job.started_at is not None:
            self._waited.labels(job.kind).observe(max((job.started_at - job.created_at).total_seconds(), 0.0))
            self._ran.labels(job.kind, job.status).observe(max((job.finished_at - job.started_at).total_seconds(), 0.0))
        if job.status == "succeeded" and job.kind == "plan":
            if job.gap is None:
                self._without_plan.inc()
            else:
                self._gap.observe(job.gap)


def _gauges(now: Figures) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "meshwright_queue_age_seconds",
        "Seconds that the oldest queued job has waited; 0 without one.",
        value=now.queue_age_s,
    )
    yield GaugeMetricFamily(
        "meshwright_profiling_queue_age_seconds",
        "Seconds that the oldest queued profiling job has waited for an agent; 0 without one.",
        value=now.profiling_queue_age_s,
    )
    workers = GaugeMetricFamily(
        "meshwright_workers", "Worker processes of all machines: busy, idle or starting.", labels=["state"]
    )
    busy = min(now.jobs_running, now.workers_ready)
    starting = max(now.workers_wanted - now.workers_ready, 0)
    for state, number in (("busy", busy), ("idle", now.workers_ready - busy), ("starting", starting)):
        workers.add_metric([state], number)
    yield workers
    for name, label, meaning, counts in (
        ("meshwright_tunings", "status", "Stored tunings by status.", now.tunings),
        ("meshwright_tuning_trials", "outcome", "Trials that ended, of stored tunings, by outcome.", now.trials),
    ):
        family = GaugeMetricFamily(name, meaning, labels=[label])
        for value, number in counts.items():
            family.add_metric([value], number)
        yield family
    yield GaugeMetricFamily(
        "meshwright_tuning_gpu_seconds", "GPU seconds of the trials of stored tunings.", value=now.trial_gpu_seconds
    )
    storage = GaugeMetricFamily(
        "meshwright_storage_bytes", "Bytes of stored objects at rest, by kind.", labels=["kind"]
    )
    for kind, size in now.storage_bytes.items():
        storage.add_metric([kind], size)
    yield storage
    yield GaugeMetricFamily(
        "meshwright_database_bytes", "Bytes of the database, with indexes.", value=now.database_bytes
    )
