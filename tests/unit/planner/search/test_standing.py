"""How a tuning stands after trials that are given: what is chosen next, what is left out, and when it stops."""

from __future__ import annotations

from math import exp

import pytest

from cost_models.terms import TIME_NAMES
from planner.search.beliefs import Candidate
from planner.search.standing import Limits, Outcome, Running, Standing, Stop, Told


def _plans(*steps_s: float, half: float = 0.10) -> list[Candidate]:
    found = []
    for place, step_s in enumerate(steps_s):
        degree = 2**place
        terms = dict.fromkeys(TIME_NAMES, 0.0) | {"gemm": 0.8 * step_s, "tp_comm": 0.2 * step_s}
        found.append(
            Candidate(
                rank=place + 1, strategy={"tp": degree, "pp": 1, "cp": 1, "ep": 1}, step_time_s=step_s,
                range_s=(step_s * exp(-half), step_s * exp(half)), terms_s=terms,
                tiers=dict.fromkeys(TIME_NAMES, "interpolated"), device_bytes=(10.0 + place) * 2**30,
            )
        )  # fmt: skip
    return found


def _told(*outcomes: tuple[int, Outcome]) -> list[Told]:
    return [Told(place, place, 1.0, outcome) for place, outcome in outcomes]


def _ok(step_s: float, *, took_s: float = 20.0) -> Outcome:
    return Outcome("ok", step_s, took_s, 2 * took_s)


def test_the_analytic_first_is_measured_first_and_then_what_may_gain_most() -> None:
    plans = _plans(1.0, 1.02, 1.5)
    assert Standing(plans).choice == 0
    after = Standing(plans, _told((0, _ok(1.05))))
    # A plan that is predicted 2 % slower may well be faster, one that is predicted 50 % slower hardly.
    assert after.choice == 1
    assert after.best == 0
    # While the first two run, on two machines, only the third is left.
    assert Standing(plans, running=[Running(0, 0, ""), Running(1, 1, "")]).choice == 2


def test_a_time_that_cannot_be_the_plans_is_kept_and_decides_nothing() -> None:
    """The second plan is said to take 1.02 / 0.0102 = 100 times less than predicted; on processors that would tell nothing."""
    plans = _plans(1.0, 1.02, 1.5)

    def standing(gpu: str) -> Standing:
        wild = Outcome("ok", 0.0102, 20.0, 40.0, {"machine": {"gpu": gpu}})
        return Standing(plans, _told((0, _ok(1.05)), (1, wild)))

    found = standing("H100-SXM-80GB")
    assert (found.best, found.left, found.used.trials) == (0, [2], 2)
    assert found.implausible == {1: pytest.approx(0.01)}
    assert (standing("CPU").best, standing("CPU").implausible) == (1, {})


def test_the_best_is_separated_when_no_plan_left_has_a_chance() -> None:
    plans = _plans(1.0, 1.02, 3.0)
    undecided = Standing(plans, _told((0, _ok(1.0))))
    assert undecided.closed is None
    assert undecided.chance_of_better > 0.10
    decided = Standing(plans, _told((0, _ok(1.0)), (1, _ok(1.03))))
    # The third is predicted to take three times as long with a range of 10 %: ln 3 is 1.1, eleven half-widths.
    assert decided.stop is not None
    assert decided.stop.reason == "separated"
    assert "less than 0.1%" in decided.stop.message
    assert "plan 1 (1 s)" in decided.stop.message


def test_a_plan_that_ran_out_of_memory_leaves_out_those_that_need_more() -> None:
    plans = _plans(1.0, 1.02, 1.04, 1.06)
    standing = Standing(plans, _told((1, Outcome("oom", None, 9.0, 18.0)), (0, _ok(1.0))))
    assert sorted(standing.left_out) == [2, 3]
    assert "12.0 GiB" in standing.left_out[2]
    assert "plan 2 ran out of memory" in standing.left_out[2]
    assert standing.stop is not None
    assert standing.stop.reason == "nothing-left"
    assert "1 ok, 1 oom" in standing.stop.message
    # A crash or a hang says nothing of memory.
    assert not Standing(plans, _told((1, Outcome("crash")), (2, Outcome("hang")))).left_out


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_trials=2), "max-trials"),
        (Limits(gpu_hours=80 / 3600), "gpu-hours"),
        # 40 s are spent and the longest trial took 25 s: what is left of 60 s is too short for another.
        (Limits(budget_s=60.0), "budget"),
        (Limits(max_trials=3, gpu_hours=81 / 3600, budget_s=66.0), None),
    ],
)
def test_limits_end_a_tuning(limits: Limits, reason: str | None) -> None:
    plans = _plans(1.0, 1.01, 1.02, 1.03, half=0.3)
    told = _told((0, _ok(1.0, took_s=25.0)), (1, Outcome("crash", None, 15.0, 30.0)))
    stop = Standing(plans, told, limits=limits).stop
    assert (None if stop is None else stop.reason) == reason


def test_a_tuning_has_not_stopped_while_a_trial_runs() -> None:
    plans = _plans(1.0, 1.01)
    running = Standing(plans, _told((0, _ok(1.0))), running=[Running(1, 1, "")])
    assert (running.choice, running.closed, running.stop) == (None, None, None)
    full = Standing(plans, _told((0, _ok(1.0))), running=[Running(1, 1, "")], limits=Limits(max_trials=2))
    assert full.closed is not None
    assert full.stop is None
    ended = Standing(plans, by_hand=Stop("cancelled", "Somebody did."))
    assert ended.stop == Stop("cancelled", "Somebody did.")


def test_a_trial_is_hopeless_only_when_every_early_step_is_far_slower() -> None:
    standing = Standing(_plans(1.0, 1.1), _told((0, _ok(1.0))))
    assert not standing.is_hopeless([3.0])
    assert standing.is_hopeless([3.0, 1.16])
    assert not standing.is_hopeless([3.0, 1.14])
    assert not Standing(_plans(1.0, 1.1)).is_hopeless([9.0, 9.0])
