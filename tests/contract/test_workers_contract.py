"""Processes that run jobs on one database: who lives, how many jobs they may run together, and whose workers a service counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.service.db.jobs import JobKey, JobStore
from app.service.db.plans import PlanStore, Submission, write_result
from app.service.db.workers import WorkerStore
from app.service.jobs.embedded_runner import EmbeddedRunner
from app.service.jobs.runner import Kind

KINDS = {"plan": Kind("job_acts:act", write_result)}


def until(condition, *, seconds: float = 20.0) -> None:
    end_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_at, "waited too long"
        time.sleep(0.01)


@pytest.fixture
def runners(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EmbeddedRunner]]:
    """Runners as of several processes, which are stopped at the end."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    found: list[EmbeddedRunner] = []
    yield found
    for runner in found:
        runner.stop()


def started(engine: Engine, runners: list[EmbeddedRunner], *, pool_size: int) -> EmbeddedRunner:
    store, workers = JobStore(engine, lease_s=30.0), WorkerStore(engine, lease_s=30.0)
    runner = EmbeddedRunner(store, KINDS, workers=workers, pool_size=pool_size, grace_s=0.2)
    runner.start()
    runners.append(runner)
    return runner


def queued(engine: Engine, count: int, *, tenant: str = "a") -> list[JobKey]:
    plans = PlanStore(engine, max_queued_jobs=100)
    names = [f"{tenant}{number}" for number in range(count)]
    return [JobKey(tenant, plans.submit(tenant, Submission(name, '{"do": "work"}', 60.0)).id) for name in names]


def test_ready_workers_are_counted_over_all_living_processes(engine: Engine) -> None:
    store, brief = WorkerStore(engine, lease_s=30.0), WorkerStore(engine, lease_s=0.1)
    assert store.ready() == 0
    store.report("here", size=4, ready=1)
    store.report("there", size=4, ready=4)
    assert store.ready() == 1 + 4
    store.report("here", size=4, ready=3)
    assert store.ready() == 3 + 4
    time.sleep(0.15)
    assert brief.ready() == 0, "nobody has been heard of for 0.1 s"
    store.forget("there")
    assert store.ready() == 3


def test_rows_of_processes_that_are_long_gone_are_removed(engine: Engine) -> None:
    brief = WorkerStore(engine, lease_s=0.002)
    brief.report("gone", size=1, ready=1)
    time.sleep(0.002 * 60 + 0.05)
    brief.report("here", size=1, ready=1)
    assert WorkerStore(engine, lease_s=30.0).ready() == 1


def test_a_tenant_may_use_all_workers_of_all_processes_but_one(engine: Engine) -> None:
    """Two processes with two workers each: three jobs of one tenant run, and the fourth worker is another tenant's."""
    workers = WorkerStore(engine, lease_s=30.0)
    for owner in ("here", "there"):
        workers.report(owner, size=2, ready=2)
    store = JobStore(engine, lease_s=30.0, keeps_one_free=True)
    queued(engine, 4)
    claimed = [store.claim("here") is not None for _ in range(4)]
    assert claimed == [True, True, True, False]
    (other,) = queued(engine, 1, tenant="b")
    job = store.claim("there")
    assert job is not None
    assert job.key == other


def test_a_limit_of_the_settings_goes_before_the_number_of_workers(engine: Engine) -> None:
    WorkerStore(engine, lease_s=30.0).report("here", size=8, ready=8)
    store = JobStore(engine, lease_s=30.0, max_running=2, keeps_one_free=True)
    queued(engine, 3)
    assert [store.claim("here") is not None for _ in range(3)] == [True, True, False]


def test_a_runner_says_that_it_lives_and_takes_its_leave(engine: Engine, runners: list[EmbeddedRunner]) -> None:
    workers = WorkerStore(engine, lease_s=30.0)
    runner = started(engine, runners, pool_size=1)
    until(lambda: workers.ready() == 1)
    runner.stop()
    runners.remove(runner)
    assert workers.ready() == 0


def test_a_runner_without_workers_leaves_its_jobs_to_others(engine: Engine, runners: list[EmbeddedRunner]) -> None:
    service, store = started(engine, runners, pool_size=0), JobStore(engine, lease_s=30.0)
    (key,) = queued(engine, 1)
    service.submit(key)
    time.sleep(0.6)
    assert (store.status(key), service.ready_workers(), WorkerStore(engine, lease_s=30.0).ready()) == ("queued", 0, 0)
    started(engine, runners, pool_size=1)
    until(lambda: store.status(key) == "succeeded")
