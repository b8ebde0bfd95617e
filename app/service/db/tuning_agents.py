"""Which agents could run the trials of a tuning, and what to say where none can."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, or_, select

from app.service.db.tables import agents, tunings
from cost_models.errors import Problem

_t = tunings.c


def fits() -> Any:
    """The condition under which an agent may run the trials of a tuning, for a join of both tables."""
    # Trials run on one node. An agent without a number of GPUs runs only what is asked of it by its id.
    is_meant = or_(_t.asked_agent_id == agents.c.id, _t.asked_agent_id.is_(None) & agents.c.gpus_per_node.is_not(None))
    return (
        (_t.tenant == agents.c.tenant)
        & is_meant
        & (_t.gpu == agents.c.gpu)
        & (agents.c.num_nodes == 1)
        & or_(agents.c.gpus_per_node.is_(None), agents.c.gpus_per_node >= _t.min_gpus)
    )


def of_agents(figure: ColumnElement[Any], since: datetime) -> ScalarSelect[Any]:
    """A figure of the agents that could run the trials of the surrounding statement's tuning and were heard of since."""
    query = select(figure).select_from(agents).where(fits(), agents.c.last_seen_at >= since)
    return query.correlate(tunings).scalar_subquery()


def nobody_fits(connection: Connection, tenant: str, agent_id: str | None, min_gpus: int, gpu: str) -> Problem:
    """What is wrong with a tuning that no agent can run.

    Args:
        connection: an open transaction.
        tenant: whose agents are looked at.
        agent_id: the only agent that may run it; None for any.
        min_gpus: number of GPUs that each of its plans needs.
        gpu: name of these GPUs.
    """
    needed = f"{min_gpus} × {gpu} in one node"
    if agent_id is not None:
        mine = (agents.c.tenant == tenant) & (agents.c.id == agent_id)
        agent = connection.execute(select(agents).where(mine)).first()
        if agent is None:
            return Problem("/agent", f"there is no agent {agent_id}", "GET /v1/agents lists yours.")
        has = f"{agent.num_nodes} × {agent.gpus_per_node} {agent.gpu}"
        message = f"every plan needs {needed}, but agent {agent.id} has {has}"
        return Problem("/agent", message, "Ask another agent, or plan for what this one has.")
    hint = "Start `meshwright agent` on such a node, or plan for what a node has; GET /v1/agents lists those that are registered."
    return Problem("", f"no registered agent has {needed}, which every plan needs", hint)
