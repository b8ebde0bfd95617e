"""The trials of tunings as their agents see them: leased one at a time, kept by heartbeats, and ended under the lease.

Every write of an agent names its lease, which another attempt replaces, so that what is told twice or late changes nothing. A trial
whose agent falls silent is given again, a few times; then it has ended, too, with that as its reason.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Row, Select, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from app.errors import WrongStateError
from app.service.db.agents import seen
from app.service.db.engine import now_of, reading, writing
from app.service.db.gpu_time import spend
from app.service.db.jobs import Status
from app.service.db.packing import packed
from app.service.db.quotas import NO_QUOTAS, Quotas, gpu_hours_spent
from app.service.db.tables import agents, tuning_trials, tunings
from app.service.db.tuning_agents import fits
from app.service.db.tunings import Claim, claimed

LEASE_PREFIX = "trial-lease-"
"""How the leases of trials begin, by which they are told from those of measurements."""
MAX_ATTEMPTS = 3
"""How often a trial is given out whose agents fall silent or cannot run it: nodes are preempted, GPUs are busy for a while."""
_WAIT = timedelta(seconds=20)
"""Before a trial is given out again that a machine could not run; twice as long the second time."""
_FALLEN_SILENT = "its agents fell silent {attempts} times while it ran"
_r = tuning_trials.c
TrialStatus = Literal["queued", "running", "ended"]


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial of a tuning. `job` and `record` are JSON texts."""

    tuning_id: str
    number: int
    candidate: int
    status: TrialStatus
    gpus: int
    job: str
    expected_s: float
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    agent_id: str | None
    lease: str | None
    record: str | None
    gpu_seconds: float
    told: bool
    not_before: datetime | None
    """When it may be given out again after a machine could not run it."""
    tuning_status: Status
    trial_limit_s: float
    knobs: str | None = None
    """Rank of the best plan and values of its run-time knobs, as JSON; None for the trial of a plan."""


@dataclass(frozen=True, slots=True)
class NewTrial:
    """A trial that was chosen and is about to be stored."""

    number: int
    candidate: int
    gpus: int
    job: str
    """What an agent is given, as JSON."""
    expected_s: float
    """Seconds of a step that are believed of it."""
    knobs: str | None = None


class TrialLeases:
    """Trials and their leases; every call is for one tenant."""

    def __init__(
        self,
        engine: Engine,
        *,
        lease_s: float,
        failed: Callable[[str, str], str],
        wait: timedelta = _WAIT,
        quotas: Quotas = NO_QUOTAS,
    ) -> None:
        """`lease_s`: seconds without a heartbeat after which an agent counts as silent.

        `failed` makes the record of a trial that could not be run, from its job and the reason. `wait` is the time before a trial
        is given out again that a machine could not run. `quotas` are those of one tenant.
        """
        self._engine = engine
        self.lease_s = lease_s
        self._lease = timedelta(seconds=lease_s)
        # As for measurements: after an outage of the service agents are given the time for two more heartbeats.
        self._patience = self._lease / 3
        self._failed = failed
        self._wait = wait
        self._quotas = quotas

    def of(self, tenant: str, tuning_id: str) -> list[TrialRow]:
        """The trials of a tuning in the order in which they were chosen."""
        with reading(self._engine) as connection:
            query = _rows(tenant).where(_r.tuning_id == tuning_id).order_by(_r.number)
            return [_trial(row) for row in connection.execute(query)]

    def own(self, tenant: str, agent_id: str, *, instance: str) -> TrialRow | None:
        """The trial that this run of the agent has already, because an answer was lost; None where it has none."""
        mine = (_r.agent_id == agent_id) & (_r.instance == instance) & (_r.status == "running")
        with reading(self._engine) as connection:
            row = connection.execute(_rows(tenant).where(mine, tunings.c.status == "running").limit(1)).first()
        return None if row is None else _trial(row)

    def lease_again(self, tenant: str, agent_id: str, *, instance: str) -> TrialRow | None:
        """A trial that waits to be given out, now leased to the agent; None where there is none for it.

        Raises:
            NotFoundError: the tenant has no such agent.
        """
        self.look_for_silent(tenant)
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            if gpu_hours_spent(connection, tenant, self._quotas) is not None:
                return None
            now = now_of(connection)
            row = connection.execute(_waiting(tenant, agent_id, now)).first()
            if row is None:
                return None
            _change(connection, row, **self._taken(agent_id, instance, now) | {"attempts": row.attempts + 1})
            return _read(connection, row)

    def over_quota(self, tenant: str) -> str | None:
        """Why no trial of the tenant may begin just now, in words; None where one may."""
        with reading(self._engine) as connection:
            spent = gpu_hours_spent(connection, tenant, self._quotas)
        return None if spent is None else spent.message

    def add(self, claim: Claim, new: NewTrial, *, agent_id: str, instance: str) -> TrialRow | None:
        """The chosen trial, stored and leased to the agent; None if the claim was lost, or the candidate was tried before.

        Where the agent has fewer GPUs than the trial needs, it is stored and waits for another agent.
        """
        values = {
            "number": new.number,
            "candidate": new.candidate,
            "gpus": new.gpus,
            "expected_s": new.expected_s,
            "knobs": new.knobs,
        }
        mine = (agents.c.tenant == claim.tenant) & (agents.c.id == agent_id)
        try:
            with writing(self._engine) as connection:
                if claimed(connection, claim) is None:
                    return None
                now = now_of(connection)
                has = connection.execute(select(agents.c.gpus_per_node).where(mine)).scalar_one_or_none()
                leased = self._taken(agent_id, instance, now) if has is None or has >= new.gpus else {}
                connection.execute(
                    insert(tuning_trials).values(
                        tenant=claim.tenant, tuning_id=claim.tuning_id, job=new.job, created_at=now, told=False,
                        **values, **({"status": "queued", "attempts": 0} | leased),
                    )
                )  # fmt: skip
                query = _rows(claim.tenant).where(_r.tuning_id == claim.tuning_id, _r.number == new.number)
                return _trial(connection.execute(query).one())
        except IntegrityError:
            return None

    def heartbeat(self, tenant: str, agent_id: str, *, lease: str) -> Status | None:
        """The state of the trial under this lease: `running` where it goes on, with a longer lease; None where the lease is gone.

        Raises:
            NotFoundError: the tenant has no such agent.
        """
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            row = connection.execute(_under(tenant, agent_id, lease)).first()
            if row is None:
                return None
            if row.status == "ended" and not row.assumed:
                return "succeeded"
            if row.tuning_status != "running":
                return row.tuning_status  # type: ignore[no-any-return]
            now = now_of(connection)
            # An agent that is heard of for ever while its trial hangs would otherwise keep it for ever.
            last = row.started_at + timedelta(seconds=hard_limit_s(row.trial_limit_s)) + self._lease
            if now >= last:
                return None
            # An agent that was given up and is heard of again goes on: what it measures takes the place of what was assumed.
            if row.status != "ended":
                _change(connection, row, status="running", lease_until=min(now + self._lease, last), lapsed_at=None)
            return "running"

    def job_of(self, tenant: str, agent_id: str, *, lease: str) -> str:
        """What was given to the agent under this lease, as JSON.

        Raises:
            WrongStateError: the lease is no longer any trial's.
        """
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            return str(_required(connection, tenant, agent_id, lease).job)

    def finish(self, tenant: str, agent_id: str, *, lease: str, record: str, gpu_seconds: float) -> TrialRow:
        """The trial, ended with this record. The same record sent again changes nothing.

        A record that comes late is taken as long as the trial was not given to another agent, also after its tuning has ended. It
        then takes the place of one that was only assumed.

        Raises:
            NotFoundError: the tenant has no such agent.
            WrongStateError: the lease is no longer the trial's, or the trial has ended with another record.
        """
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            row = _required(connection, tenant, agent_id, lease)
            if row.status == "ended" and not row.assumed:
                if row.record != record:
                    raise WrongStateError(f"trial {row.number} of {row.tuning_id} has ended already", hint=_KEPT)
                return _trial(row)
            # That of an attempt which was given up counts already.
            late = row.status != "running"
            spent = max(row.gpu_seconds, gpu_seconds) if late else row.gpu_seconds + gpu_seconds
            _end(connection, row, record=record, gpu_seconds=spent)
            return _read(connection, row)

    def could_not_run(self, tenant: str, agent_id: str, *, lease: str, reason: str) -> TrialRow:
        """The trial, queued again after a while because a machine could not run it, or ended with this as its reason.

        Raises:
            NotFoundError: the tenant has no such agent.
            WrongStateError: the lease is no longer the trial's.
        """
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            row = _required(connection, tenant, agent_id, lease)
            # Told twice, or given back meanwhile.
            if row.status != "running":
                return _trial(row)
            now = now_of(connection)
            # Its agent may be the only one, and asks again at once; a GPU that is busy is mostly free after a while.
            if row.attempts < MAX_ATTEMPTS:
                _change(
                    connection, row, status="queued", lease_until=None, lapsed_at=None,
                    not_before=now + self._wait * row.attempts, gpu_seconds=row.gpu_seconds + _held_s(row, now),
                )  # fmt: skip
            else:
                spent = row.gpu_seconds + _held_s(row, now)
                _end(connection, row, record=self._failed(row.job, reason), gpu_seconds=spent, assumed=True)
            return _read(connection, row)

    def give_back(self, tenant: str, agent_id: str, *, lease: str) -> TrialRow:
        """The trial, queued again because its agent shuts down in good order, which counts as no attempt.

        Raises:
            NotFoundError: the tenant has no such agent.
            WrongStateError: the lease is no longer the trial's.
        """
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            row = _required(connection, tenant, agent_id, lease)
            if row.status == "running":
                spent = row.gpu_seconds + _held_s(row, now_of(connection))
                _change(
                    connection, row, status="queued", lease=None, lease_until=None, lapsed_at=None,
                    attempts=row.attempts - 1, gpu_seconds=spent,
                )  # fmt: skip
            return _read(connection, row)

    def mark_told(self, claim: Claim, trials: Sequence[TrialRow]) -> None:
        """Notes that the study knows how these trials ended."""
        mine = (_r.tenant == claim.tenant) & (_r.tuning_id == claim.tuning_id)
        with writing(self._engine) as connection:
            for each in trials:
                # One whose record was replaced meanwhile has yet to be told.
                same = mine & (_r.number == each.number) & (_r.finished_at == each.finished_at)
                connection.execute(update(tuning_trials).where(same).values(told=True))

    def look_for_silent(self, tenant: str) -> None:
        """Takes trials away from agents that have been silent for long enough."""
        running = (_r.tenant == tenant) & (_r.status == "running")
        with reading(self._engine) as connection:
            over = running & (_r.lease_until < now_of(connection))
            if connection.execute(select(_r.number).where(over).limit(1)).first() is None:
                return
        with writing(self._engine) as connection:
            now = now_of(connection)
            over = running & (_r.lease_until < now)
            for row in connection.execute(
                _rows(tenant).where(over).with_for_update(skip_locked=True, of=tuning_trials)
            ):
                if row.lapsed_at is None:
                    _change(connection, row, lapsed_at=now)
                elif row.lapsed_at <= now - self._patience:
                    self._retry_or_end(connection, row)

    def _retry_or_end(self, connection: Connection, row: Row[Any]) -> None:
        spent = row.gpu_seconds + _held_s(row, row.lease_until)
        if row.attempts < MAX_ATTEMPTS:
            # The lease stays written down: a record that comes after all is taken while nobody else has begun.
            _change(connection, row, status="queued", lease_until=None, lapsed_at=None, gpu_seconds=spent)
            return
        reason = _FALLEN_SILENT.format(attempts=row.attempts)
        _end(connection, row, record=self._failed(row.job, reason), gpu_seconds=spent, assumed=True)

    def _taken(self, agent_id: str, instance: str, now: datetime) -> dict[str, Any]:
        return {
            "status": "running", "agent_id": agent_id, "instance": instance, "started_at": now, "lapsed_at": None,
            "lease": f"{LEASE_PREFIX}{secrets.token_hex(10)}", "lease_until": now + self._lease, "not_before": None,
            "attempts": 1,
        }  # fmt: skip


_KEPT = "The agent keeps its record in the folder that --folder names."


def hard_limit_s(trial_limit_s: float) -> float:
    """Seconds after which an agent ends a trial by force, whose own limit this is."""
    # A model that is too large is run twice with fewer layers; what comes on top is loading, and freeing the GPUs.
    return 2.0 * trial_limit_s + 120.0


def _waiting(tenant: str, agent_id: str, now: datetime) -> Select[Any]:
    can_run = or_(agents.c.gpus_per_node.is_(None), agents.c.gpus_per_node >= _r.gpus)
    return (
        _rows(tenant)
        .join(agents, fits())
        .where(agents.c.id == agent_id, _r.status == "queued", tunings.c.status == "running", can_run)
        .where(or_(_r.not_before.is_(None), _r.not_before <= now))
        .order_by(tunings.c.created_at, _r.tuning_id, _r.number)
        .limit(1)
        # A row that is locked is just being given to another agent.
        .with_for_update(skip_locked=True, of=tuning_trials)
    )


def _rows(tenant: str) -> Select[Any]:
    same = (tunings.c.tenant == _r.tenant) & (tunings.c.id == _r.tuning_id)
    columns = (*_r, tunings.c.status.label("tuning_status"), tunings.c.trial_limit_s)
    return select(*columns).join(tunings, same).where(_r.tenant == tenant)


def _under(tenant: str, agent_id: str, lease: str) -> Select[Any]:
    mine = (_r.agent_id == agent_id) & (_r.lease == lease)
    return _rows(tenant).where(mine).with_for_update(of=tuning_trials)


def _required(connection: Connection, tenant: str, agent_id: str, lease: str) -> Row[Any]:
    row = connection.execute(_under(tenant, agent_id, lease)).first()
    if row is None:
        raise WrongStateError(f"{lease} is no longer the lease of any trial", hint=_KEPT)
    return row


def _read(connection: Connection, row: Row[Any]) -> TrialRow:
    query = _rows(row.tenant).where(_r.tuning_id == row.tuning_id, _r.number == row.number)
    return _trial(connection.execute(query).one())


def _change(connection: Connection, row: Row[Any], **values: Any) -> None:
    same = (_r.tenant == row.tenant) & (_r.tuning_id == row.tuning_id) & (_r.number == row.number)
    connection.execute(update(tuning_trials).where(same).values(**values))
    spend(connection, row.tenant, values.get("gpu_seconds", row.gpu_seconds) - row.gpu_seconds)


def _end(connection: Connection, row: Row[Any], *, record: str, gpu_seconds: float, assumed: bool = False) -> None:
    text, ended = packed(record), json.loads(record)
    _change(
        connection, row, status="ended", finished_at=now_of(connection), lease_until=None, lapsed_at=None, record=text,
        outcome=ended["status"], step_time_s=ended["step_time_s"], gpu_seconds=gpu_seconds, assumed=assumed, told=False,
    )  # fmt: skip
    added = len(text) - (0 if row.record is None else len(packed(row.record)))
    mine = (tunings.c.tenant == row.tenant) & (tunings.c.id == row.tuning_id)
    connection.execute(update(tunings).where(mine).values(stored_bytes=tunings.c.stored_bytes + added))
    # The document of a tuning that has ended is written anew, with this record.
    kept = tunings.c.document
    without = {"document": None, "stored_bytes": tunings.c.stored_bytes - func.length(kept)}
    connection.execute(update(tunings).where(mine, kept.is_not(None)).values(**without))


def _held_s(row: Row[Any], until: datetime) -> float:
    """GPU seconds for which an attempt that told nothing may have held its GPUs."""
    held_s: float = max((until - row.started_at).total_seconds(), 0.0)
    return held_s * int(row.gpus)


def _trial(r: Row[Any]) -> TrialRow:
    return TrialRow(
        r.tuning_id, r.number, r.candidate, r.status, r.gpus, r.job, r.expected_s, r.created_at, r.started_at, r.finished_at, r.attempts,
        r.agent_id, r.lease, r.record, r.gpu_seconds, r.told, r.not_before, r.tuning_status, r.trial_limit_s, r.knobs,
    )  # fmt: skip
