"""Access keys: created once, shown once, and kept as SHA-256.

A key is 160 random bits, so unlike a password it cannot be found by hashing guesses, and a slow salted hash would gain nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, insert, select, update

from app.errors import NotFoundError
from app.service.db.engine import now_of, reading, writing
from app.service.db.tables import keys

# Secret scanners recognise leaked keys by a prefix.
_PREFIX = "mw_"


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret."""

    id: str
    tenant: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


def create_key(engine: Engine, *, tenant: str, name: str) -> tuple[Key, str]:
    """A new key and its secret, which cannot be read again."""
    secret = _PREFIX + secrets.token_hex(20)
    with writing(engine) as connection:
        key = Key(f"key-{secrets.token_hex(6)}", tenant, name, now_of(connection), None)
        connection.execute(
            insert(keys).values(
                id=key.id, tenant=tenant, name=name, created_at=key.created_at, secret_sha256=_sha256(secret)
            )
        )
    return key, secret


def list_keys(engine: Engine) -> list[Key]:
    """All keys, revoked ones too, oldest first."""
    with reading(engine) as connection:
        rows = connection.execute(select(keys).order_by(keys.c.created_at)).all()
    return [Key(r.id, r.tenant, r.name, r.created_at, r.revoked_at) for r in rows]


def revoke_key(engine: Engine, key_id: str) -> None:
    """Revokes a key, which is refused from now on.

    Raises:
        NotFoundError: there is no such key, or it has been revoked already.
    """
    with writing(engine) as connection:
        valid = (keys.c.id == key_id) & keys.c.revoked_at.is_(None)
        changed = connection.execute(update(keys).where(valid).values(revoked_at=now_of(connection)))
    if changed.rowcount == 0:
        raise NotFoundError(f"there is no valid key {key_id}", hint="`meshwright keys list` shows all keys.")


def tenant_of(engine: Engine, secret: str) -> str | None:
    """Tenant of the key with this secret; None if it is unknown or revoked."""
    query = select(keys.c.tenant).where(keys.c.secret_sha256 == _sha256(secret), keys.c.revoked_at.is_(None))
    with reading(engine) as connection:
        return connection.execute(query).scalar_one_or_none()


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
