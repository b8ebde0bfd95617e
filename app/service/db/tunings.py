"""Tunings: plans whose best candidates are measured on registered agents, one real trial at a time on each.

What is here is the truth of a tuning; the study that chooses the next trial follows it. A tuning is queued until its plan is
there, runs while trials are chosen, and ends once. Whoever chooses the next trial holds the claim of the tuning for some seconds,
so that several services and agents never choose at the same time.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Row,
    Select,
    delete,
    func,
    insert,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from app.errors import NotFoundError, TooManyJobsError, WrongStateError
from app.service.db.audit import record
from app.service.db.engine import now_of, reading, writing
from app.service.db.jobs import FINISHED, Status
from app.service.db.packing import packed
from app.service.db.pages import newest_first
from app.service.db.quotas import NO_QUOTAS, Quotas, one_at_a_time, require_room, require_room_for_tuning
from app.service.db.tables import agents, tuning_trials, tunings
from app.service.db.tuning_agents import fits, nobody_fits, of_agents
from cost_models.errors import InvalidInputError, Problem

# Choosing takes a second at most, and up to ten where the database's lock has to be waited for.
_CLAIM = timedelta(seconds=60)
"""After which whoever has claimed a tuning counts as gone."""
_t = tunings.c


@dataclass(frozen=True, slots=True)
class TuningLimits:
    """How much a tuning may spend. Times in seconds."""

    max_trials: int
    budget_s: float
    gpu_hours: float
    trial_limit_s: float
    """Of one trial."""


@dataclass(frozen=True, slots=True)
class WantedTuning:
    """A tuning that is asked for, checked."""

    plan_id: str
    asked: str
    """The body as it was asked, with every default, as JSON."""
    backend: str
    gpu: str
    min_gpus: int
    """GPUs that each of its plans uses at least."""
    limits: TuningLimits
    agent_id: str | None = None


@dataclass(frozen=True, slots=True)
class TuningRow:
    """A stored tuning. The texts are JSON; `answer` (the plan response that is tuned) and `document` are None in lists."""

    id: str
    status: Status
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    wanted: WantedTuning
    answer: str | None
    stopped: str | None
    document: str | None
    error: str | None
    agents_in_touch: int
    """Agents that were heard of lately and could run its trials."""
    most_gpus: int | None
    """Of one of these; None where there is none, or it does not say."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to choose what a tuning tries next, for some seconds."""

    tenant: str
    tuning_id: str
    token: str


class TuningStore:
    """Stored tunings; every call is for one tenant."""

    def __init__(
        self, engine: Engine, *, max_queued_jobs: int, in_touch_s: float = 60.0, quotas: Quotas = NO_QUOTAS
    ) -> None:
        """`max_queued_jobs` and `quotas` are of one tenant; an agent is in touch for `in_touch_s` seconds."""
        self._engine = engine
        self._max_queued_jobs = max_queued_jobs
        self._in_touch = timedelta(seconds=in_touch_s)
        self._quotas = quotas

    def submit(
        self, tenant: str, wanted: WantedTuning, *, idempotency_key: str | None = None, body_sha256: str = ""
    ) -> TuningRow:
        """The queued tuning, or the one that this idempotency key has made before.

        Raises:
            InvalidInputError: no registered agent fits, or the idempotency key was used for another body.
            QuotaError: the tenant has no room for another tuning.
            TooManyJobsError: the tenant has too many unfinished tunings.
        """
        try:
            tuning_id = self._submit(tenant, wanted, idempotency_key, body_sha256)
        except IntegrityError:
            # The same key arrived twice at once; the second attempt finds the first one's tuning.
            tuning_id = self._submit(tenant, wanted, idempotency_key, body_sha256)
        return self.get(tenant, tuning_id)

    def _submit(self, tenant: str, wanted: WantedTuning, idempotency_key: str | None, body_sha256: str) -> str:
        with writing(self._engine) as connection:
            if idempotency_key is not None:
                query = select(tunings).where(_t.tenant == tenant, _t.idempotency_key == idempotency_key)
                if (known := connection.execute(query).first()) is not None:
                    return _same_body(known, body_sha256)
            one_at_a_time(connection, tenant)
            unfinished = select(func.count()).where(_t.tenant == tenant, _t.status.in_(("queued", "running")))
            count, most = connection.execute(unfinished).scalar_one(), self._max_queued_jobs
            if count >= most:
                raise TooManyJobsError(
                    f"you already have {most} unfinished tunings",
                    hint="Wait for some of them to end, or cancel some.",
                    context={"quota": "unfinished_jobs", "limit": most, "used": count},
                )
            require_room_for_tuning(connection, tenant, self._quotas)
            text = packed(wanted.asked)
            require_room(connection, tenant, self._quotas, added_bytes=len(text))
            tuning_id = _insert(
                connection, tenant, wanted, idempotency_key=idempotency_key, body_sha256=body_sha256,
                stored_bytes=len(text),
            )  # fmt: skip
            # Asked of the row that was just inserted, so that it is the same condition that later gives its trials out.
            fitting = select(func.count()).select_from(tunings).join(agents, fits())
            if not connection.execute(fitting.where(_t.tenant == tenant, _t.id == tuning_id)).scalar_one():
                raise InvalidInputError([nobody_fits(connection, tenant, wanted.agent_id, wanted.min_gpus, wanted.gpu)])
            record(connection, tenant, "tuning.create", tuning_id)
            return tuning_id

    def get(self, tenant: str, tuning_id: str) -> TuningRow:
        """One tuning.

        Raises:
            NotFoundError: the tenant has no such tuning.
        """
        with reading(self._engine) as connection:
            query = self._rows(connection, tenant, whole=True).where(_t.id == tuning_id)
            row = connection.execute(query).first()
        if row is None:
            raise _unknown(tuning_id)
        return _tuning(row)

    def page(
        self, tenant: str, *, limit: int, after: tuple[datetime, str] | None = None, status: Status | None = None
    ) -> list[TuningRow]:
        """Up to `limit` tunings, newest first, beginning after the one made at this time with this id."""
        with reading(self._engine) as connection:
            mine = self._rows(connection, tenant, whole=False)
            query = newest_first(mine, _t.created_at, _t.id, limit=limit, after=after)
            if status is not None:
                query = query.where(_t.status == status)
            return [_tuning(row) for row in connection.execute(query)]

    def open_for(self, tenant: str, agent_id: str) -> list[str]:
        """Ids of the unfinished tunings whose trials this agent may run, the oldest first."""
        # Asked every few seconds by every agent: the index on status leaves out all that have ended.
        query = (
            select(_t.id)
            .join(agents, fits())
            .where(_t.tenant == tenant, agents.c.id == agent_id, _t.status.in_(("queued", "running")))
            .order_by(_t.created_at, _t.id)
        )
        with reading(self._engine) as connection:
            return list(connection.execute(query).scalars())

    def remove(self, tenant: str, tuning_id: str, *, cancel_only: bool = False) -> bool:
        """Cancels a tuning that has not ended (True: it is still there), or deletes one that has, with its trials (False).

        Raises:
            NotFoundError: the tenant has no such tuning.
            WrongStateError: it has ended, and is only to be cancelled.
        """
        with writing(self._engine) as connection:
            row = connection.execute(_one(tenant, tuning_id).with_for_update()).first()
            if row is None:
                raise _unknown(tuning_id)
            if row.status in FINISHED:
                if cancel_only:
                    raise WrongStateError(f"tuning {tuning_id} is {row.status}", hint="It has ended by itself.")
                connection.execute(delete(tunings).where(_t.tenant == tenant, _t.id == tuning_id))
                record(connection, tenant, "tuning.delete", tuning_id)
                return False
            # Agents hear of it with their next heartbeat and end their trials.
            stopped = {"reason": "cancelled", "message": "somebody cancelled the tuning"}
            _change(
                connection, tenant, tuning_id, status="cancelled", finished_at=now_of(connection),
                stopped=json.dumps(stopped),
            )  # fmt: skip
            record(connection, tenant, "tuning.cancel", tuning_id)
            return True

    def add_example(self, tenant: str, tuning_id: str, wanted: WantedTuning, *, document: str) -> None:
        """Stores a tuning that has ended, unless it is there: the example of the documentation."""
        with writing(self._engine) as connection:
            if connection.execute(_one(tenant, tuning_id)).first() is None:
                now = now_of(connection)
                _insert(
                    connection, tenant, wanted, id=tuning_id, status="succeeded", created_at=now, started_at=now,
                    finished_at=now, document=document,
                )  # fmt: skip

    # --- choosing what is tried next --------------------------------------------------------------------------------

    def claim(self, tenant: str, tuning_id: str) -> Claim | None:
        """The right to choose what this tuning tries next; None while somebody else has it, or there is no such tuning."""
        token = f"claim-{secrets.token_hex(10)}"
        with writing(self._engine) as connection:
            now = now_of(connection)
            # One statement decides, so that of two who claim at once one finds it taken.
            is_free = or_(_t.claim.is_(None), _t.claim_until < now)
            taken = connection.execute(
                update(tunings)
                .where(_t.tenant == tenant, _t.id == tuning_id, is_free)
                .values(claim=token, claim_until=now + _CLAIM)
            )
        return Claim(tenant, tuning_id, token) if taken.rowcount else None

    def unclaim(self, claim: Claim) -> None:
        """Gives the claim back."""
        with writing(self._engine) as connection:
            connection.execute(update(tunings).where(_held(claim)).values(claim=None, claim_until=None))

    def begin(self, claim: Claim, answer: str) -> bool:
        """Starts a queued tuning with the plan response that it tunes; False if the claim was lost or the tuning is no longer queued."""
        text = packed(answer)
        with writing(self._engine) as connection:
            begun = connection.execute(
                update(tunings)
                .where(_held(claim), _t.status == "queued")
                .values(
                    status="running",
                    started_at=now_of(connection),
                    answer=text,
                    stored_bytes=_t.stored_bytes + len(text),
                )
            )
        return bool(begun.rowcount)

    def finish(
        self,
        claim: Claim,
        *,
        status: Status,
        stopped: Mapping[str, Any],
        error: Mapping[str, Any] | None = None,
    ) -> bool:
        """Ends an unfinished tuning; False if the claim was lost or the tuning has ended meanwhile."""
        with writing(self._engine) as connection:
            ended = connection.execute(
                update(tunings)
                .where(_held(claim), _t.status.in_(("queued", "running")))
                .values(
                    status=status,
                    finished_at=now_of(connection),
                    stopped=json.dumps(stopped),
                    error=error and json.dumps(error),
                )
            )
        return bool(ended.rowcount)

    def seal(self, claim: Claim, document: str) -> None:
        """Keeps the document of a tuning that has ended, so that it is the same from now on."""
        text = packed(document)
        with writing(self._engine) as connection:
            connection.execute(
                update(tunings)
                .where(_held(claim), _t.status.in_(FINISHED), _t.document.is_(None))
                .values(document=text, stored_bytes=_t.stored_bytes + len(text))
            )

    def _rows(self, connection: Connection, tenant: str, *, whole: bool) -> Select[Any]:
        since = now_of(connection) - self._in_touch
        in_touch, most_gpus = (of_agents(each, since) for each in (func.count(), func.max(agents.c.gpus_per_node)))
        big = {"answer", "document"}
        columns = [column if whole or column.name not in big else null().label(column.name) for column in _t]
        figures = (in_touch.label("agents_in_touch"), most_gpus.label("most_gpus"))
        return select(*columns, *figures).where(_t.tenant == tenant)


def claimed(connection: Connection, claim: Claim) -> Row[Any] | None:
    """The running tuning under this claim, locked by the caller's transaction; None if the claim was lost or it does not run."""
    query = select(tunings).where(_held(claim), _t.status == "running").with_for_update()
    return connection.execute(query).first()


def trial_records(engine: Engine, tenant: str, *, after: datetime | None = None) -> list[tuple[str, int, str]]:
    """Tuning, number and record (JSON) of every measured or failed trial of a tenant's plans, the first ones first.

    Those of run-time knobs are left out: their rows do not say what was changed.
    """
    r = tuning_trials.c
    query = select(r.tuning_id, r.number, r.record).where(r.tenant == tenant, r.record.is_not(None), r.knobs.is_(None))
    if after is not None:
        query = query.where(r.finished_at > after)
    with reading(engine) as connection:
        return [tuple(row) for row in connection.execute(query.order_by(r.finished_at, r.tuning_id, r.number))]


def names_of_tunings(engine: Engine) -> list[tuple[str, str]]:
    """Tenant and id of every tuning that is stored."""
    with reading(engine) as connection:
        return [tuple(row) for row in connection.execute(select(_t.tenant, _t.id))]


def _insert(connection: Connection, tenant: str, wanted: WantedTuning, **values: Any) -> str:
    row = {
        "id": f"tuning-{secrets.token_hex(10)}", "status": "queued", "created_at": now_of(connection), **values,
    }  # fmt: skip
    limits = wanted.limits
    connection.execute(
        insert(tunings).values(
            tenant=tenant, plan_id=wanted.plan_id, asked=wanted.asked, backend=wanted.backend, gpu=wanted.gpu,
            min_gpus=wanted.min_gpus, asked_agent_id=wanted.agent_id, max_trials=limits.max_trials,
            budget_s=limits.budget_s, gpu_hours=limits.gpu_hours, trial_limit_s=limits.trial_limit_s, **row,
        )
    )  # fmt: skip
    return str(row["id"])


def _same_body(known: Row[Any], body_sha256: str) -> str:
    if known.body_sha256 != body_sha256:
        message = "this Idempotency-Key was already used with a different request"
        raise InvalidInputError([Problem("", message, "Send a new key with a new request.", "idempotency-key-reused")])
    return str(known.id)


def _one(tenant: str, tuning_id: str) -> Select[Any]:
    return select(tunings).where(_t.tenant == tenant, _t.id == tuning_id)


def _held(claim: Claim) -> Any:
    return (_t.tenant == claim.tenant) & (_t.id == claim.tuning_id) & (_t.claim == claim.token)


def _change(connection: Connection, tenant: str, tuning_id: str, **values: Any) -> None:
    connection.execute(update(tunings).where(_t.tenant == tenant, _t.id == tuning_id).values(**values))


def _unknown(tuning_id: str) -> NotFoundError:
    return NotFoundError(f"there is no tuning {tuning_id}", hint="GET /v1/tunings lists yours.")


def _tuning(r: Row[Any]) -> TuningRow:
    limits = TuningLimits(r.max_trials, r.budget_s, r.gpu_hours, r.trial_limit_s)
    wanted = WantedTuning(r.plan_id, r.asked, r.backend, r.gpu, r.min_gpus, limits, r.asked_agent_id)
    return TuningRow(
        r.id, r.status, r.created_at, r.started_at, r.finished_at, wanted, r.answer, r.stopped, r.document, r.error,
        r.agents_in_touch, r.most_gpus,
    )  # fmt: skip
