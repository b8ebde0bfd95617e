"""What a service keeps in memory of finished plans and checked requests, so that asking again costs neither a search nor a query.

A finished plan never changes, but it can be deleted, by another process too. A kept answer is therefore looked up again once a
second at most, and dropped at once where this process deletes the plan.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from app.service.intake.plan_requests import PreparedRequest

_BESIDES_BYTES = 512
"""What an entry costs besides its text, so that a great many small ones are bounded, too."""


@dataclass(slots=True)
class _Answer:
    body: bytes
    digest: str
    looked_at: float


class KeptAnswers:
    """Finished plans as they are sent, by tenant and id; the least recently asked ones make room."""

    def __init__(
        self,
        exists: Callable[[str, str], bool],
        *,
        max_bytes: int,
        recheck_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing kept yet.

        Args:
            exists: whether the tenant still has the plan of this id. It asks the database and blocks.
            max_bytes: of all kept answers together.
            recheck_s: seconds after which an answer is looked up again.
            clock: seconds.
        """
        self._exists = exists
        self._recheck_s = recheck_s
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: LRUCache[tuple[str, str], _Answer] = LRUCache(max_bytes, lambda a: len(a.body) + _BESIDES_BYTES)
        self._drops = 0
        # Ids by digest point to answers that may be gone; both are bounded by the same room.
        self._ids: LRUCache[tuple[str, str], str] = LRUCache(max(max_bytes // _BESIDES_BYTES, 1))

    def mark(self) -> int:
        """What `keep` is told about an answer that is read from now on."""
        return self._drops

    def keep(self, tenant: str, plan_id: str, *, digest: str, body: bytes, mark: int) -> None:
        """Keeps the answer of a plan that has succeeded, if there is room for one of its size."""
        answer = _Answer(body, digest, self._clock())
        with self._lock:
            # A plan that was deleted between its reading and now must not come back.
            if mark == self._drops and len(body) + _BESIDES_BYTES <= self._answers.maxsize:
                self._answers[tenant, plan_id] = answer
                self._ids[tenant, digest] = plan_id

    def fresh(self, tenant: str, plan_id: str) -> bytes | None:
        """The answer, if it is kept and was looked up within the last second. It does not block."""
        with self._lock:
            answer = self._answers.get((tenant, plan_id))
        if answer is None or self._clock() - answer.looked_at > self._recheck_s:
            return None
        return answer.body

    def holds(self, tenant: str, plan_id: str) -> bool:
        """Whether the answer is kept, be it fresh or not."""
        with self._lock:
            return (tenant, plan_id) in self._answers

    def rechecked(self, tenant: str, plan_id: str) -> bytes | None:
        """The answer, if it is kept and the plan is still there. It asks the database.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the database is away.
        """
        with self._lock:
            answer = self._answers.get((tenant, plan_id))
        if answer is None:
            return None
        asked_at = self._clock()
        if not self._exists(tenant, plan_id):
            self.drop(tenant, plan_id)
            return None
        answer.looked_at = asked_at
        return answer.body

    def id_of(self, tenant: str, digest: str) -> str | None:
        """Id of the plan that answered this request, where its answer may be kept."""
        with self._lock:
            return self._ids.get((tenant, digest))

    def drop(self, tenant: str, plan_id: str) -> None:
        """Forgets a plan that was deleted."""
        with self._lock:
            self._drops += 1
            answer = self._answers.pop((tenant, plan_id), None)
            if answer is not None:
                self._ids.pop((tenant, answer.digest), None)


class KeptRequests:
    """Requests that were checked, by the digest of their bytes. Only those whose answer depends on nothing stored are kept."""

    def __init__(self, *, max_bytes: int) -> None:
        """`max_bytes`: of all kept requests together."""
        self._lock = threading.Lock()
        self._requests: LRUCache[str, PreparedRequest] = LRUCache(
            max_bytes, lambda asked: len(asked.payload) + _BESIDES_BYTES
        )

    def get(self, body_sha256: str) -> PreparedRequest | None:
        """The checked request of a body that was sent before."""
        with self._lock:
            return self._requests.get(body_sha256)

    def keep(self, body_sha256: str, asked: PreparedRequest) -> None:
        """Keeps a checked request, unless what it names can change."""
        with self._lock:
            if not asked.names_stored and len(asked.payload) + _BESIDES_BYTES <= self._requests.maxsize:
                self._requests[body_sha256] = asked
