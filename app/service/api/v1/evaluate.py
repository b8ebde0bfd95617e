"""What given strategies cost: one row, or a list of rows."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response

from app.service.api.answering import LINES, computed, streamed
from app.service.api.computed import evaluated
from app.service.api.dependencies import Caller, Here, RawBody, prefers
from app.service.api.openapi import json_body
from planner.schemas import EvaluateRow, Evaluation

router = APIRouter(prefix="/v1/evaluate", tags=["evaluate"])


@router.post(
    "",
    summary="Price strategies of your own",
    response_description="An evaluation, or for a list as many in the same order.",
    response_model=Evaluation | list[Evaluation],
    responses={200: {"content": {LINES: {"schema": {"type": "string"}}}}},
    openapi_extra=json_body(EvaluateRow, path="/v1/evaluate", or_list=True),
)
async def evaluate(
    request: Request,
    body: RawBody,
    caller: Caller,
    service: Here,
    accept: Annotated[
        str,
        Header(description=f"`{LINES}` gives one evaluation a line, each as soon as it is priced, in place of a list."),
    ] = "application/json",
) -> Response:
    """Price one row, or each of a list in order. In a list a bad row gets the verdict `invalid` and the rest go on.

    What your own measured runs teach is applied, unless a row says `"corrections": "none"` or holds a document of its own.
    """
    as_lines = prefers(accept, LINES)
    learnt = await service.corrections.now(caller.tenant)
    function = partial(evaluated, max_depth=service.settings.max_json_depth, as_lines=as_lines, learnt=learnt)
    if as_lines:
        return await streamed(request, service, caller.tenant, function, body, media_type=LINES)
    parts = await computed(request, service, caller.tenant, function, body)
    return Response(b"".join(parts), media_type="application/json")
