"""What one tenant may have stored, and what is deleted after its time, on every database."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, select, update

from app.errors import NotFoundError, QuotaError
from app.service.db.agents import AgentStore, NodeFacts
from app.service.db.audit import page_of_audit
from app.service.db.calibrations import CalibrationStore
from app.service.db.engine import reading, writing
from app.service.db.jobs import JobStore
from app.service.db.observations import ObservationStore
from app.service.db.plan_result import PlanResult
from app.service.db.plans import PlanStore, Submission, write_result
from app.service.db.profiling_jobs import ProfilingJobStore, Wanted, insert_profiling_job
from app.service.db.quotas import Quotas, usage_of
from app.service.db.retention import NOTHING as NOTHING_SWEPT
from app.service.db.retention import Retention, Swept, sweep
from app.service.db.tables import audit, calibrations, idempotency_keys, jobs, observations, plans, profiling_jobs

DAY = timedelta(days=1)
NOTHING = Retention(keys=DAY)


def planned(engine: Engine, digest: str, *, tenant: str = "a", size: int = 0, days_ago: float = 0.0) -> str:
    """Id of a finished plan whose answer takes about so many bytes and which ended so many days ago."""
    store, runner = PlanStore(engine, max_queued_jobs=5), JobStore(engine, lease_s=30.0)
    plan_id = store.submit(tenant, Submission(digest, "{}", 60.0, idempotency_key=digest)).id
    job = runner.claim("me")
    assert job is not None
    result = PlanResult(response=b"x" * size, headline="{}", ranked=())
    runner.finish(
        job, owner="me", status="succeeded", store=lambda connection: write_result(connection, job.key, result)
    )
    ended = datetime.now(UTC) - timedelta(days=days_ago)
    with writing(engine) as connection:
        connection.execute(update(jobs).where(jobs.c.id == plan_id).values(finished_at=ended))
        connection.execute(
            update(idempotency_keys).where(idempotency_keys.c.plan_id == plan_id).values(created_at=ended)
        )
    return plan_id


def kept(engine: Engine) -> set[str]:
    with reading(engine) as connection:
        return set(connection.execute(select(plans.c.id)).scalars())


def add(store: CalibrationStore, name: str, *, tenant: str = "a", text: str = "{}", is_limited: bool = True) -> None:
    store.add(tenant, name, document=text, gpu="H100", gpus_per_node=8, is_limited=is_limited)


def test_a_tenant_has_as_many_plans_as_it_may(engine: Engine) -> None:
    store = PlanStore(engine, max_queued_jobs=5, quotas=Quotas(max_plans=2))
    first = planned(engine, "d1")
    store.submit("a", Submission("d2", "{}", 60.0))
    with pytest.raises(QuotaError) as refused:
        store.submit("a", Submission("d3", "{}", 60.0))
    assert {name: refused.value.context[name] for name in ("quota", "limit", "used")} == {
        "quota": "plans", "limit": 2, "used": 2,
    }  # fmt: skip
    assert store.submit("b", Submission("d3", "{}", 60.0)).is_new
    assert not store.submit("a", Submission("d1", "{}", 60.0)).is_new, "what is there costs nothing"
    store.delete("a", first)
    assert store.submit("a", Submission("d3", "{}", 60.0)).is_new


def test_plans_and_calibrations_share_the_tenants_bytes(engine: Engine) -> None:
    planned(engine, "d1", size=1000)
    with reading(engine) as connection:
        used = usage_of(connection, "a").stored_bytes
    # The answer, the two bytes of its headline, and a request of two characters, which zlib makes ten bytes of.
    assert used == 1000 + 2 + 10
    limited = CalibrationStore(engine, quotas=Quotas(max_stored_bytes=used + 10))
    add(limited, "c1")
    add(limited, "c1")  # the same again changes nothing, and is never refused
    with pytest.raises(QuotaError) as refused:
        add(limited, "c2")
    assert (refused.value.context["limit"], refused.value.context["used"]) == (used + 10, used + 10)
    add(limited, "c2", tenant="b")
    add(limited, "measured", is_limited=False)
    with pytest.raises(QuotaError):
        PlanStore(engine, max_queued_jobs=5, quotas=Quotas(max_stored_bytes=used)).submit(
            "a", Submission("d2", "{}", 60.0)
        )


def test_uploads_at_the_same_time_do_not_share_the_room_that_is_left(engine: Engine) -> None:
    store = CalibrationStore(engine, quotas=Quotas(max_stored_bytes=10))
    refused: list[str] = []
    barrier = threading.Barrier(6)

    def upload(name: str) -> None:
        barrier.wait()
        try:
            add(store, name)
        except QuotaError:
            refused.append(name)

    threads = [threading.Thread(target=upload, args=(f"c{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 5
    assert len(store.page("a", limit=10)) == 1


def test_old_plans_are_deleted_and_nothing_else(engine: Engine) -> None:
    old, young = planned(engine, "d1", days_ago=31.0), planned(engine, "d2", days_ago=29.0)
    example = planned(engine, "d3", days_ago=99.0)
    unfinished = PlanStore(engine, max_queued_jobs=5).submit("a", Submission("d4", "{}", 60.0)).id
    assert sweep(engine, NOTHING) == Swept(
        plans=0, calibrations=0, profiling_jobs=0, idempotency_keys=3, audit_entries=0
    )
    rule = Retention(keys=DAY, plans=30 * DAY, kept_ids=frozenset({example}))
    assert sweep(engine, rule) == Swept(plans=1, calibrations=0, profiling_jobs=0, idempotency_keys=0, audit_entries=0)
    assert kept(engine) == {young, example, unfinished}
    with pytest.raises(NotFoundError):
        PlanStore(engine, max_queued_jobs=5).get("a", old)


def test_a_hundred_old_plans_go_in_one_sweep(engine: Engine) -> None:
    for number in range(101):  # more than one transaction deletes
        PlanStore(engine, max_queued_jobs=200).submit("a", Submission(f"d{number}", "{}", 60.0))
    with writing(engine) as connection:
        connection.execute(update(jobs).values(status="cancelled", finished_at=datetime.now(UTC) - 2 * DAY))
    assert sweep(engine, Retention(keys=DAY, plans=DAY)).plans == 101
    assert kept(engine) == set()


def test_a_tenants_oldest_plans_make_room_for_its_newer_ones(engine: Engine) -> None:
    made = [planned(engine, f"d{number}", size=1000, days_ago=5.0 - number) for number in range(4)]
    other = planned(engine, "d9", tenant="b", size=1000, days_ago=9.0)
    # Four plans of 1,012 bytes: two must go to come below 2,500.
    assert sweep(engine, Retention(keys=99 * DAY, stored_bytes=2500)).plans == 2
    assert kept(engine) == {made[2], made[3], other}


def test_old_calibrations_and_observations_are_deleted(engine: Engine) -> None:
    store, observed = CalibrationStore(engine), ObservationStore(engine)
    told = {"used": True, "flags": [], "predicted": None, "measured": {"step_time_s": 1.5, "peak_memory_gib": None}}
    for name in ("old", "young", "example"):
        add(store, name)
        observed.add("a", {"id": name, **told}, framework="fsdp", gpu="H100")
    past = datetime.now(UTC) - 100 * DAY
    with writing(engine) as connection:
        for table in (calibrations, observations):
            connection.execute(update(table).where(table.c.id != "young").values(created_at=past))
    rule = Retention(keys=DAY, calibrations=90 * DAY, kept_ids=frozenset({"example"}))
    assert sweep(engine, rule) == replace(NOTHING_SWEPT, calibrations=1)
    assert {row.id for row in store.page("a", limit=10)} == {"young", "example"}
    assert len(observed.page("a", limit=10)) == 3
    assert sweep(engine, replace(rule, observations=90 * DAY)) == replace(NOTHING_SWEPT, observations=1)
    assert {row.id for row in observed.page("a", limit=10)} == {"young", "example"}
    deleted = {(each.by, each.action) for each in page_of_audit(engine, "a", limit=10) if each.object == "old"}
    assert {("service", "calibration.delete"), ("service", "observation.delete")} <= deleted


def measured(engine: Engine, job_id: str, *, status: str, days_ago: float) -> None:
    """A profiling job that was asked for so many days ago and, where its status says so, ended at once."""
    then = datetime.now(UTC) - days_ago * DAY
    ended = None if status in {"queued", "running"} else then
    with writing(engine) as connection:
        insert_profiling_job(
            connection, "a", Wanted(60.0), id=job_id, status=status, created_at=then, finished_at=ended
        )


def test_old_profiling_jobs_are_deleted_once_they_have_ended(engine: Engine) -> None:
    for status in ("succeeded", "failed", "cancelled", "queued", "running"):
        measured(engine, status, status=status, days_ago=31.0)
    measured(engine, "young", status="succeeded", days_ago=29.0)
    measured(engine, "example", status="succeeded", days_ago=99.0)
    assert sweep(engine, NOTHING).profiling_jobs == 0
    rule = Retention(keys=DAY, profiling_jobs=30 * DAY, kept_ids=frozenset({"example"}))
    assert sweep(engine, rule) == Swept(plans=0, calibrations=0, profiling_jobs=3, idempotency_keys=0, audit_entries=0)
    with reading(engine) as connection:
        left = set(connection.execute(select(profiling_jobs.c.id)).scalars())
    assert left == {"queued", "running", "young", "example"}
    told = {(entry.by, entry.action, entry.object) for entry in page_of_audit(engine, "a", limit=10)}
    assert told == {("service", "profiling-job.delete", gone) for gone in ("succeeded", "failed", "cancelled")}


def test_a_tenant_has_as_many_profiling_jobs_as_it_may(engine: Engine) -> None:
    for tenant in ("a", "b"):
        AgentStore(engine).register(tenant, NodeFacts("node", "H100-SXM-80GB", 8, 1, "0.1.0"))
    measured(engine, "ended", status="succeeded", days_ago=1.0)
    store = ProfilingJobStore(engine, lease_s=9.0, max_queued_jobs=9, quotas=Quotas(max_profiling_jobs=4))
    refused: list[QuotaError] = []
    barrier = threading.Barrier(5)

    def ask() -> None:
        barrier.wait()
        try:
            store.submit("a", Wanted(60.0))
        except QuotaError as error:
            refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The job that has ended counts, so that three of the five find room, although they come at once.
    assert [tuple(e.context[name] for name in ("quota", "limit", "used")) for e in refused] == [
        ("profiling_jobs", 4, 4)
    ] * 2
    assert store.submit("b", Wanted(60.0)).status == "queued"
    assert not store.remove("a", "ended")
    asked = store.submit("a", Wanted(60.0), idempotency_key="k", body_sha256="x")
    assert store.submit("a", Wanted(60.0), idempotency_key="k", body_sha256="x") == asked, "what is there costs nothing"


def test_the_audit_log_tells_what_was_swept_and_is_swept_itself(engine: Engine) -> None:
    old = planned(engine, "d1", days_ago=31.0)
    sweep(engine, Retention(keys=99 * DAY, plans=30 * DAY))
    entries = page_of_audit(engine, "a", limit=10)
    assert [(entry.by, entry.action, entry.object) for entry in entries] == [
        ("service", "plan.delete", old), ("service", "plan.create", old),
    ]  # fmt: skip
    with writing(engine) as connection:
        connection.execute(
            update(audit).where(audit.c.action == "plan.create").values(at=datetime.now(UTC) - 366 * DAY)
        )
    assert sweep(engine, Retention(keys=DAY, audit=365 * DAY)).audit_entries == 1
    assert [entry.action for entry in page_of_audit(engine, "a", limit=10)] == ["plan.delete"]


def test_an_idempotency_key_can_be_used_anew_after_its_time(engine: Engine) -> None:
    plan_id = planned(engine, "d1", days_ago=1.1)
    store = PlanStore(engine, max_queued_jobs=5)
    again = Submission("d2", "{}", 60.0, idempotency_key="d1")
    assert store.submit("a", again).id == plan_id
    assert sweep(engine, NOTHING).idempotency_keys == 1
    assert store.submit("a", again).is_new
