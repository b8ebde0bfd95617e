"""Corrections: what a tenant's measured runs say of the predictions, term by term, and switches for them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse

from app.service.api.correction_schemas import CorrectionList, CorrectionSwitch, LearntCorrection
from app.service.api.dependencies import STORABLE, Body, Caller, Here
from app.service.api.openapi import json_body
from cost_models.inputs.corrections import correction_dict
from cost_models.inputs.fields import validated

router = APIRouter(prefix="/v1/corrections", tags=["corrections"])


@router.get(
    "",
    summary="List what was learnt",
    response_description="The corrections of your tenant.",
    response_model=CorrectionList,
)
def list_corrections(caller: Caller, service: Here) -> JSONResponse:
    """What your observations and the trials of your tunings teach of each term, by framework and GPU. Plans of yours are priced with what is kept and enabled."""
    items: list[dict[str, Any]] = [correction_dict(each) for each in service.corrections.listed(caller.tenant)]
    return JSONResponse({"items": items})


CorrectionId = Annotated[str, Path(max_length=80, pattern=STORABLE, description="Id of a correction.")]


@router.get(
    "/{correction_id}",
    summary="Read what was learnt of one term",
    response_description="The correction.",
    response_model=LearntCorrection,
)
def get_correction(correction_id: CorrectionId, caller: Caller, service: Here) -> JSONResponse:
    """The correction of one term for one framework, model code, GPU, precision and calibration, as your runs teach it now."""
    return JSONResponse(correction_dict(service.corrections.one(caller.tenant, correction_id)))


@router.put(
    "/{correction_id}",
    summary="Switch a correction on or off",
    response_description="The correction as it is now.",
    response_model=LearntCorrection,
    openapi_extra=json_body(CorrectionSwitch, path="/v1/corrections/{correction_id}"),
)
def switch_correction(
    correction_id: CorrectionId,
    body: Body,
    caller: Caller,
    service: Here,
) -> JSONResponse:
    """Switch a correction on or off for later plans. It stays so however often it is learnt anew."""
    asked = validated(CorrectionSwitch, body.value, pointer="")
    found = service.corrections.switch(caller.tenant, correction_id, enabled=asked.enabled)
    return JSONResponse(correction_dict(found))
