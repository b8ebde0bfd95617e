"""The pages and files beside a plan's report: one ranked plan, two side by side, a strategy of one's own, and what can be fetched."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, Response

from app.service.api.dependencies import Here
from app.service.api.v1.exports import ZIP, launch_files
from app.service.api.v1.plans import PlanId, Rank
from app.service.web import computed_pages
from app.service.web.filled import FilledForm
from app.service.web.rendering import html
from app.service.web.reports import of_plan
from app.service.web.visitors import OwnPage, Visitor

router = APIRouter(prefix="/plans/{plan_id}", include_in_schema=False)
_Listed = Annotated[int, Query(ge=1, le=1000)]


@router.api_route("/ranked/{rank}", methods=["GET", "HEAD"])
async def show_ranked(request: Request, plan_id: PlanId, rank: Rank, visitor: Visitor, service: Here) -> HTMLResponse:
    """One ranked plan in full."""
    return html(await of_plan(request, service, visitor.tenant, plan_id, computed_pages.ranked_page, rank))


@router.api_route("/compare", methods=["GET", "HEAD"])
async def compare_two(
    request: Request, plan_id: PlanId, visitor: Visitor, service: Here, a: _Listed = 1, b: _Listed = 2
) -> HTMLResponse:
    """Two ranked plans side by side."""
    return html(await of_plan(request, service, visitor.tenant, plan_id, computed_pages.comparison, a, b))


@router.api_route("/why-not", methods=["GET", "HEAD"])
async def ask_why_not(request: Request, plan_id: PlanId, visitor: Visitor, service: Here) -> HTMLResponse:
    """The form for a strategy of one's own, filled with that of the best plan."""
    return html(await of_plan(request, service, visitor.tenant, plan_id, computed_pages.why_not_form))


@router.post("/why-not", dependencies=[OwnPage])
async def answer_why_not(
    request: Request, plan_id: PlanId, visitor: Visitor, service: Here, filled: FilledForm
) -> HTMLResponse:
    """What speaks against the strategy that was filled in, or for it."""
    status, text = await of_plan(request, service, visitor.tenant, plan_id, computed_pages.why_not_answer, filled)
    return html(text, status=status)


@router.get("/ranked/{rank}/trace.json")
async def trace(request: Request, plan_id: PlanId, rank: Rank, visitor: Visitor, service: Here) -> Response:
    """The plan's step as a Chrome trace."""
    content = await of_plan(request, service, visitor.tenant, plan_id, computed_pages.trace, rank)
    return _file(content, name=f"plan-{rank}-trace.json", media_type="application/json")


@router.get("/ranked/{rank}/memory.pickle")
async def memory(request: Request, plan_id: PlanId, rank: Rank, visitor: Visitor, service: Here) -> Response:
    """The memory of the plan's fullest stage over the step, for pytorch.org/memory_viz."""
    content = await of_plan(request, service, visitor.tenant, plan_id, computed_pages.memory, rank)
    return _file(content, name=f"plan-{rank}-memory.pickle", media_type="application/octet-stream")


@router.get("/ranked/{rank}/exports/{framework}")
async def launch_archive(
    request: Request,
    plan_id: PlanId,
    rank: Rank,
    framework: Annotated[str, Path(max_length=40)],
    visitor: Visitor,
    service: Here,
) -> Response:
    """The plan's launch files as an archive, which a link can fetch: browsers cannot ask the API for one by a header."""
    content = await launch_files(
        request, service, visitor.tenant, plan_id, framework, rank=rank, version=None, as_zip=True
    )
    return _file(content, name=f"plan-{rank}-{framework}.zip", media_type=ZIP)


@router.get("/response.json")
async def whole_response(request: Request, plan_id: PlanId, visitor: Visitor, service: Here) -> Response:
    """The whole answer, as `meshwright report` and `meshwright export` read it."""
    content = await of_plan(request, service, visitor.tenant, plan_id, computed_pages.whole_response)
    return _file(content, name=f"{plan_id}.json", media_type="application/json")


def _file(content: bytes, *, name: str, media_type: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-cache"}
    return Response(content, media_type=media_type, headers=headers)
