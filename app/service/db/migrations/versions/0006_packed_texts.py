"""Requests, answers, ranked plans and calibrations are compressed, and how much a plan or a calibration takes is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from app.service.db.packing import packed

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TEXTS = {
    "jobs": ("id", "payload"),
    "plans": ("id", "response"),
    "ranked_plans": ("plan_id", "document"),
    "calibrations": ("id", "document"),
}
"""By table: the column that names an object of a tenant, and the one with the text."""
_AT_A_TIME = 100
"""Rows that are read together: a hundred of the largest are some hundred megabytes."""


def upgrade() -> None:
    """Compresses what is there already, so that an old database shrinks as a new one would."""
    connection = op.get_bind()
    for table in ("plans", "calibrations"):
        op.add_column(table, sa.Column("stored_bytes", sa.Integer, nullable=False, server_default="0"))
        op.create_index(op.f(f"ix_{table}_tenant_stored_bytes"), table, ["tenant", "stored_bytes"])
    for table, (name, column) in _TEXTS.items():
        # SQLite keeps bytes in a column of any declared type. To declare another one it would have to copy the table, and dropping
        # the old copy would delete, by their foreign keys, the rows of every table that refers to it.
        if connection.dialect.name == "postgresql":
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE BYTEA USING convert_to({column}, 'UTF8')")
        _pack(connection, table, name, column)


def _pack(connection: sa.Connection, table: str, name: str, column: str) -> None:
    keys = ["tenant", name, *(["rank"] if table == "ranked_plans" else [])]
    rows = sa.table(table, *(sa.column(key) for key in keys), sa.column(column, sa.LargeBinary))
    taker = "calibrations" if table == "calibrations" else "plans"
    taken = sa.table(taker, sa.column("tenant"), sa.column("id"), sa.column("stored_bytes"))
    for key, text in _rows(connection, rows, keys, column):
        data = packed(text)
        connection.execute(sa.update(rows).where(*(rows.c[k] == v for k, v in key.items())).values({column: data}))
        connection.execute(
            sa.update(taken)
            .where(taken.c.tenant == key["tenant"], taken.c.id == key[name])
            .values(stored_bytes=taken.c.stored_bytes + len(data))
        )


def _rows(
    connection: sa.Connection, rows: sa.TableClause, keys: list[str], column: str
) -> Iterator[tuple[dict[str, Any], str]]:
    """Every row that has a text, with its primary key; a few at a time."""
    order = [rows.c[key] for key in keys]
    last: tuple[Any, ...] | None = None
    while True:
        # Raw, because a driver would otherwise be told to expect bytes where an old row holds text.
        query = sa.select(*order, sa.type_coerce(rows.c[column], sa.types.NullType())).where(
            rows.c[column].is_not(None)
        )
        if last is not None:
            query = query.where(sa.tuple_(*order) > sa.tuple_(*(sa.literal(value) for value in last)))
        found = connection.execute(query.order_by(*order).limit(_AT_A_TIME)).all()
        for row in found:
            *key, text = row
            yield dict(zip(keys, key, strict=True)), text if isinstance(text, str) else bytes(text).decode()
        if len(found) < _AT_A_TIME:
            return
        last = tuple(found[-1][: len(keys)])
