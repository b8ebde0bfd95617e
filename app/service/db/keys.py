"""Access keys: created once, shown once, and kept as SHA-256.

A key is 160 random bits, so unlike a password it cannot be found by hashing guesses, and a slow salted hash would gain nothing.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, func, insert, or_, select, update

from app.errors import NotFoundError, QuotaError
from app.scopes import USUAL_SCOPES, Scope, scopes_stored
from app.service.db.audit import record
from app.service.db.engine import now_of, reading, writing
from app.service.db.pages import newest_first
from app.service.db.tables import keys
from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import shown

# Secret scanners recognise leaked keys by a prefix.
_PREFIX = "mw_"
_USE_NOTED_EVERY = timedelta(minutes=1)
_LONGEST_NAME, _LONGEST_TENANT = 80, 64
MOST_KEYS = 1000
"""Keys that one tenant may have: each has a rate of requests of its own, so that any number would be any rate."""
_KEPT = timedelta(days=90)
"""How long a key that was revoked or has expired stays in lists."""
LONGEST_LIFE_S = 100 * 365 * 86_400.0
"""Seconds that a key may be given at most, a hundred years: more is meant to be for ever, and would leave the calendar."""
NAME = rf"^[^\x00-\x1f\x7f]{{1,{_LONGEST_NAME}}}$"
"""What a key may be called: anything on one line, since lists of keys are lines."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret."""

    id: str
    tenant: str
    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute."""
    revoked_at: datetime | None = None


def create_key(
    engine: Engine,
    *,
    tenant: str,
    name: str,
    scopes: Sequence[Scope] = USUAL_SCOPES,
    expires_in_s: float | None = None,
    most: int = MOST_KEYS,
) -> tuple[Key, str]:
    """A new key and its secret, which cannot be read again. Keys of the tenant that ended long ago are forgotten.

    Raises:
        QuotaError: the tenant has `most` keys already.
        InvalidInputError: the name or the tenant is empty, too long or of several lines, or the key would never be valid.
    """
    _require_line("the name of the key", name, longest=_LONGEST_NAME)
    _require_line("the tenant", tenant, longest=_LONGEST_TENANT)
    if expires_in_s is not None and not 0 < expires_in_s <= LONGEST_LIFE_S:
        message = f"the key would expire in {expires_in_s:g} s; it must be more than 0 s and at most a hundred years"
        raise InvalidInputError([Problem("/expires_in_s", message, "Leave it out for a key that does not expire.")])
    secret = _PREFIX + secrets.token_hex(20)
    with writing(engine) as connection:
        now = now_of(connection)
        _require_room(connection, tenant, now, most=most)
        expires_at = None if expires_in_s is None else now + timedelta(seconds=expires_in_s)
        key = Key(f"key-{secrets.token_hex(6)}", tenant, name, tuple(scopes), now, expires_at)
        connection.execute(
            insert(keys).values(
                id=key.id, tenant=tenant, name=name, scopes=" ".join(scopes), created_at=now, expires_at=expires_at,
                secret_sha256=digest_of(secret),
            )
        )  # fmt: skip
        record(connection, tenant, "key.create", key.id)
    return key, secret


def list_keys(engine: Engine) -> list[Key]:
    """All keys of all tenants, revoked ones too, oldest first."""
    with reading(engine) as connection:
        return [_key(row) for row in connection.execute(select(keys).order_by(keys.c.created_at))]


def page_of_keys(engine: Engine, tenant: str, *, limit: int, after: tuple[datetime, str] | None = None) -> list[Key]:
    """Up to `limit` keys of a tenant, revoked ones too, newest first, beginning after the one made at this time with this id."""
    mine = select(keys).where(keys.c.tenant == tenant)
    query = newest_first(mine, keys.c.created_at, keys.c.id, limit=limit, after=after)
    with reading(engine) as connection:
        return [_key(row) for row in connection.execute(query)]


def revoke_key(engine: Engine, key_id: str, *, tenant: str | None = None) -> None:
    """Revokes a key, which is refused from now on; with a tenant, only one of that tenant's.

    Raises:
        NotFoundError: there is no such key, or it has been revoked already.
    """
    with writing(engine) as connection:
        valid = (keys.c.id == key_id) & keys.c.revoked_at.is_(None)
        if tenant is not None:
            valid &= keys.c.tenant == tenant
        revoked = update(keys).where(valid).values(revoked_at=now_of(connection)).returning(keys.c.tenant)
        owner: str | None = connection.execute(revoked).scalar_one_or_none()
        if owner is not None:
            record(connection, owner, "key.revoke", key_id)
    if owner is None:
        hint = "`meshwright keys list` shows all keys." if tenant is None else "GET /v1/keys lists yours."
        raise NotFoundError(f"there is no valid key {key_id}", hint=hint)


def find_key(engine: Engine, secret: str) -> tuple[Key, datetime] | None:
    """The valid key with this secret, and the time by the database's clock at which it was valid; None if there is none."""
    with reading(engine) as connection:
        now = now_of(connection)
        lives = keys.c.revoked_at.is_(None) & or_(keys.c.expires_at.is_(None), keys.c.expires_at > now)
        row = connection.execute(select(keys).where(keys.c.secret_sha256 == digest_of(secret), lives)).first()
    return None if row is None else (_key(row), now)


def note_use(engine: Engine, key: Key, *, now: datetime) -> None:
    """Notes that this key was used now, unless that has been noted within the last minute."""
    old = now - _USE_NOTED_EVERY
    if key.last_used_at is not None and key.last_used_at > old:
        return
    # Looked at again by the update itself: other requests and other services meet the same key at the same time.
    due = or_(keys.c.last_used_at.is_(None), keys.c.last_used_at <= old)
    with writing(engine) as connection:
        connection.execute(
            update(keys).where(keys.c.tenant == key.tenant, keys.c.id == key.id, due).values(last_used_at=now)
        )


def digest_of(secret: str) -> str:
    """SHA-256 of a secret in hexadecimal, which is all that is kept of it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(row: Row[Any]) -> Key:
    return Key(
        row.id, row.tenant, row.name, scopes_stored(row.scopes), row.created_at, row.expires_at, row.last_used_at,
        row.revoked_at,
    )  # fmt: skip


def _require_room(connection: Connection, tenant: str, now: datetime, *, most: int) -> None:
    mine = keys.c.tenant == tenant
    # A key that neither was revoked nor expires has two moments that are null, and so is never older.
    connection.execute(delete(keys).where(mine, or_(keys.c.revoked_at < now - _KEPT, keys.c.expires_at < now - _KEPT)))
    used = connection.execute(select(func.count()).where(mine)).scalar_one()
    if used >= most:
        raise QuotaError(
            f"there are already {used:,} keys of at most {most:,}",
            hint="Use fewer ones for longer. Keys that were revoked or have expired make room after 90 days.",
            context={"quota": "keys", "limit": most, "used": used, "retry_after_s": 3600},
        )


def _require_line(what: str, text: str, *, longest: int) -> None:
    if not re.fullmatch(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{1,{longest}}}", text):
        message = f"{what} is {shown(text)}; it must be one line of 1 to {longest} characters"
        raise InvalidInputError([Problem("", message, "Choose a shorter one, without control characters.")])
