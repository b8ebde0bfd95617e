"""What the storage promises, on every database it supports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, select, update

from app.errors import NotFoundError, QuotaError, TooManyJobsError, UnavailableError, WrongStateError
from app.service.db import tables
from app.service.db.calibrations import CalibrationStore
from app.service.db.engine import build_engine, now_of, reading, writing
from app.service.db.jobs import JobKey, JobStore
from app.service.db.keys import create_key, find_key, list_keys, note_use, page_of_keys, revoke_key
from app.service.db.migrate import VERSION_TABLE, is_current, upgrade
from app.service.db.plan_result import PlanResult
from app.service.db.plans import PlanStore, Submission, write_result
from app.service.db.tables import job_events, jobs, keys, metadata
from cost_models.errors import InvalidInputError
from planner.search.progress import Progress

RESULT = PlanResult.of_texts(response='{"id":"x"}', headline='{"num_plans":2}', ranked=['{"rank":1}', '{"rank":2}'])


@pytest.fixture
def plans(engine: Engine) -> PlanStore:
    return PlanStore(engine, max_queued_jobs=5)


@pytest.fixture
def job_store(engine: Engine) -> JobStore:
    return JobStore(engine, lease_s=30.0)


def asked(digest: str, *, key: str | None = None, body: str = "b") -> Submission:
    return Submission(digest, '{"request":{}}', 60.0, idempotency_key=key, body_sha256=body)


def finished(plans: PlanStore, job_store: JobStore, tenant: str, digest: str) -> str:
    plan_id = plans.submit(tenant, asked(digest)).id
    job = job_store.claim("me")
    assert job is not None
    assert job_store.finish(
        job, owner="me", status="succeeded", store=lambda connection: write_result(connection, job.key, RESULT)
    )
    return plan_id


class TestMigrations:
    def test_they_make_exactly_the_tables_that_the_code_uses(self, engine: Engine) -> None:
        with reading(engine) as connection:
            context = MigrationContext.configure(
                connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
            )
            assert compare_metadata(context, metadata) == []
        assert VERSION_TABLE in inspect(engine).get_table_names()
        assert "alembic_version" not in inspect(engine).get_table_names()

    def test_upgrading_twice_changes_nothing(self, engine: Engine) -> None:
        assert is_current(engine)
        assert upgrade(engine) == upgrade(engine)

    def test_an_empty_database_is_not_current(self, database_url: str) -> None:
        empty = build_engine(database_url)
        assert not is_current(empty)
        empty.dispose()

    def test_a_database_of_a_newer_release_is_refused(self, engine: Engine) -> None:
        with writing(engine) as connection:
            connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        with pytest.raises(UnavailableError, match="9999"):
            upgrade(engine)

    def test_every_row_has_a_tenant(self) -> None:
        # A process that runs jobs belongs to nobody: it runs those of all tenants.
        tables = [table for name, table in metadata.tables.items() if name != "workers"]
        assert all("tenant" in table.primary_key.columns for table in tables)


class TestPlans:
    def test_a_new_request_makes_a_queued_plan(self, plans: PlanStore) -> None:
        submitted = plans.submit("a", asked("d1"))
        assert submitted.is_new
        plan = plans.get("a", submitted.id)
        assert (plan.status, plan.request_digest, plan.response) == ("queued", "d1", None)
        assert plan.created_at.tzinfo is UTC

    def test_the_same_digest_finds_the_same_plan(self, plans: PlanStore) -> None:
        first = plans.submit("a", asked("d1"))
        again = plans.submit("a", asked("d1"))
        assert (again.id, again.is_new) == (first.id, False)
        assert plans.submit("a", asked("d2")).id != first.id

    def test_a_failed_plan_does_not_answer_its_digest(self, plans: PlanStore, job_store: JobStore) -> None:
        first = plans.submit("a", asked("d1"))
        job = job_store.claim("me")
        assert job is not None
        job_store.finish(job, owner="me", status="failed", error={"code": "x"})
        assert plans.get("a", first.id).error == '{"code": "x"}'
        assert plans.submit("a", asked("d1")).is_new

    def test_an_idempotency_key_finds_its_plan_and_refuses_another_body(self, plans: PlanStore) -> None:
        first = plans.submit("a", asked("d1", key="k", body="one"))
        assert plans.submit("a", asked("d1", key="k", body="one")).id == first.id
        with pytest.raises(InvalidInputError) as caught:
            plans.submit("a", asked("d2", key="k", body="two"))
        assert caught.value.problems[0].code == "idempotency-key-reused"
        assert plans.submit("b", asked("d2", key="k", body="two")).is_new

    def test_tenants_share_nothing(self, plans: PlanStore, job_store: JobStore) -> None:
        mine = finished(plans, job_store, "a", "d1")
        assert plans.submit("b", asked("d1")).id != mine
        for read in (lambda: plans.get("b", mine), lambda: plans.ranked("b", mine, 1)):
            with pytest.raises(NotFoundError):
                read()
        with pytest.raises(NotFoundError):
            job_store.request_cancel(JobKey("b", mine))
        assert mine not in [plan.id for plan in plans.page("b", limit=10)]
        with pytest.raises(NotFoundError):
            plans.delete("b", mine)
        assert plans.get("a", mine).status == "succeeded"

    def test_results_and_ranks_are_read_back_as_they_were_written(self, plans: PlanStore, job_store: JobStore) -> None:
        plan_id = finished(plans, job_store, "a", "d1")
        plan = plans.get("a", plan_id)
        assert (plan.status, plan.response, plan.headline) == ("succeeded", '{"id":"x"}', RESULT.headline)
        assert plans.ranked("a", plan_id, 2) == '{"rank":2}'
        with pytest.raises(NotFoundError):
            plans.ranked("a", plan_id, 3)

    def test_pages_cover_everything_once_newest_first(self, plans: PlanStore) -> None:
        made = [plans.submit("a", asked(f"d{i}")).id for i in range(5)]
        seen, after = [], None
        for _ in range(4):  # two, two, one and none
            page = plans.page("a", limit=2, after=after)
            seen += [plan.id for plan in page]
            after = (page[-1].created_at, page[-1].id) if page else after
        assert seen == made[::-1]
        assert page == []

    def test_plans_of_one_moment_are_in_the_order_of_their_ids(self, engine: Engine, plans: PlanStore) -> None:
        made = sorted(plans.submit("a", asked(f"d{i}")).id for i in range(3))
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        with writing(engine) as connection:
            connection.execute(update(tables.plans).values(created_at=moment))
        assert [plan.id for plan in plans.page("a", limit=10)] == made[::-1]
        assert [plan.id for plan in plans.page("a", limit=10, after=(moment, made[1]))] == [made[0]]
        assert plans.page("a", limit=10, after=(moment, made[0])) == []
        # The same moment by the clocks of Berlin.
        berlin = moment.astimezone(timezone(timedelta(hours=1)))
        assert [plan.id for plan in plans.page("a", limit=10, after=(berlin, made[1]))] == [made[0]]

    def test_a_page_can_hold_one_status(self, plans: PlanStore, job_store: JobStore) -> None:
        done = finished(plans, job_store, "a", "d1")
        plans.submit("a", asked("d2"))
        assert [plan.id for plan in plans.page("a", limit=10, status="succeeded")] == [done]

    def test_too_many_unfinished_jobs_are_refused(self, plans: PlanStore) -> None:
        for i in range(5):
            plans.submit("a", asked(f"d{i}"))
        with pytest.raises(TooManyJobsError):
            plans.submit("a", asked("d5"))
        assert plans.submit("b", asked("d5")).is_new

    def test_deleting_removes_all_traces(self, engine: Engine, plans: PlanStore, job_store: JobStore) -> None:
        plan_id = finished(plans, job_store, "a", "d1")
        plans.delete("a", plan_id)
        with reading(engine) as connection:
            left = {name: connection.execute(select(table)).all() for name, table in metadata.tables.items()}
        told = [row.action for row in sorted(left.pop("audit"), key=lambda row: row.at)]
        assert told == ["plan.create", "plan.delete"], "the log says that it was there, and nothing of what it said"
        assert not any(left.values())

    def test_equal_requests_at_the_same_time_make_one_plan(self, plans: PlanStore) -> None:
        ids: list[str] = []
        together(8, lambda: ids.append(plans.submit("a", asked("d1")).id))
        assert len(ids) == 8
        assert len(set(ids)) == 1


def together(count: int, action: Callable[[], object]) -> None:
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait()
        action()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class TestJobs:
    def test_the_oldest_is_claimed_first_and_each_only_once(self, plans: PlanStore, job_store: JobStore) -> None:
        ids = [plans.submit("a", asked(f"d{i}")).id for i in range(2)]
        claimed = [job_store.claim("me"), job_store.claim("me"), job_store.claim("me")]
        assert [job and job.key.id for job in claimed] == [*ids, None]

    def test_two_who_claim_at_once_get_different_jobs(self, plans: PlanStore, job_store: JobStore) -> None:
        for i in range(4):
            plans.submit("a", asked(f"d{i}"))
        claimed: list[str] = []

        def claim() -> None:
            job = job_store.claim("me")
            if job is not None:
                claimed.append(job.key.id)

        together(4, claim)
        assert len(set(claimed)) == len(claimed) >= 1

    def test_events_are_numbered_from_one(self, plans: PlanStore, job_store: JobStore) -> None:
        plan_id = plans.submit("a", asked("d1")).id
        key = JobKey("a", plan_id)
        job = job_store.claim("me")
        assert job is not None
        job_store.add_progress(key, Progress(evaluated=10.0, best_s=2.0, bound_s=1.5), owner="me")
        job_store.finish(job, owner="me", status="succeeded")
        events = job_store.events_after(key, 0)
        assert [(e.seq, e.type) for e in events] == [(1, "queued"), (2, "started"), (3, "progress"), (4, "succeeded")]
        assert (events[2].evaluated, events[2].best_s, events[2].bound_s) == (10.0, 2.0, 1.5)
        assert [e.seq for e in job_store.events_after(key, 2)] == [3, 4]

    def test_a_queued_job_is_cancelled_at_once(self, plans: PlanStore, job_store: JobStore) -> None:
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        assert job_store.request_cancel(key) == "cancelled"
        assert job_store.claim("me") is None
        with pytest.raises(WrongStateError):
            job_store.request_cancel(key)

    def test_a_running_job_is_asked_to_stop(self, plans: PlanStore, job_store: JobStore) -> None:
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        job_store.claim("me")
        assert job_store.request_cancel(key) == "running"
        assert job_store.cancel_requests("me") == [key]
        assert job_store.cancel_requests("you") == []

    def test_a_lapsed_lease_queues_the_job_again_and_then_fails_it(self, engine: Engine, plans: PlanStore) -> None:
        lapsing = JobStore(engine, lease_s=0.0)
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        lost = lapsing.claim("gone")
        assert lost is not None
        assert lapsing.recover(lapsing.lapsed()) == 1
        assert lapsing.status(key) == "queued"
        assert not lapsing.finish(lost, owner="gone", status="succeeded")
        lapsing.claim("gone too")
        assert lapsing.recover(lapsing.lapsed()) == 1
        plan = plans.get("a", key.id)
        assert plan.status == "failed"
        assert "worker-lost" in str(plan.error)

    def test_a_renewed_lease_does_not_lapse(self, engine: Engine, plans: PlanStore, job_store: JobStore) -> None:
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        job_store.claim("me")
        past = datetime(2020, 1, 1, tzinfo=UTC)
        with writing(engine) as connection:
            connection.execute(update(jobs).values(lease_until=past))
        lapsed = job_store.lapsed()
        assert lapsed == {key: past}
        assert job_store.renew("me", [key]) == []
        assert job_store.recover(lapsed) == 0
        assert job_store.lapsed() == {}
        assert job_store.status(key) == "running"

    @pytest.mark.parametrize(("left_s", "is_renewed"), [(19.0, True), (21.0, False)])
    def test_a_lease_is_renewed_once_a_third_of_it_has_passed(
        self, engine: Engine, plans: PlanStore, job_store: JobStore, left_s: float, is_renewed: bool
    ) -> None:
        """Of 30 s; until then a look costs no write. Somebody else's lease is left alone."""
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        other = JobKey("b", plans.submit("b", asked("d1")).id)
        job_store.claim("me")
        job_store.claim("you")
        before = datetime.now(UTC) + timedelta(seconds=left_s)
        with writing(engine) as connection:
            connection.execute(update(jobs).values(lease_until=before))
        assert job_store.renew("me", [key, other]) == [other]
        with reading(engine) as connection:
            leases = {row.id: row.lease_until for row in connection.execute(select(jobs.c.id, jobs.c.lease_until))}
        assert leases[other.id] == before
        assert (leases[key.id] > before + timedelta(seconds=5)) == is_renewed
        assert leases[key.id] <= datetime.now(UTC) + timedelta(seconds=30)

    def test_a_process_that_lost_its_job_hears_of_it_and_writes_nothing(
        self, engine: Engine, plans: PlanStore, job_store: JobStore
    ) -> None:
        lapsing = JobStore(engine, lease_s=0.0)
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        lapsing.claim("slow")
        lapsing.recover(lapsing.lapsed())
        job_store.claim("next")
        assert job_store.renew("slow", [key]) == [key]
        before = len(job_store.events_after(key, 0))
        job_store.add_progress(key, Progress(5.0, best_s=2.0, bound_s=1.0), owner="slow")
        assert len(job_store.events_after(key, 0)) == before
        job_store.add_progress(key, Progress(5.0, best_s=2.0, bound_s=1.0), owner="next")
        assert [event.type for event in job_store.events_after(key, 0)][before:] == ["progress"]

    def test_only_jobs_that_wait_are_queued(self, plans: PlanStore, job_store: JobStore) -> None:
        assert not job_store.has_queued()
        plans.submit("a", asked("d1"))
        assert job_store.has_queued()
        job_store.claim("me")
        assert not job_store.has_queued()

    def test_a_job_is_tried_twice_and_three_jobs_at_a_time_are_recovered(
        self, engine: Engine, plans: PlanStore
    ) -> None:
        lapsing = JobStore(engine, lease_s=0.0)
        keys = [JobKey("a", plans.submit("a", asked(f"d{number}")).id) for number in range(3)]
        for expected in ("queued", "failed"):
            for _ in keys:
                assert lapsing.claim("gone") is not None
            assert lapsing.recover(lapsing.lapsed()) == 3
            assert [lapsing.status(key) for key in keys] == [expected] * 3
        assert "disappeared 2 times" in str(plans.get("a", keys[0].id).error)

    def test_a_cancelled_job_whose_process_is_gone_is_cancelled(self, engine: Engine, plans: PlanStore) -> None:
        lapsing = JobStore(engine, lease_s=0.0)
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        lapsing.claim("gone")
        lapsing.request_cancel(key)
        lapsing.recover(lapsing.lapsed())
        assert lapsing.status(key) == "cancelled"

    def test_release_queues_what_was_running(self, plans: PlanStore, job_store: JobStore) -> None:
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        job_store.claim("me")
        job_store.release("me")
        assert job_store.status(key) == "queued"
        again = job_store.claim("you")
        assert again is not None
        assert again.key == key

    def test_a_release_does_not_count_as_a_failed_attempt(self, engine: Engine, plans: PlanStore) -> None:
        """A service that is restarted often releases a job each time; the job may still lose one worker, and not two."""
        lapsing = JobStore(engine, lease_s=0.0)
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        for number in range(5):
            assert lapsing.claim(f"process {number}") is not None
            lapsing.release(f"process {number}")
        lapsing.claim("gone")
        lapsing.recover(lapsing.lapsed())
        assert lapsing.status(key) == "queued"
        lapsing.claim("gone too")
        lapsing.release("somebody else")
        lapsing.recover(lapsing.lapsed())
        assert lapsing.status(key) == "failed"

    def test_a_result_that_cannot_be_stored_leaves_the_job_running(
        self, engine: Engine, plans: PlanStore, job_store: JobStore
    ) -> None:
        key = JobKey("a", plans.submit("a", asked("d1")).id)
        job = job_store.claim("me")
        assert job is not None

        def broken(_connection: object) -> None:
            raise RuntimeError

        with pytest.raises(RuntimeError):
            job_store.finish(job, owner="me", status="succeeded", store=broken)
        assert job_store.status(key) == "running"
        with reading(engine) as connection:
            types = connection.execute(select(job_events.c.type).order_by(job_events.c.seq)).scalars().all()
        assert types == ["queued", "started"]

    def test_counts_are_by_status(self, plans: PlanStore, job_store: JobStore) -> None:
        finished(plans, job_store, "a", "d1")
        plans.submit("a", asked("d2"))
        assert job_store.counts() == {"succeeded": 1, "queued": 1}


class TestKeys:
    def test_a_key_says_whose_it_is_until_it_is_revoked(self, engine: Engine) -> None:
        key, secret = create_key(engine, tenant="a", name="laptop")
        found = find_key(engine, secret)
        assert found is not None
        assert (found[0].tenant, found[0].scopes) == ("a", ("read", "plan", "profile"))
        assert len(secret.removeprefix("mw_")) == 40  # 160 random bits in hexadecimal
        assert find_key(engine, secret + "x") is None
        revoke_key(engine, key.id)
        assert find_key(engine, secret) is None
        with pytest.raises(NotFoundError):
            revoke_key(engine, key.id)

    def test_the_secret_is_stored_nowhere(self, engine: Engine) -> None:
        _, secret = create_key(engine, tenant="a", name="laptop")
        with reading(engine) as connection:
            rows = connection.exec_driver_sql("SELECT * FROM keys").all()
        assert secret not in str(rows)
        assert [(key.tenant, key.name) for key in list_keys(engine)] == [("a", "laptop")]

    def test_a_key_ends_when_its_time_is_over(self, engine: Engine) -> None:
        _, secret = create_key(engine, tenant="a", name="short", expires_in_s=1.0)
        assert find_key(engine, secret) is not None
        time.sleep(1.05)
        assert find_key(engine, secret) is None

    def test_the_use_of_a_key_is_written_at_most_once_a_minute(self, engine: Engine) -> None:
        key, secret = create_key(engine, tenant="a", name="laptop")
        other, _ = create_key(engine, tenant="a", name="unused")
        noon = key.created_at
        for seconds, noted in ((0, 0), (59, 0), (60, 60), (119, 60), (121, 121)):
            found = find_key(engine, secret)
            assert found is not None
            note_use(engine, found[0], now=noon + timedelta(seconds=seconds))
            note_use(engine, key, now=noon + timedelta(seconds=seconds))  # as a process that last read the key before
            uses = {each.id: each.last_used_at for each in list_keys(engine)}
            assert uses == {key.id: noon + timedelta(seconds=noted), other.id: None}

    def test_a_tenant_pages_through_and_revokes_its_own_keys_only(self, engine: Engine) -> None:
        mine = [create_key(engine, tenant="a", name=str(number))[0].id for number in range(3)]
        theirs, _ = create_key(engine, tenant="b", name="theirs")
        first = page_of_keys(engine, "a", limit=2)
        rest = page_of_keys(engine, "a", limit=2, after=(first[-1].created_at, first[-1].id))
        assert sorted(key.id for key in (*first, *rest)) == sorted(mine)
        with pytest.raises(NotFoundError):
            revoke_key(engine, theirs.id, tenant="a")
        assert page_of_keys(engine, "b", limit=2)[0].revoked_at is None

    def test_a_tenant_has_so_many_keys_and_no_more_until_old_ones_are_forgotten(self, engine: Engine) -> None:
        for name in ("first", "second"):
            create_key(engine, tenant="a", name=name, most=2)
        create_key(engine, tenant="b", name="theirs", most=2)
        first, second = (key for key in list_keys(engine) if key.tenant == "a")
        with pytest.raises(QuotaError) as refused:
            create_key(engine, tenant="a", name="third", most=2)
        assert {name: refused.value.context[name] for name in ("quota", "limit", "used")} == {
            "quota": "keys", "limit": 2, "used": 2,
        }  # fmt: skip
        revoke_key(engine, first.id)
        with pytest.raises(QuotaError):
            create_key(engine, tenant="a", name="third", most=2)
        for days, made in ((89, False), (91, True)):
            with writing(engine) as connection:
                then = now_of(connection) - timedelta(days=days)
                connection.execute(update(keys).where(keys.c.id == first.id).values(revoked_at=then))
            if not made:
                with pytest.raises(QuotaError):
                    create_key(engine, tenant="a", name="third", most=2)
        create_key(engine, tenant="a", name="third", most=2)
        assert [key.name for key in page_of_keys(engine, "a", limit=9)] == ["third", second.name]
        assert len(page_of_keys(engine, "b", limit=9)) == 1

    @pytest.mark.parametrize(
        "bad",
        [
            {"name": ""}, {"name": "x" * 81}, {"name": "two\nlines"}, {"name": "nul\0"}, {"name": "\ud800"},
            {"tenant": "t" * 65}, {"tenant": ""}, {"expires_in_s": 0.0}, {"expires_in_s": 1e12},
        ],
    )  # fmt: skip
    def test_what_no_column_can_hold_is_refused(self, engine: Engine, bad: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError):
            create_key(engine, **{"tenant": "a", "name": "laptop", **bad})
        assert list_keys(engine) == []


class TestCalibrations:
    def test_storing_twice_is_storing_once(self, engine: Engine) -> None:
        store = CalibrationStore(engine)
        for _ in range(2):
            store.add("a", "id1", document='{"a":1}', gpu="H100", gpus_per_node=8)
        assert [row.id for row in store.page("a", limit=10)] == ["id1"]
        assert store.document("a", "id1") == '{"a":1}'
        with pytest.raises(NotFoundError):
            store.document("b", "id1")
        assert store.page("b", limit=10) == []

    def test_auto_is_the_newest_of_this_gpu_and_node_shape(self, engine: Engine) -> None:
        store = CalibrationStore(engine)
        store.add("a", "old", document="{}", gpu="H100", gpus_per_node=8)
        store.add("a", "new", document="{}", gpu="H100", gpus_per_node=8)
        store.add("a", "small", document="{}", gpu="H100", gpus_per_node=4)
        store.add("a", "example", document="{}", gpu="H100", gpus_per_node=None)
        assert store.newest("a", gpu="H100", gpus_per_node=8) == "new"
        assert store.newest("a", gpu="A100", gpus_per_node=8) is None
        assert store.newest("b", gpu="H100", gpus_per_node=8) is None
