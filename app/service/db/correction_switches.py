"""Which corrections a tenant has switched off. The corrections themselves are not stored: they follow from what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, delete, func, insert, select

from app.service.db.audit import record
from app.service.db.engine import now_of, reading, writing
from app.service.db.quotas import one_at_a_time
from app.service.db.tables import correction_switches, observations, tuning_trials


@dataclass(frozen=True, slots=True)
class MeasuredRuns:
    """What tells one state of a tenant's measurements from another."""

    trials: int
    newest_trial: datetime | None
    observations: int
    newest_observation: datetime | None


@dataclass(frozen=True, slots=True)
class Switches:
    """What tells one state of a tenant's switches from another."""

    number: int
    newest: datetime | None


def learnt_from(engine: Engine, tenant: str) -> tuple[MeasuredRuns, Switches]:
    """The state that a tenant's corrections follow from."""
    t, o, s = tuning_trials.c, observations.c, correction_switches.c
    parts = [
        (t.finished_at, (t.tenant == tenant) & t.record.is_not(None)),
        (o.created_at, (o.tenant == tenant) & o.used.is_(True)),
        (s.changed_at, s.tenant == tenant),
    ]
    # In one question, because it is asked while somebody waits for the price of a single row.
    asked = [
        select(figure).where(which).scalar_subquery() for at, which in parts for figure in (func.count(), func.max(at))
    ]
    with reading(engine) as connection:
        found = connection.execute(select(*asked)).one()
    return MeasuredRuns(*found[:4]), Switches(*found[4:])


def switched_off(engine: Engine, tenant: str) -> frozenset[str]:
    """Ids of the corrections that the tenant has switched off."""
    query = select(correction_switches.c.id).where(
        correction_switches.c.tenant == tenant, correction_switches.c.enabled.is_(False)
    )
    with reading(engine) as connection:
        return frozenset(connection.execute(query).scalars())


def switch(engine: Engine, tenant: str, correction_id: str, *, enabled: bool) -> None:
    """Switches a correction on or off."""
    s = correction_switches.c
    with writing(engine) as connection:
        one_at_a_time(connection, tenant)
        # Written anew and not deleted: the time of the change is what other processes notice it by.
        connection.execute(delete(correction_switches).where(s.tenant == tenant, s.id == correction_id))
        connection.execute(
            insert(correction_switches).values(
                tenant=tenant, id=correction_id, enabled=enabled, changed_at=now_of(connection)
            )
        )
        record(connection, tenant, "correction.enable" if enabled else "correction.disable", correction_id)
