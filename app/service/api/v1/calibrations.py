"""Calibrations: uploaded once, never changed, named by their digest, and deleted when nobody wants them any more."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response

from app.errors import WrongStateError
from app.service.api.calibration_uploads import parsed_calibration, store_calibration
from app.service.api.dependencies import STORABLE, Body, Caller, Here, Limit, Place, page_of
from app.service.api.openapi import json_body
from app.service.api.schemas import CalibrationFile, CalibrationPage
from app.service.intake.examples import example_calibration
from app.service.timestamps import rfc3339

router = APIRouter(prefix="/v1/calibrations", tags=["calibrations"])
CalibrationId = Annotated[
    str,
    Path(
        max_length=80,
        pattern=STORABLE,
        description="Digest of a calibration.",
        openapi_examples={"seeded": {"value": example_calibration().id}},
    ),
]


@router.post(
    "",
    status_code=201,
    summary="Upload a calibration",
    response_description="The document as it is stored, with its id.",
    response_model=CalibrationFile,
    openapi_extra=json_body(CalibrationFile, path="/v1/calibrations"),
)
async def upload_calibration(body: Body, caller: Caller, service: Here) -> Response:
    """Store what an agent measured. Storing the same document again changes nothing."""
    service.rates.count_upload(caller.holder)
    document = parsed_calibration(body.value)
    text = await run_in_threadpool(store_calibration, service.calibrations, caller.tenant, document)
    headers = {"Location": f"/v1/calibrations/{document.id}"}
    return Response(text, status_code=201, media_type="application/json", headers=headers)


@router.get(
    "",
    summary="List calibrations",
    response_description="A page of your calibrations.",
    response_model=CalibrationPage,
)
def list_calibrations(caller: Caller, service: Here, place: Place, limit: Limit = 20) -> JSONResponse:
    """Your calibrations, newest first, without their samples."""
    rows = service.calibrations.page(caller.tenant, limit=limit, after=place)
    items = [
        {"id": r.id, "created_at": rfc3339(r.created_at), "gpu": r.gpu, "gpus_per_node": r.gpus_per_node} for r in rows
    ]
    last = (rows[-1].created_at, rows[-1].id) if len(rows) == limit else None
    return JSONResponse(page_of(items, last=last))


@router.get(
    "/{calibration_id}",
    summary="Read a calibration",
    response_description="The calibration with its samples and fits.",
    response_model=CalibrationFile,
)
def read_calibration(calibration_id: CalibrationId, caller: Caller, service: Here) -> Response:
    """One calibration with its samples and fits."""
    return Response(service.calibrations.document(caller.tenant, calibration_id), media_type="application/json")


@router.delete(
    "/{calibration_id}",
    status_code=204,
    summary="Delete a calibration",
    response_description="The calibration is deleted.",
)
def delete_calibration(calibration_id: CalibrationId, caller: Caller, service: Here) -> Response:
    """Delete a calibration. Plans that were priced with it keep the copy that they were asked with."""
    if calibration_id == example_calibration().id and service.settings.seed_examples:
        hint = "It prices no plan unless it is named. MESHWRIGHT_SEED_EXAMPLES=false runs a service without examples."
        raise WrongStateError("this calibration is what the documentation's examples refer to, and is kept", hint=hint)
    service.calibrations.delete(caller.tenant, calibration_id)
    return Response(status_code=204)
