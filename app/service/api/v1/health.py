"""Whether the service is alive, whether it can work, and its figures. None shows a tenant's data."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from app.errors import NoWorkerError
from app.service.api.dependencies import Here
from app.service.api.schemas import Health
from app.service.auth import figures_reader
from app.service.metrics import CONTENT_TYPE
from app.service.parts import ready_workers
from planner.request.checked_request import PRODUCT_VERSION

router = APIRouter(tags=["service"])


@router.get("/healthz", summary="Is it alive?", response_description="It is.", response_model=Health)
async def healthz() -> dict[str, Any]:
    """Liveness: the process answers."""
    # On the event loop: a service whose threads all wait for a database that hangs must not be taken for dead.
    return {"status": "ok", "version": PRODUCT_VERSION}


@router.get("/readyz", summary="Can it work?", response_description="It can.", response_model=Health)
def readyz(service: Here) -> dict[str, Any]:
    """Readiness: the database answers, has room and the newest schema, and a worker is ready. Otherwise 503, whose `code` says which of
    them fails: `database-away`, `database-full`, `schema-not-current` or `no-worker`.
    """
    # Apart from liveness, because the right reaction differs: a process that cannot reach its database should get no traffic,
    # but restarting it would not help.
    service.readiness.require()
    workers = ready_workers(service.runner, service.workers)
    if workers == 0:
        raise NoWorkerError(
            "no worker is ready", hint="Workers take about a second to start; if they do not, their log says why."
        )
    return {"status": "ok", "version": PRODUCT_VERSION, "workers": workers}


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_description="Counters and gauges.",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
    dependencies=[Depends(figures_reader)],
)
def metrics(service: Here) -> Response:
    """Figures in Prometheus' text format. Beyond the service's own machine they need a key that may read."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)
