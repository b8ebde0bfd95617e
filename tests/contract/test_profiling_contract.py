"""Profiling jobs on SQLite and PostgreSQL: given to agents that fit, kept by heartbeats, ended once, given again where an agent is gone."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from app.errors import NotFoundError, TooManyAgentsError, TooManyJobsError, WrongStateError
from app.service.db.agents import AgentStore, NodeFacts
from app.service.db.profiling_jobs import MAX_ATTEMPTS, ProfilingJobStore, Wanted
from app.service.db.profiling_leases import ProfilingLeases
from cost_models.errors import InvalidInputError

LEASE_S = 0.3
PATIENCE_S = LEASE_S / 3
H100 = NodeFacts("node-1", "H100-SXM-80GB", 8, 1, "0.1.0")
ANY = Wanted(60.0)


@pytest.fixture
def agents(engine: Engine) -> AgentStore:
    return AgentStore(engine)


@pytest.fixture
def jobs(engine: Engine) -> ProfilingJobStore:
    return ProfilingJobStore(engine, lease_s=LEASE_S, max_queued_jobs=8)


@pytest.fixture
def leases(engine: Engine, jobs: ProfilingJobStore) -> ProfilingLeases:
    return ProfilingLeases(engine, jobs)


def node(name: str, **changes: object) -> NodeFacts:
    return NodeFacts(**{**{f: getattr(H100, f) for f in NodeFacts.__slots__}, "name": name, **changes})  # type: ignore[arg-type]


def fall_silent(jobs: ProfilingJobStore, job_id: str) -> None:
    """As long as it takes until the job of a silent agent is given up: it is seen to have lapsed, and seen again later."""
    time.sleep(LEASE_S + 0.05)
    jobs.get("a", job_id)
    time.sleep(PATIENCE_S + 0.05)


def test_an_agent_that_registers_again_keeps_its_id(agents: AgentStore) -> None:
    first = agents.register("a", H100)
    again = agents.register("a", node("node-1", gpu="A100-SXM-80GB"))
    assert (again.id, agents.get("a", first.id).facts.gpu) == (first.id, "A100-SXM-80GB")
    assert agents.register("b", H100).id != first.id
    with pytest.raises(NotFoundError):
        agents.get("b", first.id)


def test_a_tenant_has_only_so_many_agents(engine: Engine) -> None:
    few = AgentStore(engine, most=2)
    few.register("a", H100)
    few.register("a", node("node-2"))
    few.register("a", node("node-2"))
    few.register("b", H100)
    with pytest.raises(TooManyAgentsError):
        few.register("a", node("node-3"))


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (Wanted(60.0, gpu="H100-SXM-80GB"), True),
        (Wanted(60.0, gpu="H100-SXM-80GB", gpus_per_node=8, num_nodes=1), True),
        (Wanted(60.0, gpu="A100-SXM-80GB"), False),
        (Wanted(60.0, gpus_per_node=4), False),
        (Wanted(60.0, num_nodes=2), False),
        (Wanted(60.0, agent_id="agent-of-somebody"), False),
    ],
)
def test_only_what_some_agent_can_do_is_queued(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases, wanted: Wanted, fits: bool
) -> None:
    agent = agents.register("a", H100)
    # Neither another tenant's agent nor one without a shape counts.
    agents.register("b", node("other", gpu="A100-SXM-80GB", gpus_per_node=4, num_nodes=2))
    agents.register("a", node("by name only", gpu="A100-SXM-80GB", gpus_per_node=None, num_nodes=2))
    if not fits:
        with pytest.raises(InvalidInputError):
            jobs.submit("a", wanted)
        assert jobs.page("a", limit=10) == []
        return
    job = jobs.submit("a", wanted)
    assert (job.status, job.agents_in_touch) == ("queued", 1)
    taken = leases.lease("a", agent.id, instance="i")
    assert taken is not None
    assert (taken.id, taken.status, taken.attempts, taken.agent_id) == (job.id, "running", 1, agent.id)


def test_jobs_are_given_out_in_order_and_each_once(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases
) -> None:
    ids = [agents.register("a", node(f"node-{number}")).id for number in range(6)]
    asked = [jobs.submit("a", ANY).id for _ in range(4)]
    for_one = jobs.submit("a", Wanted(60.0, agent_id=ids[5])).id
    with ThreadPoolExecutor(max_workers=5) as pool:
        taken = list(pool.map(lambda agent: leases.lease("a", agent, instance="i"), ids[:5]))
    assert sorted(job.id for job in taken if job is not None) == sorted(asked)
    assert sum(job is None for job in taken) == 1, "the fifth job is for another agent"
    own = leases.lease("a", ids[5], instance="i")
    assert own is not None
    assert own.id == for_one


def test_a_request_for_a_lease_may_be_repeated(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases
) -> None:
    agent = agents.register("a", H100).id
    jobs.submit("a", ANY)
    first, again = (leases.lease("a", agent, instance="one run") for _ in range(2))
    assert first is not None
    assert again is not None
    assert (again.lease, again.attempts) == (first.lease, 1)
    assert leases.lease("a", agent, instance="another run") is None


def test_heartbeats_keep_a_job(agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases) -> None:
    agent, other = (agents.register("a", node(name)).id for name in ("node-1", "node-2"))
    jobs.submit("a", ANY)
    job = leases.lease("a", agent, instance="i")
    assert job is not None
    end_at = time.monotonic() + 3 * LEASE_S
    while time.monotonic() < end_at:
        assert leases.heartbeat("a", agent, lease=str(job.lease), parts_done=7) == "running"
        assert leases.lease("a", other, instance="i") is None
        time.sleep(LEASE_S / 6)
    assert (jobs.get("a", job.id).attempts, jobs.get("a", job.id).parts_done) == (1, 7)


def test_a_silent_agents_job_goes_to_another_and_its_result_is_refused(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases
) -> None:
    silent, other = (agents.register("a", node(name)).id for name in ("node-1", "node-2"))
    job_id = jobs.submit("a", ANY).id
    first = leases.lease("a", silent, instance="i")
    fall_silent(jobs, job_id)
    second = leases.lease("a", other, instance="i")
    assert first is not None
    assert second is not None
    assert (second.id, second.attempts, second.agent_id) == (job_id, 2, other)
    assert leases.heartbeat("a", silent, lease=str(first.lease), parts_done=None) is None
    with pytest.raises(WrongStateError):
        leases.finish("a", silent, lease=str(first.lease), status="succeeded", calibration_id="late")
    with pytest.raises(WrongStateError):
        leases.give_back("a", silent, lease=str(first.lease))
    ended = leases.finish("a", other, lease=str(second.lease), status="succeeded", calibration_id="good")
    assert (ended.status, ended.calibration_id) == ("succeeded", "good")


def test_after_an_outage_a_live_agent_keeps_its_job(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases
) -> None:
    """The service was away for longer than the lease. Whoever asks first finds every lease over, and takes none away at once."""
    agent, other = (agents.register("a", node(name)).id for name in ("node-1", "node-2"))
    jobs.submit("a", ANY)
    job = leases.lease("a", agent, instance="i")
    assert job is not None
    time.sleep(LEASE_S + 0.05)
    assert leases.lease("a", other, instance="i") is None
    assert leases.heartbeat("a", agent, lease=str(job.lease), parts_done=None) == "running"
    time.sleep(PATIENCE_S + 0.05)
    assert leases.lease("a", other, instance="i") is None
    assert jobs.get("a", job.id).attempts == 1


def test_a_late_agent_goes_on_and_its_result_counts_while_nobody_else_has_begun(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases
) -> None:
    agent = agents.register("a", H100).id
    job_id = jobs.submit("a", ANY).id
    job = leases.lease("a", agent, instance="i")
    assert job is not None
    fall_silent(jobs, job_id)
    assert jobs.get("a", job_id).status == "queued"
    assert leases.heartbeat("a", agent, lease=str(job.lease), parts_done=3) == "running"
    fall_silent(jobs, job_id)
    assert jobs.get("a", job_id).status == "queued"
    ended = leases.finish("a", agent, lease=str(job.lease), status="succeeded", calibration_id="late")
    assert (ended.status, ended.calibration_id, ended.attempts) == ("succeeded", "late", 1)


def test_a_job_whose_agents_always_fall_silent_fails(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases
) -> None:
    agent = agents.register("a", H100).id
    job_id = jobs.submit("a", ANY).id
    for attempt in range(MAX_ATTEMPTS):
        job = leases.lease("a", agent, instance=f"run {attempt}")
        assert job is not None
        assert job.attempts == attempt + 1
        fall_silent(jobs, job_id)
    failed = jobs.get("a", job_id)
    assert failed.status == "failed"
    error = json.loads(str(failed.error))
    assert (error["code"], error["detail"]) == ("worker-lost", "the agents that ran this job fell silent 3 times")


def test_a_result_may_be_sent_twice_but_not_changed(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases
) -> None:
    agent = agents.register("a", H100).id
    jobs.submit("a", ANY)
    job = leases.lease("a", agent, instance="i")
    assert job is not None
    lease = str(job.lease)
    first, again = (
        leases.finish("a", agent, lease=lease, status="succeeded", calibration_id="found") for _ in range(2)
    )
    assert first == again
    assert leases.heartbeat("a", agent, lease=lease, parts_done=None) == "succeeded"
    for status, calibration_id in (("failed", None), ("succeeded", "another")):
        with pytest.raises(WrongStateError):
            leases.finish("a", agent, lease=lease, status=status, calibration_id=calibration_id)  # type: ignore[arg-type]


def test_a_job_that_is_given_back_costs_no_attempt(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases
) -> None:
    agent = agents.register("a", H100).id
    jobs.submit("a", ANY)
    for run in ("first", "second"):
        job = leases.lease("a", agent, instance=run)
        assert job is not None
        assert job.attempts == 1
        assert leases.give_back("a", agent, lease=str(job.lease)).status == "queued"
        assert leases.heartbeat("a", agent, lease=str(job.lease), parts_done=None) is None


def test_a_cancelled_job_is_not_measured_and_an_ended_one_can_be_deleted(
    agents: AgentStore, jobs: ProfilingJobStore, leases: ProfilingLeases
) -> None:
    agent = agents.register("a", H100).id
    running, queued = (jobs.submit("a", ANY).id for _ in range(2))
    job = leases.lease("a", agent, instance="i")
    assert job is not None
    with pytest.raises(NotFoundError):
        jobs.remove("b", running)
    assert jobs.remove("a", running)
    assert jobs.remove("a", queued)
    assert leases.heartbeat("a", agent, lease=str(job.lease), parts_done=None) == "cancelled"
    with pytest.raises(WrongStateError):
        leases.finish("a", agent, lease=str(job.lease), status="succeeded", calibration_id="found")
    assert leases.lease("a", agent, instance="i") is None
    assert not jobs.remove("a", running)
    with pytest.raises(NotFoundError):
        jobs.get("a", running)


def test_an_idempotency_key_makes_one_job(agents: AgentStore, jobs: ProfilingJobStore) -> None:
    agents.register("a", H100)
    agents.register("b", H100)
    first, again = (jobs.submit("a", ANY, idempotency_key="k", body_sha256="1" * 64) for _ in range(2))
    assert first.id == again.id
    assert jobs.submit("b", ANY, idempotency_key="k", body_sha256="2" * 64).id != first.id
    with pytest.raises(InvalidInputError):
        jobs.submit("a", ANY, idempotency_key="k", body_sha256="2" * 64)


def test_a_tenant_may_ask_only_so_much_at_a_time(agents: AgentStore, jobs: ProfilingJobStore) -> None:
    agents.register("a", H100)
    for _ in range(8):
        jobs.submit("a", ANY)
    with pytest.raises(TooManyJobsError):
        jobs.submit("a", ANY)


def test_pages_of_profiling_jobs_follow_one_another(agents: AgentStore, jobs: ProfilingJobStore) -> None:
    agents.register("a", H100)
    made = [jobs.submit("a", ANY) for _ in range(5)]
    first = jobs.page("a", limit=3)
    second = jobs.page("a", limit=3, after=(first[-1].created_at, first[-1].id))
    assert [job.id for job in (*first, *second)] == [job.id for job in reversed(made)]
    assert jobs.page("b", limit=3) == []
    assert jobs.page("a", limit=3, status="succeeded") == []
