"""Jobs, and what runs them here, put together from the settings: the same for the service and for `meshwright worker`."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from app.service.db.jobs import JobStore
from app.service.db.notices import Notices
from app.service.db.plans import write_result
from app.service.db.workers import WorkerStore
from app.service.jobs.embedded_runner import EmbeddedRunner
from app.service.jobs.runner import JobRunner, Kind, Kinds
from app.service.traces import Traces, traces_of
from app.settings import Settings

KINDS: Kinds = {"plan": Kind(task="app.service.jobs.plan_task:run", write_result=write_result)}


@dataclass(frozen=True, slots=True)
class JobParts:
    """The stored jobs, the processes that run jobs anywhere, and the runner of this process."""

    jobs: JobStore
    workers: WorkerStore
    runner: JobRunner
    traces: Traces


def job_parts(settings: Settings, engine: Engine, *, kinds: Kinds = KINDS, has_tenants: bool) -> JobParts:
    """The parts of one process, whose runner has yet to be started.

    Args:
        settings: the settings.
        engine: the database.
        kinds: how jobs of each kind are run.
        has_tenants: whether one worker is kept free of each tenant's jobs where the settings name no limit.
    """
    traces = traces_of(settings)
    traces.watch(engine)
    jobs = JobStore(engine, lease_s=settings.lease_s, max_running=settings.max_running_jobs, keeps_one_free=has_tenants)
    workers = WorkerStore(engine, lease_s=settings.lease_s)
    runner = EmbeddedRunner(
        jobs,
        kinds,
        workers=workers,
        pool_size=settings.pool_size,
        grace_s=settings.cancel_grace_s,
        report_every_s=settings.lease_s / 3,
        notices=Notices(engine),
        traces=traces,
    )
    return JobParts(jobs, workers, runner, traces)
