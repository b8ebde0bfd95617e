"""Tunings on SQLite and PostgreSQL: each plan is tried once, by agents that fit; what is cut off anywhere is taken up again."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from app.errors import NotFoundError, QuotaError, TooManyJobsError, WrongStateError
from app.service.db.agents import AgentStore, NodeFacts
from app.service.db.jobs import JobStore
from app.service.db.plan_result import encoded, split_response
from app.service.db.plans import PlanStore, Submission, write_result
from app.service.db.quotas import Quotas
from app.service.db.retention import Retention, sweep
from app.service.db.studies import study_storage
from app.service.db.tuning_trials import MAX_ATTEMPTS, TrialLeases, TrialRow
from app.service.db.tunings import TuningLimits, TuningRow, TuningStore, WantedTuning, trial_records
from app.service.tunings.conductor import Conductor
from app.service.tunings.documents import document_of
from app.service.tunings.trial_jobs import record_of_failure
from cost_models.errors import InvalidInputError
from planner.plan import plan
from planner.search.tuner import TuningStudy, forget_study
from stand_in_trial import record_of

LEASE_S = 0.3
GPU = "H200-SXM-141GB"
REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": GPU, "num_nodes": 1, "gpus_per_node": 2, "intra_node": "nvswitch"},
    "training": {"seq_length": 4096, "global_batch_size": 16, "precision": "bf16", "framework": "torchtitan"},
    "top_k": 6,
}
LIMITS = TuningLimits(max_trials=4, budget_s=600.0, gpu_hours=1.0, trial_limit_s=60.0)


@pytest.fixture(scope="session")
def response() -> dict[str, Any]:
    return plan(REQUEST)


@dataclass
class House:
    """What a service has for tunings."""

    engine: Engine
    agents: AgentStore
    tunings: TuningStore
    trials: TrialLeases
    conductor: Conductor
    plans: PlanStore
    tenant: str = ""
    plan_id: str = ""

    def agent(self, name: str = "node-1", *, gpus: int | None = 2, tenant: str | None = None) -> str:
        return self.agents.register(tenant or self.tenant, NodeFacts(name, GPU, gpus, 1, "0.1.0")).id

    def ask(self, limits: TuningLimits = LIMITS, *, agent_id: str | None = None, **options: Any) -> TuningRow:
        asked = encoded({"seed": 0})
        wanted = WantedTuning(self.plan_id, asked, "export", GPU, 2, limits, agent_id)
        return self.tunings.submit(self.tenant, wanted, **options)

    def next(self, agent_id: str, *, instance: str = "i") -> TrialRow | None:
        return self.conductor.next_trial(self.tenant, agent_id, instance=instance)

    def end(self, trial: TrialRow, agent_id: str) -> TrialRow:
        record = encoded(record_of(json.loads(trial.job), 2.0))
        ended = self.trials.finish(self.tenant, agent_id, lease=str(trial.lease), record=record, gpu_seconds=4.0)
        self.conductor.advance(self.tenant, trial.tuning_id)
        return ended

    def document(self, tuning_id: str) -> dict[str, Any]:
        return document_of(*self.conductor.read(self.tenant, tuning_id))

    def fall_silent(self, tuning_id: str) -> None:
        """As long as it takes until a trial is taken away from a silent agent: it is seen to have lapsed, and again later."""
        time.sleep(LEASE_S + 0.05)
        self.conductor.read(self.tenant, tuning_id)
        time.sleep(LEASE_S / 3 + 0.05)
        self.conductor.read(self.tenant, tuning_id)


@pytest.fixture(scope="module")
def services(lasting_engine: Engine) -> House:
    """What all tests share: opening a storage for studies takes longer than most of them."""
    engine = lasting_engine
    plans, tunings = PlanStore(engine, max_queued_jobs=5), TuningStore(engine, max_queued_jobs=3)
    trials = TrialLeases(engine, lease_s=LEASE_S, failed=record_of_failure)
    conductor = Conductor(engine, plans=plans, tunings=tunings, trials=trials)
    return House(engine, AgentStore(engine), tunings, trials, conductor, plans)


@pytest.fixture
def house(services: House, response: dict[str, Any], request: pytest.FixtureRequest) -> House:
    """For a tenant of the test's own, with a plan that has been computed."""
    tenant = request.node.name[:60]
    payload = encoded({"request": REQUEST, "calibrations": {}})
    plan_id = services.plans.submit(tenant, Submission("digest", payload, 60.0)).id
    jobs, result = JobStore(services.engine, lease_s=30.0), split_response(response)
    job = jobs.claim("me")
    assert job is not None
    jobs.finish(job, owner="me", status="succeeded", store=lambda each: write_result(each, job.key, result))
    return replace(services, tenant=tenant, plan_id=plan_id)


def test_agents_share_a_tuning_and_try_each_plan_once(house: House) -> None:
    agents = [house.agent(f"node-{number}") for number in range(2)]
    tuning_id = house.ask().id
    tried = []
    while house.tunings.get(house.tenant, tuning_id).status in ("queued", "running"):
        with ThreadPoolExecutor(2) as pool:
            taken = list(pool.map(house.next, agents))
        given = [(trial, agent) for trial, agent in zip(taken, agents, strict=True) if trial is not None]
        # Whoever finds another one choosing is told to ask again; one of the two always gets a trial while the tuning runs.
        assert given or house.tunings.get(house.tenant, tuning_id).status == "succeeded"
        for trial, agent in given:
            tried.append(trial.candidate)
            # An answer that is lost: the record is sent again, and changes nothing.
            assert house.end(trial, agent).record == house.end(trial, agent).record
    assert sorted(tried) == sorted(set(tried))
    document = house.document(tuning_id)
    assert document["status"] == "succeeded"
    assert document["stopped"]["reason"] in ("separated", "max-trials")
    assert [trial["number"] for trial in document["trials"]] == list(range(1, len(tried) + 1))
    assert document["used"] == {"seconds": 2.0 * len(tried), "trials": len(tried), "gpu_hours": 4.0 * len(tried) / 3600}
    measured = [trial["step_time_s"] for trial in document["trials"] if trial["status"] == "ok"]
    assert document["best"]["step_time_s"] == min(measured)
    # What is kept at the end is what is sent from then on.
    assert house.document(tuning_id) == document
    assert len(trial_records(house.engine, house.tenant)) == len(tried)
    assert trial_records(house.engine, "b") == []


def test_a_silent_agents_trial_is_given_again_and_ends_after_three_attempts(house: House) -> None:
    silent, other = house.agent("node-1"), house.agent("node-2")
    tuning_id = house.ask().id
    first = house.next(silent)
    assert first is not None
    assert house.trials.own(house.tenant, silent, instance="i") == first, "a lost answer is given again"
    house.fall_silent(tuning_id)
    second = house.next(other)
    assert second is not None
    assert (second.number, second.attempts, second.agent_id) == (first.number, 2, other)
    assert house.trials.heartbeat(house.tenant, silent, lease=str(first.lease)) is None
    with pytest.raises(WrongStateError):
        house.end(first, silent)
    # Late, but nobody else has begun: the record counts.
    house.fall_silent(tuning_id)
    assert house.end(second, other).status == "ended"
    for _ in range(MAX_ATTEMPTS):
        trial = house.next(silent)
        assert trial is not None
        house.fall_silent(tuning_id)
    (lost,) = [each for each in house.document(tuning_id)["trials"] if each["status"] == "crash"]
    assert lost["reason"] == "its agents fell silent 3 times while it ran"
    # Two GPUs for three leases at least, of which each was seen to run out.
    assert lost["gpu_seconds"] >= 2 * 3 * LEASE_S


def test_what_is_cut_off_while_it_is_chosen_or_told_is_taken_up(house: House) -> None:
    agent = house.agent()
    tuning_id = house.ask().id
    first = house.next(agent)
    assert first is not None
    storage, name = study_storage(house.engine), f"{house.tenant}/{tuning_id}"
    study = TuningStudy.resume(name, storage=storage)
    # A service that ended after its choice: its claim runs out, and the study holds a trial that was stored nowhere.
    lost = study.ask(owner="gone")
    assert lost is not None
    # One that ended after it had stored a record: the study does not know of it.
    record = encoded(record_of(json.loads(first.job), 2.0))
    house.trials.finish(house.tenant, agent, lease=str(first.lease), record=record, gpu_seconds=4.0)
    second = house.next(agent)
    assert second is not None
    assert second.candidate != first.candidate
    assert [(each.candidate, each.outcome.gpu_seconds) for each in study.told()] == [(first.candidate, 4.0)]
    assert [each.candidate for each in study.running()] == [second.candidate]
    # A backup holds no studies.
    forget_study(name, storage=storage)
    house.end(second, agent)
    again = TuningStudy.resume(name, storage=storage)
    assert sorted(each.candidate for each in again.told()) == sorted([first.candidate, second.candidate])
    assert house.document(tuning_id)["used"]["trials"] == 2


def test_a_cancelled_tuning_keeps_what_it_found_and_can_be_deleted(house: House) -> None:
    agent = house.agent()
    tuning_id = house.ask().id
    first = house.next(agent)
    assert first is not None
    house.end(first, agent)
    second = house.next(agent)
    assert second is not None
    with pytest.raises(NotFoundError):
        house.conductor.remove("b", tuning_id)
    assert house.conductor.remove(house.tenant, tuning_id)
    assert house.trials.heartbeat(house.tenant, agent, lease=str(second.lease)) == "cancelled"
    assert house.next(agent) is None
    document = house.document(tuning_id)
    assert (document["status"], document["stopped"]["reason"]) == ("cancelled", "cancelled")
    assert [trial["status"] for trial in document["trials"]] == ["ok", "running"]
    # A record that was under way is kept: it was paid for.
    house.end(second, agent)
    assert len(trial_records(house.engine, house.tenant)) == 2
    assert not house.conductor.remove(house.tenant, tuning_id)
    with pytest.raises(NotFoundError):
        house.tunings.get(house.tenant, tuning_id)
    with pytest.raises(KeyError):
        TuningStudy.resume(f"{house.tenant}/{tuning_id}", storage=study_storage(house.engine))
    assert trial_records(house.engine, house.tenant) == []


def test_only_so_much_and_only_what_some_agent_can_run_is_queued(house: House) -> None:
    with pytest.raises(InvalidInputError, match="no registered agent has 2"):
        house.ask()
    house.agent("small", gpus=1)
    other = house.agent("theirs", tenant="b")
    with pytest.raises(InvalidInputError, match=f"there is no agent {other}"):
        house.ask(agent_id=other)
    agent = house.agent()
    first, again = (house.ask(idempotency_key="k", body_sha256="1" * 64) for _ in range(2))
    assert again.id == first.id
    with pytest.raises(InvalidInputError):
        house.ask(idempotency_key="k", body_sha256="2" * 64)
    ids = [first.id, house.ask().id, house.ask(agent_id=agent).id]
    with pytest.raises(TooManyJobsError):
        house.ask()
    few = TuningStore(house.engine, max_queued_jobs=9, quotas=Quotas(max_tunings=3))
    with pytest.raises(QuotaError):
        few.submit(house.tenant, first.wanted)
    assert [each.id for each in house.tunings.page(house.tenant, limit=9)] == ids[::-1]
    # The age of a tuning counts from its end.
    house.conductor.remove(house.tenant, first.id)
    rule = Retention(keys=timedelta(days=1), tunings=timedelta(seconds=0), kept_ids=frozenset({ids[1]}))
    assert sweep(house.engine, rule).tunings >= 1
    assert [each.id for each in house.tunings.page(house.tenant, limit=9)] == ids[:0:-1]
    assert house.tunings.page("b", limit=9) == []
