"""What happened to many jobs since somebody last looked, in two statements however many readers there are.

Tunings have a source of their own (`tuning_news.py`); whoever watches either sees `News`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Engine, and_, func, or_, select, tuple_

from app.service.db.engine import reading
from app.service.db.jobs import JobEvent, JobKey, Status
from app.service.db.tables import job_events, jobs

_AT_ONCE = 200
"""Jobs that one statement asks for; SQLite bounds the depth of an expression at 1,000."""


class Numbered(Protocol):
    """Something that happened, by whose number one knows whether it was told already."""

    @property
    def seq(self) -> int: ...


E = TypeVar("E", bound=Numbered)


@dataclass(slots=True)
class News(Generic[E]):
    """What became of one job."""

    status: Status
    events: list[E] = field(default_factory=list)
    """New events, in order."""


class Source(Protocol[E]):
    """Where news come from."""

    def since(self, known: Mapping[JobKey, int | None]) -> dict[JobKey, News[E]]:
        """As `JobNews.since`."""


class JobNews:
    """Reads what happened to jobs of any tenants."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def since(self, known: Mapping[JobKey, int | None]) -> dict[JobKey, News[JobEvent]]:
        """News of each of these jobs that is still there.

        Args:
            known: the number of the last event that is known of each job; None where only its status is asked for.
        """
        found: dict[JobKey, News[JobEvent]] = {}
        for part in in_parts(known):
            # One transaction for both statements: a job that has ended then comes with the event that says so.
            found |= self._since(part)
        return found

    def _since(self, known: Mapping[JobKey, int | None]) -> dict[JobKey, News[JobEvent]]:
        last = (
            select(func.max(job_events.c.seq))
            .where(job_events.c.tenant == jobs.c.tenant, job_events.c.job_id == jobs.c.id)
            .scalar_subquery()
        )
        named = tuple_(jobs.c.tenant, jobs.c.id).in_([(key.tenant, key.id) for key in known])
        with reading(self._engine) as connection:
            rows = connection.execute(select(jobs.c.tenant, jobs.c.id, jobs.c.status, last).where(named)).all()
            found = {JobKey(row.tenant, row.id): News[JobEvent](row.status) for row in rows}
            grown = [
                (key, seq)
                for row in rows
                if (seq := known[key := JobKey(row.tenant, row.id)]) is not None and (row[3] or 0) > seq
            ]
            if grown:
                newer = or_(
                    *(
                        and_(job_events.c.tenant == key.tenant, job_events.c.job_id == key.id, job_events.c.seq > seq)
                        for key, seq in grown
                    )
                )
                for row in connection.execute(select(job_events).where(newer).order_by(job_events.c.seq)):
                    event = JobEvent(row.seq, row.type, row.at, row.evaluated, row.best_s, row.bound_s)
                    found[JobKey(row.tenant, row.job_id)].events.append(event)
        return found


def in_parts(known: Mapping[JobKey, int | None]) -> Iterator[dict[JobKey, int | None]]:
    """The same in parts that one statement can ask for."""
    pairs = list(known.items())
    for begin in range(0, len(pairs), _AT_ONCE):
        yield dict(pairs[begin : begin + _AT_ONCE])
