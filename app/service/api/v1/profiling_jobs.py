"""Profiling jobs: measurements that are asked of registered agents, watched, cancelled and deleted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response

from app.errors import WrongStateError
from app.service.api.agent_schemas import ProfilingJobDocument, ProfilingJobPage, ProfilingRequest
from app.service.api.dependencies import STORABLE, Body, Caller, Here, Limit, Place, page_of
from app.service.api.openapi import json_body
from app.service.api.profiling_documents import job_document
from app.service.api.schemas import Status
from app.service.db.profiling_jobs import Wanted
from app.service.intake.examples import EXAMPLE_PROFILING_JOB_ID
from cost_models.inputs.fields import validated

router = APIRouter(prefix="/v1/profiling-jobs", tags=["agents"])
JobId = Annotated[
    str,
    Path(
        max_length=80,
        pattern=STORABLE,
        description="Id of a profiling job.",
        openapi_examples={"seeded": {"value": EXAMPLE_PROFILING_JOB_ID}},
    ),
]


@router.post(
    "",
    status_code=202,
    summary="Ask for a measurement",
    response_description="The queued job: ask for its state at `Location`.",
    response_model=ProfilingJobDocument,
    openapi_extra=json_body(ProfilingRequest, path="/v1/profiling-jobs"),
)
async def create_profiling_job(
    body: Body,
    caller: Caller,
    service: Here,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, description="The same key with the same body gives the same job."),
    ] = None,
) -> JSONResponse:
    """Ask a registered agent to measure its node. Plans with `"calibration": "auto"` use what it finds."""
    asked = validated(ProfilingRequest, body.value, pointer="")
    wanted = Wanted(
        budget_s=asked.budget_s,
        agent_id=asked.agent,
        gpu=asked.gpu,
        gpus_per_node=asked.gpus_per_node,
        num_nodes=asked.num_nodes,
        framework=asked.framework,
        name=asked.name,
    )
    job = await run_in_threadpool(
        lambda: service.profiling_jobs.submit(
            caller.tenant, wanted, idempotency_key=idempotency_key, body_sha256=body.sha256
        )
    )
    return JSONResponse(job_document(job), status_code=202, headers={"Location": f"/v1/profiling-jobs/{job.id}"})


@router.get(
    "",
    summary="List profiling jobs",
    response_description="A page of your profiling jobs.",
    response_model=ProfilingJobPage,
)
def list_profiling_jobs(
    caller: Caller,
    service: Here,
    place: Place,
    limit: Limit = 20,
    status: Annotated[Status | None, Query(description="Only jobs of this status.")] = None,
) -> JSONResponse:
    """Your profiling jobs, newest first."""
    jobs = service.profiling_jobs.page(caller.tenant, limit=limit, after=place, status=status)
    last = (jobs[-1].created_at, jobs[-1].id) if len(jobs) == limit else None
    return JSONResponse(page_of([job_document(job) for job in jobs], last=last))


@router.get(
    "/{job_id}",
    summary="Read a profiling job",
    response_description="The job, with the id of its calibration once it has succeeded.",
    response_model=ProfilingJobDocument,
)
def read_profiling_job(job_id: JobId, caller: Caller, service: Here) -> JSONResponse:
    """One profiling job: who measures, how far it is, and what came of it."""
    return JSONResponse(job_document(service.profiling_jobs.get(caller.tenant, job_id)))


@router.delete(
    "/{job_id}",
    status_code=202,
    summary="Cancel or delete a profiling job",
    response_description="The cancelled job; its agent ends the measurement with its next heartbeat.",
    response_model=ProfilingJobDocument,
    responses={204: {"description": "The job had ended and is deleted. Its calibration stays."}},
)
def delete_profiling_job(job_id: JobId, caller: Caller, service: Here) -> Response:
    """Cancel a job that has not ended, or delete one that has."""
    if job_id == EXAMPLE_PROFILING_JOB_ID and service.settings.seed_examples:
        hint = "It costs nothing. MESHWRIGHT_SEED_EXAMPLES=false runs a service without examples."
        raise WrongStateError(f"{job_id} is what the documentation's examples refer to, and is kept", hint=hint)
    if service.profiling_jobs.remove(caller.tenant, job_id):
        return JSONResponse(job_document(service.profiling_jobs.get(caller.tenant, job_id)), status_code=202)
    return Response(status_code=204)
