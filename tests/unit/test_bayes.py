"""Asking for knob values and telling their cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.search.bayes import KNOBS, Knob, KnobStudy


def cost(values: dict[str, Any]) -> float:
    """Least, 1.0, at x = 7, y = "b"."""
    return 1.0 + 0.1 * (values["x"] - 7) ** 2 + (values["y"] != "b")


def asked(seed: int, trials: int) -> tuple[list[dict[str, Any]], KnobStudy]:
    study = KnobStudy({"x": Knob(low=0, high=20), "y": Knob(choices=("a", "b", "c"))}, name="test", seed=seed)
    values = []
    for _ in range(trials):
        trial = study.ask()
        values.append(dict(trial.values))
        study.tell(trial.number, cost(dict(trial.values)))
    return values, study


def test_equal_seeds_ask_alike() -> None:
    assert asked(1, 15)[0] == asked(1, 15)[0]
    assert asked(1, 15)[0] != asked(2, 15)[0]


def test_it_comes_near_the_least() -> None:
    _, study = asked(0, 60)
    best = study.best
    assert best is not None
    assert best[1] <= 1.1  # at most one step of x away: 1 + 0.1 * 1


def test_a_failed_trial_is_no_best() -> None:
    study = KnobStudy({"x": Knob(low=0, high=3)}, name="test", seed=0)
    study.tell(study.ask().number, None)
    assert study.best is None
    assert study.told == 0


def test_a_stored_study_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'knobs.db'}"
    knobs = {"x": Knob(low=0, high=20)}
    for expected in (1, 2):
        study = KnobStudy(knobs, name="kept", seed=0, storage_url=url)
        trial = study.ask()
        study.tell(trial.number, float(trial.values["x"]))
        assert study.told == expected


def test_the_listed_knobs_can_be_asked() -> None:
    values = KnobStudy(KNOBS, name="all", seed=0).ask().values
    assert 1_000_000 <= values["bucket_elements"] <= 1_000_000_000
    assert values["prefetch_depth"] in range(5)
    assert 0.0 <= values["offload_optimizer_fraction"] <= 1.0
