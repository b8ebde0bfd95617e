"""Agents on the page of calibrations: which nodes can be asked, what was asked lately, and the button that asks."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import RedirectResponse, Response

from app.service.api.agent_schemas import USUAL_BUDGET_S
from app.service.api.dependencies import STORABLE, Here
from app.service.db.profiling_jobs import IN_TOUCH_S, Wanted
from app.service.intake.examples import EXAMPLE_AGENT_ID, EXAMPLE_PROFILING_JOB_ID
from app.service.parts import Service
from app.service.web.visitors import OwnPage, Visitor
from app.service.web.words import when

router = APIRouter(prefix="/agents", include_in_schema=False)
AgentId = Annotated[str, Path(max_length=80, pattern=STORABLE)]
_MOST_AGENTS, _MOST_JOBS = 50, 10
"""How many the page shows: the calls of the API list all."""


@router.post("/{agent_id}/measure", dependencies=[OwnPage])
def ask_agent(agent_id: AgentId, visitor: Visitor, service: Here) -> Response:
    """Asks one agent to measure for as long as is usual, and shows the page again."""
    agent = service.agents.get(visitor.tenant, agent_id)
    service.profiling_jobs.submit(visitor.tenant, Wanted(USUAL_BUDGET_S, agent_id=agent.id))
    return RedirectResponse("/calibrations#agents", status_code=303)


def agents_shown(service: Service, tenant: str) -> list[dict[str, Any]]:
    """The tenant's agents but for the example, newest first."""
    return [
        {
            "id": agent.id,
            "name": agent.facts.name,
            "node": f"{agent.facts.num_nodes} × {agent.facts.gpus_per_node or 'any'} {agent.facts.gpu}",
            "in_touch": agent.silent_s <= IN_TOUCH_S,
            "seen": when(agent.last_seen_at),
        }
        for agent in service.agents.page(tenant, limit=_MOST_AGENTS)
        if agent.id != EXAMPLE_AGENT_ID
    ]


def jobs_shown(service: Service, tenant: str) -> list[dict[str, Any]]:
    """What the tenant asked lately, newest first."""
    return [
        {
            "asked": when(job.created_at),
            "status": job.status,
            "parts_done": job.parts_done,
            "calibration": job.calibration_id,
            "problem": json.loads(job.error)["detail"] if job.error else "",
        }
        for job in service.profiling_jobs.page(tenant, limit=_MOST_JOBS)
        if job.id != EXAMPLE_PROFILING_JOB_ID
    ]
