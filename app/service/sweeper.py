"""Sweeps the storage from time to time, in a thread of its own."""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from datetime import timedelta

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.errors import UnavailableError
from app.service.db.retention import NOTHING, Retention, Swept, sweep
from app.service.intake.examples import (
    EXAMPLE_OBSERVATION_ID,
    EXAMPLE_PLAN_ID,
    EXAMPLE_PROFILING_JOB_ID,
    EXAMPLE_TUNING_ID,
    example_calibration,
)
from app.service.tunings.left_studies import forget_left_studies
from app.settings import Settings

_EXAMPLES = frozenset({EXAMPLE_PLAN_ID, EXAMPLE_PROFILING_JOB_ID, EXAMPLE_TUNING_ID, EXAMPLE_OBSERVATION_ID})
log = structlog.get_logger("meshwright.storage")


def retention_of(settings: Settings) -> Retention:
    """How long these settings keep what is stored. What the documentation's examples refer to is kept."""

    def days(number: float | None) -> timedelta | None:
        return None if number is None else timedelta(days=number)

    return Retention(
        keys=timedelta(hours=settings.keep_idempotency_keys_h),
        plans=days(settings.keep_plans_days),
        calibrations=days(settings.keep_calibrations_days),
        profiling_jobs=days(settings.keep_profiling_jobs_days),
        tunings=days(settings.keep_tunings_days),
        observations=days(settings.keep_observations_days),
        stored_bytes=settings.keep_stored_bytes,
        audit=days(settings.keep_audit_days),
        kept_ids=_EXAMPLES | {example_calibration().id},
    )


def sweep_all(engine: Engine, retention: Retention) -> Swept:
    """Deletes what is over its time, and the studies of tunings that are gone, which the database's own tables know nothing of.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database is away.
        UnavailableError: the studies cannot be read.
    """
    return replace(sweep(engine, retention), studies=forget_left_studies(engine))


class Sweeper:
    """Sweeps once at the beginning, and then every `every_s` seconds until it is stopped."""

    def __init__(self, engine: Engine, retention: Retention, *, every_s: float) -> None:
        self._engine = engine
        self._retention = retention
        self._every_s = every_s
        self._stopping = threading.Event()
        # A daemon: a sweep that is cut off is taken up by the next one.
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        """Begins to sweep."""
        self._thread.start()

    def stop(self) -> None:
        """Waits for the sweep that is under way, if there is one."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                swept = sweep_all(self._engine, self._retention)
            except (SQLAlchemyError, UnavailableError) as error:
                log.error("the storage could not be swept", error=str(error)[:300])  # noqa: TRY400 - the database is away
            else:
                if swept != NOTHING:
                    log.info("swept", **asdict(swept))
            self._stopping.wait(self._every_s)
