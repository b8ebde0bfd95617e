"""Tunings: plans whose best candidates are measured on registered agents, watched, cancelled and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app.errors import WrongStateError
from app.service.api.dependencies import STORABLE, Body, Caller, Here, Limit, Place, page_of
from app.service.api.openapi import json_body
from app.service.api.schemas import Status
from app.service.api.tuning_schemas import TuningDocument, TuningEvent, TuningPage
from app.service.api.tuning_stream import Ended, states_of
from app.service.db.jobs import JobKey
from app.service.db.tunings import TuningRow
from app.service.intake.examples import EXAMPLE_TUNING_ID
from app.service.intake.plan_requests import PreparedRequest, prepare_request
from app.service.intake.tuning_requests import TunedPlan, TuningRequest, planned, tuned_plan, wanted_tuning
from app.service.parts import Service
from app.service.submission import submit_request
from app.service.tunings.documents import document_of, entry_of, event_of
from cost_models.errors import InvalidInputError
from cost_models.inputs.fields import validated

router = APIRouter(prefix="/v1/tunings", tags=["tunings"])
CANDIDATES = 40
"""Plans that are asked for where a request does not say how many."""
TuningId = Annotated[
    str,
    Path(
        max_length=80,
        pattern=STORABLE,
        description="Id of a tuning.",
        openapi_examples={"seeded": {"value": EXAMPLE_TUNING_ID}},
    ),
]


@router.post(
    "",
    status_code=202,
    summary="Tune a plan",
    response_description="The tuning: ask for its state at `Location`.",
    response_model=TuningDocument,
    openapi_extra=json_body(TuningRequest, path="/v1/tunings"),
)
async def create_tuning(
    body: Body,
    caller: Caller,
    service: Here,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, description="The same key with the same body gives the same tuning."),
    ] = None,
) -> JSONResponse:
    """Measure the best plans on registered agents, until it is clear which is the best or a limit is spent."""
    asked = validated(TuningRequest, body.value, pointer="")
    plan = await _plan_of(service, caller.tenant, asked)
    tuning = await run_in_threadpool(
        lambda: _submitted(service, caller.tenant, asked, plan, key=idempotency_key, body_sha256=body.sha256)
    )
    document = await run_in_threadpool(_document, service, caller.tenant, tuning.id)
    return JSONResponse(document, status_code=202, headers={"Location": f"/v1/tunings/{tuning.id}"})


@router.get("", summary="List tunings", response_description="A page of your tunings.", response_model=TuningPage)
def list_tunings(
    caller: Caller,
    service: Here,
    place: Place,
    limit: Limit = 20,
    status: Annotated[Status | None, Query(description="Only tunings of this status.")] = None,
) -> JSONResponse:
    """Your tunings, newest first."""
    tunings = service.tunings.page(caller.tenant, limit=limit, after=place, status=status)
    last = (tunings[-1].created_at, tunings[-1].id) if len(tunings) == limit else None
    return JSONResponse(page_of([entry_of(tuning) for tuning in tunings], last=last))


@router.get(
    "/{tuning_id}",
    summary="Read a tuning",
    response_description="The tuning: its trials so far, and what they found.",
    response_model=TuningDocument,
)
def read_tuning(tuning_id: TuningId, caller: Caller, service: Here) -> JSONResponse:
    """One tuning: every trial beside its prediction, the best plan, the new ranking, and what to measure next."""
    return JSONResponse(_document(service, caller.tenant, tuning_id))


@router.delete(
    "/{tuning_id}",
    status_code=202,
    summary="Cancel or delete a tuning",
    response_description="The cancelled tuning with what it has found; agents end its trials with their next heartbeat.",
    response_model=TuningDocument,
    responses={204: {"description": "The tuning had ended and is deleted, with its trials."}},
)
def delete_tuning(tuning_id: TuningId, caller: Caller, service: Here) -> Response:
    """Cancel a tuning that has not ended, or delete one that has."""
    if tuning_id == EXAMPLE_TUNING_ID and service.settings.seed_examples:
        hint = "It costs nothing. MESHWRIGHT_SEED_EXAMPLES=false runs a service without examples."
        raise WrongStateError(f"{tuning_id} is what the documentation's examples refer to, and is kept", hint=hint)
    if service.conductor.remove(caller.tenant, tuning_id):
        return JSONResponse(_document(service, caller.tenant, tuning_id), status_code=202)
    return Response(status_code=204)


def _watched(tuning_id: TuningId, caller: Caller, service: Here) -> JobKey:
    """The tuning, looked up before the stream begins, because a stream that has begun cannot turn into a 404."""
    return JobKey(caller.tenant, service.tunings.get(caller.tenant, tuning_id).id)


@router.get(
    "/{tuning_id}/events",
    summary="Watch a tuning",
    response_description="One event for each change, named by the tuning's status; `data` is a TuningEvent as JSON.",
    response_class=EventSourceResponse,
    response_model=TuningEvent,
)
async def watch_tuning(
    key: Annotated[JobKey, Depends(_watched)],
    caller: Caller,
    service: Here,
    last_event_id: Annotated[
        int,
        Header(ge=0, lt=2**48, description="Leave out the state of this number; browsers send it when they reconnect."),
    ] = 0,
) -> AsyncIterable[ServerSentEvent]:
    """How the tuning stands, now and after each change (server-sent events); the stream ends with it, or soon after its key is revoked."""
    async with aclosing(states_of(service, caller, key)) as states:
        async for seen in states:
            if isinstance(seen, Ended):
                yield ServerSentEvent(comment=seen.comment, retry=seen.retry_ms)
            elif seen.seq != last_event_id:
                yield ServerSentEvent(data=event_of(seen), event=seen.status, id=str(seen.seq))


# Not waited for: an agent that asks for a trial finds the plan there a few seconds later.
async def _plan_of(service: Service, tenant: str, asked: TuningRequest) -> TunedPlan:
    """The plan that is to be tuned; one that was not asked before is queued."""
    if asked.request is None:
        return await run_in_threadpool(planned, service.plans, tenant, str(asked.plan_id))
    # More plans than a list needs, as `meshwright tune` asks for: the trials choose among them.
    request = {"top_k": CANDIDATES} | asked.request
    prepared = await run_in_threadpool(_prepared, service, tenant, request)
    plan = await submit_request(service, prepared, tenant=tenant, wait_s=0.0)
    return tuned_plan(plan)


def _prepared(service: Service, tenant: str, request: dict[str, Any]) -> PreparedRequest:
    limit_s = service.settings.job_time_limit_s
    try:
        return prepare_request(
            request,
            tenant=tenant,
            calibrations=service.calibrations,
            job_time_limit_s=limit_s,
            corrections=service.corrections,
        )
    except InvalidInputError as error:
        raise type(error)([replace(each, pointer=f"/request{each.pointer}") for each in error.problems]) from error


def _submitted(
    service: Service, tenant: str, asked: TuningRequest, plan: TunedPlan, *, key: str | None, body_sha256: str
) -> TuningRow:
    wanted = wanted_tuning(asked, plan, most_gpu_hours=service.settings.max_tuning_gpu_hours)
    return service.tunings.submit(tenant, wanted, idempotency_key=key, body_sha256=body_sha256)


def _document(service: Service, tenant: str, tuning_id: str) -> dict[str, Any]:
    return document_of(*service.conductor.read(tenant, tuning_id))
