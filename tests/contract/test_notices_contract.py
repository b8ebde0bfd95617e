"""What one process tells another at once: runners that look at the database once a minute, and hear of jobs nevertheless."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import OperationalError

from app.service.db.engine import writing
from app.service.db.jobs import FINISHED, JobKey, JobStore
from app.service.db.notices import Notice, Notices
from app.service.db.plans import PlanStore, Submission, write_result
from app.service.db.workers import WorkerStore
from app.service.jobs.embedded_runner import EmbeddedRunner
from app.service.jobs.runner import Kind

KINDS = {"plan": Kind("job_acts:act", write_result)}
NEVER_S = 600.0
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
Start = Callable[..., EmbeddedRunner]


def until(condition: Callable[[], Any], *, seconds: float = 60.0) -> None:
    end_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_at, "waited too long"
        time.sleep(0.01)


@pytest.fixture
def start(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts runners as of several processes, which are stopped at the end."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    runners: list[EmbeddedRunner] = []

    def started(*, pool_size: int, keep_every_s: float = NEVER_S) -> EmbeddedRunner:
        notices = Notices(engine)
        runner = EmbeddedRunner(
            JobStore(engine, lease_s=30.0), KINDS, workers=WorkerStore(engine, lease_s=30.0), pool_size=pool_size,
            grace_s=0.2, notices=notices, keep_every_s=keep_every_s,
        )  # fmt: skip
        runner.start()
        runners.append(runner)
        until(lambda: runner.ready_workers() == pool_size and (notices.is_heard or keep_every_s < NEVER_S))
        return runner

    yield started
    for runner in runners:
        runner.stop()


def queued(engine: Engine, digest: str, *, seconds: float = 0.0) -> JobKey:
    """A job that some other process queued: no runner is told."""
    payload = f'{{"do": "work", "seconds": {seconds}}}'
    return JobKey("a", PlanStore(engine, max_queued_jobs=100).submit("a", Submission(digest, payload, 60.0)).id)


@on_postgresql
def test_a_job_that_another_process_queued_starts_at_once_and_its_end_wakes_who_waits(
    engine: Engine, start: Start
) -> None:
    store, service, _worker = JobStore(engine, lease_s=30.0), start(pool_size=0), start(pool_size=1)
    key = queued(engine, "d", seconds=0.2)
    asyncio.run(service.wait(key, timeout_s=60.0))
    assert store.status(key) == "succeeded"


@on_postgresql
def test_a_cancellation_reaches_the_process_that_runs_the_job(engine: Engine, start: Start) -> None:
    store, worker = JobStore(engine, lease_s=30.0), start(pool_size=1)
    key = queued(engine, "d", seconds=300.0)
    until(lambda: worker.running() == [key])
    until(lambda: "progress" in [each.type for each in store.events_after(key, 0)])
    assert store.request_cancel(key) == "running"
    until(lambda: store.status(key) == "cancelled")


@on_postgresql
def test_a_job_that_was_queued_while_nobody_listened_starts_once_somebody_does_again(
    engine: Engine, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    store = JobStore(engine, lease_s=30.0)
    start(pool_size=1)
    with writing(engine) as connection:
        listening = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        assert connection.execute(text(listening)).all() == [(True,)]
    key = queued(engine, "d")
    until(lambda: store.status(key) == "succeeded")
    assert not [each for each in caplog.records if each.name.startswith("sqlalchemy")], "no tracebacks of the pool"


@on_postgresql
def test_notices_say_what_happened_to_which_job(engine: Engine) -> None:
    heard: list[Notice | None] = []
    over = threading.Event()
    listen = Notices(engine).listen
    thread = threading.Thread(target=listen, args=(heard.append,), kwargs={"is_over": over.wait}, daemon=True)
    thread.start()
    until(lambda: heard == [None])
    store = JobStore(engine, lease_s=30.0)
    first, second = queued(engine, "d1"), queued(engine, "d2")
    job = store.claim("here")
    assert job is not None
    store.request_cancel(second)
    store.request_cancel(first)
    store.finish(job, owner="here", status="cancelled")
    until(lambda: len(heard) == 6)
    over.set()
    thread.join()
    assert heard[1:] == [
        Notice("queued", "a", first.id),
        Notice("queued", "a", second.id),
        Notice("ended", "a", second.id),
        Notice("cancel", "a", first.id),
        Notice("ended", "a", first.id),
    ]


def test_a_claim_whose_answer_was_lost_is_given_back_and_counts_as_no_attempt(engine: Engine, start: Start) -> None:
    """The connection breaks after COMMIT: the row says that this process runs the job, and the process knows of none."""
    claiming: list[Any] = []

    def note(connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("UPDATE jobs") and "started_at" in statement:
            claiming.append(connection.connection.dbapi_connection)

    def break_off(connection: Any, _record: Any) -> None:
        if connection in claiming:
            event.remove(engine, "checkin", break_off)
            connection.close()
            raise OperationalError("COMMIT", None, ConnectionError("the connection was lost"))

    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "checkin", break_off)
    store = JobStore(engine, lease_s=30.0)
    key = queued(engine, "d")
    start(pool_size=1, keep_every_s=0.1)
    until(lambda: store.status(key) in FINISHED)
    assert store.status(key) == "succeeded"
    assert [each.type for each in store.events_after(key, 0)].count("started") == 2, "one of them was never heard of"
    with engine.connect() as connection:
        assert connection.execute(text("SELECT attempts FROM jobs")).scalar_one() == 1
