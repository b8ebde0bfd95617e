"""What every job runner promises, on every database: results, reasons, cancelling, killed workers, restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, update
from sqlalchemy.exc import OperationalError

from app.service.db.engine import writing
from app.service.db.jobs import FINISHED, JobKey, JobStore
from app.service.db.notices import Notices
from app.service.db.plans import PlanRow, PlanStore, Submission, write_result
from app.service.db.tables import jobs
from app.service.db.workers import WorkerStore
from app.service.jobs.embedded_runner import EmbeddedRunner
from app.service.jobs.runner import Kind

KINDS = {"plan": Kind("job_acts:act", write_result)}
LONG_S = 30.0


class House:
    """A database with one runner, which can be exchanged."""

    def __init__(self, engine: Engine, *, lease_s: float = 30.0) -> None:
        self.store = JobStore(engine, lease_s=lease_s)
        self.plans = PlanStore(engine, max_queued_jobs=100)
        self.workers = WorkerStore(engine, lease_s=lease_s)
        self.notices = Notices(engine)
        self.runners: list[EmbeddedRunner] = []
        self._digests = 0

    def runner(self, *, pool_size: int = 1, grace_s: float = 0.2, patience_s: float = 0.3) -> EmbeddedRunner:
        runner = EmbeddedRunner(
            self.store, KINDS, workers=self.workers, pool_size=pool_size, grace_s=grace_s, patience_s=patience_s,
            notices=self.notices,
        )  # fmt: skip
        runner.start()
        self.runners.append(runner)
        return runner

    def submit(self, do: str, *, seconds: float = 0.0, time_limit_s: float = LONG_S) -> JobKey:
        self._digests += 1
        payload = json.dumps({"do": do, "seconds": seconds})
        submitted = self.plans.submit("a", Submission(f"d{self._digests}", payload, time_limit_s))
        key = JobKey("a", submitted.id)
        for runner in self.runners:
            runner.submit(key)
        return key

    def ended(self, key: JobKey) -> PlanRow:
        until(lambda: self.store.status(key) in FINISHED)
        return self.plans.get("a", key.id)

    def error(self, key: JobKey) -> dict[str, Any]:
        plan = self.ended(key)
        assert plan.status == "failed"
        error: dict[str, Any] = json.loads(plan.error or "null")
        return error


def until(condition: Callable[[], bool], *, seconds: float = 20.0) -> float:
    """Seconds until the condition held."""
    begun_at = time.monotonic()
    while not condition():
        assert time.monotonic() < begun_at + seconds, "waited too long"
        time.sleep(0.01)
    return time.monotonic() - begun_at


@pytest.fixture
def house(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    house = House(engine)
    yield house
    for runner in house.runners:
        runner.stop()


def running(house: House, key: JobKey) -> None:
    until(lambda: "progress" in [event.type for event in house.store.events_after(key, 0)])


def test_a_job_leaves_its_result_and_its_events(house: House) -> None:
    house.runner()
    key = house.submit("work", seconds=0.3)
    plan = house.ended(key)
    assert (plan.status, json.loads(plan.response or "")["did"]) == ("succeeded", "work")
    assert house.plans.ranked("a", key.id, 1) == '{"rank":1}'
    events = house.store.events_after(key, 0)
    assert [event.type for event in events][:3] == ["queued", "started", "progress"]
    assert events[-1].type == "succeeded"
    assert events[2].best_s == 2.0


def test_a_worker_stays_warm_from_job_to_job(house: House) -> None:
    house.runner()
    pids = {json.loads(house.ended(house.submit("work")).response or "")["pid"] for _ in range(3)}
    assert len(pids) == 1


def test_jobs_run_side_by_side_in_a_larger_pool(house: House) -> None:
    runner = house.runner(pool_size=2)
    until(lambda: runner.ready_workers() == 2)
    keys = [house.submit("work", seconds=0.4) for _ in range(2)]
    pids = {json.loads(house.ended(key).response or "")["pid"] for key in keys}
    assert len(pids) == 2


def test_waiting_returns_when_the_job_has_ended(house: House) -> None:
    runner = house.runner()
    key = house.submit("work", seconds=0.2)
    asyncio.run(runner.wait(key, timeout_s=20.0))
    assert house.store.status(key) == "succeeded"


def test_waiting_gives_up_after_its_time(house: House) -> None:
    runner = house.runner()
    key = house.submit("work", seconds=LONG_S)
    begun_at = time.monotonic()
    asyncio.run(runner.wait(key, timeout_s=0.3))
    assert 0.3 <= time.monotonic() - begun_at < LONG_S / 3
    assert house.store.status(key) in {"queued", "running"}


def test_an_error_of_the_planner_is_the_jobs_error(house: House) -> None:
    house.runner()
    error = house.error(house.submit("refuse"))
    assert (error["code"], error["detail"], error["hint"], error["status"]) == (
        "search-budget", "too much", "ask for less", 422,
    )  # fmt: skip


def test_a_defect_fails_the_job_without_its_traceback_and_the_worker_goes_on(house: House) -> None:
    runner = house.runner()
    error = house.error(house.submit("break"))
    assert error["code"] == "internal-error"
    assert "ZeroDivisionError" not in json.dumps(error)
    assert house.ended(house.submit("work")).status == "succeeded"
    assert runner.ready_workers() == 1


def test_a_killed_worker_fails_its_job_with_the_reason_and_is_replaced(house: House) -> None:
    runner = house.runner()
    error = house.error(house.submit("die"))
    assert error["code"] == "worker-lost"
    assert "SIGKILL" in error["detail"]
    assert house.ended(house.submit("work")).status == "succeeded"
    assert runner.ready_workers() == 1


def test_a_worker_killed_from_outside_while_idle_is_replaced(house: House) -> None:
    runner = house.runner()
    until(lambda: runner.ready_workers() == 1)
    (pid,) = runner.worker_pids()
    os.kill(pid, signal.SIGKILL)
    # Without a job to wake anybody: a service that is asked once a day must still be ready.
    until(lambda: runner.ready_workers() == 1 and runner.worker_pids() != [pid])
    assert house.ended(house.submit("work")).status == "succeeded"


def test_a_willing_job_is_cancelled_at_once(house: House) -> None:
    runner = house.runner()
    key = house.submit("work", seconds=LONG_S)
    running(house, key)
    (pid,) = runner.worker_pids()
    assert house.store.request_cancel(key) == "running"
    runner.cancel(key)
    assert until(lambda: house.store.status(key) == "cancelled") < LONG_S / 3
    assert runner.worker_pids() == [pid], "a job that stops by itself costs no worker"


def test_a_stubborn_job_is_cancelled_by_ending_its_worker(house: House) -> None:
    runner = house.runner()
    key = house.submit("sleep", seconds=LONG_S)
    running(house, key)
    house.store.request_cancel(key)
    runner.cancel(key)
    assert until(lambda: house.store.status(key) == "cancelled") < LONG_S / 3
    assert house.ended(house.submit("work")).status == "succeeded"


def test_a_job_is_cancelled_by_a_process_that_does_not_run_it(house: House) -> None:
    house.runner()
    key = house.submit("work", seconds=LONG_S)
    running(house, key)
    house.store.request_cancel(key)
    until(lambda: house.store.status(key) == "cancelled")


def test_a_job_that_runs_too_long_fails_with_the_limit(house: House) -> None:
    house.runner()
    error = house.error(house.submit("sleep", seconds=LONG_S, time_limit_s=0.3))
    assert error["code"] == "time-limit"
    assert "0.3 s" in error["detail"]
    assert house.ended(house.submit("work")).status == "succeeded"


def test_a_runner_that_stops_leaves_its_job_to_the_next(house: House) -> None:
    first = house.runner()
    key = house.submit("work", seconds=1.0)
    running(house, key)
    first.stop()
    house.runners.remove(first)
    assert house.store.status(key) == "queued"
    house.runner()
    assert house.ended(key).status == "succeeded"


def test_a_job_of_a_process_that_died_is_taken_over(engine: Engine, house: House) -> None:
    dying = JobStore(engine, lease_s=0.1)
    key = house.submit("work")
    assert dying.claim("a process that is gone") is not None
    house.runner()
    assert house.ended(key).status == "succeeded"
    types = [event.type for event in house.store.events_after(key, 0) if event.type != "progress"]
    assert types == ["queued", "started", "queued", "started", "succeeded"]


def test_a_result_waits_for_a_database_that_is_away(engine: Engine, house: House) -> None:
    """The job is started once, its result is kept, and its lease, which runs out meanwhile, is not taken for a dead process."""
    store = JobStore(engine, lease_s=0.5)
    house.store = store
    runner = house.runner(patience_s=1.0)
    key = house.submit("stubborn", seconds=0.5)
    running(house, key)
    away = threading.Event()

    def refuse(_connection: Any) -> None:
        if away.is_set():
            raise OperationalError("BEGIN", None, ConnectionError("the server is away"))

    event.listen(engine, "begin", refuse)
    away.set()
    time.sleep(2.0)
    event.remove(engine, "begin", refuse)
    assert house.ended(key).status == "succeeded"
    types = [each.type for each in store.events_after(key, 0) if each.type != "progress"]
    assert types == ["queued", "started", "succeeded"]
    assert runner.ready_workers() == 1


def test_a_process_that_slept_too_long_stops_its_job_and_stores_nothing(engine: Engine, house: House) -> None:
    house.runner()
    key = house.submit("stubborn", seconds=60.0)
    running(house, key)
    # What happens to the row while a process is suspended: another one takes the job and ends it.
    with writing(engine) as connection:
        connection.execute(update(jobs).values(owner="another process"))
    until(lambda: not house.runners[0].running())
    count = len(house.store.events_after(key, 0))
    assert house.store.status(key) == "running"
    time.sleep(0.2)
    assert len(house.store.events_after(key, 0)) == count


def test_workers_see_the_services_packages_and_not_those_of_the_current_folder(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("app", "planner", "cost_models"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('a decoy was imported')")
    for name in ("profiler.py", "job_acts.py", "numpy.py"):
        (tmp_path / name).write_text("raise RuntimeError('a decoy was imported')")
    monkeypatch.chdir(tmp_path)
    house.runner()
    assert house.ended(house.submit("work")).status == "succeeded"
