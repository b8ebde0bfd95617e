"""The pages of plans: the list, a plan while it is searched for, its report, and what went wrong with one that failed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app.errors import WrongStateError
from app.service.answering.messages import RelayedError
from app.service.api.dependencies import Here, Place, cursor_of
from app.service.api.v1.plans import PlanId
from app.service.auth import KEY_IS_OVER, RECONNECT_MS, is_still_valid
from app.service.db.jobs import FINISHED, JobKey
from app.service.db.plans import PlanRow
from app.service.intake.examples import EXAMPLE_PLAN_ID
from app.service.parts import Service
from app.service.web.computed_pages import whole_report
from app.service.web.progress import progress_of
from app.service.web.rendering import HTMX, fragment, html, page
from app.service.web.reports import of_plan
from app.service.web.visitors import OwnPage, Visitor
from app.service.web.words import asked, parted, when

router = APIRouter(include_in_schema=False)
_ON_A_PAGE = 20
_TELL_EVERY_S = 1.0
"""Seconds between two reports after which the elapsed time is told anew."""


@router.api_route("/plans", methods=["GET", "HEAD"])
def list_plans(visitor: Visitor, service: Here, place: Place) -> HTMLResponse:
    """The visitor's plans, newest first."""
    plans = service.plans.page(visitor.tenant, limit=_ON_A_PAGE, after=place)
    entries = [
        {
            "id": plan.id,
            "status": plan.status,
            "asked": asked(json.loads(plan.request)["request"]),
            "created": when(plan.created_at),
            "headline": json.loads(plan.headline) if plan.headline else None,
        }
        for plan in plans
    ]
    more = cursor_of(plans[-1].created_at, plans[-1].id) if len(plans) == _ON_A_PAGE else None
    own, examples = parted(entries, lambda entry: entry["id"] == EXAMPLE_PLAN_ID)
    return page("plans", title="Plans", own=own, examples=examples, more=more, is_first=place is None)


@router.api_route("/plans/{plan_id}", methods=["GET", "HEAD"])
async def show_plan(request: Request, plan_id: PlanId, visitor: Visitor, service: Here) -> HTMLResponse:
    """The report of a plan, or how far its search is, or why there is no report."""
    plan = await run_in_threadpool(service.plans.get, visitor.tenant, plan_id)
    if plan.status != "succeeded":
        return await run_in_threadpool(_without_report, service, visitor.tenant, plan)
    try:
        return html(await of_plan(request, service, visitor.tenant, plan_id, whole_report))
    except RelayedError as error:
        if not (told := error.document["errors"]):
            raise
        # The answer is there, but this version of the program would draw other figures than the one that gave it.
        problem = {"detail": told[0]["message"], "hint": told[0]["hint"], "code": error.document["code"]}
        return page("unfinished", title="A plan of another version", plan=plan, problem=problem, has_answer=True)


def _without_report(service: Service, tenant: str, plan: PlanRow) -> HTMLResponse:
    if plan.status in ("failed", "cancelled"):
        told = json.loads(plan.error) if plan.error else None
        title = "The search failed" if plan.status == "failed" else "The search was cancelled"
        return page("unfinished", title=title, plan=plan, problem=told, has_answer=False)
    return page(
        "progress",
        title="Searching",
        scripts=HTMX,
        plan=plan,
        progress=progress_of(service.jobs, JobKey(tenant, plan.id), plan),
        asked=asked(json.loads(plan.request)["request"]),
    )


@router.post("/plans/{plan_id}/cancel", dependencies=[OwnPage])
async def cancel_plan(plan_id: PlanId, visitor: Visitor, service: Here) -> Response:
    """Cancels a search that has not ended, and shows what became of it."""
    key = JobKey(visitor.tenant, plan_id)
    try:
        await run_in_threadpool(service.jobs.request_cancel, key)
    except WrongStateError:
        pass  # it ended while the button was on its way; its page says how
    else:
        service.runner.cancel(key)
        # A search stops at its next look at the flag, so that mostly the page can say at once that it was cancelled.
        await service.runner.wait(key, timeout_s=1.0)
    return RedirectResponse(f"/plans/{plan_id}", status_code=303)


def _watched(plan_id: PlanId, visitor: Visitor, service: Here) -> JobKey:
    return JobKey(visitor.tenant, service.plans.get(visitor.tenant, plan_id).id)


@router.get("/plans/{plan_id}/progress", response_class=EventSourceResponse)
async def watch_plan(
    key: Annotated[JobKey, Depends(_watched)], visitor: Visitor, service: Here
) -> AsyncIterable[ServerSentEvent]:
    """How far the search is, as a part of its page each time, and `finished` at the end; no longer than the key is valid."""
    # A route of its own beside the API's events: it reads the visitor's cookie, and words and numbers are written in one place.
    with service.runner.watch(key) as watch:
        while await is_still_valid(service, visitor):
            is_over = watch.is_over
            plan, progress = await run_in_threadpool(_now, service, key)
            yield ServerSentEvent(raw_data=fragment("progress_figures", progress=progress))
            if plan.status in FINISHED:
                yield ServerSentEvent(raw_data="", event="finished")
                return
            if is_over:
                yield ServerSentEvent(comment="the service stops", retry=RECONNECT_MS)
                return
            await watch.changed(timeout_s=_TELL_EVERY_S)
        yield ServerSentEvent(comment=KEY_IS_OVER)


def _now(service: Service, key: JobKey) -> tuple[Any, dict[str, Any]]:
    plan = service.plans.get(key.tenant, key.id)
    return plan, progress_of(service.jobs, key, plan)


@router.get("/plans/{plan_id}/finished")
def finished(plan_id: PlanId, visitor: Visitor, service: Here) -> Response:
    """Tells the page of a search that has ended to load itself again: it is the report now."""
    service.plans.get(visitor.tenant, plan_id)
    return Response(status_code=204, headers={"HX-Refresh": "true"})
