"""Asking for knob values and telling their cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from planner.search.bayes import Knob, KnobStudy

KNOBS = {"x": Knob(low=0, high=20), "y": Knob(choices=("a", "b", "c"))}


def cost(values: Any) -> float:
    """Least, 1.0, at x = 7, y = "b"."""
    return 1.0 + 0.1 * (values["x"] - 7) ** 2 + (values["y"] != "b")


def asked(seed: int, trials: int) -> tuple[list[dict[str, Any]], KnobStudy]:
    study = KnobStudy.start(KNOBS, name="test", seed=seed)
    values = []
    for _ in range(trials):
        trial = study.ask()
        values.append(dict(trial.values))
        study.tell(trial.number, cost(trial.values))
    return values, study


def storage(folder: Path) -> optuna.storages.RDBStorage:
    return optuna.storages.RDBStorage(f"sqlite:///{folder / 'knobs.db'}")


def test_equal_seeds_ask_alike() -> None:
    assert asked(1, 15)[0] == asked(1, 15)[0]
    assert asked(1, 15)[0] != asked(2, 15)[0]


def test_no_two_random_trials_are_alike() -> None:
    """Each trial is seeded by its own number: a process that asks once would else repeat what every other asked first."""
    values = [tuple(each.values()) for each in asked(1, 8)[0]]
    assert len(set(values)) > 4


def test_it_comes_near_the_least() -> None:
    best = asked(0, 60)[1].best
    assert best is not None
    assert best.step_s <= 1.1  # at most one step of x away: 1 + 0.1 * 1


def test_what_failed_is_no_best_and_counts_as_bad() -> None:
    """Larger is faster until it no longer fits, above 500: were failures forgotten, the sampler would go on there."""
    study = KnobStudy.start({"x": Knob(low=0, high=1000)}, name="test", seed=0)
    failed = []
    for _ in range(60):
        trial = study.ask()
        failed.append(trial.values["x"] > 500)
        study.tell(trial.number, None if failed[-1] else 2.0 - trial.values["x"] / 1000)
    assert study.counts() == {"told": failed.count(False), "failed": failed.count(True), "open": 0}
    assert sum(failed[:10]) >= 4
    assert sum(failed[40:]) <= 10
    assert study.best is not None
    assert 450 <= study.best.values["x"] <= 500


def test_a_resumed_study_asks_what_an_uninterrupted_one_asks(tmp_path: Path) -> None:
    whole, _ = asked(3, 14)
    KnobStudy.start(KNOBS, name="kept", seed=3, storage=storage(tmp_path), about={"plan": 2})
    resumed = []
    for _ in range(14):
        study = KnobStudy.resume("kept", storage=storage(tmp_path))
        trial = study.ask()
        resumed.append(dict(trial.values))
        KnobStudy.resume("kept", storage=storage(tmp_path)).tell(trial.number, cost(trial.values))
    assert resumed == whole
    assert study.about == {"plan": 2}
    assert study.counts() == {"told": 14, "failed": 0, "open": 0}


def test_first_values_are_asked_first() -> None:
    study = KnobStudy.start(KNOBS, name="test", seed=0, first={"x": 3, "y": "c"})
    assert study.ask().values == {"x": 3, "y": "c"}
    assert study.ask().values != {"x": 3, "y": "c"}


def test_a_trial_is_told_once() -> None:
    study = KnobStudy.start(KNOBS, name="test", seed=0)
    study.tell(study.ask().number, 1.0)
    for number in (0, 1):
        with pytest.raises(ValueError, match="tell"):
            study.tell(number, 2.0)


def test_a_study_made_of_what_is_known_asks_what_the_one_asks_that_found_it() -> None:
    """Twelve trials that ended, one of them without a result, and one that goes on."""
    first = KnobStudy.start(KNOBS, name="first", seed=3)
    again = KnobStudy.start(KNOBS, name="again", seed=3)
    for place in range(13):
        trial = first.ask()
        step_s = None if place == 5 else cost(trial.values)
        if place < 12:
            first.tell(trial.number, step_s)
        again.add(trial.values, step_s, is_open=place == 12)
    assert again.counts() == first.counts() == {"told": 11, "failed": 1, "open": 1}
    assert (again.best, again.ask()) == (first.best, first.ask())
