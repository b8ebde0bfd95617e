"""Calibration documents. They never change and are named by their digest, so storing one twice is the same as storing it once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import IntegrityError

from app.errors import NotFoundError
from app.service.db.audit import record
from app.service.db.engine import now_of, reading, writing
from app.service.db.packing import packed
from app.service.db.pages import newest_first
from app.service.db.quotas import NO_QUOTAS, Quotas, one_at_a_time, require_room
from app.service.db.tables import calibrations


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """A stored calibration without its document."""

    id: str
    created_at: datetime
    gpu: str
    gpus_per_node: int | None


class CalibrationStore:
    """Stored calibrations; every call is for one tenant."""

    def __init__(self, engine: Engine, *, quotas: Quotas = NO_QUOTAS) -> None:
        """`quotas` are those of one tenant."""
        self._engine = engine
        self._quotas = quotas

    def add(
        self,
        tenant: str,
        calibration_id: str,
        *,
        document: str,
        gpu: str,
        gpus_per_node: int | None,
        is_limited: bool = True,
    ) -> None:
        """Stores a document under its digest; `is_limited` says whether it is refused where the tenant has no room for it.

        Raises:
            QuotaError: the tenant has too much stored.
        """
        data = packed(document)
        row = {
            "tenant": tenant, "id": calibration_id, "gpu": gpu, "gpus_per_node": gpus_per_node, "document": data,
            "stored_bytes": len(data),
        }  # fmt: skip
        try:
            with writing(self._engine) as connection:
                one_at_a_time(connection, tenant)
                one = (calibrations.c.tenant == tenant) & (calibrations.c.id == calibration_id)
                if connection.execute(select(calibrations.c.id).where(one)).first() is not None:
                    return  # the same id means the same content
                if is_limited:
                    require_room(connection, tenant, self._quotas, added_bytes=len(data))
                connection.execute(insert(calibrations).values(created_at=now_of(connection), **row))
                record(connection, tenant, "calibration.create", calibration_id)
        except IntegrityError:  # the document is there already: the same id means the same content
            # Read back, so that any other broken constraint is not mistaken for that.
            self.document(tenant, calibration_id)

    def document(self, tenant: str, calibration_id: str) -> str:
        """One document as JSON.

        Raises:
            NotFoundError: the tenant has no such calibration.
        """
        query = select(calibrations.c.document).where(
            calibrations.c.tenant == tenant, calibrations.c.id == calibration_id
        )
        with reading(self._engine) as connection:
            document: str | None = connection.execute(query).scalar_one_or_none()
        if document is None:
            raise NotFoundError(f"there is no calibration {calibration_id}", hint="GET /v1/calibrations lists yours.")
        return document

    def delete(self, tenant: str, calibration_id: str) -> None:
        """Removes a document. Plans that were priced with it keep their own copy.

        Raises:
            NotFoundError: the tenant has no such calibration.
        """
        one = (calibrations.c.tenant == tenant) & (calibrations.c.id == calibration_id)
        with writing(self._engine) as connection:
            deleted = connection.execute(delete(calibrations).where(one))
            if deleted.rowcount:
                record(connection, tenant, "calibration.delete", calibration_id)
        if deleted.rowcount == 0:
            raise NotFoundError(f"there is no calibration {calibration_id}", hint="GET /v1/calibrations lists yours.")

    def documents(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        """Those of these documents that the tenant has, as JSON by id."""
        query = select(calibrations.c.id, calibrations.c.document).where(
            calibrations.c.tenant == tenant, calibrations.c.id.in_(ids)
        )
        with reading(self._engine) as connection:
            return {row.id: row.document for row in connection.execute(query)}

    def newest(self, tenant: str, *, gpu: str, gpus_per_node: int) -> str | None:
        """Id of the tenant's newest calibration of this GPU and node shape."""
        query = (
            select(calibrations.c.id)
            .where(
                calibrations.c.tenant == tenant,
                calibrations.c.gpu == gpu,
                calibrations.c.gpus_per_node == gpus_per_node,
            )
            .order_by(calibrations.c.created_at.desc())
            .limit(1)
        )
        with reading(self._engine) as connection:
            return connection.execute(query).scalar_one_or_none()

    def page(self, tenant: str, *, limit: int, after: tuple[datetime, str] | None = None) -> list[CalibrationRow]:
        """Up to `limit` calibrations, newest first, beginning after the one stored at this time with this id."""
        table = calibrations.c
        mine = select(table.id, table.created_at, table.gpu, table.gpus_per_node).where(table.tenant == tenant)
        query = newest_first(mine, table.created_at, table.id, limit=limit, after=after)
        with reading(self._engine) as connection:
            return [CalibrationRow(*row) for row in connection.execute(query)]
