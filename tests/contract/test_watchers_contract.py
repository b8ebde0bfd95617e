"""Who waits for jobs and watches their events, on every database: nothing is missed, and readers cost the database nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event

from app.service.db.engine import writing
from app.service.db.job_news import JobNews
from app.service.db.jobs import ClaimedJob, JobKey, JobStore
from app.service.db.plans import PlanStore, Submission
from app.service.db.tables import jobs
from app.service.jobs.watchers import Watchers
from planner.search.progress import Progress

LIMIT_S = 10.0


class House:
    """Jobs that the test itself runs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = JobStore(engine, lease_s=60.0)
        self.watchers = Watchers(JobNews(engine))
        self._plans = PlanStore(engine, max_queued_jobs=100)

    def started(self, name: str) -> ClaimedJob:
        self._plans.submit("a", Submission(name, "{}", 60.0))
        job = self.store.claim("me")
        assert job is not None
        return job

    def report(self, job: ClaimedJob, count: int = 1) -> None:
        for _ in range(count):
            self.store.add_progress(job.key, Progress(1, best_s=2.0, bound_s=1.0), owner="me")

    def end(self, job: ClaimedJob) -> None:
        assert self.store.finish(job, owner="me", status="succeeded")


@pytest.fixture
def house(engine: Engine) -> House:
    return House(engine)


async def told(watchers: Watchers, key: JobKey, seen: list[str]) -> None:
    """Follows the job to its end."""
    with watchers.watch(key) as watch:
        is_over = False
        while not is_over:
            is_over = watch.is_over
            seen.extend(each.type for each in watch.events[len(seen) :])
            if not is_over:
                await asyncio.wait_for(watch.changed(), LIMIT_S)


async def heard(seen: list[str], count: int) -> None:
    while len(seen) < count:  # noqa: ASYNC110 - the reader is the code under test and sets no flag
        await asyncio.sleep(0.01)


def test_everybody_is_told_everything_whenever_they_come(house: House) -> None:
    job, other = house.started("one"), house.started("other")

    async def scene() -> tuple[list[str], list[str], list[str]]:
        early, late, after = list[str](), list[str](), list[str]()
        first = asyncio.create_task(told(house.watchers, job.key, early))
        await asyncio.to_thread(house.report, job, 3)
        await heard(early, 5)
        second = asyncio.create_task(told(house.watchers, job.key, late))
        third = asyncio.create_task(told(house.watchers, other.key, []))
        await asyncio.to_thread(house.report, job, 2)
        await asyncio.to_thread(house.end, job)
        await asyncio.wait_for(asyncio.gather(first, second), LIMIT_S)
        await asyncio.wait_for(told(house.watchers, job.key, after), LIMIT_S)
        assert not third.done(), "the other job still runs"
        third.cancel()
        return early, late, after

    for seen in asyncio.run(scene()):
        assert seen == ["queued", "started", *["progress"] * 5, "succeeded"]


def test_readers_cost_no_statements(house: House) -> None:
    """A second of sixty readers of six jobs: five looks of at most two statements; were each to look for itself, six hundred."""
    running = [house.started(f"job {number}") for number in range(6)]
    statements = list[Any]()

    async def scene() -> None:
        readers = [asyncio.create_task(told(house.watchers, running[n % 6].key, [])) for n in range(60)]
        await asyncio.sleep(0.5)
        event.listen(house.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
        await asyncio.sleep(1.0)
        for reader in readers:
            reader.cancel()

    asyncio.run(scene())
    looks = [each for each in statements if "job_events" in each]
    assert 1 <= len(looks) <= 60, looks


def test_a_job_that_is_removed_ends_its_watch(house: House) -> None:
    job = house.started("one")

    def remove() -> None:
        with writing(house.engine) as connection:
            connection.execute(delete(jobs).where(jobs.c.id == job.key.id))

    async def scene() -> list[str]:
        seen = list[str]()
        reader = asyncio.create_task(told(house.watchers, job.key, seen))
        await heard(seen, 2)
        await asyncio.to_thread(remove)
        await asyncio.wait_for(reader, LIMIT_S)
        return seen

    assert asyncio.run(scene()) == ["queued", "started"]


def test_who_watches_after_others_only_waited_is_told_everything(house: House) -> None:
    """Whoever waits is woken by word alone, without a look at the events."""
    job = house.started("one")

    async def scene() -> list[str]:
        waiting = asyncio.create_task(house.watchers.wait(job.key, timeout_s=LIMIT_S))
        await asyncio.sleep(0)
        await asyncio.to_thread(house.end, job)
        house.watchers.notify(job.key)
        seen = list[str]()
        await asyncio.wait_for(told(house.watchers, job.key, seen), LIMIT_S)
        await asyncio.wait_for(waiting, LIMIT_S)
        return seen

    assert asyncio.run(scene()) == ["queued", "started", "succeeded"]


def test_everybody_is_dismissed_at_once_and_from_then_on(house: House) -> None:
    job = house.started("one")

    async def scene() -> None:
        seen = list[str]()
        readers = [
            asyncio.create_task(house.watchers.wait(job.key, timeout_s=60.0)),
            asyncio.create_task(told(house.watchers, job.key, seen)),
        ]
        await heard(seen, 2)
        threading.Thread(target=house.watchers.dismiss).start()
        await asyncio.wait_for(asyncio.gather(*readers), LIMIT_S)
        await asyncio.wait_for(house.watchers.wait(job.key, timeout_s=60.0), LIMIT_S)
        await asyncio.wait_for(told(house.watchers, job.key, []), LIMIT_S)

    asyncio.run(scene())
    assert house.store.status(job.key) == "running"
