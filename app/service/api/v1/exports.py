"""Launch files of a finished plan."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from app.errors import WrongStateError
from app.service.api.answering import computed
from app.service.api.computed import exported
from app.service.api.dependencies import Caller, Here, prefers
from app.service.api.schemas import LaunchFiles
from app.service.api.v1.plans import PlanId
from app.service.parts import Service
from planner.export.targets import TARGETS

router = APIRouter(prefix="/v1/plans", tags=["plans"])
_FIRST = next(iter(TARGETS))
ZIP = "application/zip"


@router.get(
    "/{plan_id}/exports/{framework}",
    summary="Get the launch files of a plan",
    response_description="The files, as JSON or as an archive.",
    response_model=LaunchFiles,
    responses={200: {"content": {ZIP: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def read_export(
    request: Request,
    plan_id: PlanId,
    framework: Annotated[
        str,
        Path(max_length=40, description="Target of the files.", openapi_examples={_FIRST: {"value": _FIRST}}),
    ],
    caller: Caller,
    service: Here,
    *,
    plan: Annotated[int, Query(ge=1, le=1000, description="Rank of the plan.")] = 1,
    changed: Annotated[bool, Query(description="Whether the rank is one of `changed_plans`.")] = False,
    version: Annotated[
        str | None,
        Query(
            max_length=40,
            description="Release of the target. Default: the request's, or a front end's newest known one.",
        ),
    ] = None,
    accept: Annotated[str, Header(description=f"`{ZIP}` gives an archive in place of JSON.")] = "application/json",
) -> Response:
    """Launch files of one ranked plan for a framework or a front end of it."""
    as_zip = prefers(accept, ZIP)
    content = await launch_files(
        request, service, caller.tenant, plan_id, framework, rank=plan, changed=changed, version=version, as_zip=as_zip
    )
    if as_zip:
        headers = {"Content-Disposition": f'attachment; filename="{framework}.zip"'}
        return Response(content, media_type=ZIP, headers=headers)
    return Response(content, media_type="application/json")


async def launch_files(
    request: Request,
    service: Service,
    tenant: str,
    plan_id: str,
    framework: str,
    *,
    rank: int,
    version: str | None,
    as_zip: bool,
    changed: bool = False,
) -> bytes:
    """The launch files of one ranked plan, as JSON or as an archive.

    Raises:
        NotFoundError: the tenant has no such plan.
        WrongStateError: it has not succeeded.
        InvalidInputError, NotExpressibleError: (relayed) the target is unknown, or cannot run this plan.
    """
    response = await run_in_threadpool(_response, service, tenant, plan_id)
    function = partial(exported, rank=rank, changed=changed, version=version, as_zip=as_zip)
    content: bytes
    (content,) = await computed(request, service, tenant, function, response, framework)
    return content


def _response(service: Service, tenant: str, plan_id: str) -> str:
    stored = service.plans.get(tenant, plan_id)
    if stored.status != "succeeded" or not stored.response:
        message = f"plan {plan_id} is {stored.status}"
        raise WrongStateError(message, hint="Its launch files can be read once it has succeeded.")
    return stored.response
