"""Plans: created, listed, read, watched, cancelled and deleted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app.errors import WrongStateError
from app.service.api.dependencies import STORABLE, Body, Caller, Here, Limit, page_of
from app.service.api.dependencies import Place as PagePlace
from app.service.api.openapi import json_body
from app.service.api.problems import stored_problem
from app.service.api.schemas import PlanDocument, PlanEvent, PlanPage, PlanState, Status
from app.service.auth import KEY_IS_OVER, LOOK_AGAIN_S, RECONNECT_MS, is_still_valid
from app.service.db.jobs import FINISHED, JobEvent, JobKey
from app.service.db.plans import PlanRow
from app.service.db.turns import Place
from app.service.intake.examples import EXAMPLE_PLAN_ID
from app.service.intake.plan_requests import prepare_request
from app.service.intake.sent_corrections import NOTHING
from app.service.parts import Service
from app.service.submission import submit_request
from app.service.timestamps import rfc3339
from planner.request.checked_request import PRODUCT_VERSION
from planner.schemas import PlanRequest, RankedPlan
from planner.schemas.base import SCHEMA_VERSION

router = APIRouter(prefix="/v1/plans", tags=["plans"])
PlanId = Annotated[
    str,
    Path(
        max_length=80,
        pattern=STORABLE,
        description="Id of a plan.",
        openapi_examples={"seeded": {"value": EXAMPLE_PLAN_ID}},
    ),
]
Rank = Annotated[int, Path(ge=1, le=1000, description="1 is the best.", openapi_examples={"best": {"value": 1}})]


@router.post(
    "",
    status_code=201,
    summary="Plan a training",
    response_description="The ranked plans, in time for `wait_s`.",
    response_model=PlanDocument,
    responses={202: {"model": PlanDocument, "description": "The plan is not finished yet: ask again at `Location`."}},
    openapi_extra=json_body(PlanRequest, path="/v1/plans"),
)
async def create_plan(
    request: Request,
    body: Body,
    caller: Caller,
    service: Here,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, description="The same key with the same body gives the same plan."),
    ] = None,
    priority: Annotated[
        int | None,
        Query(
            ge=-100,
            le=100,
            description="Which of your queued plans start first: those of a higher priority. Asked again, a request can raise it.",
        ),
    ] = None,
) -> Response:
    """Ask for the best plans. A request that was asked before gets the stored answer."""
    # What was checked for a tenant that has measured nothing is not what another one's runs make of it.
    is_untaught = service.corrections.lately(caller.tenant) == NOTHING
    asked = service.kept_requests.get(body.sha256) if is_untaught else None
    if asked is None:
        # Resolving and the database block, so they stay off the event loop, which streams and waiting requests share.
        asked = await run_in_threadpool(
            prepare_request,
            body.value,
            tenant=caller.tenant,
            calibrations=service.calibrations,
            job_time_limit_s=service.settings.job_time_limit_s,
            corrections=service.corrections,
        )
        service.kept_requests.keep(body.sha256, asked)
    known = service.kept_answers.id_of(caller.tenant, asked.digest)
    # A key has to be remembered, or may stand for another plan: that is the database's to say.
    if known is not None and idempotency_key is None and (kept := await _kept(service, caller.tenant, known)):
        return _json(kept, status_code=201, location=f"/v1/plans/{known}")
    mark = service.kept_answers.mark()
    plan = await submit_request(
        service,
        asked,
        tenant=caller.tenant,
        wait_s=asked.wait_s,
        priority=priority,
        idempotency_key=idempotency_key,
        body_sha256=body.sha256,
    )
    if plan.status == "failed" and plan.error:
        return stored_problem(json.loads(plan.error), request_id=request.scope.get("request_id"))
    status_code = 201 if plan.status in FINISHED else 202
    return await _sent(
        service, caller.tenant, plan, mark=mark, status_code=status_code, location=f"/v1/plans/{plan.id}"
    )


@router.get("", summary="List plans", response_description="A page of your plans.", response_model=PlanPage)
def list_plans(
    caller: Caller,
    service: Here,
    place: PagePlace,
    limit: Limit = 20,
    status: Annotated[Status | None, Query(description="Only plans of this status.")] = None,
) -> JSONResponse:
    """Your plans, newest first, each with the headline of its best strategy."""
    plans = service.plans.page(caller.tenant, limit=limit, after=place, status=status)
    last = (plans[-1].created_at, plans[-1].id) if len(plans) == limit else None
    return JSONResponse(page_of([_entry(plan) for plan in plans], last=last))


@router.get(
    "/{plan_id}",
    summary="Read a plan",
    response_description="The plan; its lists are empty until the job has succeeded.",
    response_model=PlanDocument,
)
async def read_plan(plan_id: PlanId, caller: Caller, service: Here) -> Response:
    """One plan: the ranked strategies with their costs, without per-stage detail."""
    if kept := await _kept(service, caller.tenant, plan_id):
        return _json(kept)
    mark = service.kept_answers.mark()
    plan = await run_in_threadpool(service.plans.get, caller.tenant, plan_id)
    return await _sent(service, caller.tenant, plan, mark=mark)


@router.get(
    "/{plan_id}/ranked/{rank}",
    summary="Read one ranked plan in full",
    response_description="The ranked plan, with every stage.",
    response_model=RankedPlan,
)
def read_ranked(plan_id: PlanId, rank: Rank, caller: Caller, service: Here) -> Response:
    """One ranked strategy with the memory of every pipeline stage."""
    plan = service.plans.get(caller.tenant, plan_id)
    if plan.status != "succeeded":
        raise WrongStateError(
            f"plan {plan_id} is {plan.status}", hint="Its ranked strategies can be read once it has succeeded."
        )
    return Response(service.plans.ranked(caller.tenant, plan_id, rank), media_type="application/json")


@router.delete(
    "/{plan_id}",
    status_code=202,
    summary="Cancel or delete a plan",
    response_description="The state of an unfinished plan after the request to cancel it.",
    response_model=PlanState,
    responses={204: {"description": "The plan had finished and is deleted."}},
)
async def delete_plan(
    plan_id: PlanId,
    caller: Caller,
    service: Here,
    *,
    cancel_only: Annotated[
        bool, Query(description="Whether a plan that has finished is kept, which is then answered with 409.")
    ] = False,
) -> Response:
    """Cancel a plan that has not finished, or delete one that has, with everything that belongs to it."""
    key = JobKey(caller.tenant, plan_id)
    try:
        status = await run_in_threadpool(service.jobs.request_cancel, key)
    except WrongStateError:
        if cancel_only:
            raise
        # A plan that has finished stays so: nothing can start it again before it is deleted.
        await run_in_threadpool(_delete, service, key)
        return Response(status_code=204)
    service.runner.cancel(key)
    return JSONResponse({"id": plan_id, "status": status}, status_code=202)


def _delete(service: Service, key: JobKey) -> None:
    if key.id == EXAMPLE_PLAN_ID and service.settings.seed_examples:
        hint = "It costs nothing. MESHWRIGHT_SEED_EXAMPLES=false runs a service without examples."
        raise WrongStateError(f"{key.id} is what the documentation's examples refer to, and is kept", hint=hint)
    service.plans.delete(key.tenant, key.id)
    service.kept_answers.drop(key.tenant, key.id)


def _watched(plan_id: PlanId, caller: Caller, service: Here) -> JobKey:
    """The plan's job, looked up before the stream begins, because a stream that has begun cannot turn into a 404."""
    return JobKey(caller.tenant, service.plans.get(caller.tenant, plan_id).id)


@router.get(
    "/{plan_id}/events",
    summary="Watch a plan being computed",
    response_description="One event for each step of the job; `data` is a PlanEvent as JSON.",
    response_class=EventSourceResponse,
    response_model=PlanEvent,
)
async def watch_plan(
    key: Annotated[JobKey, Depends(_watched)],
    caller: Caller,
    service: Here,
    last_event_id: Annotated[
        int,
        Header(ge=0, lt=2**31, description="Leave out events up to this number; browsers send it when they reconnect."),
    ] = 0,
) -> AsyncIterable[ServerSentEvent]:
    """The plan's events as they happen (server-sent events); the stream ends with the job, or soon after its key is revoked or expires."""
    sent = 0
    with service.runner.watch(key) as watch:
        is_over = False
        while not is_over:
            if not await is_still_valid(service, caller):
                yield ServerSentEvent(comment=KEY_IS_OVER)
                return
            is_over = watch.is_over  # before the events, so that the last one is not missed
            for event in watch.events[sent:]:
                sent += 1
                if event.seq > last_event_id:
                    yield ServerSentEvent(data=_event(event), event=event.type, id=str(event.seq))
            if not is_over:
                await watch.changed(timeout_s=LOOK_AGAIN_S)
    if service.stopping.is_set():
        yield ServerSentEvent(comment="the service stops; ask again for what follows", retry=RECONNECT_MS)


async def _kept(service: Service, tenant: str, plan_id: str) -> bytes | None:
    """A finished plan as it is sent, if the process still has it."""
    kept = service.kept_answers
    if (fresh := kept.fresh(tenant, plan_id)) is not None:
        return fresh
    return await run_in_threadpool(kept.rechecked, tenant, plan_id) if kept.holds(tenant, plan_id) else None


async def _sent(
    service: Service, tenant: str, plan: PlanRow, *, mark: int, status_code: int = 200, location: str | None = None
) -> Response:
    if plan.status != "succeeded" or not plan.response:
        is_queued = plan.status == "queued"
        place = await run_in_threadpool(service.jobs.place, JobKey(tenant, plan.id)) if is_queued else None
        body = json.dumps(_unfinished(plan, place)).encode()
    else:
        body = plan.response.encode()
        service.kept_answers.keep(tenant, plan.id, digest=plan.request_digest, body=body, mark=mark)
    return _json(body, status_code=status_code, location=location)


def _json(body: bytes, *, status_code: int = 200, location: str | None = None) -> Response:
    headers = {} if location is None else {"Location": location}
    return Response(body, status_code=status_code, media_type="application/json", headers=headers)


def _unfinished(plan: PlanRow, place: Place | None) -> dict[str, Any]:
    return {
        "id": plan.id,
        "status": plan.status,
        "created_at": rfc3339(plan.created_at),
        "product_version": PRODUCT_VERSION,
        "model_revision": None,
        "schema_version": SCHEMA_VERSION,
        "plans": [],
        "search": None,
        "rejected": {},
        "nearest_infeasible": [],
        "warnings": [],
        "request_digest": plan.request_digest,
        "request": json.loads(plan.request)["request"],
        "error": plan.error and json.loads(plan.error),
        "priority": plan.priority,
        "position": place and place.position,
        "estimated_start_at": place and place.start_at and rfc3339(place.start_at),
    }


def _entry(plan: PlanRow) -> dict[str, Any]:
    return {
        "id": plan.id,
        "status": plan.status,
        "created_at": rfc3339(plan.created_at),
        "finished_at": plan.finished_at and rfc3339(plan.finished_at),
        "request_digest": plan.request_digest,
        "headline": plan.headline and json.loads(plan.headline),
    }


def _event(event: JobEvent) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "type": event.type,
        "at": rfc3339(event.at),
        "evaluated": event.evaluated,
        "best_s": event.best_s,
        "bound_s": event.bound_s,
    }
