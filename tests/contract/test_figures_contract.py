"""Figures for operators, on every database: queue, workers, storage, and each job that has ended counted once."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, create_engine, update

from app.service.db.engine import writing
from app.service.db.figures import ended_since, figures_of
from app.service.db.jobs import JobStore
from app.service.db.plan_result import PlanResult
from app.service.db.plans import PlanStore, Submission, write_result
from app.service.db.tables import workers
from app.service.db.workers import WorkerStore
from app.service.job_figures import JobFigures
from app.service.metrics import Metrics


@pytest.fixture
def plans(engine: Engine) -> PlanStore:
    return PlanStore(engine, max_queued_jobs=50)


@pytest.fixture
def job_store(engine: Engine) -> JobStore:
    return JobStore(engine, lease_s=30.0)


def told(figures: JobFigures) -> dict[str, float]:
    """Every sample by its name and labels, as Prometheus reads them."""
    text = Metrics(jobs=dict, workers=lambda: 0, more=figures).text().decode()
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ask(plans: PlanStore, tenant: str, digest: str) -> None:
    plans.submit(tenant, Submission(digest, '{"request":{}}', 60.0))


def run(job_store: JobStore, *, gap: float | None = None, status: str = "succeeded") -> None:
    job = job_store.claim("owner")
    assert job is not None
    result = PlanResult.of_texts(response='{"id":"x"}', headline="{}", ranked=['{"rank":1}'], gap=gap)
    store = (lambda connection: write_result(connection, job.key, result)) if status == "succeeded" else None
    assert job_store.finish(job, owner="owner", status=status, store=store)  # type: ignore[arg-type]


def test_the_oldest_queued_job_tells_the_age_of_the_queue(
    engine: Engine, plans: PlanStore, job_store: JobStore
) -> None:
    assert figures_of(engine, lease_s=30).queue_age_s == 0
    ask(plans, "a", "d1")
    time.sleep(0.2)
    ask(plans, "b", "d2")
    assert 0.2 <= figures_of(engine, lease_s=30).queue_age_s < 10
    run(job_store)
    assert figures_of(engine, lease_s=30).queue_age_s < 10
    run(job_store)
    assert figures_of(engine, lease_s=30).queue_age_s == 0


def test_each_job_is_counted_once_and_none_from_before(engine: Engine, plans: PlanStore, job_store: JobStore) -> None:
    ask(plans, "a", "before")
    run(job_store, gap=0.5)
    figures = JobFigures(engine, lease_s=30)
    assert "meshwright_search_gap_count" in told(figures), "this look is the first"
    for digest, gap in (("d1", 0.0), ("d2", 0.03), ("d3", None)):
        ask(plans, "a", digest)
        run(job_store, gap=gap)
    ask(plans, "b", "d4")
    run(job_store, status="failed")
    for _ in range(2):
        now = told(figures)
        assert now["meshwright_job_seconds_count[plan][succeeded]"] == 3
        assert now["meshwright_job_seconds_count[plan][failed]"] == 1
        assert now["meshwright_job_wait_seconds_count[plan]"] == 4
        assert (now["meshwright_search_gap_bucket[0.0]"], now["meshwright_search_gap_bucket[0.05]"]) == (1, 2)
        assert (now["meshwright_search_gap_count"], now["meshwright_searches_without_plan_total"]) == (2, 1)
    assert {job.gap for job in ended_since(engine, figures_of(engine, lease_s=1).at.replace(year=2000))} == {
        None,
        0.0,
        0.03,
        0.5,
    }


def test_workers_are_busy_idle_or_starting_until_they_are_silent(
    engine: Engine, plans: PlanStore, job_store: JobStore
) -> None:
    known = WorkerStore(engine, lease_s=30)
    known.report("here", size=2, ready=2)
    known.report("there", size=3, ready=1)
    ask(plans, "a", "d1")
    assert job_store.claim("here") is not None
    now = told(JobFigures(engine, lease_s=30))
    states = {state: now[f"meshwright_workers[{state}]"] for state in ("busy", "idle", "starting")}
    assert states == {"busy": 1, "idle": 2, "starting": 2}
    long_ago = figures_of(engine, lease_s=30).at.replace(year=2000)
    with writing(engine) as connection:
        connection.execute(update(workers).where(workers.c.owner == "there").values(seen_at=long_ago))
    assert told(JobFigures(engine, lease_s=30))["meshwright_workers[starting]"] == 0


def test_storage_is_told_in_bytes(engine: Engine, plans: PlanStore, job_store: JobStore) -> None:
    before = told(JobFigures(engine, lease_s=30))
    assert before["meshwright_storage_bytes[plans]"] == 0
    ask(plans, "a", "d1")
    run(job_store)
    now = told(JobFigures(engine, lease_s=30))
    assert now["meshwright_storage_bytes[plans]"] > 0
    assert now["meshwright_database_bytes"] >= before["meshwright_database_bytes"] > 4096


def test_without_a_database_the_rest_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    away = create_engine(f"sqlite:///{tmp_path_factory.mktemp('away')}/no/such/folder/x.db")
    metrics = Metrics(jobs=JobStore(away, lease_s=30).counts, workers=lambda: 0, more=JobFigures(away, lease_s=30))
    metrics.count_request(method="GET", route="/healthz", status=200, seconds=0.1)
    text = metrics.text().decode()
    assert "meshwright_database_up 0.0" in text
    assert 'meshwright_http_requests_total{method="GET",route="/healthz",status="200"} 1.0' in text
