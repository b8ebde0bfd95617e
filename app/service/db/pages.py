"""Pages of lists, newest first. A page begins behind a place and not at a number, so that what is stored meanwhile moves nothing."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, literal, tuple_

from app.service.db.tables import UtcDateTime


def newest_first(
    query: Select[Any],
    at: ColumnElement[Any],
    row_id: ColumnElement[Any],
    *,
    limit: int,
    after: tuple[datetime, str] | None,
) -> Select[Any]:
    """Up to `limit` rows of the query, beginning behind the one of this moment and id.

    Args:
        query: the rows of one tenant.
        at: column with the moment that orders them.
        row_id: column with their ids.
        limit: number of rows.
        after: the last row of the page before; None for the first page.
    """
    query = query.order_by(at.desc(), row_id.desc()).limit(limit)
    if after is None:
        return query
    # Compared as a pair with the id, because several rows may share a moment.
    last = tuple_(literal(after[0], UtcDateTime), literal(after[1]))
    return query.where(tuple_(at, row_id) < last)
