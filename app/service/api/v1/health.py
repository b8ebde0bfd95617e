"""Whether the service lives, whether it can work, and its figures. None of these needs a key or shows a tenant's data."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from app.errors import UnavailableError
from app.service.api.schemas import Health
from app.service.db.migrate import is_current
from app.service.metrics import CONTENT_TYPE
from app.service.parts import Service, service_of
from planner.request.checked_request import PRODUCT_VERSION

router = APIRouter(tags=["service"])
Here = Annotated[Service, Depends(service_of)]


@router.get("/healthz", response_model=Health)
def healthz() -> dict[str, Any]:
    """The process answers."""
    return {"status": "ok", "version": PRODUCT_VERSION}


@router.get("/readyz", response_model=Health)
def readyz(service: Here) -> dict[str, Any]:
    """The database has the newest schema and a worker is there; 503 otherwise."""
    if not is_current(service.engine):
        raise UnavailableError("the database has an older schema", hint="Run `meshwright db upgrade`.")
    workers = service.runner.ready_workers()
    if workers == 0:
        raise UnavailableError("no worker is ready", hint="They take a second to start; the log says why if not.")
    return {"status": "ok", "version": PRODUCT_VERSION, "workers": workers}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(service: Here) -> Response:
    """Figures in Prometheus' text format."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)
