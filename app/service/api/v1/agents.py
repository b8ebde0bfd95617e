"""Agents: programs on GPU nodes that register, ask for measurements and trials to run, and send what they have measured."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from app.errors import problem_document
from app.service.api.agent_schemas import (
    AgentEntry,
    AgentLease,
    AgentPage,
    AgentRegistration,
    Heartbeat,
    HeartbeatAnswer,
    LeaseRequest,
    MeasurementResult,
    ProfilingJobDocument,
    RegisteredAgent,
)
from app.service.api.calibration_uploads import parsed_calibration, store_calibration
from app.service.api.dependencies import STORABLE, Body, Caller, Here, Limit, Place, page_of
from app.service.api.openapi import json_body
from app.service.api.profiling_documents import job_document
from app.service.api.schemas import Status
from app.service.api.trial_results import ended_trial, leased_trial, trial_document
from app.service.api.tuning_schemas import TrialEnded
from app.service.db.agents import AgentRow, NodeFacts
from app.service.db.profiling_jobs import IN_TOUCH_S, ProfilingJob, time_limit_s
from app.service.db.tuning_trials import LEASE_PREFIX
from app.service.intake.examples import EXAMPLE_AGENT_ID
from app.service.parts import Service
from app.service.timestamps import rfc3339
from cost_models.errors import InvalidInputError, MeasurementError, Problem
from cost_models.inputs.fields import validated

router = APIRouter(prefix="/v1/agents", tags=["agents"])
AgentId = Annotated[
    str,
    Path(
        max_length=80,
        pattern=STORABLE,
        description="Id of an agent.",
        openapi_examples={"seeded": {"value": EXAMPLE_AGENT_ID}},
    ),
]
# Often enough that a measurement begins soon after it was asked, seldom enough that a hundred nodes cost twenty reads a second.
_POLL_S = 5.0
_HEARTBEATS = 6
"""Heartbeats within one lease, so that five of them may be lost."""


@router.post(
    "",
    status_code=201,
    summary="Register an agent",
    response_description="The agent, and how often it should call.",
    response_model=RegisteredAgent,
    openapi_extra=json_body(AgentRegistration, path="/v1/agents"),
)
async def register_agent(body: Body, caller: Caller, service: Here) -> JSONResponse:
    """Register the node that this program runs on. `meshwright agent` does it when it starts."""
    asked = validated(AgentRegistration, body.value, pointer="")
    facts = NodeFacts(asked.name, asked.gpu, asked.gpus_per_node, asked.num_nodes, asked.product_version)
    agent = await run_in_threadpool(service.agents.register, caller.tenant, facts)
    heartbeat_s = service.leases.lease_s / _HEARTBEATS
    document = {**_entry(agent), "poll_s": min(_POLL_S, heartbeat_s), "heartbeat_s": heartbeat_s}
    return JSONResponse(document, status_code=201)


@router.get("", summary="List agents", response_description="A page of your agents.", response_model=AgentPage)
def list_agents(caller: Caller, service: Here, place: Place, limit: Limit = 20) -> JSONResponse:
    """Your agents, newest first. One that was silent for 30 days is forgotten when the next one registers."""
    rows = service.agents.page(caller.tenant, limit=limit, after=place)
    last = (rows[-1].created_at, rows[-1].id) if len(rows) == limit else None
    return JSONResponse(page_of([_entry(row) for row in rows], last=last))


@router.get("/{agent_id}", summary="Read an agent", response_description="The agent.", response_model=AgentEntry)
def read_agent(agent_id: AgentId, caller: Caller, service: Here) -> JSONResponse:
    """One agent: what it measures, and when it was last heard of."""
    return JSONResponse(_entry(service.agents.get(caller.tenant, agent_id)))


@router.post(
    "/{agent_id}/lease",
    summary="Take a measurement or a trial to run",
    response_description="What to run, or null.",
    response_model=AgentLease,
    openapi_extra=json_body(LeaseRequest, path="/v1/agents/{agent_id}/lease"),
)
async def lease_job(agent_id: AgentId, body: Body, caller: Caller, service: Here) -> JSONResponse:
    """The oldest queued profiling job that this agent may take, or the next trial of a tuning. A request that is repeated gets the same lease."""
    asked = validated(LeaseRequest, body.value, pointer="")
    job = await run_in_threadpool(lambda: _next(service, caller.tenant, agent_id, asked))
    return JSONResponse({"job": job})


@router.post(
    "/{agent_id}/heartbeat",
    summary="Keep a lease",
    response_description="Whether to go on.",
    response_model=HeartbeatAnswer,
    openapi_extra=json_body(Heartbeat, path="/v1/agents/{agent_id}/heartbeat"),
)
async def keep_lease(agent_id: AgentId, body: Body, caller: Caller, service: Here) -> JSONResponse:
    """Say that the measurement or trial goes on, and hear whether it should."""
    asked = validated(Heartbeat, body.value, pointer="")
    status = await run_in_threadpool(lambda: _kept(service, caller.tenant, agent_id, asked))
    return JSONResponse({"go_on": status == "running", "status": status})


@router.post(
    "/{agent_id}/results",
    summary="Send a result",
    response_description="The profiling job, or the trial, that the result has ended.",
    response_model=ProfilingJobDocument | TrialEnded,
    openapi_extra=json_body(MeasurementResult, path="/v1/agents/{agent_id}/results"),
)
async def take_result(agent_id: AgentId, body: Body, caller: Caller, service: Here) -> JSONResponse:
    """Send what was measured, say why nothing was, or give the job back. Sending it again changes nothing."""
    asked = validated(MeasurementResult, body.value, pointer="")
    if asked.lease.startswith(LEASE_PREFIX):
        trial = await run_in_threadpool(lambda: ended_trial(service, caller.tenant, agent_id, asked))
        return JSONResponse(trial_document(trial))
    job = await run_in_threadpool(lambda: _ended(service, caller.tenant, agent_id, asked))
    return JSONResponse(job_document(job))


def _next(service: Service, tenant: str, agent_id: str, asked: LeaseRequest) -> dict[str, Any] | None:
    """What the agent is to do now: what it has already, a measurement, or a trial."""
    runs_trials, leases = "trial" in asked.kinds, service.leases
    has = service.trials.own(tenant, agent_id, instance=asked.instance) if runs_trials else None
    if has is not None:
        return leased_trial(has, lease_s=leases.lease_s)
    if "measurement" in asked.kinds:
        job = leases.lease(tenant, agent_id, instance=asked.instance)
        if job is not None:
            return _leased(job, lease_s=leases.lease_s)
    trial = service.conductor.next_trial(tenant, agent_id, instance=asked.instance) if runs_trials else None
    return None if trial is None else leased_trial(trial, lease_s=leases.lease_s)


def _kept(service: Service, tenant: str, agent_id: str, asked: Heartbeat) -> Status | None:
    if asked.lease.startswith(LEASE_PREFIX):
        return service.trials.heartbeat(tenant, agent_id, lease=asked.lease)
    return service.leases.heartbeat(tenant, agent_id, lease=asked.lease, parts_done=asked.parts_done)


def _ended(service: Service, tenant: str, agent_id: str, asked: MeasurementResult) -> ProfilingJob:
    if asked.outcome == "given-back":
        return service.leases.give_back(tenant, agent_id, lease=asked.lease)
    if asked.outcome == "failed":
        if asked.error is None:
            raise InvalidInputError([Problem("/error", "error is required", "Say why nothing was measured.")])
        error = problem_document(MeasurementError(asked.error.message, hint=asked.error.hint))
        return service.leases.finish(tenant, agent_id, lease=asked.lease, status="failed", error=error)
    if asked.calibration is None:
        raise InvalidInputError([Problem("/calibration", "calibration is required", "Send what was measured.")])
    document = parsed_calibration(asked.calibration, pointer="/calibration")
    # Looked at before anything is stored: what comes under a lease that is gone, or has had its result, was not asked for any more.
    service.leases.require(tenant, agent_id, lease=asked.lease, calibration_id=document.id)
    # Stored first. If this program ends in between, the agent sends the same result again.
    # What a node has measured for minutes is kept, however much the tenant has stored.
    store_calibration(service.calibrations, tenant, document, is_limited=False)
    return service.leases.finish(tenant, agent_id, lease=asked.lease, status="succeeded", calibration_id=document.id)


def _entry(agent: AgentRow) -> dict[str, Any]:
    facts = agent.facts
    return {
        "id": agent.id,
        "name": facts.name,
        "gpu": facts.gpu,
        "gpus_per_node": facts.gpus_per_node,
        "num_nodes": facts.num_nodes,
        "product_version": facts.product_version,
        "created_at": rfc3339(agent.created_at),
        "last_seen_at": rfc3339(agent.last_seen_at),
        "in_touch": agent.silent_s <= IN_TOUCH_S,
    }


def _leased(job: ProfilingJob, *, lease_s: float) -> dict[str, Any]:
    wanted = job.wanted
    return {
        "kind": "measurement",
        "id": job.id,
        "lease": job.lease,
        "attempt": job.attempts,
        "lease_s": lease_s,
        "budget_s": wanted.budget_s,
        "time_limit_s": time_limit_s(wanted.budget_s),
        "framework": wanted.framework,
        "name": wanted.name,
        "trial": None,
    }
