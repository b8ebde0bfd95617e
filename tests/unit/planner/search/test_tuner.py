"""A study of trials in memory: what is asked follows from what was told, whoever asks and however often the study is opened anew."""

from __future__ import annotations

from math import exp

import pytest
from optuna.storages import InMemoryStorage

from cost_models.terms import TIME_NAMES
from planner.search.bayes import StudyExistsError
from planner.search.beliefs import Candidate
from planner.search.standing import Limits, Outcome
from planner.search.tuner import TuningStudy


def _plan(place: int) -> Candidate:
    step_s = 1.0 + 0.002 * place
    return Candidate(
        rank=place + 1, strategy={"tp": 1 + place % 3, "pp": 1, "cp": 1, "ep": 1}, step_time_s=step_s,
        range_s=(step_s * exp(-0.2), step_s * exp(0.2)), terms_s=dict.fromkeys(TIME_NAMES, 0.0) | {"gemm": step_s},
        tiers=dict.fromkeys(TIME_NAMES, "interpolated"), device_bytes=1e9,
    )  # fmt: skip


PLANS = [_plan(place) for place in range(6)]


def test_a_study_goes_on_as_if_it_had_not_been_interrupted() -> None:
    storage = InMemoryStorage()
    whole = TuningStudy.start(PLANS, name="whole", storage=storage, seed=3)
    parts = TuningStudy.start(PLANS, name="parts", storage=storage, seed=3, about={"a": 1})
    with pytest.raises(StudyExistsError):
        TuningStudy.start(PLANS, name="parts", storage=storage)
    asked: list[list[int]] = [[], []]
    for turn in range(4):
        parts = TuningStudy.resume("parts", storage=storage)
        for each, study in zip(asked, (whole, parts), strict=True):
            ask = study.ask()
            assert ask is not None
            each.append(ask.candidate)
            study.tell(ask.number, Outcome("ok", 1.0 + 0.01 * turn, 1.0, 2.0))
    assert asked[0] == asked[1]
    assert parts.about == {"a": 1}
    parts.stop("cancelled", "By hand.")
    assert whole.stopped is None
    assert (parts.stopped, parts.ask()) == ("cancelled", None)
    parts.go_on(Limits(max_trials=4))
    assert parts.stopped == "max-trials"
