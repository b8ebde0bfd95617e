"""Tunings on SQLite and PostgreSQL: each plan is tried once, by agents that fit; what is cut off anywhere is taken up again."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
    plan_id: str

    def agent(self, name: str = "node-1", *, gpus: int | None = 2, tenant: str = "a") -> str:
        return self.agents.register(tenant, NodeFacts(name, GPU, gpus, 1, "0.1.0")).id

    def ask(self, limits: TuningLimits = LIMITS, *, agent_id: str | None = None, **options: Any) -> TuningRow:
        asked = encoded({"seed": 0, "target": "torchtitan"})
        wanted = WantedTuning(self.plan_id, asked, "export", GPU, 2, limits, agent_id)
        return self.tunings.submit("a", wanted, **options)

    def next(self, agent_id: str, *, instance: str = "i") -> TrialRow | None:
        return self.conductor.next_trial("a", agent_id, instance=instance)

    def end(self, trial: TrialRow, agent_id: str) -> TrialRow:
        record = encoded(record_of(json.loads(trial.job), 2.0))
        ended = self.trials.finish("a", agent_id, lease=str(trial.lease), record=record, gpu_seconds=4.0)
        self.conductor.advance("a", trial.tuning_id)
        return ended

    def document(self, tuning_id: str) -> dict[str, Any]:
        return document_of(*self.conductor.read("a", tuning_id))

    def fall_silent(self, tuning_id: str) -> None:
        """As long as it takes until a trial is taken away from a silent agent: it is seen to have lapsed, and again later."""
        time.sleep(LEASE_S + 0.05)
        self.conductor.read("a", tuning_id)
        time.sleep(LEASE_S / 3 + 0.05)
        self.conductor.read("a", tuning_id)


@pytest.fixture
def house(engine: Engine, response: dict[str, Any]) -> House:
    """With a plan that has been computed."""
    plans, jobs = PlanStore(engine, max_queued_jobs=5), JobStore(engine, lease_s=30.0)
    payload = encoded({"request": REQUEST, "calibrations": {}})
    plan_id = plans.submit("a", Submission("digest", payload, 60.0)).id
    job = jobs.claim("me")
    assert job is not None
    result = split_response(response)
    jobs.finish(job, owner="me", status="succeeded", store=lambda each: write_result(each, job.key, result))
    tunings = TuningStore(engine, max_queued_jobs=3)
    trials = TrialLeases(engine, lease_s=LEASE_S, failed=record_of_failure)
    conductor = Conductor(engine, plans=plans, tunings=tunings, trials=trials)
    return House(engine, AgentStore(engine), tunings, trials, conductor, plan_id)


def test_agents_share_a_tuning_and_try_each_plan_once(house: House) -> None:
    agents = [house.agent(f"node-{number}") for number in range(2)]
    tuning_id = house.ask().id
    tried = []
    while house.tunings.get("a", tuning_id).status in ("queued", "running"):
        with ThreadPoolExecutor(2) as pool:
            taken = list(pool.map(house.next, agents))
        given = [(trial, agent) for trial, agent in zip(taken, agents, strict=True) if trial is not None]
        # Whoever finds another one choosing is told to ask again; one of the two always gets a trial while the tuning runs.
        assert given or house.tunings.get("a", tuning_id).status == "succeeded"
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
    assert len(trial_records(house.engine, "a")) == len(tried)
    assert trial_records(house.engine, "b") == []


def test_a_silent_agents_trial_is_given_again_and_ends_after_three_attempts(house: House) -> None:
    silent, other = house.agent("node-1"), house.agent("node-2")
    tuning_id = house.ask().id
    first = house.next(silent)
    assert first is not None
    assert house.trials.own("a", silent, instance="i") == first, "a lost answer is given again"
    house.fall_silent(tuning_id)
    second = house.next(other)
    assert second is not None
    assert (second.number, second.attempts, second.agent_id) == (first.number, 2, other)
    assert house.trials.heartbeat("a", silent, lease=str(first.lease)) is None
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
    storage, name = study_storage(house.engine), f"a/{tuning_id}"
    study = TuningStudy.resume(name, storage=storage)
    # A service that ended after its choice: its claim runs out, and the study holds a trial that was stored nowhere.
    lost = study.ask(owner="gone")
    assert lost is not None
    # One that ended after it had stored a record: the study does not know of it.
    record = encoded(record_of(json.loads(first.job), 2.0))
    house.trials.finish("a", agent, lease=str(first.lease), record=record, gpu_seconds=4.0)
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
    assert house.conductor.remove("a", tuning_id)
    assert house.trials.heartbeat("a", agent, lease=str(second.lease)) == "cancelled"
    assert house.next(agent) is None
    document = house.document(tuning_id)
    assert (document["status"], document["stopped"]["reason"]) == ("cancelled", "cancelled")
    assert [trial["status"] for trial in document["trials"]] == ["ok", "running"]
    # A record that was under way is kept: it was paid for.
    house.end(second, agent)
    assert len(trial_records(house.engine, "a")) == 2
    assert not house.conductor.remove("a", tuning_id)
    with pytest.raises(NotFoundError):
        house.tunings.get("a", tuning_id)
    with pytest.raises(KeyError):
        TuningStudy.resume(f"a/{tuning_id}", storage=study_storage(house.engine))
    assert trial_records(house.engine, "a") == []


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
        few.submit("a", first.wanted)
    assert [each.id for each in house.tunings.page("a", limit=9)] == ids[::-1]
    # The age of a tuning counts from its end.
    house.conductor.remove("a", first.id)
    rule = Retention(keys=timedelta(days=1), tunings=timedelta(seconds=0), kept_ids=frozenset({ids[1]}))
    assert sweep(house.engine, rule).tunings == 1
    assert [each.id for each in house.tunings.page("a", limit=9)] == ids[:0:-1]
    assert house.tunings.page("b", limit=9) == []
