"""Observed runs. They never change and are named by what they say, so that telling one twice is the same as telling it once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import IntegrityError

from app.errors import NotFoundError
from app.service.db.audit import record
from app.service.db.engine import now_of, reading, writing
from app.service.db.packing import packed
from app.service.db.pages import newest_first
from app.service.db.quotas import NO_QUOTAS, Quotas, one_at_a_time, require_room_for_observation
from app.service.db.tables import observations
from app.service.timestamps import rfc3339

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ObservationRow:
    """A stored observation without its document."""

    id: str
    created_at: datetime
    framework: str
    gpu: str
    used: bool
    headline: str
    """The few facts that a list shows, JSON."""


class ObservationStore:
    """Stored observations; every call is for one tenant."""

    def __init__(self, engine: Engine, *, quotas: Quotas = NO_QUOTAS) -> None:
        """`quotas` are those of one tenant."""
        self._engine = engine
        self._quotas = quotas

    def add(self, tenant: str, document: Document, *, framework: str, gpu: str, is_limited: bool = True) -> str:
        """The stored document as JSON. One that is there already stays as it is, with the time at which it was first told.

        Args:
            tenant: whose it is.
            document: an `Observation`; `created_at` is taken from the database's clock.
            framework: the row's framework.
            gpu: name of the row's GPU.
            is_limited: whether it is refused where the tenant has no room for it.

        Raises:
            QuotaError: the tenant has too many, or too much stored.
        """
        one = (observations.c.tenant == tenant) & (observations.c.id == document["id"])
        try:
            with writing(self._engine) as connection:
                one_at_a_time(connection, tenant)
                stored: str | None = connection.execute(select(observations.c.document).where(one)).scalar_one_or_none()
                if stored is not None:
                    return stored
                now = now_of(connection)
                text = json.dumps({**document, "created_at": rfc3339(now)}, ensure_ascii=False, separators=(",", ":"))
                data = packed(text)
                if is_limited:
                    require_room_for_observation(connection, tenant, self._quotas, added_bytes=len(data))
                connection.execute(
                    insert(observations).values(
                        tenant=tenant, id=document["id"], created_at=now, framework=framework, gpu=gpu, used=document["used"],
                        headline=json.dumps(_headline(document)), document=data, stored_bytes=len(data),
                    )
                )  # fmt: skip
                record(connection, tenant, "observation.create", document["id"])
                return text
        except IntegrityError:  # another process stored the same observation in the meantime
            # Read back, so that any other broken constraint is not mistaken for that.
            return self.document(tenant, document["id"])

    def document(self, tenant: str, observation_id: str) -> str:
        """One document as JSON.

        Raises:
            NotFoundError: the tenant has no such observation.
        """
        query = select(observations.c.document).where(
            observations.c.tenant == tenant, observations.c.id == observation_id
        )
        with reading(self._engine) as connection:
            document: str | None = connection.execute(query).scalar_one_or_none()
        if document is None:
            raise _unknown(observation_id)
        return document

    def delete(self, tenant: str, observation_id: str) -> None:
        """Removes an observation.

        Raises:
            NotFoundError: the tenant has no such observation.
        """
        one = (observations.c.tenant == tenant) & (observations.c.id == observation_id)
        with writing(self._engine) as connection:
            deleted = connection.execute(delete(observations).where(one))
            if deleted.rowcount:
                record(connection, tenant, "observation.delete", observation_id)
        if deleted.rowcount == 0:
            raise _unknown(observation_id)

    def used(self, tenant: str, *, limit: int) -> list[str]:
        """Documents, as JSON, of the newest observations by which predictions are corrected."""
        table = observations.c
        query = select(table.document).where(table.tenant == tenant, table.used.is_(True))
        query = query.order_by(table.created_at.desc(), table.id.desc()).limit(limit)
        with reading(self._engine) as connection:
            return list(connection.execute(query).scalars())

    def page(self, tenant: str, *, limit: int, after: tuple[datetime, str] | None = None) -> list[ObservationRow]:
        """Up to `limit` observations, newest first, beginning after the one stored at this time with this id."""
        table = observations.c
        columns = (table.id, table.created_at, table.framework, table.gpu, table.used, table.headline)
        query = newest_first(
            select(*columns).where(table.tenant == tenant), table.created_at, table.id, limit=limit, after=after
        )
        with reading(self._engine) as connection:
            return [ObservationRow(*row) for row in connection.execute(query)]


def _headline(document: Document) -> Document:
    measured, predicted = document["measured"], document["predicted"]
    return {
        "step_time_s": measured["step_time_s"],
        "peak_memory_gib": measured["peak_memory_gib"],
        "predicted_step_time_s": None if predicted is None else predicted["step_time_s"],
        "flags": document["flags"],
    }


def _unknown(observation_id: str) -> NotFoundError:
    return NotFoundError(f"there is no observation {observation_id}", hint="GET /v1/observations lists yours.")
