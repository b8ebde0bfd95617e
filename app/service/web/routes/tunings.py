"""The pages of tunings: the list, a tuning while its trials run, and what it found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Mapping
from contextlib import aclosing, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app.errors import NotFoundError, WrongStateError
from app.service.api.answering import computed
from app.service.api.dependencies import Here, Place, cursor_of
from app.service.api.tuning_stream import Ended, states_of
from app.service.api.v1.tunings import TuningId
from app.service.db.jobs import FINISHED, JobKey
from app.service.db.tunings import TuningRow
from app.service.intake.examples import EXAMPLE_TUNING_ID
from app.service.parts import Service
from app.service.tunings.documents import document_of
from app.service.web.computed_pages import tuning_report
from app.service.web.rendering import HTMX, fragment, html, page
from app.service.web.tuning_progress import listed, progress_of
from app.service.web.visitors import OwnPage, Visitor
from app.service.web.words import asked, parted, when

router = APIRouter(prefix="/tunings", include_in_schema=False)
_ON_A_PAGE = 20
_GONE = "a plan that was deleted"


@router.api_route("", methods=["GET", "HEAD"])
def list_tunings(visitor: Visitor, service: Here, place: Place) -> HTMLResponse:
    """The visitor's tunings, newest first."""
    tunings = service.tunings.page(visitor.tenant, limit=_ON_A_PAGE, after=place)
    states = service.tuning_news.states([JobKey(visitor.tenant, tuning.id) for tuning in tunings])
    named = _asked(service, visitor.tenant, tunings)
    entries = [
        {"id": tuning.id, "asked": named[tuning.id], "created": when(tuning.created_at), "status": tuning.status}
        | listed(tuning, states.get(JobKey(visitor.tenant, tuning.id)))
        for tuning in tunings
    ]
    more = cursor_of(tunings[-1].created_at, tunings[-1].id) if len(tunings) == _ON_A_PAGE else None
    own, examples = parted(entries, lambda entry: entry["id"] == EXAMPLE_TUNING_ID)
    return page("tunings", title="Tunings", own=own, examples=examples, more=more, is_first=place is None)


def _asked(service: Service, tenant: str, tunings: list[TuningRow]) -> Mapping[str, str]:
    """What is tuned in one line, by the id of the tuning."""
    bodies = {tuning.id: json.loads(tuning.wanted.asked).get("request") for tuning in tunings}
    # One that names its plan is told by what the plan was asked for.
    others = {tuning.wanted.plan_id for tuning in tunings if not bodies[tuning.id]}
    plans = {name: json.loads(text)["request"] for name, text in service.plans.requests(tenant, others).items()}
    requests = {tuning.id: bodies[tuning.id] or plans.get(tuning.wanted.plan_id) for tuning in tunings}
    return {name: asked(request) if request else _GONE for name, request in requests.items()}


@router.api_route("/{tuning_id}", methods=["GET", "HEAD"])
async def show_tuning(request: Request, tuning_id: TuningId, visitor: Visitor, service: Here) -> HTMLResponse:
    """What a tuning found, or how far it is."""
    tuning, trials = await run_in_threadpool(service.conductor.read, visitor.tenant, tuning_id)
    if tuning.status in FINISHED:
        document = await run_in_threadpool(document_of, tuning, trials)
        notice = "An example of the documentation: nobody asked for it here." if tuning.id == EXAMPLE_TUNING_ID else ""
        address = f"/tunings/{tuning.id}"
        (made,) = await computed(request, service, visitor.tenant, tuning_report, json.dumps(document), address, notice)
        return html(made)
    named = await run_in_threadpool(_asked, service, visitor.tenant, [tuning])
    return page(
        "tuning_progress",
        title="A tuning",
        scripts=HTMX,
        tuning=tuning,
        asked=named[tuning.id],
        progress=progress_of(tuning, trials),
    )


@router.get("/{tuning_id}/tuning.json")
def tuning_file(tuning_id: TuningId, visitor: Visitor, service: Here) -> JSONResponse:
    """The document of a tuning, as `meshwright report` and `meshwright show` read it."""
    document = document_of(*service.conductor.read(visitor.tenant, tuning_id))
    disposition = f'attachment; filename="{document["id"]}.json"'
    return JSONResponse(document, headers={"Content-Disposition": disposition})


@router.post("/{tuning_id}/cancel", dependencies=[OwnPage])
def cancel_tuning(tuning_id: TuningId, visitor: Visitor, service: Here) -> Response:
    """Cancels a tuning that has not ended, and shows what it has found."""
    # Where it ended while the button was on its way, its page says how.
    with suppress(WrongStateError):
        service.conductor.remove(visitor.tenant, tuning_id, cancel_only=True)
    return RedirectResponse(f"/tunings/{tuning_id}", status_code=303)


def _watched(tuning_id: TuningId, visitor: Visitor, service: Here) -> JobKey:
    return JobKey(visitor.tenant, service.tunings.get(visitor.tenant, tuning_id).id)


@router.get("/{tuning_id}/progress", response_class=EventSourceResponse)
async def watch_tuning(
    key: Annotated[JobKey, Depends(_watched)], visitor: Visitor, service: Here
) -> AsyncIterable[ServerSentEvent]:
    """How far the tuning is, as a part of its page after each change, and `finished` at the end; no longer than the key is valid."""
    async with aclosing(states_of(service, visitor, key)) as states:
        async for seen in states:
            if isinstance(seen, Ended):
                yield ServerSentEvent(comment=seen.comment, retry=seen.retry_ms)
                return
            try:
                progress = await run_in_threadpool(_now, service, key)
            except NotFoundError:  # deleted meanwhile, which the page says when it is loaded again
                break
            yield ServerSentEvent(raw_data=fragment("tuning_figures", progress=progress))
    yield ServerSentEvent(raw_data="", event="finished")


def _now(service: Service, key: JobKey) -> dict[str, Any]:
    return progress_of(service.tunings.get(key.tenant, key.id), service.trials.of(key.tenant, key.id))


@router.get("/{tuning_id}/finished")
def finished(tuning_id: TuningId, visitor: Visitor, service: Here) -> Response:
    """Tells the page of a tuning that has ended to load itself again: it is the report now."""
    service.tunings.get(visitor.tenant, tuning_id)
    return Response(status_code=204, headers={"HX-Refresh": "true"})
