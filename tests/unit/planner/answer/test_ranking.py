"""Ranked plans: numbered, with every stage, grouped where they cannot be told apart."""

from __future__ import annotations

import numpy as np
import pytest

from builders import request_of, rows_of
from cost_models.evaluate import evaluate
from cost_models.job import PooledJob
from cost_models.step.ranges import is_tied
from planner.answer.ranking import ranked_plans, with_all_stages
from planner.request.job import resolve_job
from planner.request.resolved import training_document
from planner.rows import evaluate_rows

PARTS = request_of({"preset": "llama-3.2-1b"})

INPUTS = [
    {"tp": 1, "pp": 1, "dp": 8}, {"tp": 2, "pp": 1, "dp": 4}, {"tp": 1, "pp": 4, "dp": 2}, {"tp": 8, "pp": 1, "dp": 1},
]  # fmt: skip


def best():
    job = resolve_job(PARTS)
    return job, rows_of(job, *INPUTS)


def plans():
    job, strategies = best()
    return ranked_plans(PooledJob.of_one_kind(job), strategies, headroom_fraction=0.03, assumed={"x": 1})


def test_plans_are_numbered_in_the_order_given_and_name_their_stages() -> None:
    found = plans()
    assert [plan["rank"] for plan in found] == [1, 2, 3, 4]
    for plan, given in zip(found, INPUTS, strict=True):
        assert {name: plan["strategy"][name] for name in given} == given
        stages = plan["evaluation"]["memory"]["stages"]
        assert [stage["stage"] for stage in stages] == list(range(given["pp"]))
        assert sum(stage["layers"] for stage in stages) == 16
        assert (
            max(stage["peak_allocated_bytes"] for stage in stages)
            == plan["evaluation"]["memory"]["peak_allocated_bytes"]
        )
        assert plan["evaluation"]["assumed"] == {"x": 1}


def test_a_ranked_plan_evaluates_to_the_same_numbers() -> None:
    """The strategy of a response, sent to `evaluate` with the training that the plan states, costs what the response said."""
    stated = training_document(best()[0].training)
    rows = [{**PARTS, "training": stated, "id": plan["rank"], "strategy": plan["strategy"]} for plan in plans()]
    for answer, plan in zip(evaluate_rows(rows), plans(), strict=True):
        for name in ("verdict", "step_time_s", "time_breakdown_s", "memory", "mfu", "step_time_range_s"):
            assert answer[name] == plan["evaluation"][name], name


def test_a_row_that_states_less_than_the_plan_has_the_same_time_and_is_less_certain_of_it() -> None:
    rows = [{**PARTS, "strategy": plan["strategy"]} for plan in plans()]
    for answer, plan in zip(evaluate_rows(rows), plans(), strict=True):
        assert answer["step_time_s"] == plan["evaluation"]["step_time_s"]
        (low, high), (lowest, highest) = plan["evaluation"]["step_time_range_s"], answer["step_time_range_s"]
        assert lowest < low < high <= highest


def test_a_group_is_every_plan_not_told_from_its_first_and_not_in_an_earlier_one() -> None:
    job, strategies = best()
    groups = [plan["tie_group"] for plan in plans()]
    costs = evaluate(job, strategies)
    leaders = [groups.index(number) for number in range(1, max(groups) + 1)]
    tied = [is_tied(job.calibration, costs.terms_s, costs.tiers, leader=leader) for leader in leaders]
    for index, group in enumerate(groups):
        assert group == 1 + next(number for number, with_leader in enumerate(tied) if with_leader[index])
    assert groups[-1] > 1  # tp 8 on a 1B model is far behind


def test_identical_plans_tie() -> None:
    job, strategies = best()
    twice = strategies.take(np.array([0, 0, 3]))
    groups = [
        plan["tie_group"]
        for plan in ranked_plans(PooledJob.of_one_kind(job), twice, headroom_fraction=0.03, assumed={})
    ]
    assert groups == [1, 1, 2]


def test_every_stage_is_a_slot_of_the_layouts_used() -> None:
    _, strategies = best()
    detailed = with_all_stages(*best())
    assert detailed.layouts.num_slots == 4
    for index in range(len(strategies)):
        before = strategies.layouts.table[int(strategies.layout[index])]
        assert detailed.layouts.table[int(detailed.layout[index])] == before


@pytest.mark.parametrize(("headroom", "verdict"), [(0.03, "fits"), (0.97, "at-risk")])
def test_the_request_s_headroom_decides(headroom, verdict) -> None:
    job, strategies = best()
    found = ranked_plans(
        PooledJob.of_one_kind(job), strategies.take(np.array([0])), headroom_fraction=headroom, assumed={}
    )
    assert found[0]["evaluation"]["verdict"] == verdict
