"""Tunings on SQLite and PostgreSQL: each plan is tried once, by agents that fit; what is cut off anywhere is taken up again."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from optuna.study import StudyDirection
from sqlalchemy import Engine, select, update

from app.errors import NotFoundError, QuotaError, TooManyJobsError, WrongStateError
from app.service.db import tables
from app.service.db.agents import AgentStore, NodeFacts
from app.service.db.engine import reading, writing
from app.service.db.jobs import JobKey, JobStore
from app.service.db.plan_result import encoded, split_response
from app.service.db.plans import PlanStore, Submission, write_result
from app.service.db.quotas import Quotas
from app.service.db.retention import Retention, sweep
from app.service.db.studies import study_storage
from app.service.db.tables import gpu_time
from app.service.db.tuning_news import TuningNews
from app.service.db.tuning_trials import MAX_ATTEMPTS, NewTrial, TrialLeases, TrialRow
from app.service.db.tunings import TuningLimits, TuningRow, TuningStore, WantedTuning, trial_records
from app.service.tunings.conductor import Conductor
from app.service.tunings.documents import document_of, waits
from app.service.tunings.left_studies import forget_left_studies
from app.service.tunings.trial_jobs import record_of_failure
from cost_models.errors import InvalidInputError
from planner.plan import plan
from planner.search.bayes import study_names
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

    def stored_bytes(self, tuning_id: str) -> int:
        columns = tables.tunings.c
        with reading(self.engine) as connection:
            query = select(columns.stored_bytes).where(columns.tenant == self.tenant, columns.id == tuning_id)
            return int(connection.execute(query).scalar_one())

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
    # Whoever watches is told the same, once, and nothing of what is another tenant's.
    news, key = TuningNews(house.engine, in_touch_s=60.0), JobKey(house.tenant, tuning_id)
    told = news.since({key: 0, JobKey("b", tuning_id): 0})
    assert list(told) == [key]
    (state,) = told[key].events
    assert [each.step_time_s for each in state.trials if each.status == "ok"] == measured
    assert (state.status, state.agents_in_touch, state.gpu_seconds) == ("succeeded", 2, 4.0 * len(tried))
    assert news.since({key: state.seq})[key].events == []


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
    # The last of these agents is heard of again and has measured after all, which takes the place of what was assumed.
    assert trial is not None
    assert house.trials.heartbeat(house.tenant, silent, lease=str(trial.lease)) == "running"
    assert house.end(trial, silent).record == house.end(trial, silent).record
    assert house.trials.heartbeat(house.tenant, silent, lease=str(trial.lease)) == "succeeded"
    study = TuningStudy.resume(f"{house.tenant}/{tuning_id}", storage=study_storage(house.engine))
    statuses = {each["number"]: each["status"] for each in house.document(tuning_id)["trials"]}
    assert statuses[trial.number] in ("ok", "oom")
    assert {each.candidate: each.outcome.status for each in study.told()}[trial.candidate] == statuses[trial.number]
    with pytest.raises(WrongStateError, match="has ended already"):
        house.trials.finish(house.tenant, silent, lease=str(trial.lease), record="{}", gpu_seconds=1.0)


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
    # A first trial has nothing to be compared with; a later one is ended early where it is 15 % slower than the best.
    limits = [json.loads(each.job)["hopeless_above_s"] for each in (first, second)]
    assert limits == [None, pytest.approx(1.15 * json.loads(record)["step_time_s"])]
    assert [(each.candidate, each.outcome.gpu_seconds) for each in study.told()] == [(first.candidate, 4.0)]
    assert [each.candidate for each in study.running()] == [second.candidate]
    # A backup holds no studies.
    forget_study(name, storage=storage)
    # What is left of a study whose service ended while it made it.
    storage.create_new_study([StudyDirection.MINIMIZE], name)
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
    assert [trial["status"] for trial in document["trials"]] == ["ok", "cancelled"]
    stored = house.stored_bytes(tuning_id)
    # A record that was under way is kept, and told: it was paid for.
    house.end(second, agent)
    assert len(trial_records(house.engine, house.tenant)) == 2
    document = house.document(tuning_id)
    assert (document["status"], [trial["status"] for trial in document["trials"]]) == ("cancelled", ["ok", "ok"])
    assert document["used"]["trials"] == 2
    # The second record comes on top, and in the document in place of nothing; it is not counted three times.
    assert 0 < house.stored_bytes(tuning_id) - stored < stored
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


def test_no_trial_begins_once_the_gpu_hours_of_its_tenant_are_spent(house: House) -> None:
    agent = house.agent()
    tuning_id = house.ask().id
    first = house.next(agent)
    assert first is not None
    house.end(first, agent)
    # It took four GPU seconds, and that is all.
    quotas = Quotas(max_gpu_hours=4.0 / 3600)
    tunings = TuningStore(house.engine, max_queued_jobs=3, quotas=quotas)
    trials = TrialLeases(house.engine, lease_s=LEASE_S, failed=record_of_failure, quotas=quotas)
    conductor = Conductor(house.engine, plans=house.plans, tunings=tunings, trials=trials)
    bounded = replace(house, tunings=tunings, trials=trials, conductor=conductor)
    with pytest.raises(QuotaError) as refused:
        bounded.ask()
    assert {name: refused.value.context[name] for name in ("quota", "limit", "used")} == {
        "quota": "gpu_hours", "limit": 4.0 / 3600, "used": pytest.approx(4.0 / 3600),
    }  # fmt: skip
    assert bounded.next(agent) is None
    document = bounded.document(tuning_id)
    assert (document["status"], document["stopped"]["reason"]) == ("succeeded", "gpu-hours")
    assert "took 0.00111 of at most 0.00111111 GPU hours within 30 days" in document["stopped"]["message"]
    # Deleting the tuning gives nothing back; a month does.
    assert not bounded.conductor.remove(house.tenant, tuning_id)
    with pytest.raises(QuotaError):
        bounded.ask()
    with writing(house.engine) as connection:
        long_ago = datetime.now(UTC) - timedelta(days=31)
        connection.execute(update(gpu_time).where(gpu_time.c.tenant == house.tenant).values(at=long_ago))
    assert bounded.ask().status == "queued"
    sweep(house.engine, Retention(keys=timedelta(days=1)))
    with reading(house.engine) as connection:
        assert connection.execute(select(gpu_time.c.id).where(gpu_time.c.tenant == house.tenant)).all() == []


def test_a_tuning_says_why_it_waits_and_gives_no_agent_more_gpus_than_it_has(house: House) -> None:
    house.agent("small")
    tuning = house.ask()
    assert waits(tuning, []) == f"Its plan {house.plan_id} is being computed."
    house.conductor.advance(house.tenant, tuning.id)
    assert house.document(tuning.id)["waits"] is None, "its first trial can begin"
    claim = house.tunings.claim(house.tenant, tuning.id)
    assert claim is not None
    job = encoded({"row": {}})
    small = house.agent("small")
    large = house.trials.add(claim, NewTrial(1, 0, 4, job, 1.0), agent_id=small, instance="i")
    house.tunings.unclaim(claim)
    assert large is not None
    assert (large.status, large.attempts) == ("queued", 0)
    assert house.trials.lease_again(house.tenant, small, instance="i") is None
    said = f"Trial 1 needs 4 × {GPU} in one node; of the agents that were heard of lately, none has more than 2."
    assert house.document(tuning.id)["waits"] == said
    forgetful = TuningStore(house.engine, max_queued_jobs=3, in_touch_s=-1.0)
    alone = forgetful.get(house.tenant, tuning.id)
    assert waits(alone, [large]) == f"No agent with 2 × {GPU} in one node has been heard of lately."
    given = house.trials.lease_again(house.tenant, house.agent("large", gpus=4), instance="i")
    assert given is not None
    assert (given.number, given.attempts) == (1, 1)
    assert house.document(tuning.id)["waits"] is None


def test_studies_of_tunings_that_are_gone_are_deleted_and_no_others(house: House) -> None:
    house.agent()
    gone, kept = house.ask().id, house.ask().id
    storage = study_storage(house.engine)
    names = [f"{house.tenant}/{gone}", f"{house.tenant}/{kept}", f"{house.tenant}/of-somebody"]
    for name in names:
        TuningStudy.start([], name=name, storage=storage)
    # Cancelled and deleted by a service that ended before it had deleted the study; those of old tunings are left alike.
    assert house.tunings.remove(house.tenant, gone)
    assert not house.tunings.remove(house.tenant, gone)
    assert forget_left_studies(house.engine) >= 1
    assert [name in study_names(storage) for name in names] == [False, True, True]
