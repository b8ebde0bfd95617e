"""A study of trials in every storage: each plan is measured once, by whoever takes it first, and nothing is lost with a process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import exp

import pytest

from app.service.db.engine import build_engine
from app.service.db.studies import study_storage
from cost_models.terms import TIME_NAMES
from planner.search.beliefs import Candidate
from planner.search.standing import Limits, Outcome
from planner.search.tuner import TuningStudy, forget_study


def _plan(place: int) -> Candidate:
    step_s = 1.0 + 0.002 * place
    return Candidate(
        rank=place + 1, strategy={"tp": 1 + place % 3, "pp": 1, "cp": 1, "ep": 1}, step_time_s=step_s,
        range_s=(step_s * exp(-0.2), step_s * exp(0.2)), terms_s=dict.fromkeys(TIME_NAMES, 0.0) | {"gemm": step_s},
        tiers=dict.fromkeys(TIME_NAMES, "interpolated"), device_bytes=1e9,
    )  # fmt: skip


PLANS = [_plan(place) for place in range(6)]


def test_processes_that_share_a_study_measure_every_plan_once(database_url: str) -> None:
    engines = [build_engine(database_url) for _ in range(2)]
    storages = [study_storage(engine) for engine in engines]
    TuningStudy.start(PLANS, name="shared", storage=storages[0], seed=1)
    studies = [TuningStudy.resume("shared", storage=storage) for storage in storages]

    def work(study: TuningStudy) -> list[int]:
        taken = []
        for _ in range(3):
            ask = study.ask(owner="me")
            assert ask is not None
            taken.append(ask.candidate)
            # All equally fast, so that none is separated from the others.
            study.tell(ask.number, Outcome("ok", 1.0, 1.0, 2.0, {"of": ask.candidate}))
        return taken

    with ThreadPoolExecutor(2) as pool:
        taken = sorted(place for places in pool.map(work, studies) for place in places)
    assert taken == list(range(6))
    standing = studies[0].standing()
    assert standing.stop is not None
    assert standing.stop.reason == "nothing-left"
    assert [each.outcome.record for each in standing.told] == [{"of": each.candidate} for each in standing.told]
    assert (standing.used.trials, standing.used.seconds) == (6, 6.0)
    for engine in engines:
        engine.dispose()


def test_a_trial_whose_process_died_is_given_again_and_told_once(database_url: str) -> None:
    engine = build_engine(database_url)
    study = TuningStudy.start(PLANS[:3], name="s", storage=study_storage(engine), limits=Limits(max_trials=5))
    first = study.ask(owner="dead")
    assert first is not None
    other = TuningStudy.resume("s", storage=study_storage(engine))
    assert [(each.number, each.owner) for each in other.running()] == [(first.number, "dead")]
    assert other.release(first.number)
    again = other.ask(owner="alive")
    assert again is not None
    assert (again.candidate, again.number) == (first.candidate, first.number + 1)
    other.tell(again.number, Outcome("ok", 1.2, 20.0, 40.0))
    # The first process was only slow. It is told that somebody else was faster, and its figures do not count twice.
    with pytest.raises(ValueError, match="given back"):
        study.tell(first.number, Outcome("ok", 9.9, 20.0, 40.0))
    assert not study.release(first.number)
    assert [each.outcome.step_time_s for each in study.told()] == [1.2]
    with pytest.raises(ValueError, match="told already"):
        other.tell(again.number, Outcome("ok", 9.9, 20.0, 40.0))
    with pytest.raises(ValueError, match="no trial 77"):
        study.tell(77, Outcome("crash"))
    engine.dispose()


def test_a_plan_is_taken_by_its_place_and_a_study_is_forgotten(database_url: str) -> None:
    engine = build_engine(database_url)
    storage = study_storage(engine)
    study = TuningStudy.start(PLANS[:3], name="s", storage=storage)
    taken = study.take(2, owner="me", expected_s=1.5)
    assert (taken.candidate, taken.expected_step_time_s) == (2, 1.5)
    with pytest.raises(ValueError, match="taken or told already"):
        study.take(2)
    study.tell(taken.number, Outcome("ok", 1.0))
    with pytest.raises(ValueError, match="taken or told already"):
        study.take(2)
    with pytest.raises(ValueError, match="no plan at place 3"):
        study.take(3)
    assert forget_study("s", storage=storage)
    assert not forget_study("s", storage=storage)
    with pytest.raises(KeyError):
        TuningStudy.resume("s", storage=storage)
    engine.dispose()
