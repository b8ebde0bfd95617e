"""What is said of a whole run and of conditions of overlap: times as people say them, what is not known, and rows of tables."""

from __future__ import annotations

from typing import Any

import pytest

from app.report.run_words import condition_rows, duration, run_facts, variant_rows

STOPS: dict[str, Any] = {
    "mean_time_between_s": 11_134.0, "num_stops": 54.4, "recovery_s": 600.0, "checkpoint_bytes": 5.682e12, "save_s": 60.0,
    "unsafe_s": 0.0, "interval_s": 1156.0, "optimal_interval_s": 1188.0, "waiting_fraction": None,
    "what_if": [{"interval_s": 1156.0, "spares": None, "goodput": 0.8597, "days": 54.0, "gpu_hours": 2e6, "cost": None}],
}  # fmt: skip
RUN: dict[str, Any] = {
    "total_tokens": 15.6e12, "days": 54.0, "days_range": [50.0, 60.0], "gpu_hours": 21_233_664.0, "cost": None,
    "energy_kwh": None, "co2_kg": None, "goodput": None, "stops": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("time_s", "said"),
    [
        (0.245, "0.245 s"),
        (60.0, "60.0 s"),
        (119.0, "119 s"),
        (1156.0, "19.3 min"),
        (11_134.0, "3.09 hours"),
        (2.7e6, "31.2 days"),
    ],
)
def test_times_are_said_in_the_unit_that_people_use(time_s: float, said: str) -> None:
    assert duration(time_s) == said


def test_what_is_not_known_of_a_run_is_said_or_left_out() -> None:
    facts = dict(run_facts(RUN))
    assert facts["Time"] == "54.0 days (80 % range 50.0 days to 60.0 days) for 15.6T tokens"
    assert facts["GPU-hours"] == "21,233,664"
    assert facts["Goodput"].startswith("not known without cluster.reliability and training.checkpoint")
    assert not {"Energy", "Failures", "Checkpoints"} & facts.keys()
    assert variant_rows(RUN) == []


def test_a_run_with_failures_says_what_they_take() -> None:
    run = {**RUN, "cost": 2e6, "energy_kwh": 1e6, "co2_kg": 4e5, "goodput": 0.8597, "stops": STOPS}
    facts = dict(run_facts(run))
    assert facts["GPU-hours"] == "21,233,664, which cost 2,000,000"
    assert facts["Energy"] == "1,000,000 kWh, 400,000 kg of carbon dioxide"
    assert facts["Goodput"] == "86.0% of the time trains what no failure undoes"
    assert facts["Failures"] == "one in 3.09 hours on average, 54 in all; the run trains again after 10.0 min"
    assert facts["Checkpoints"] == "5,682 GB; saving one stops training for 60.0 s"
    assert facts["Save every"] == "19.3 min by Young's formula; 19.8 min make the run available the longest"
    assert "Repairs" not in facts
    assert variant_rows(run) == [("19.3 min", "-", "86.0%", "54.0", "2,000,000", "-")]


def test_waiting_and_background_writes_are_said_where_they_are_known() -> None:
    stops = {**STOPS, "waiting_fraction": 0.445, "unsafe_s": 300.0}
    facts = dict(run_facts({**RUN, "goodput": 0.5, "stops": stops}))
    assert facts["Repairs"] == "the run waits for one for 44.5% of its time"
    assert facts["Checkpoints"].endswith("for 60.0 s, and storage holds it 5.00 min later")


def test_variants_that_look_alike_are_one_row() -> None:
    """Young's interval and the optimal one differ by 0.003 % where failures are rare."""
    (variant,) = STOPS["what_if"]
    stops = {**STOPS, "what_if": [variant, {**variant, "interval_s": variant["interval_s"] * 1.00003}]}
    assert len(variant_rows({**RUN, "goodput": 0.8597, "stops": stops})) == 1


def test_conditions_are_rows_with_what_would_hide_them() -> None:
    its = {
        "ratio": 2.3768, "verdict": "exposed", "num_ranks": 64, "element_bytes": 2.0, "bandwidth_bytes_per_s": 50e9,
        "hidden_by": "micro_batch_size", "hidden_from": 3,
    }  # fmt: skip
    assert condition_rows({"overlap_conditions": {"zero3": its}}) == [
        ("parameters gathered for a layer", "64", "50", "2.38", "exposed", "micro_batch_size 3")
    ]
    # Evaluations on pools tell of none, and those of earlier releases have no such field.
    assert condition_rows({"overlap_conditions": None}) == condition_rows({}) == []
