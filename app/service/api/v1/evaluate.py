"""What given strategies cost: one row, or a list of rows."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from app.service.api.dependencies import Body, Caller, Here
from app.service.api.openapi import json_body
from app.service.intake.own_calibrations import OwnCalibrations
from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import shown
from cost_models.inputs.fields import validated
from planner.rows import evaluate_rows
from planner.schemas import EvaluateRow, Evaluation

router = APIRouter(prefix="/v1/evaluate", tags=["evaluate"])
# A body of the default size holds fewer rows. This bounds the work of one request where a deployment accepts larger bodies.
_MOST_ROWS = 10_000
_MOST_PROBLEMS = 20


@router.post(
    "",
    summary="Price strategies of your own",
    response_description="An evaluation, or for a list as many in the same order.",
    response_model=Evaluation | list[Evaluation],
    openapi_extra=json_body(EvaluateRow, path="/v1/evaluate", or_list=True),
)
async def evaluate(body: Body, caller: Caller, service: Here) -> JSONResponse:
    """Price one row, or each of a list in order. In a list a bad row gets the verdict `invalid` and the rest go on."""
    own = OwnCalibrations(service.calibrations, tenant=caller.tenant)
    if isinstance(body.value, list):
        return JSONResponse(await run_in_threadpool(_evaluated, body.value, own=own))
    # A single row that does not match the schema is refused with 422. In a list such a row gets the verdict `invalid`, which
    # is for `evaluate_rows` to find, so that the rows beside it are answered.
    validated(EvaluateRow, body.value, pointer="")
    return JSONResponse((await run_in_threadpool(_evaluated, [body.value], own=own))[0])


def _evaluated(rows: list[Any], *, own: OwnCalibrations) -> list[dict[str, Any]]:
    if len(rows) > _MOST_ROWS:
        problem = Problem(
            "",
            f"the list has {len(rows)} rows; one request takes at most {_MOST_ROWS}",
            "Split them over several requests.",
        )
        raise InvalidInputError([problem])
    problems = [
        Problem(f"/{position}", f"is {shown(row)}; a row must be an object", "Send each row as an object {…}.")
        for position, row in enumerate(rows)
        if not isinstance(row, dict)
    ]
    if problems:
        raise InvalidInputError(problems[:_MOST_PROBLEMS])
    named = own.named(rows)
    return list(evaluate_rows(named, extra=own.found))
