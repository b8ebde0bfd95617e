"""The service put together from its settings: storage, jobs and routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from app.service.access import require_guarded
from app.service.answering.forker import Forker
from app.service.answering.pool import AnsweringPool, PoolLimits
from app.service.api.methods import Methods
from app.service.api.middleware import Edge
from app.service.api.openapi import build_openapi
from app.service.api.problems import install_problems
from app.service.api.unread import UnreadBodies
from app.service.api.v1 import (
    agents,
    audit,
    calibrations,
    corrections,
    evaluate,
    exports,
    health,
    judge,
    keys,
    observations,
    plans,
    presets,
    profiling_jobs,
    tunings,
)
from app.service.auth import LOCAL_TENANT, figures_reader, principal_of
from app.service.db.agents import AgentStore
from app.service.db.calibrations import CalibrationStore
from app.service.db.engine import build_engine
from app.service.db.migrate import is_current, upgrade
from app.service.db.observations import ObservationStore
from app.service.db.plans import PlanStore
from app.service.db.profiling_jobs import IN_TOUCH_S, ProfilingJobStore
from app.service.db.profiling_leases import ProfilingLeases
from app.service.db.quotas import Quotas
from app.service.db.troubles import Readiness
from app.service.db.tuning_news import TuningNews
from app.service.db.tuning_trials import TrialLeases
from app.service.db.tunings import TuningStore
from app.service.intake.own_corrections import OwnCorrections
from app.service.job_figures import JobFigures
from app.service.jobs.assembly import KINDS, job_parts
from app.service.jobs.runner import Kinds
from app.service.jobs.watchers import Watchers
from app.service.kept import KeptAnswers, KeptRequests
from app.service.keyring import Keyring
from app.service.logs import configure_logs
from app.service.metrics import Metrics
from app.service.parts import Service, ready_workers
from app.service.rates import Rates
from app.service.sweeper import Sweeper, retention_of
from app.service.tunings.conductor import Conductor
from app.service.tunings.trial_jobs import record_of_failure
from app.service.web.headers import PageHeaders
from app.service.web.install import install_pages
from app.service.web.problem_pages import as_page
from app.settings import Settings
from cost_models.errors import InvalidInputError, Problem
from planner.request.checked_request import PRODUCT_VERSION

log = structlog.get_logger("meshwright.service")
FORKER = Forker(["app.service.api.computed", "app.service.web.computed_pages"])
"""One for all services of this process: what it costs is to load the program."""
_TAGS = [
    {
        "name": "plans",
        "description": "Start here: find out which split of a training is best, and get its launch files.",
    },
    {"name": "evaluate", "description": "What a strategy or a configuration of your own costs."},
    {"name": "presets", "description": "Models, GPUs, clusters and frameworks that a request can name."},
    {"name": "calibrations", "description": "What your own machines were measured to do; plans can be priced with it."},
    {"name": "corrections", "description": "What your own measured runs say of the predictions."},
    {"name": "tunings", "description": "The best plans tried with real training steps on your own nodes."},
    {"name": "observations", "description": "What your own runs took, beside what was predicted for them."},
    {"name": "agents", "description": "Nodes that measure when they are asked."},
    {
        "name": "keys",
        "description": "Who may use the service, and for what; only keys with the scope `admin` open these.",
    },
    {"name": "service", "description": "Whether the service is well; no key is needed."},
]


def create_app(settings: Settings | None = None, *, kinds: Kinds = KINDS) -> FastAPI:
    """The application. It opens its database and starts its workers when the server starts it."""
    settings = settings or Settings()
    service = _build_service(settings, kinds)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(_start, service)
        service.answering.start()
        yield
        service.begin_to_stop()
        await service.answering.stop()
        await run_in_threadpool(service.sweeper.stop)
        await run_in_threadpool(service.runner.stop)
        await run_in_threadpool(service.traces.close)
        service.engine.dispose()

    app = FastAPI(
        title="meshwright",
        version=PRODUCT_VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # A redirected POST becomes a GET in many clients and loses its body; a wrong path is answered with 404 instead.
        redirect_slashes=False,
        openapi_tags=_TAGS,
        **service.traces.for_requests(),
    )
    app.state.service = service
    for module in (
        plans,
        exports,
        evaluate,
        judge,
        calibrations,
        observations,
        corrections,
        profiling_jobs,
        tunings,
        agents,
        keys,
        audit,
        presets,
        health,
    ):
        require_guarded(module.router, frozenset({principal_of, figures_reader}))
        app.include_router(module.router)
    # After the routes: the document is built once, here, from all of them, and served as it is.
    install_pages(app)
    install_problems(app, shown=as_page)
    app.add_middleware(Methods, routes=app.routes)
    app.add_middleware(Edge, metrics=service.metrics, shown=as_page)
    app.add_middleware(UnreadBodies, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(PageHeaders)
    document = build_openapi(app)
    app.openapi = lambda: document  # type: ignore[method-assign]
    return app


def serve(settings: Settings) -> None:
    """Listens until the process is told to stop."""
    from app.service.server.listen import listen

    app = create_app(settings)
    service: Service = app.state.service
    listen(app, settings, metrics=service.metrics, on_stop=service.begin_to_stop)


def _build_service(settings: Settings, kinds: Kinds) -> Service:
    if settings.pool_size == 0 and settings.url.startswith("sqlite"):
        message = "a service on a SQLite file needs workers of its own, since `meshwright worker` needs PostgreSQL"
        raise InvalidInputError([Problem("", message, "Pass --workers 1 or more, or --db postgresql://….")])
    engine = build_engine(settings.url, silence_s=settings.database_silence_s)
    # Everybody on a loopback address is the same tenant, for whom no worker need be kept free.
    parts = job_parts(settings, engine, kinds=kinds, has_tenants=not settings.is_open)
    quotas = Quotas(
        settings.max_plans,
        settings.max_stored_bytes,
        settings.max_profiling_jobs,
        settings.max_tunings,
        settings.max_observations,
        settings.max_tenant_gpu_hours,
    )
    profiling_jobs = ProfilingJobStore(
        engine, lease_s=settings.agent_lease_s, max_queued_jobs=settings.max_queued_jobs, quotas=quotas
    )
    stored = PlanStore(engine, max_queued_jobs=settings.max_queued_jobs, quotas=quotas)
    calibrations = CalibrationStore(engine, quotas=quotas)
    observed = ObservationStore(engine, quotas=quotas)
    tuned = TuningStore(engine, max_queued_jobs=settings.max_queued_jobs, in_touch_s=IN_TOUCH_S, quotas=quotas)
    trials = TrialLeases(engine, lease_s=settings.agent_lease_s, failed=record_of_failure, quotas=quotas)
    tuning_news = TuningNews(engine, in_touch_s=IN_TOUCH_S)
    answering = AnsweringPool(FORKER, calibrations, _pool_limits(settings))
    return Service(
        settings=settings,
        engine=engine,
        jobs=parts.jobs,
        workers=parts.workers,
        readiness=Readiness(engine),
        plans=stored,
        calibrations=calibrations,
        observations=observed,
        corrections=OwnCorrections(engine, observed),
        agents=AgentStore(engine),
        profiling_jobs=profiling_jobs,
        leases=ProfilingLeases(engine, profiling_jobs),
        tunings=tuned,
        trials=trials,
        conductor=Conductor(engine, plans=stored, tunings=tuned, trials=trials),
        tuning_news=tuning_news,
        # Trials take half a minute; a second more until somebody hears of one is soon enough.
        tuning_watchers=Watchers(tuning_news, look_every_s=1.0, keeps_last=True),
        keyring=Keyring(engine, remember_s=settings.key_memory_s),
        rates=Rates(requests=settings.request_rate, uploads=settings.most_uploads),
        sweeper=Sweeper(engine, retention_of(settings), every_s=settings.sweep_every_s),
        runner=parts.runner,
        answering=answering,
        metrics=Metrics(
            jobs=parts.jobs.counts,
            workers=lambda: ready_workers(parts.runner, parts.workers),
            answers=answering.counts,
            more=JobFigures(engine, lease_s=settings.lease_s),
        ),
        traces=parts.traces,
        kept_answers=KeptAnswers(stored.exists, max_bytes=settings.kept_bytes),
        kept_requests=KeptRequests(max_bytes=settings.kept_bytes // 4),
    )


def _pool_limits(settings: Settings) -> PoolLimits:
    processes = settings.answering_processes
    return PoolLimits(
        processes=processes,
        # Everybody on a loopback address is the same tenant, for whom no process need be kept free.
        most_running=processes if settings.is_open else max(processes - 1, 1),
        most_waiting=settings.max_waiting_answers,
        time_limit_s=settings.answer_time_limit_s,
        memory_bytes=settings.answer_memory_mib << 20,
    )


def _start(service: Service) -> None:
    configure_logs(service.settings.log_level)
    if service.settings.upgrades_itself:
        # Apart from the service's own connections, on which no statement may take as long as an upgrade.
        patient = build_engine(service.settings.url)
        upgrade(patient)
        patient.dispose()
    else:
        _tell_of_old_schema(service)
    if service.settings.is_open:
        with suppress(SQLAlchemyError):  # `/readyz` reports a database that is away or has an older schema
            service.seed(LOCAL_TENANT)
    service.runner.start()
    service.sweeper.start()


def _tell_of_old_schema(service: Service) -> None:
    # Otherwise the first lines of the log would be what the database says of tables that it lacks.
    with suppress(SQLAlchemyError):
        if not is_current(service.engine):
            log.warning("the schema of the database is not current", remedy="run `meshwright db upgrade`")
