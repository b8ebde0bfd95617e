"""Somebody's own configuration beside the best plan for the same job."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from app.service.api.dependencies import Body, Caller, Here
from app.service.api.openapi import json_body
from app.service.intake.own_calibrations import OwnCalibrations
from cost_models.inputs.fields import validated
from planner.export.imported_row import Overrides
from planner.export.judge.judge import judge as judged
from planner.export.settings import InputFile
from planner.schemas.judgement import Judgement, JudgeRequest

router = APIRouter(prefix="/v1/judge", tags=["evaluate"])
_SEARCH_S = 20.0
"""Longest search for the best plan. Most take less than a second; a client waits for this answer, as for an evaluation."""


@router.post(
    "",
    summary="Judge your launch files",
    response_description="What the files cost, the best plan, and what to change.",
    response_model=Judgement,
    openapi_extra=json_body(JudgeRequest, path="/v1/judge"),
)
async def judge(body: Body, caller: Caller, service: Here) -> JSONResponse:
    """Judge launch files: their prediction, the best plan for the same job, and what each changed line gains.

    Nothing in the files is executed.
    """
    asked = validated(JudgeRequest, body.value, pointer="")
    own = OwnCalibrations(service.calibrations, tenant=caller.tenant)
    return JSONResponse(await run_in_threadpool(_judged, asked, own=own))


def _judged(asked: JudgeRequest, *, own: OwnCalibrations) -> dict[str, Any]:
    (named,) = own.named([{"cluster": asked.cluster}])
    cluster = named["cluster"]
    strategy = asked.strategy.model_dump(exclude_unset=True, mode="json")
    return judged(
        [InputFile(file.path, file.content) for file in asked.files],
        given=Overrides(asked.model, cluster, asked.training, strategy),
        framework=asked.framework,
        extra=own.found,
        time_limit_s=_SEARCH_S,
    )
