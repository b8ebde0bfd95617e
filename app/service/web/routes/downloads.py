"""The pages and files beside a plan's report: one ranked plan, two side by side, a strategy of one's own, and what can be fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from app.errors import status_of
from app.report.downloads import chrome_trace, memory_snapshot
from app.report.report import Report
from app.report.sections.compare import compare_page
from app.report.sections.why_not import answer_markup, form_markup, posted_strategy
from app.report.words import job_line, page_title
from app.service.api.dependencies import Here
from app.service.api.v1.exports import ZIP, launch_files, zipped
from app.service.api.v1.plans import PlanId, Rank
from app.service.db.plans import PlanRow
from app.service.web.filled import FilledForm
from app.service.web.rendering import ASSETS, REPORT_SCRIPTS, fragment, html, page
from app.service.web.reports import links_of, plan_html, require_rank, stored_report, stored_response
from app.service.web.visitors import OwnPage, Visitor
from cost_models.errors import MeshwrightError
from planner.why_not import why_not

router = APIRouter(prefix="/plans/{plan_id}", include_in_schema=False)
_NOTHING = Markup()
_Listed = Annotated[int, Query(ge=1, le=1000)]


@router.api_route("/ranked/{rank}", methods=["GET", "HEAD"])
def show_ranked(plan_id: PlanId, rank: Rank, visitor: Visitor, service: Here) -> HTMLResponse:
    """One ranked plan in full."""
    plan = service.plans.get(visitor.tenant, plan_id)
    return html(plan_html(service, visitor.tenant, plan, rank))


@router.api_route("/compare", methods=["GET", "HEAD"])
def compare_two(plan_id: PlanId, visitor: Visitor, service: Here, a: _Listed = 1, b: _Listed = 2) -> HTMLResponse:
    """Two ranked plans side by side."""
    plan = service.plans.get(visitor.tenant, plan_id)
    report = stored_report(service, visitor.tenant, plan)
    for rank in (a, b):
        require_rank(report, rank)
    section = compare_page(report, a, b)
    return _parts(plan, report, f"Plans {a} and {b} of {page_title(report)}", sections=(section,))


@router.api_route("/why-not", methods=["GET", "HEAD"])
def ask_why_not(plan_id: PlanId, visitor: Visitor, service: Here) -> HTMLResponse:
    """The form for a strategy of one's own, filled with that of the best plan."""
    plan = service.plans.get(visitor.tenant, plan_id)
    report = stored_report(service, visitor.tenant, plan)
    best = report.plans[0].strategy if report.plans else None
    return _why_not(plan, report, best)


@router.post("/why-not", dependencies=[OwnPage])
def answer_why_not(plan_id: PlanId, visitor: Visitor, service: Here, filled: FilledForm) -> HTMLResponse:
    """What speaks against the strategy that was filled in, or for it."""
    plan = service.plans.get(visitor.tenant, plan_id)
    report = stored_report(service, visitor.tenant, plan)
    try:
        answer = why_not(report.response, posted_strategy(filled), extra=report.calibrations)
    except MeshwrightError as error:
        told = Markup(fragment("refusal", error=error))  # noqa: S704 - rendered with autoescape
        return _why_not(plan, report, filled, told, status=status_of(error))
    return _why_not(plan, report, filled, answer_markup(answer, report.response))


def _why_not(
    plan: PlanRow, report: Report, filled: Mapping[str, Any] | None, told: Markup = _NOTHING, *, status: int = 200
) -> HTMLResponse:
    content = form_markup(f"/plans/{plan.id}/why-not", filled) + told
    return _parts(plan, report, f"Why not mine? {page_title(report)}", content=content, status=status)


@router.get("/ranked/{rank}/trace.json")
def trace(plan_id: PlanId, rank: Rank, visitor: Visitor, service: Here) -> Response:
    """The plan's step as a Chrome trace."""
    report = _listed(plan_id, rank, visitor, service)
    content = chrome_trace(report.plan(rank), extra=report.calibrations)
    return _file(content, name=f"plan-{rank}-trace.json", media_type="application/json")


@router.get("/ranked/{rank}/memory.pickle")
def memory(plan_id: PlanId, rank: Rank, visitor: Visitor, service: Here) -> Response:
    """The memory of the plan's fullest stage over the step, for pytorch.org/memory_viz."""
    report = _listed(plan_id, rank, visitor, service)
    content = memory_snapshot(report.plan(rank), extra=report.calibrations)
    return _file(content, name=f"plan-{rank}-memory.pickle", media_type="application/octet-stream")


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


def _listed(plan_id: str, rank: int, visitor: Visitor, service: Here) -> Report:
    report = stored_report(service, visitor.tenant, service.plans.get(visitor.tenant, plan_id))
    require_rank(report, rank)
    return report


def _parts(
    plan: PlanRow,
    report: Report,
    title: str,
    *,
    sections: tuple[Any, ...] = (),
    content: Markup = _NOTHING,
    status: int = 200,
) -> HTMLResponse:
    wanted = [f"{ASSETS}/{name}" for section in sections for name in section.scripts]
    return page(
        "parts_of_plan",
        title=title,
        status=status,
        scripts=(*REPORT_SCRIPTS, *wanted),
        site=links_of(plan),
        address=f"/plans/{plan.id}",
        job=job_line(report),
        sections=sections,
        content=content,
    )


def _file(content: bytes, *, name: str, media_type: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-cache"}
    return Response(content, media_type=media_type, headers=headers)
