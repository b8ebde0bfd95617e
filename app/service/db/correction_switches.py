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
class LearntFrom:
    """What tells one state of a tenant's measurements and switches from another."""

    trials: int
    newest_trial: datetime | None
    observations: int
    newest_observation: datetime | None
    switches: int
    newest_switch: datetime | None


def learnt_from(engine: Engine, tenant: str) -> LearntFrom:
    """The state that a tenant's corrections follow from."""
    t, o, s = tuning_trials.c, observations.c, correction_switches.c
    measured = (t.tenant == tenant) & t.record.is_not(None)
    with reading(engine) as connection:
        trials, newest = connection.execute(select(func.count(), func.max(t.finished_at)).where(measured)).one()
        observed = connection.execute(
            select(func.count(), func.max(o.created_at)).where(o.tenant == tenant, o.used.is_(True))
        ).one()
        switches, changed = connection.execute(
            select(func.count(), func.max(s.changed_at)).where(s.tenant == tenant)
        ).one()
    return LearntFrom(trials, newest, observed[0], observed[1], switches, changed)


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
