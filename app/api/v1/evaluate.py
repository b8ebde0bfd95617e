"""What given strategies cost: one row, or a list of them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from app.api.openapi import json_body
from app.api.requests import Body
from app.auth import Principal, principal_of
from cost_models.errors import InvalidInputError, Problem
from cost_models.specs.fields import validated
from planner.schemas import EvaluateRow, Evaluation

router = APIRouter(prefix="/v1/evaluate", tags=["evaluate"])
Caller = Annotated[Principal, Depends(principal_of)]
_MOST_ROWS = 10_000


@router.post("", response_model=Evaluation | list[Evaluation], openapi_extra=json_body(EvaluateRow, or_list=True))
async def evaluate(body: Body, caller: Caller) -> JSONResponse:  # noqa: ARG001 - a key may be needed
    """Price one row, or each of a list in order. In a list a bad row gets the verdict `invalid` and the rest go on."""
    if isinstance(body.value, list):
        return JSONResponse(await run_in_threadpool(_evaluated, body.value))
    validated(EvaluateRow, body.value, pointer="")
    return JSONResponse((await run_in_threadpool(_evaluated, [body.value]))[0])


def _evaluated(rows: list[Any]) -> list[dict[str, Any]]:
    if len(rows) > _MOST_ROWS:
        problem = Problem("", f"{len(rows)} rows; at most {_MOST_ROWS} at a time", "Send them in several requests.")
        raise InvalidInputError([problem])
    from planner.rows import evaluate_rows

    return list(evaluate_rows(rows))
