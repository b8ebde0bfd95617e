"""Launch files of a finished plan."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import JSONResponse, Response

from app.errors import WrongStateError
from app.service.api.dependencies import Caller, Here
from app.service.api.schemas import LaunchFiles
from app.service.api.v1.plans import PlanId
from app.service.intake.own_calibrations import OwnCalibrations
from app.service.parts import Service
from planner.export.export import export_row, target_named
from planner.export.launch_plan import row_of_plan
from planner.export.target import LaunchFile
from planner.export.targets import TARGETS

router = APIRouter(prefix="/v1/plans", tags=["plans"])
_FIRST = next(iter(TARGETS))
ZIP = "application/zip"
# The same files give the same archive, so that clients can compare what they got.
_DATE = (1980, 1, 1, 0, 0, 0)


@router.get(
    "/{plan_id}/exports/{framework}",
    summary="Get the launch files of a plan",
    response_description="The files, as JSON or as an archive.",
    response_model=LaunchFiles,
    responses={200: {"content": {ZIP: {"schema": {"type": "string", "format": "binary"}}}}},
)
def read_export(
    plan_id: PlanId,
    framework: Annotated[
        str,
        Path(max_length=40, description="Target of the files.", openapi_examples={_FIRST: {"value": _FIRST}}),
    ],
    caller: Caller,
    service: Here,
    *,
    plan: Annotated[int, Query(ge=1, le=1000, description="Rank of the plan.")] = 1,
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
    files = launch_files(service, caller.tenant, plan_id, framework, rank=plan, version=version)
    if ZIP in accept:
        headers = {"Content-Disposition": f'attachment; filename="{framework}.zip"'}
        return Response(zipped(files), media_type=ZIP, headers=headers)
    return JSONResponse({"files": [{"path": file.path, "content": file.content} for file in files]})


def launch_files(
    service: Service, tenant: str, plan_id: str, framework: str, *, rank: int, version: str | None
) -> tuple[LaunchFile, ...]:
    """The launch files of one ranked plan.

    Raises:
        NotFoundError: the tenant has no such plan.
        WrongStateError: it has not succeeded.
        InvalidInputError, NotExpressibleError: the target is unknown, or cannot run this plan.
    """
    stored = service.plans.get(tenant, plan_id)
    if stored.status != "succeeded" or not stored.response:
        message = f"plan {plan_id} is {stored.status}"
        raise WrongStateError(message, hint="Its launch files can be read once it has succeeded.")
    response: dict[str, Any] = json.loads(stored.response)
    own_version = version if target_named(framework).own_version else None
    row = row_of_plan(response, rank, framework_version=own_version)
    # Calibrations are stored under ids that only their tenant may name.
    predicted = next(each for each in response["plans"] if each["rank"] == rank)["evaluation"]
    own = OwnCalibrations(service.calibrations, tenant=tenant)
    (named,) = own.named([row])
    return tuple(export_row(named, framework, framework_version=version, predicted=predicted, extra=own.found))


def zipped(files: tuple[LaunchFile, ...]) -> bytes:
    """An archive of the files, in which scripts may be executed."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.path, date_time=_DATE)
            entry.external_attr = (0o755 if file.executable else 0o644) << 16
            archive.writestr(entry, file.content, compress_type=zipfile.ZIP_DEFLATED)
    return held.getvalue()
