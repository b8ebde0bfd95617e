"""What one service process consists of, built once and handed to every request."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request
from sqlalchemy import Engine

from app.service.answering.pool import AnsweringPool
from app.service.db.agents import AgentStore
from app.service.db.calibrations import CalibrationStore
from app.service.db.jobs import JobStore
from app.service.db.observations import ObservationStore
from app.service.db.plans import PlanStore
from app.service.db.profiling_jobs import ProfilingJobStore
from app.service.db.profiling_leases import ProfilingLeases
from app.service.db.troubles import Readiness
from app.service.db.tuning_news import TuningNews, TuningState
from app.service.db.tuning_trials import TrialLeases
from app.service.db.tunings import TuningStore
from app.service.db.workers import WorkerStore
from app.service.intake.examples import seed_examples
from app.service.intake.own_corrections import OwnCorrections
from app.service.jobs.runner import JobRunner
from app.service.jobs.watchers import Watchers
from app.service.kept import KeptAnswers, KeptRequests
from app.service.keyring import Keyring
from app.service.metrics import Metrics
from app.service.rates import Rates
from app.service.sweeper import Sweeper
from app.service.traces import Traces
from app.service.tunings.conductor import Conductor
from app.settings import Settings


@dataclass(slots=True)
class Service:
    """The parts of a running service."""

    settings: Settings
    engine: Engine
    jobs: JobStore
    plans: PlanStore
    calibrations: CalibrationStore
    observations: ObservationStore
    corrections: OwnCorrections
    agents: AgentStore
    profiling_jobs: ProfilingJobStore
    leases: ProfilingLeases
    tunings: TuningStore
    trials: TrialLeases
    conductor: Conductor
    tuning_news: TuningNews
    tuning_watchers: Watchers[TuningState]
    workers: WorkerStore
    readiness: Readiness
    keyring: Keyring
    rates: Rates
    sweeper: Sweeper
    runner: JobRunner
    answering: AnsweringPool
    metrics: Metrics
    traces: Traces
    kept_answers: KeptAnswers
    kept_requests: KeptRequests
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the service shuts down, which ends its streams; see `begin_to_stop`."""
    # Remembered so that the database is asked once per tenant and process, not once per request. Two threads that ask at the
    # same time store the same objects, which is harmless.
    _seeded: set[str] = field(default_factory=set)

    def begin_to_stop(self) -> None:
        """Lets waiting requests answer with what there is, and streams end, while the server still listens to them."""
        self.stopping.set()
        self.runner.dismiss()
        self.tuning_watchers.dismiss()

    def seed(self, tenant: str) -> None:
        """Makes sure that the tenant has the objects that the documentation's examples refer to."""
        if self.is_seeded(tenant):
            return
        seed_examples(
            tenant,
            plans=self.plans,
            calibrations=self.calibrations,
            observations=self.observations,
            agents=self.agents,
            profiling_jobs=self.profiling_jobs,
            tunings=self.tunings,
            job_time_limit_s=self.settings.job_time_limit_s,
        )
        self._seeded.add(tenant)

    def is_seeded(self, tenant: str) -> bool:
        """Whether nothing is left to store for this tenant, as far as this process knows."""
        return tenant in self._seeded or not self.settings.seed_examples


def ready_workers(runner: JobRunner, workers: WorkerStore) -> int:
    """Number of worker processes, here and on other machines, that are running a job or could start one at once."""
    # Those that have just become ready here are not written down yet.
    return max(runner.ready_workers(), workers.ready())


async def service_of(request: Request) -> Service:
    """The service that received this request."""
    # A coroutine that waits for nothing: FastAPI would send a plain function to a thread, for every request.
    return cast("Service", request.app.state.service)
