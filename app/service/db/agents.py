"""Agents: programs on GPU nodes that measure when they are asked. An agent is known by the name that it registered under.

An agent that registers again keeps its id, so that a node may be restarted or get another GPU without anybody noticing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from app.errors import NotFoundError, TooManyAgentsError
from app.service.db.audit import record
from app.service.db.engine import now_of, reading, writing
from app.service.db.pages import newest_first
from app.service.db.tables import agents, profiling_jobs

MOST_AGENTS = 1000
"""Agents that one tenant may have: a few times the nodes of the largest fleets, of which each kind needs one."""
# Nodes of a cloud come and go under new names. Whoever has been silent for a month has gone.
_FORGOTTEN_AFTER = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What an agent says of the node, or nodes, that it measures."""

    name: str
    gpu: str
    gpus_per_node: int | None
    num_nodes: int
    product_version: str


@dataclass(frozen=True, slots=True)
class AgentRow:
    """A registered agent."""

    id: str
    facts: NodeFacts
    created_at: datetime
    last_seen_at: datetime
    silent_s: float
    """Seconds since it was last heard of, by the database's clock."""


class AgentStore:
    """Registered agents; every call is for one tenant."""

    def __init__(self, engine: Engine, *, most: int = MOST_AGENTS) -> None:
        """`most`: agents that one tenant may have."""
        self._engine = engine
        self._most = most

    def register(self, tenant: str, facts: NodeFacts, *, agent_id: str | None = None) -> AgentRow:
        """The agent of this name with these facts, which is new or keeps its id.

        Raises:
            TooManyAgentsError: the tenant has too many agents.
        """
        try:
            return self._register(tenant, facts, agent_id=agent_id)
        except IntegrityError:
            # On PostgreSQL two programs may register one name at the same moment; the second attempt finds the first one's row.
            return self._register(tenant, facts, agent_id=agent_id)

    def _register(self, tenant: str, facts: NodeFacts, *, agent_id: str | None) -> AgentRow:
        mine = agents.c.tenant == tenant
        values = {
            "gpu": facts.gpu, "gpus_per_node": facts.gpus_per_node, "num_nodes": facts.num_nodes,
            "product_version": facts.product_version,
        }  # fmt: skip
        with writing(self._engine) as connection:
            now = now_of(connection)
            known = connection.execute(select(agents).where(mine, agents.c.name == facts.name)).first()
            if known is not None:
                connection.execute(
                    update(agents).where(mine, agents.c.id == known.id).values(last_seen_at=now, **values)
                )
                return AgentRow(known.id, facts, known.created_at, now, 0.0)
            _forget_silent(connection, tenant, now)
            if connection.execute(select(func.count()).where(mine)).scalar_one() >= self._most:
                raise TooManyAgentsError(
                    f"you already have {self._most} agents",
                    hint="Register each node under one name that stays; agents are forgotten after 30 silent days.",
                    context={"quota": "agents", "limit": self._most, "used": self._most},
                )
            new = agent_id or f"agent-{secrets.token_hex(10)}"
            connection.execute(
                insert(agents).values(
                    tenant=tenant, id=new, name=facts.name, created_at=now, last_seen_at=now, **values
                )
            )
            record(connection, tenant, "agent.register", new)
            return AgentRow(new, facts, now, now, 0.0)

    def get(self, tenant: str, agent_id: str) -> AgentRow:
        """One agent.

        Raises:
            NotFoundError: the tenant has no such agent.
        """
        with reading(self._engine) as connection:
            row = connection.execute(select(agents).where(agents.c.tenant == tenant, agents.c.id == agent_id)).first()
            if row is None:
                raise _unknown(agent_id)
            return _agent(row, now=now_of(connection))

    def page(self, tenant: str, *, limit: int, after: tuple[datetime, str] | None = None) -> list[AgentRow]:
        """Up to `limit` agents, newest first, beginning after the one registered at this time with this id."""
        mine = select(agents).where(agents.c.tenant == tenant)
        query = newest_first(mine, agents.c.created_at, agents.c.id, limit=limit, after=after)
        with reading(self._engine) as connection:
            now = now_of(connection)
            return [_agent(row, now=now) for row in connection.execute(query)]


def seen(connection: Connection, tenant: str, agent_id: str) -> None:
    """Notes that the agent was heard of, inside the caller's transaction.

    Raises:
        NotFoundError: the tenant has no such agent.
    """
    changed = connection.execute(
        update(agents).where(agents.c.tenant == tenant, agents.c.id == agent_id).values(last_seen_at=now_of(connection))
    )
    if changed.rowcount == 0:
        raise _unknown(agent_id)


def _forget_silent(connection: Connection, tenant: str, now: datetime) -> None:
    at_work = select(profiling_jobs.c.agent_id).where(
        profiling_jobs.c.tenant == tenant, profiling_jobs.c.status == "running"
    )
    connection.execute(
        delete(agents).where(
            agents.c.tenant == tenant, agents.c.last_seen_at < now - _FORGOTTEN_AFTER, agents.c.id.not_in(at_work)
        )
    )


def _unknown(agent_id: str) -> NotFoundError:
    return NotFoundError(f"there is no agent {agent_id}", hint="POST /v1/agents registers one; GET lists yours.")


def _agent(row: Row[tuple[object, ...]], *, now: datetime) -> AgentRow:
    r = row._mapping  # noqa: SLF001 - SQLAlchemy's documented name
    facts = NodeFacts(r["name"], r["gpu"], r["gpus_per_node"], r["num_nodes"], r["product_version"])
    silent_s = max((now - r["last_seen_at"]).total_seconds(), 0.0)
    return AgentRow(r["id"], facts, r["created_at"], r["last_seen_at"], silent_s)
