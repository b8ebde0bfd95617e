"""When a job counts as having lost its process: only after its lease was seen to have run out, unchanged, for a while."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from app.service.db.engine import build_engine, writing
from app.service.db.jobs import JobKey, JobStore
from app.service.db.migrate import upgrade
from app.service.db.plans import PlanStore, Submission
from app.service.db.tables import jobs
from app.service.jobs.lapsed_leases import LapsedLeases

PAST = datetime(2020, 1, 1, tzinfo=UTC)


class Looking:
    """One running job whose lease ran out long ago, and somebody who looks at it by a clock that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.engine = build_engine(f"sqlite:///{folder / 'test.db'}")
        upgrade(self.engine)
        self.store = JobStore(self.engine, lease_s=30.0)
        plan = PlanStore(self.engine, max_queued_jobs=10).submit("a", Submission("d", "{}", 60.0))
        self.key = JobKey("a", plan.id)
        self.store.claim("gone")
        self.lease(PAST)
        self.now = 0.0
        self.leases = LapsedLeases(self.store, patience_s=5.0, clock=lambda: self.now)

    def lease(self, until: datetime) -> None:
        with writing(self.engine) as connection:
            connection.execute(update(jobs).values(lease_until=until))

    def look(self, *moments: float) -> list[int]:
        found = []
        for self.now in moments:
            found.append(self.leases.look())
        return found


@pytest.fixture
def looking(tmp_path: Path) -> Looking:
    return Looking(tmp_path)


def test_a_job_is_given_up_after_the_patience(looking: Looking) -> None:
    assert looking.look(0.0, 1.0, 2.0, 3.0, 4.0, 4.9) == [0] * 6
    assert looking.look(5.0) == [1]
    assert looking.store.status(looking.key) == "queued"


def test_a_lease_that_changes_starts_anew(looking: Looking) -> None:
    looking.look(0.0, 1.0, 2.0, 3.0, 4.0)
    looking.lease(PAST + timedelta(seconds=1))  # renewed, and run out again
    assert looking.look(5.0, 6.0, 7.0, 8.0, 9.0, 9.9, 10.0) == [0, 0, 0, 0, 0, 0, 1]


def test_a_pause_of_the_one_who_looks_starts_anew(looking: Looking) -> None:
    """The database hung, or this process was suspended: others may have been as well."""
    looking.look(0.0, 1.0, 2.0)
    assert looking.look(32.0, 33.0, 35.0, 36.9, 37.0) == [0, 0, 0, 0, 1]


def test_an_outage_starts_anew(looking: Looking) -> None:
    looking.look(0.0, 1.0, 2.0, 3.0, 4.0)
    with writing(looking.engine) as connection:
        connection.exec_driver_sql("ALTER TABLE jobs RENAME TO away")
    with pytest.raises(OperationalError):
        looking.look(4.5)
    with writing(looking.engine) as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO jobs")
    assert looking.look(5.0, 6.5, 8.0, 9.5, 10.0) == [0, 0, 0, 0, 1]
