"""The tables. Every row belongs to a tenant, and the tenant is part of every primary key, so no join can reach another's rows.

Documents are kept as the exact JSON text that is sent, compressed, so that nothing has to be parsed to answer a GET.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
)
from sqlalchemy.types import TypeEngine

from app.service.db.packing import packed, unpacked

# Named constraints, because a migration can only drop or change what it can name, and the databases' own names differ.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC. SQLite forgets time zones; with this type it returns the same values as PostgreSQL."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        assert value is None or value.tzinfo is not None
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is not None and value.tzinfo is None:
            return value.replace(tzinfo=UTC)
        return value and value.astimezone(UTC)


class PackedText(TypeDecorator[str]):
    """A text that is compressed at rest. It may be given as text, or as the bytes of `packed` where those were made elsewhere."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # The type that the first migrations declared. SQLite keeps bytes in a column of any type.
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else LargeBinary())

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        return packed(value) if isinstance(value, str) else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else unpacked(bytes(value))


def _tenant() -> Column[str]:
    return Column("tenant", String(64), primary_key=True)


def _id(name: str = "id") -> Column[str]:
    return Column(name, String(80), primary_key=True)


def _of_job(**options: Any) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["tenant", "job_id"], ["jobs.tenant", "jobs.id"], ondelete="CASCADE", **options)


jobs = Table(
    "jobs",
    metadata,
    _tenant(),
    _id(),
    Column("kind", String(16), nullable=False, doc="plan; later profiling and tuning"),
    Column("status", String(16), nullable=False),
    Column("payload", PackedText, nullable=False, doc="the request as it was asked, JSON"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Column("attempts", Integer, nullable=False, default=0),
    Column("time_limit_s", Float, nullable=False),
    Column("owner", String(80), doc="the process that runs it"),
    Column("lease_until", UtcDateTime, doc="when the owner counts as gone"),
    Column("cancel_requested", Boolean, nullable=False, default=False),
    Column("priority", Integer, nullable=False, server_default="0", doc="higher ones first, among one tenant's jobs"),
    Column("error", Text, doc="problem document of a failed job, JSON"),
    Index(None, "status", "created_at"),
    Index(None, "tenant", "started_at"),
    Index(None, "finished_at"),
    Index(None, "status", "tenant", "priority", "created_at"),
)

job_events = Table(
    "job_events",
    metadata,
    _tenant(),
    _id("job_id"),
    Column("seq", Integer, primary_key=True),
    Column("type", String(16), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("evaluated", Float, doc="strategies so far"),
    Column("best_s", Float),
    Column("bound_s", Float),
    _of_job(),
)

plans = Table(
    "plans",
    metadata,
    _tenant(),
    _id(),
    Column("created_at", UtcDateTime, nullable=False),
    Column("request_digest", String(80), nullable=False),
    Column("live_digest", String(80), doc="request_digest unless the job failed or was cancelled"),
    Column("response", PackedText, doc="without per-stage detail, JSON"),
    Column("headline", Text, doc="the few facts a list shows, JSON"),
    Column("gap", Float, doc="how far the best plan may be from the bound, as a share"),
    Column(
        "stored_bytes", Integer, nullable=False, server_default="0", doc="of request, answer and ranked plans at rest"
    ),
    UniqueConstraint("tenant", "live_digest"),
    Index(None, "tenant", "stored_bytes"),
    Index(None, "tenant", "created_at", "id"),
    ForeignKeyConstraint(["tenant", "id"], ["jobs.tenant", "jobs.id"], ondelete="CASCADE"),
)

ranked_plans = Table(
    "ranked_plans",
    metadata,
    _tenant(),
    _id("plan_id"),
    Column("rank", Integer, primary_key=True, doc="of the first plan in the document"),
    Column(
        "document", PackedText, nullable=False, doc="plans of consecutive ranks with per-stage detail, JSON, one a line"
    ),
    ForeignKeyConstraint(["tenant", "plan_id"], ["plans.tenant", "plans.id"], ondelete="CASCADE"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    _tenant(),
    Column("key", String(255), primary_key=True),
    Column("body_sha256", String(64), nullable=False),
    Column("plan_id", String(80), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    ForeignKeyConstraint(["tenant", "plan_id"], ["plans.tenant", "plans.id"], ondelete="CASCADE"),
)

calibrations = Table(
    "calibrations",
    metadata,
    _tenant(),
    _id(),
    Column("created_at", UtcDateTime, nullable=False),
    Column("gpu", String(64), nullable=False),
    Column("gpus_per_node", Integer),
    Column("document", PackedText, nullable=False),
    Column("stored_bytes", Integer, nullable=False, server_default="0", doc="of the document at rest"),
    Index(None, "tenant", "stored_bytes"),
    Index(None, "tenant", "gpu", "gpus_per_node", "created_at"),
)

agents = Table(
    "agents",
    metadata,
    _tenant(),
    _id(),
    Column("name", String(80), nullable=False),
    Column("gpu", String(64), nullable=False),
    Column("gpus_per_node", Integer, doc="null: it takes only what is asked of it by name"),
    Column("num_nodes", Integer, nullable=False),
    Column("product_version", String(40), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("last_seen_at", UtcDateTime, nullable=False),
    UniqueConstraint("tenant", "name"),
)

profiling_jobs = Table(
    "profiling_jobs",
    metadata,
    _tenant(),
    _id(),
    Column("status", String(16), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Column("budget_s", Float, nullable=False),
    Column("framework", String(40)),
    Column("name", String(80), doc="of the calibration"),
    Column("asked_agent_id", String(80), doc="the only agent that may take it; null: any that fits"),
    Column("asked_gpu", String(64)),
    Column("asked_gpus_per_node", Integer),
    Column("asked_num_nodes", Integer),
    Column("attempts", Integer, nullable=False, default=0),
    Column("agent_id", String(80), doc="the agent that measures or has measured"),
    Column("instance", String(64), doc="the run of the agent's program that took it"),
    Column("lease", String(80), doc="names the newest attempt; whatever an agent writes must name it"),
    Column("lease_until", UtcDateTime, doc="when the agent counts as silent"),
    Column("lapsed_at", UtcDateTime, doc="when the lease was first seen to have run out"),
    Column("parts_done", Integer),
    Column("calibration_id", String(80), doc="may have been deleted since"),
    Column("error", Text, doc="problem document of a failed job, JSON"),
    Column("idempotency_key", String(255)),
    Column("body_sha256", String(64)),
    UniqueConstraint("tenant", "lease"),
    UniqueConstraint("tenant", "idempotency_key"),
    Index(None, "tenant", "status", "created_at"),
    Index(None, "tenant", "created_at", "id"),
)

observations = Table(
    "observations",
    metadata,
    _tenant(),
    _id(),
    Column("created_at", UtcDateTime, nullable=False),
    Column("framework", String(40), nullable=False),
    Column("gpu", String(64), nullable=False),
    Column("used", Boolean, nullable=False, doc="whether predictions are corrected by it"),
    Column("headline", Text, nullable=False, doc="the few facts that a list shows, JSON"),
    Column("document", PackedText, nullable=False),
    Column("stored_bytes", Integer, nullable=False, server_default="0", doc="of the document at rest"),
    Index(None, "tenant", "created_at", "id"),
    Index(None, "tenant", "stored_bytes"),
)

tunings = Table(
    "tunings",
    metadata,
    _tenant(),
    _id(),
    Column("status", String(16), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime, doc="when its plan was there and trials could begin"),
    Column("finished_at", UtcDateTime),
    Column("plan_id", String(80), nullable=False, doc="the plan that is tuned; it may have been deleted since"),
    Column("asked", PackedText, nullable=False, doc="the body as it was asked, with every default, JSON"),
    Column("backend", String(16), nullable=False),
    Column("gpu", String(64), nullable=False, doc="of the plan's cluster; agents must have it"),
    Column("min_gpus", Integer, nullable=False, doc="that every plan uses; agents must have as many"),
    Column("asked_agent_id", String(80), doc="the only agent that may run its trials; null: any that fits"),
    Column("max_trials", Integer, nullable=False),
    Column("budget_s", Float, nullable=False),
    Column("gpu_hours", Float, nullable=False),
    Column("trial_limit_s", Float, nullable=False),
    Column("answer", PackedText, doc="the plan response that is tuned; null until the plan is there, JSON"),
    Column("claim", String(80), doc="who chooses the next trial just now"),
    Column("claim_until", UtcDateTime, doc="when whoever chooses counts as gone"),
    Column("stopped", Text, doc="reason and message of its end, JSON"),
    Column("document", PackedText, doc="of a tuning that has ended, JSON"),
    Column("error", Text, doc="problem document of a failed tuning, JSON"),
    Column("stored_bytes", Integer, nullable=False, server_default="0", doc="of request, records and document at rest"),
    Column("idempotency_key", String(255)),
    Column("body_sha256", String(64)),
    UniqueConstraint("tenant", "idempotency_key"),
    Index(None, "tenant", "stored_bytes"),
    Index(None, "tenant", "status", "created_at"),
    Index(None, "tenant", "created_at", "id"),
)

tuning_trials = Table(
    "tuning_trials",
    metadata,
    _tenant(),
    _id("tuning_id"),
    Column("number", Integer, primary_key=True, doc="in the order in which they were chosen, from 1"),
    Column("candidate", Integer, nullable=False, doc="place of its plan among the candidates; none is tried twice"),
    Column("status", String(16), nullable=False, doc="queued, running or ended"),
    Column("gpus", Integer, nullable=False),
    Column("job", PackedText, nullable=False, doc="what an agent is given, JSON"),
    Column("expected_s", Float, nullable=False, doc="seconds of a step that were believed of it when it was chosen"),
    Column("knobs", Text, doc="values of run-time knobs of the best plan, JSON; null for the trial of a plan"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Column("not_before", UtcDateTime, doc="when it may be tried again on a machine that was not ready"),
    Column("attempts", Integer, nullable=False, default=0),
    Column("agent_id", String(80), doc="the agent that runs or has run it"),
    Column("instance", String(64), doc="the run of the agent's program that took it"),
    Column("lease", String(80), doc="names the newest attempt; whatever an agent writes must name it"),
    Column("lease_until", UtcDateTime, doc="when the agent counts as silent"),
    Column("lapsed_at", UtcDateTime, doc="when the lease was first seen to have run out"),
    Column("record", PackedText, doc="the trial record, JSON"),
    Column("outcome", String(8), doc="how the plan ended: ok, oom, hang or crash"),
    Column("step_time_s", Float, doc="median of its timed steps; null unless it was measured"),
    Column("gpu_seconds", Float, nullable=False, server_default="0", doc="of all attempts, the lost ones included"),
    Column("told", Boolean, nullable=False, default=False, doc="whether the study knows how it ended"),
    Column("assumed", Boolean, nullable=False, server_default=false(), doc="whether no agent has sent the record"),
    UniqueConstraint("tenant", "tuning_id", "candidate"),
    UniqueConstraint("tenant", "lease"),
    Index(None, "tenant", "status"),
    ForeignKeyConstraint(["tenant", "tuning_id"], ["tunings.tenant", "tunings.id"], ondelete="CASCADE"),
)

gpu_time = Table(
    "gpu_time",
    metadata,
    _tenant(),
    _id(),
    Column("at", UtcDateTime, nullable=False),
    Column("gpu_seconds", Float, nullable=False, doc="of one attempt of a trial; it stays when the tuning is deleted"),
    Index(None, "tenant", "at"),
    Index(None, "at"),
)

correction_switches = Table(
    "correction_switches",
    metadata,
    _tenant(),
    _id(),
    Column("enabled", Boolean, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    _tenant(),
    _id(),
    Column("at", UtcDateTime, nullable=False),
    Column("by", String(80), nullable=False, doc="id of a key, or what acts without one"),
    Column("action", String(40), nullable=False),
    Column("object", String(80), nullable=False, doc="its id; no reference, since entries outlive what they tell of"),
    Column("request_id", String(64)),
    Column("address", String(64)),
    Index(None, "tenant", "at", "id"),
    Index(None, "at"),
)

keys = Table(
    "keys",
    metadata,
    _tenant(),
    _id(),
    Column("name", String(80), nullable=False),
    Column("scopes", String(64), nullable=False, server_default="read plan profile", doc="separated by blanks"),
    Column("secret_sha256", String(64), nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("last_used_at", UtcDateTime, doc="to the minute"),
    Column("revoked_at", UtcDateTime),
    Index(None, "tenant", "created_at", "id"),
)

workers = Table(
    "workers",
    metadata,
    Column("owner", String(80), primary_key=True, doc="a process that runs jobs, as in jobs.owner"),
    Column("size", Integer, nullable=False, doc="jobs that it may run at a time"),
    Column("ready", Integer, nullable=False, doc="worker processes that run a job or could start one at once"),
    Column("seen_at", UtcDateTime, nullable=False, doc="its last sign of life"),
)
