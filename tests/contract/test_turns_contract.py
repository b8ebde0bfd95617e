"""Whose job is started next, on every database: tenants take turns, each within its limit, and priorities order one tenant's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, event, update

from app.service.db.engine import writing
from app.service.db.jobs import JobKey, JobStore, insert_job
from app.service.db.tables import jobs

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Queue:
    """Jobs that are named by their tenant and number."""

    def __init__(self, engine: Engine, *, max_running: int | None = None) -> None:
        self.engine = engine
        self.store = JobStore(engine, lease_s=30.0, max_running=max_running)
        self.count = 0

    def put(self, *names: str, priority: int = 0) -> None:
        for name in names:
            self.count += 1
            key, at = JobKey(name[0], name), NOW + timedelta(seconds=self.count)
            with writing(self.engine) as connection:
                insert_job(connection, key, kind="plan", payload="{}", at=at, time_limit_s=60.0, priority=priority)

    def start(self) -> str | None:
        job = self.store.claim("me")
        return None if job is None else job.key.id

    def end(self, name: str, *, status: str = "succeeded", seconds: float = 1.0) -> None:
        values = {"status": status, "finished_at": NOW + timedelta(seconds=seconds), "started_at": NOW}
        with writing(self.engine) as connection:
            connection.execute(update(jobs).where(jobs.c.id == name).values(**values))

    def place(self, name: str) -> int:
        place = self.store.place(JobKey(name[0], name))
        assert place is not None
        return place.position


@pytest.fixture
def queue(engine: Engine) -> Queue:
    return Queue(engine)


def test_a_hundred_jobs_of_one_tenant_delay_another_by_one(queue: Queue) -> None:
    queue.put(*(f"a{number}" for number in range(100)), "b0", "b1")
    assert [queue.start() for _ in range(5)] == ["a0", "b0", "a1", "b1", "a2"]


def test_the_tenant_with_fewer_running_jobs_is_next(queue: Queue) -> None:
    queue.put("a0", "a1", "a2", "b0", "b1", "b2")
    assert [queue.start() for _ in range(4)] == ["a0", "b0", "a1", "b1"]
    queue.end("b0")
    queue.end("b1")
    assert queue.start() == "b2"


def test_a_tenant_keeps_to_its_limit(engine: Engine) -> None:
    queue = Queue(engine, max_running=2)
    queue.put("a0", "a1", "a2", "a3", "b0")
    assert [queue.start() for _ in range(4)] == ["a0", "b0", "a1", None]
    queue.end("a0")
    assert [queue.start(), queue.start()] == ["a2", None]


def test_priorities_order_one_tenants_jobs_and_no_others(queue: Queue) -> None:
    queue.put("a0", "a1", "b0")
    queue.put("a2", priority=5)
    queue.put("a3", priority=-1)
    assert [queue.start() for _ in range(5)] == ["a2", "b0", "a0", "a1", "a3"]


def test_a_place_is_the_number_of_starts_until_a_job_runs(queue: Queue) -> None:
    """Compared with the starts themselves, while nothing new is queued."""
    queue.put("a0", "a1", "a2", "b0", "c0", "c1", "a3")
    queue.put("c2", priority=1)
    told = {name: queue.place(name) for name in ("a0", "a1", "a2", "a3", "b0", "c0", "c1", "c2")}
    started = [queue.start() for _ in range(8)]
    assert told == {name: started.index(name) + 1 for name in told}
    assert queue.store.place(JobKey("a", "a0")) is None


def test_a_job_that_is_started_while_its_place_is_told_was_next(queue: Queue) -> None:
    """Another process starts the tenant's only job between two of the statements that find the place."""
    queue.put("a0", "b0")
    told: list[str] = []

    def start_it(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith("SELECT") and not told:
            told.append(statement)
            assert queue.start() == "a0"

    event.listen(queue.engine, "after_cursor_execute", start_it)
    assert queue.place("a0") == 1
    assert told


def test_a_wait_follows_from_what_recent_jobs_took(queue: Queue) -> None:
    queue.put("a0", "a1", "a2", "a3", "a4")
    first = queue.store.place(JobKey("a", "a0"))
    assert first is not None
    assert first.start_at is None
    for name, seconds in (("a0", 10.0), ("a1", 20.0)):
        queue.start()
        queue.end(name, seconds=seconds)
    assert queue.start() == "a2"
    place = queue.store.place(JobKey("a", "a4"))
    assert place is not None
    assert place.position == 2
    assert place.start_at is not None
    # Two starts of 15 s each, one after another, from a moment ago.
    assert timedelta(seconds=29) < place.start_at - datetime.now(UTC) <= timedelta(seconds=30)
