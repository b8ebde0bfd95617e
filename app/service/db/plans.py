"""Plan rows. A request becomes one job and one plan; the same request asked again finds the plan that is there already."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    delete,
    insert,
    null,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from app.errors import NotFoundError, TooManyJobsError
from app.service.db.audit import record
from app.service.db.engine import now_of, reading, writing
from app.service.db.jobs import JobKey, Status, insert_job, raise_priority, unfinished
from app.service.db.packing import TEXTS_IN_BLOCK, lines_of, packed
from app.service.db.pages import newest_first
from app.service.db.plan_result import PlanResult
from app.service.db.quotas import NO_QUOTAS, Quotas, one_at_a_time, require_room
from app.service.db.tables import idempotency_keys, jobs, plans, ranked_plans
from cost_models.errors import InvalidInputError, Problem


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A stored plan. `response` is None until the job has succeeded, and in lists."""

    id: str
    status: Status
    created_at: datetime
    finished_at: datetime | None
    priority: int
    request_digest: str
    request: str
    response: str | None
    headline: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked request in the form in which it is stored."""

    digest: str
    request: str
    time_limit_s: float
    priority: int | None = None
    """Higher ones go first among the tenant's queued jobs; None for 0, or for what a plan that is there already has."""
    idempotency_key: str | None = None
    body_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The plan that answers a request, and whether it was created for it."""

    id: str
    is_new: bool


class PlanStore:
    """Stored plans; every call is for one tenant."""

    def __init__(self, engine: Engine, *, max_queued_jobs: int, quotas: Quotas = NO_QUOTAS) -> None:
        """`max_queued_jobs` is of one tenant, as are the quotas."""
        self._engine = engine
        self._quotas = quotas
        self._max_queued_jobs = max_queued_jobs

    def submit(self, tenant: str, submission: Submission, *, plan_id: str | None = None) -> Submitted:
        """The plan that answers this request: one that is there already, or a new one whose job is queued.

        Raises:
            InvalidInputError: the idempotency key was used for another body.
            QuotaError: the tenant has too much stored.
            TooManyJobsError: the tenant has too many unfinished jobs.
        """
        try:
            return self._submit(tenant, submission, plan_id=plan_id)
        except IntegrityError:
            # On PostgreSQL the same request may be inserted between our look and our insert. The unique `live_digest` then refuses
            # the second row, and the second attempt finds the first one.
            return self._submit(tenant, submission, plan_id=plan_id)

    def _submit(self, tenant: str, submission: Submission, *, plan_id: str | None) -> Submitted:
        with writing(self._engine) as connection:
            known = _known_by_key(connection, tenant, submission) or _known_by_digest(connection, tenant, submission)
            if known and submission.priority is not None:
                raise_priority(connection, JobKey(tenant, known.id), submission.priority)
            submitted = known or self._insert(connection, tenant, submission, plan_id=plan_id or _new_id())
            _remember_key(connection, tenant, submission, submitted.id)
            return submitted

    def _insert(self, connection: Connection, tenant: str, submission: Submission, *, plan_id: str) -> Submitted:
        one_at_a_time(connection, tenant)
        count, most = unfinished(connection, tenant), self._max_queued_jobs
        if count >= most:
            raise TooManyJobsError(
                f"you already have {most} unfinished jobs",
                hint="Wait for some of them to end, or cancel some.",
                context={"quota": "unfinished_jobs", "limit": most, "used": count},
            )
        request = packed(submission.request)
        # What its answer will take is not known. A search that was paid for is never thrown away over it.
        require_room(connection, tenant, self._quotas, added_bytes=len(request), added_plans=1)
        now = now_of(connection)
        insert_job(
            connection, JobKey(tenant, plan_id), kind="plan", payload=request, at=now,
            time_limit_s=submission.time_limit_s, priority=submission.priority or 0,
        )  # fmt: skip
        digest = submission.digest
        connection.execute(
            insert(plans).values(
                tenant=tenant,
                id=plan_id,
                created_at=now,
                request_digest=digest,
                live_digest=digest,
                stored_bytes=len(request),
            )
        )
        record(connection, tenant, "plan.create", plan_id)
        return Submitted(plan_id, is_new=True)

    def get(self, tenant: str, plan_id: str) -> PlanRow:
        """One plan.

        Raises:
            NotFoundError: the tenant has no such plan.
        """
        with reading(self._engine) as connection:
            row = connection.execute(_rows(tenant).where(plans.c.id == plan_id)).first()
        if row is None:
            raise NotFoundError(f"there is no plan {plan_id}", hint="GET /v1/plans lists yours.")
        return _plan(row)

    def requests(self, tenant: str, plan_ids: Collection[str]) -> dict[str, str]:
        """What was asked for each of these plans that is still there, with the calibrations that it names, as JSON."""
        mine = (jobs.c.tenant == tenant) & jobs.c.id.in_(plan_ids) & (jobs.c.kind == "plan")
        with reading(self._engine) as connection:
            return {row.id: row.payload for row in connection.execute(select(jobs.c.id, jobs.c.payload).where(mine))}

    def exists(self, tenant: str, plan_id: str) -> bool:
        """Whether the tenant has this plan."""
        query = select(plans.c.id).where(plans.c.tenant == tenant, plans.c.id == plan_id)
        with reading(self._engine) as connection:
            return connection.execute(query).first() is not None

    def ranked(self, tenant: str, plan_id: str, rank: int) -> str:
        """One ranked plan with its stages, as JSON.

        Raises:
            NotFoundError: the tenant has no such plan, or the plan no such rank.
        """
        table = ranked_plans.c
        query = (
            select(table.rank, table.document)
            .where(table.tenant == tenant, table.plan_id == plan_id, table.rank <= rank)
            .order_by(table.rank.desc())
            .limit(1)
        )
        with reading(self._engine) as connection:
            block = connection.execute(query).first()
        found = [] if block is None else lines_of(block.document)[rank - block.rank :]
        if not found:
            raise NotFoundError(
                f"plan {plan_id} has no rank {rank}", hint="Ranks start at 1 and end at the request's top_k or earlier."
            )
        return found[0]

    def all_ranked(self, tenant: str, plan_id: str) -> list[str]:
        """All ranked plans with their stages, best first, as JSON; empty if there are none, or no such plan."""
        query = (
            select(ranked_plans.c.document)
            .where(ranked_plans.c.tenant == tenant, ranked_plans.c.plan_id == plan_id)
            .order_by(ranked_plans.c.rank)
        )
        with reading(self._engine) as connection:
            return [line for block in connection.execute(query).scalars() for line in lines_of(block)]

    def page(
        self, tenant: str, *, limit: int, after: tuple[datetime, str] | None = None, status: Status | None = None
    ) -> list[PlanRow]:
        """Up to `limit` plans, newest first, beginning after the plan made at this time with this id."""
        # Without the answers, which a list does not show.
        mine = _rows(tenant, answer=null())
        query = newest_first(mine, plans.c.created_at, plans.c.id, limit=limit, after=after)
        if status is not None:
            query = query.where(jobs.c.status == status)
        with reading(self._engine) as connection:
            return [_plan(row) for row in connection.execute(query)]

    def delete(self, tenant: str, plan_id: str) -> None:
        """Removes a plan together with its job, its events, its ranked plans and its idempotency keys.

        Raises:
            NotFoundError: the tenant has no such plan.
        """
        with writing(self._engine) as connection:
            # The other rows go with the job: their foreign keys cascade.
            deleted = connection.execute(delete(jobs).where(jobs.c.tenant == tenant, jobs.c.id == plan_id))
            if deleted.rowcount:
                record(connection, tenant, "plan.delete", plan_id)
        if deleted.rowcount == 0:
            raise NotFoundError(f"there is no plan {plan_id}", hint="GET /v1/plans lists yours.")


def write_result(connection: Connection, key: JobKey, result: PlanResult) -> None:
    """Stores a finished plan inside the caller's transaction."""
    connection.execute(
        update(plans)
        .where(plans.c.tenant == key.tenant, plans.c.id == key.id)
        .values(
            response=result.response,
            headline=result.headline,
            gap=result.gap,
            stored_bytes=plans.c.stored_bytes + result.stored_bytes,
        )
    )
    rows = [
        {"tenant": key.tenant, "plan_id": key.id, "rank": 1 + number * TEXTS_IN_BLOCK, "document": block}
        for number, block in enumerate(result.ranked)
    ]
    if rows:
        connection.execute(insert(ranked_plans), rows)


def _new_id() -> str:
    # Eighty random bits: ids need not be secret, since every query names the tenant, but they must not collide across services.
    return f"plan-{secrets.token_hex(10)}"


def _rows(tenant: str, *, answer: ColumnElement[Any] = plans.c.response) -> Select[tuple[object, ...]]:
    same = (jobs.c.tenant == plans.c.tenant) & (jobs.c.id == plans.c.id)
    own = (plans.c.id, plans.c.created_at, plans.c.request_digest, plans.c.headline, answer.label("response"))
    columns = (*own, jobs.c.status, jobs.c.finished_at, jobs.c.priority, jobs.c.payload, jobs.c.error)
    return select(*columns).join(jobs, same).where(plans.c.tenant == tenant)


def _plan(row: Row[tuple[object, ...]]) -> PlanRow:
    r = row._mapping  # noqa: SLF001 - SQLAlchemy's documented name
    return PlanRow(
        r["id"], r["status"], r["created_at"], r["finished_at"], r["priority"], r["request_digest"], r["payload"],
        r["response"], r["headline"], r["error"],
    )  # fmt: skip


def _known_by_key(connection: Connection, tenant: str, submission: Submission) -> Submitted | None:
    if submission.idempotency_key is None:
        return None
    query = select(idempotency_keys).where(
        idempotency_keys.c.tenant == tenant, idempotency_keys.c.key == submission.idempotency_key
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    # Compared byte for byte and not by meaning, so that a client which reuses a key by mistake hears of it.
    if row.body_sha256 != submission.body_sha256:
        message = "this Idempotency-Key was already used with a different request"
        raise InvalidInputError([Problem("", message, "Send a new key with a new request.", "idempotency-key-reused")])
    return Submitted(row.plan_id, is_new=False)


def _known_by_digest(connection: Connection, tenant: str, submission: Submission) -> Submitted | None:
    query = select(plans.c.id).where(plans.c.tenant == tenant, plans.c.live_digest == submission.digest)
    plan_id = connection.execute(query).scalar_one_or_none()
    return None if plan_id is None else Submitted(plan_id, is_new=False)


def _remember_key(connection: Connection, tenant: str, submission: Submission, plan_id: str) -> None:
    key = submission.idempotency_key
    if key is None:
        return
    known = select(idempotency_keys.c.key).where(idempotency_keys.c.tenant == tenant, idempotency_keys.c.key == key)
    if connection.execute(known).first() is None:
        connection.execute(
            insert(idempotency_keys).values(
                tenant=tenant,
                key=key,
                body_sha256=submission.body_sha256,
                plan_id=plan_id,
                created_at=now_of(connection),
            )
        )
