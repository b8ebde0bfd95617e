"""The pages and files of one ranked plan: its page, its launch files as an archive, and the whole answer as JSON."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import HTMLResponse, Response

from app.service.api.dependencies import Here
from app.service.api.v1.exports import ZIP, launch_files, zipped
from app.service.api.v1.plans import PlanId, Rank
from app.service.web.rendering import html
from app.service.web.reports import plan_html, stored_response
from app.service.web.visitors import Visitor

router = APIRouter(prefix="/plans/{plan_id}", include_in_schema=False)


@router.api_route("/ranked/{rank}", methods=["GET", "HEAD"])
def show_ranked(plan_id: PlanId, rank: Rank, visitor: Visitor, service: Here) -> HTMLResponse:
    """One ranked plan in full."""
    plan = service.plans.get(visitor.tenant, plan_id)
    return html(plan_html(service, visitor.tenant, plan, rank))


@router.get("/ranked/{rank}/exports/{framework}")
def launch_archive(
    plan_id: PlanId,
    rank: Rank,
    framework: Annotated[str, Path(max_length=40)],
    visitor: Visitor,
    service: Here,
) -> Response:
    """The plan's launch files as an archive, which a link can fetch: browsers cannot ask the API for one by a header."""
    files = launch_files(service, visitor.tenant, plan_id, framework, rank=rank, version=None)
    return _file(zipped(files), name=f"plan-{rank}-{framework}.zip", media_type=ZIP)


@router.get("/response.json")
def whole_response(plan_id: PlanId, visitor: Visitor, service: Here) -> Response:
    """The whole answer, as `meshwright report` and `meshwright export` read it."""
    response = stored_response(service, visitor.tenant, service.plans.get(visitor.tenant, plan_id))
    text = json.dumps(response, ensure_ascii=False, separators=(",", ":"))
    return _file(text.encode(), name=f"{plan_id}.json", media_type="application/json")


def _file(content: bytes, *, name: str, media_type: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-cache"}
    return Response(content, media_type=media_type, headers=headers)
