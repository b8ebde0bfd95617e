"""The service's own queue (a table, `SKIP LOCKED`, LISTEN/NOTIFY) against procrastinate on the same PostgreSQL server.

pip install procrastinate; python -m benchmarks.queue_comparison postgresql://user@host/empty_database

Both run the same jobs, which sleep, two at a time. procrastinate is measured twice: with jobs in its own process, as it is made to be
used, and with each job handed to one of our worker processes, without which no job can be ended that does not end by itself. What is
asked of both: how soon a job starts, how many jobs a second go through, how many jobs of one tenant run before the only one of another,
and what happens when a process that lost its job reports a result. `docs/background/queue.md` draws the conclusion.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Engine, select, text

from app.service.db.engine import build_engine, reading, writing
from app.service.db.jobs import JobKey, JobStore
from app.service.db.migrate import upgrade
from app.service.db.notices import Notices
from app.service.db.plan_result import PlanResult
from app.service.db.plans import PlanStore, Submission, write_result
from app.service.db.tables import job_events
from app.service.db.workers import WorkerStore
from app.service.jobs.embedded_runner import EmbeddedRunner
from app.service.jobs.runner import Kind
from app.service.jobs.worker import Done, JobInput
from app.service.jobs.worker_process import Limits, WorkerProcess
from app.settings import Settings
from benchmarks.record import record

TASK = "benchmarks.queue_comparison:act"
SLOTS, SINGLE, MANY, UNFAIR = 2, 30, 300, 40
SLEEP_S = 0.1


def act(job: JobInput, **_others: Any) -> PlanResult:
    """What every job does: it sleeps as long as it is told to."""
    time.sleep(json.loads(job.payload)["seconds"])
    return PlanResult(response=b"{}", headline="{}", ranked=())


class Own:
    """The service's queue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = JobStore(engine, lease_s=30.0)
        self._plans = PlanStore(engine, max_queued_jobs=10_000)
        self._count = 0

    def runner(self) -> EmbeddedRunner:
        """A runner of two worker processes."""
        workers, notices = WorkerStore(self._engine, lease_s=30.0), Notices(self._engine)
        kinds = {"plan": Kind(TASK, write_result)}
        return EmbeddedRunner(
            self._store, kinds, workers=workers, pool_size=SLOTS, grace_s=0.2, notices=notices
        )  # fmt: skip

    def queue(self, tenant: str, seconds: float) -> JobKey:
        """Queues a job, as another process would."""
        self._count += 1
        payload = json.dumps({"seconds": seconds})
        return JobKey(tenant, self._plans.submit(tenant, Submission(f"d{self._count}", payload, 60.0)).id)

    def unfinished(self) -> int:
        """Number of jobs that have not ended."""
        return sum(count for status, count in self._store.counts().items() if status in {"queued", "running"})

    def measured(self) -> dict[str, Any]:
        """All figures."""
        runner = self.runner()
        runner.start()
        _until(lambda: runner.ready_workers() == SLOTS)
        for _ in range(SINGLE):
            self.queue("a", 0.0)
            _until(lambda: not self.unfinished())
        latency_s = self._latencies_s()
        begun_at = time.monotonic()
        for _ in range(MANY):
            self.queue("a", 0.0)
        _until(lambda: not self.unfinished())
        rate = MANY / (time.monotonic() - begun_at)
        for _ in range(UNFAIR):
            self.queue("a", SLEEP_S)
        other = self.queue("b", 0.0)
        _until(lambda: not self.unfinished())
        ahead = self._started_before(other)
        runner.stop()
        return {**_latency(latency_s), "jobs_per_s": rate, "jobs_of_a_before_that_of_b": ahead, **self._late_result()}

    def _latencies_s(self) -> list[float]:
        with reading(self._engine) as connection:
            at = {(row.job_id, row.type): row.at for row in connection.execute(select(job_events))}
        return [(at[job, "started"] - moment).total_seconds() for (job, kind), moment in at.items() if kind == "queued"]

    def _started_before(self, key: JobKey) -> int:
        with reading(self._engine) as connection:
            rows = connection.execute(select(job_events).where(job_events.c.type.in_(("queued", "started")))).all()
        at = {(row.job_id, row.type): row.at for row in rows}
        queued, started = at[key.id, "queued"], at[key.id, "started"]
        return sum(kind == "started" and queued < moment < started for (_job, kind), moment in at.items())

    def _late_result(self) -> dict[str, Any]:
        key = self.queue("a", 0.0)
        job = self._store.claim("first")
        assert job is not None
        self._store.release("first")
        self._store.claim("second")
        return {
            "late_result_is_taken": self._store.finish(job, owner="first", status="succeeded"),
            "status_after_it": self._store.status(key),
        }


class Procrastinate:
    """procrastinate's queue, with jobs in its own process or in our worker processes."""

    def __init__(self, url: str, engine: Engine, *, in_worker_processes: bool) -> None:
        import procrastinate

        self._engine = engine
        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
        self._free = [WorkerProcess({"plan": TASK}) for _ in range(SLOTS * in_worker_processes)]
        for worker in self._free:
            assert worker.became_ready(is_abandoned=lambda: False)
        self.app.task(name="act")(self._act_in_a_process if in_worker_processes else self._act)

    async def _act(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _act_in_a_process(self, seconds: float) -> None:
        worker = self._free.pop()
        job = JobInput("id", "plan", json.dumps({"seconds": seconds}), "")
        try:
            done = await asyncio.to_thread(
                worker.run, job, limits=Limits(60.0, 0.2), on_progress=lambda _progress: None,
                is_abandoned=lambda: False,
            )  # fmt: skip
            assert isinstance(done, Done)
        finally:
            self._free.append(worker)

    async def queue(self, tenant: str, seconds: float) -> int:
        """Queues a job. Its tenant is the name of its queue, since nothing else tells jobs apart that may run side by side."""
        return int(await self.app.configure_task("act", queue=tenant).defer_async(seconds=seconds))

    async def measured(self) -> dict[str, Any]:
        """All figures."""
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()
            worker = asyncio.create_task(
                self.app.run_worker_async(concurrency=SLOTS, install_signal_handlers=False, delete_jobs="never")
            )
            await asyncio.sleep(1.0)
            for _ in range(SINGLE):
                await self.queue("a", 0.0)
                await _until_async(self._is_idle)
            latency_s = self._latencies_s()
            begun_at = time.monotonic()
            for _ in range(MANY):
                await self.queue("a", 0.0)
            await _until_async(self._is_idle)
            rate = MANY / (time.monotonic() - begun_at)
            for _ in range(UNFAIR):
                await self.queue("a", SLEEP_S)
            other = await self.queue("b", 0.0)
            await _until_async(self._is_idle)
            ahead = self._started_before(other)
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            late = await self._late_result()
        for process in self._free:
            process.terminate()
        return {**_latency(latency_s), "jobs_per_s": rate, "jobs_of_a_before_that_of_b": ahead, **late}

    def _events(self) -> dict[tuple[int, str], Any]:
        with reading(self._engine) as connection:
            rows = connection.execute(text("SELECT job_id, type::text, at FROM procrastinate_events")).all()
        return {(row[0], row[1]): row[2] for row in rows}

    async def _is_idle(self) -> bool:
        query = text("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")

        def count() -> int:
            with reading(self._engine) as connection:
                return int(connection.execute(query).scalar_one())

        return await asyncio.to_thread(count) == 0

    def _latencies_s(self) -> list[float]:
        at = self._events()
        return [
            (at[job, "started"] - moment).total_seconds() for (job, kind), moment in at.items() if kind == "deferred"
        ]

    def _started_before(self, other: int) -> int:
        at = self._events()
        queued, started = at[other, "deferred"], at[other, "started"]
        return sum(kind == "started" and queued < moment < started for (_job, kind), moment in at.items())

    async def _late_result(self) -> dict[str, Any]:
        from procrastinate import jobs, utils

        manager = self.app.job_manager
        number = await self.queue("a", 0.0)
        first, second = await manager.register_worker(), await manager.register_worker()
        job = await manager.fetch_job(queues=None, worker_id=first)
        assert job is not None
        await manager.retry_job(job, retry_at=utils.utcnow())
        await manager.fetch_job(queues=None, worker_id=second)
        try:
            await manager.finish_job(job, status=jobs.Status.SUCCEEDED, delete_job=False)
            is_taken = True
        except Exception:  # noqa: BLE001 - whatever it is, the result was refused
            is_taken = False
        status = await manager.get_job_status_async(job_id=number)
        return {"late_result_is_taken": is_taken, "status_after_it": status.value}


def _latency(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"start_median_s": statistics.median(ordered), "start_worst_s": ordered[-1]}


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


async def _until_async(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 - another process sets it
        await asyncio.sleep(0.005)


def main() -> None:
    url = sys.argv[1]
    engine = build_engine(Settings(database_url=url).url)
    found: dict[str, Any] = {}
    for name in ("own", "procrastinate", "procrastinate_in_worker_processes"):
        with writing(engine) as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
        engine.dispose()
        if name == "own":
            upgrade(engine)
            found[name] = Own(engine).measured()
        else:
            queue = Procrastinate(url, engine, in_worker_processes=name.endswith("processes"))
            found[name] = asyncio.run(queue.measured())
        print(name, json.dumps(found[name]), flush=True)
    engine.dispose()
    record(
        "queue_comparison",
        value=found["own"]["start_median_s"] * 1e3,
        unit="ms from queued to started",
        goal="<= 250, what a look four times a second would bring",
        **found,
    )


if __name__ == "__main__":
    main()
