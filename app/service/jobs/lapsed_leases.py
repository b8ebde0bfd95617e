"""Which jobs have lost their process, told apart from jobs whose process could not reach the database for a while.

When a database comes back after an outage, every lease has run out, although all processes live and will renew theirs at once. A job
is therefore given up only after its lease has been seen to have run out, unchanged, for a while in which the database answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from app.service.db.jobs import JobKey, JobStore

# The keeper looks at least once a second. A longer pause means that the database hung, or that this process was suspended and may be
# looking at leases whose owners were suspended with it.
_LONGEST_PAUSE_S = 2.0


class LapsedLeases:
    """Looks for jobs whose process is gone, and queues them again or fails them."""

    def __init__(self, store: JobStore, *, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`patience_s`: seconds for which a lease must have been seen to have run out; a live owner renews once a second at least."""
        self._store = store
        self._patience_s = patience_s
        self._clock = clock
        self._looked_at = -_LONGEST_PAUSE_S
        self._seen: dict[JobKey, tuple[datetime, float]] = {}

    def look(self) -> int:
        """Number of jobs that were retried or failed.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the database is away; what was seen so far is forgotten.
        """
        before, self._seen = self._seen, {}
        lapsed = self._store.lapsed()
        now = self._clock()
        if now - self._looked_at > _LONGEST_PAUSE_S:
            before = {}
        self._looked_at = now
        for key, until in lapsed.items():
            known, since = before.get(key, (None, now))
            self._seen[key] = (until, since if known == until else now)
        gone = {key: until for key, (until, since) in self._seen.items() if now - since >= self._patience_s}
        return self._store.recover(gone)
