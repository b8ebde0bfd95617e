"""Somebody's own configuration beside the best plan for the same job."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.service.api.answering import computed
from app.service.api.computed import judged
from app.service.api.dependencies import Caller, Here, RawBody
from app.service.api.openapi import json_body
from planner.schemas.judgement import Judgement, JudgeRequest

router = APIRouter(prefix="/v1/judge", tags=["evaluate"])


@router.post(
    "",
    summary="Judge your launch files",
    response_description="What the files cost, the best plan, and what to change.",
    response_model=Judgement,
    openapi_extra=json_body(JudgeRequest, path="/v1/judge"),
)
async def judge(request: Request, body: RawBody, caller: Caller, service: Here) -> Response:
    """Judge launch files: their prediction, the best plan for the same job, and what each changed line gains.

    Nothing in the files is executed.
    """
    function = partial(judged, max_depth=service.settings.max_json_depth)
    (text,) = await computed(request, service, caller.tenant, function, body)
    return Response(text, media_type="application/json")
