"""Keys as requests show them: looked up in the database once in a few seconds, not for every request.

The price is told: a key that was revoked elsewhere opens this process for as long as it is remembered.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.service.db.keys import Key, digest_of, find_key, note_use

log = structlog.get_logger("meshwright.keys")
# Only valid keys are remembered, so that nobody fills the memory with guesses. More of them than this are looked up again.
_MOST_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Remembered:
    key: Key
    until_s: float
    """By the process's monotonic clock."""


class Keyring:
    """The valid keys that this process has met."""

    def __init__(self, engine: Engine, *, remember_s: float) -> None:
        """`remember_s`: seconds for which a key that was found is not looked up again."""
        self._engine = engine
        self._remember_s = remember_s
        # By digest and not by secret: what is kept for long should be worth nothing to whoever reads the memory.
        self._found: dict[str, _Remembered] = {}

    def remembered(self, secret: str) -> Key | None:
        """The key with this secret where it was found a moment ago, without asking the database."""
        found = self._found.get(digest_of(secret))
        return found.key if found is not None and time.monotonic() < found.until_s else None

    def find(self, secret: str) -> Key | None:
        """The valid key with this secret; None if it is unknown, revoked or expired. Its use is noted."""
        asked_at = time.monotonic()
        found = find_key(self._engine, secret)
        if found is None:
            self._found.pop(digest_of(secret), None)
            return None
        key, now = found
        try:
            note_use(self._engine, key, now=now)
        except SQLAlchemyError as error:
            # A disk that is full stops no reading; when the key was used is the smaller loss.
            log.error("the use of a key could not be noted", key=key.id, error=str(error)[:300])  # noqa: TRY400
        if len(self._found) >= _MOST_REMEMBERED:
            self._found.clear()
        lasts_s = self._remember_s
        if key.expires_at is not None:
            lasts_s = min(lasts_s, (key.expires_at - now).total_seconds())
        self._found[digest_of(secret)] = _Remembered(key, asked_at + lasts_s)
        return key

    def forget(self, key_id: str) -> None:
        """Looks this key up again when it is next shown, because it has been revoked."""
        # A copy, since other threads may remember keys meanwhile.
        for digest, found in list(self._found.items()):
            if found.key.id == key_id:
                self._found.pop(digest, None)
