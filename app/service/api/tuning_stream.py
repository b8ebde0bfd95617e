"""A tuning as it is watched, by the API's events and by its page: how it stands, each time that something changed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from app.errors import NotFoundError
from app.service.auth import KEY_IS_OVER, LOOK_AGAIN_S, RECONNECT_MS, Principal, is_still_valid
from app.service.db.jobs import JobKey
from app.service.db.tuning_news import TuningState
from app.service.parts import Service

_MOVE_ON_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """Why nothing follows although the tuning goes on."""

    comment: str
    retry_ms: int | None = None
    """When it is worth asking again; None where it is not."""


async def states_of(service: Service, reader: Principal, key: JobKey) -> AsyncGenerator[TuningState | Ended]:
    """How the tuning stands, now and after each change, until it has ended or is deleted; no longer than the reader's key is valid."""
    told, move_on_at = None, 0.0
    with service.tuning_watchers.watch(key) as watch:
        is_over = False
        while not is_over:
            if not await is_still_valid(service, reader):
                yield Ended(KEY_IS_OVER)
                return
            if time.monotonic() >= move_on_at:
                await run_in_threadpool(_move_on, service, key)
                move_on_at = time.monotonic() + _MOVE_ON_EVERY_S
            is_over = watch.is_over  # before the state, so that the last one is not missed
            for state in watch.events[-1:]:
                if state.seq != told:
                    told = state.seq
                    yield state
            if not is_over:
                await watch.changed(timeout_s=LOOK_AGAIN_S)
    if service.stopping.is_set():
        yield Ended("the service stops; ask again for what follows", RECONNECT_MS)


def _move_on(service: Service, key: JobKey) -> None:
    # Agents that ask for trials move tunings on. Where none asks, a plan that failed or an agent that fell silent would go unnoticed.
    # While the database is away nothing can be done, and the stream itself goes on when it is back.
    with suppress(NotFoundError, SQLAlchemyError):
        service.conductor.read(key.tenant, key.id)
