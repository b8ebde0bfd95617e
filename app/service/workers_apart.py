"""`meshwright worker`: worker processes without a service around them. They need nothing but the database.

Any number of such processes may share it, on any machines. What they cannot reach yet, they wait for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.service.db.engine import build_engine
from app.service.db.migrate import is_current
from app.service.jobs.assembly import job_parts
from app.service.logs import configure_logs
from app.settings import Settings
from cost_models.errors import InvalidInputError, Problem

log = structlog.get_logger("meshwright.worker")
# Containers of one deployment start in any order; the database and its schema may come a minute after the workers.
_LOOK_AGAIN_S = 1.0


def run_workers(settings: Settings) -> None:
    """Runs jobs until the process is told to stop (SIGTERM, SIGINT); jobs that are running then are queued again.

    Raises:
        InvalidInputError: the database is a SQLite file, or there would be no worker.
    """
    if settings.url.startswith("sqlite"):
        message = "workers apart from the service need PostgreSQL, since a SQLite file serves one machine only"
        raise InvalidInputError(
            [Problem("", message, "Pass --db postgresql://…, or use `meshwright serve --workers N`.")]
        )
    if settings.pool_size == 0:
        raise InvalidInputError([Problem("", "a worker with 0 worker processes would do nothing", "Pass --workers 1.")])
    configure_logs(settings.log_level)
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    engine = build_engine(settings.url, silence_s=settings.database_silence_s)
    try:
        if _has_schema(engine, is_stopped=lambda: stopping.wait(_LOOK_AGAIN_S)):
            # Whether the services beside these workers listen on loopback is not known here; where keys are needed there are tenants.
            parts = job_parts(settings, engine, has_tenants=True)
            runner = parts.runner
            runner.start()
            log.info("ready to run jobs", workers=settings.pool_size)
            stopping.wait()
            runner.stop()
            parts.traces.close()
    finally:
        engine.dispose()


def _has_schema(engine: Engine, *, is_stopped: Callable[[], bool]) -> bool:
    """Waits until the database answers and has the newest schema; False where the process was stopped instead."""
    told = ""
    while True:
        try:
            if is_current(engine):
                return True
            reason = "its schema is not current: run `meshwright db upgrade`"
        except SQLAlchemyError as error:
            reason = str(error).splitlines()[0][:300]
        if reason != told:
            log.warning("waiting for the database", reason=reason)
            told = reason
        if is_stopped():
            return False
