"""Observations: runs that users have measured, kept beside their predictions."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response

from app.errors import WrongStateError
from app.service.api.answering import computed
from app.service.api.computed import observed
from app.service.api.dependencies import STORABLE, Caller, Here, Limit, Place, RawBody, page_of
from app.service.api.observation_schemas import ObservationPage
from app.service.api.openapi import json_body
from app.service.intake.examples import EXAMPLE_OBSERVATION_ID
from app.service.timestamps import rfc3339
from planner.schemas.observation import Observation, ObservationRequest

router = APIRouter(prefix="/v1/observations", tags=["observations"])
ObservationId = Annotated[
    str,
    Path(
        max_length=80,
        pattern=STORABLE,
        description="Id of an observation.",
        openapi_examples={"seeded": {"value": EXAMPLE_OBSERVATION_ID}},
    ),
]


@router.post(
    "",
    status_code=201,
    summary="Tell of a run",
    response_description="The observation as it is stored, beside its prediction.",
    response_model=Observation,
    openapi_extra=json_body(ObservationRequest, path="/v1/observations"),
)
async def create_observation(request: Request, body: RawBody, caller: Caller, service: Here) -> Response:
    """Tell what a run of yours took, by its log or by its numbers. The same run told twice is one observation.

    Of a log its digest and the first lines that were read are kept. What cannot be right is stored, says why, and corrects nothing.
    """
    service.rates.count_upload(caller.holder)
    function = partial(observed, max_depth=service.settings.max_json_depth)
    (made,) = await computed(request, service, caller.tenant, function, body)
    text = await run_in_threadpool(
        lambda: service.observations.add(caller.tenant, made["document"], framework=made["framework"], gpu=made["gpu"])
    )
    headers = {"Location": f"/v1/observations/{made['document']['id']}"}
    return Response(text, status_code=201, media_type="application/json", headers=headers)


@router.get(
    "",
    summary="List observations",
    response_description="A page of your observations.",
    response_model=ObservationPage,
)
def list_observations(caller: Caller, service: Here, place: Place, limit: Limit = 20) -> JSONResponse:
    """Your observations, newest first, in a few numbers each."""
    rows = service.observations.page(caller.tenant, limit=limit, after=place)
    items: list[dict[str, Any]] = [
        {
            "id": row.id, "created_at": rfc3339(row.created_at), "framework": row.framework, "gpu": row.gpu, "used": row.used,
            **json.loads(row.headline),
        }
        for row in rows
    ]  # fmt: skip
    last = (rows[-1].created_at, rows[-1].id) if len(rows) == limit else None
    return JSONResponse(page_of(items, last=last))


@router.get(
    "/{observation_id}",
    summary="Read an observation",
    response_description="The observation with its prediction.",
    response_model=Observation,
)
def read_observation(observation_id: ObservationId, caller: Caller, service: Here) -> Response:
    """One observation: what was run, what it took, and what had been predicted."""
    return Response(service.observations.document(caller.tenant, observation_id), media_type="application/json")


@router.delete(
    "/{observation_id}",
    status_code=204,
    summary="Delete an observation",
    response_description="The observation is deleted.",
)
def delete_observation(observation_id: ObservationId, caller: Caller, service: Here) -> Response:
    """Delete an observation. Later predictions are no longer corrected by it."""
    if observation_id == EXAMPLE_OBSERVATION_ID and service.settings.seed_examples:
        hint = "It corrects nothing. MESHWRIGHT_SEED_EXAMPLES=false runs a service without examples."
        raise WrongStateError("this observation is what the documentation's examples refer to, and is kept", hint=hint)
    service.observations.delete(caller.tenant, observation_id)
    return Response(status_code=204)
