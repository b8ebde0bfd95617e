"""Ranked plans compared term by term, variants folded, ties with the two plans to measure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.answer.comparison import SPLIT_FIELDS, against, compared, differing_knobs, listed_ranks, tie_groups, ties
from planner.answer.step_cost import step_cost


def plan(rank: int, group: int, *, tp: int = 1, **terms_s: float) -> dict[str, Any]:
    strategy: dict[str, Any] = dict.fromkeys(SPLIT_FIELDS, 1) | {"tp": tp, "vpp": rank}
    terms = {"gemm": 0.0, "tp_comm": 0.0, "pp_bubble": 0.0} | terms_s
    return {
        "rank": rank, "tie_group": group, "strategy": strategy,
        "evaluation": {
            "verdict": "fits", "step_time_s": sum(terms.values()), "time_breakdown_s": terms, "num_gpus_used": 8,
        },
    }  # fmt: skip


def test_terms_are_shares_of_the_other_step() -> None:
    best = plan(1, 1, gemm=8.0, tp_comm=0.9, pp_bubble=0.9)  # 9.8 s
    other = plan(2, 2, gemm=8.0, tp_comm=0.6, pp_bubble=1.4)  # 10.0 s: 0.3 s less in tp_comm, 0.5 s more bubble
    assert against(best, other) == (
        "2.0% faster than plan 2: relative to that plan's step, it spends 5.0% less on the pipeline bubble and 3.0% more on "
        "exposed tensor-parallel communication"
    )


def on_gpus(found: dict[str, Any], gpus: int) -> dict[str, Any]:
    found["evaluation"]["num_gpus_used"] = gpus
    return found


def test_cost_is_compared_in_what_a_step_costs() -> None:
    """8 GPUs for 10 s are 80 GPU-seconds, 16 for 6 s 96: 16.7 % cheaper, though two thirds slower. Of the 96, the matmuls take
    8 x 8 - 16 x 4 = 0 less, and the bubble 8 x 2 - 16 x 2 = -16, a sixth.
    """
    best = on_gpus(plan(1, 1, gemm=8.0, pp_bubble=2.0), 8)
    other = on_gpus(plan(3, 2, gemm=4.0, pp_bubble=2.0), 16)
    told = against(best, other, objective="cost")
    assert told == (
        "16.7% cheaper than plan 3, 80 against 96 GPU-seconds a step: relative to that plan's cost, it spends 16.7% less on the "
        "pipeline bubble"
    )
    # 2 an hour and GPU: 80 x 2 / 3600 = 0.04444 and 96 x 2 / 3600 = 0.05333.
    assert "0.04444 against 0.05333 a step" in against(
        best, other, objective="cost", cluster={"price_per_gpu_hour": 2.0}
    )


def test_cost_on_pools_is_that_of_the_pools_it_uses() -> None:
    """Two stages of 4 GPUs: at 1 and 3 an hour 8 GPUs cost 4 x 1 + 4 x 3 = 16 an hour, both on the first 8."""
    cluster = {"pools": [{"name": "old", "price_per_gpu_hour": 1.0}, {"name": "new", "price_per_gpu_hour": 3.0}]}
    mixed, cheap = plan(1, 1, gemm=1.0), plan(2, 2, gemm=1.0)
    mixed["strategy"]["pool_per_stage"], cheap["strategy"]["pool_per_stage"] = ["old", "new"], ["old", "old"]
    assert step_cost(mixed, cluster) == pytest.approx(16 / 3600)
    assert step_cost(cheap, cluster) == pytest.approx(8 / 3600)
    free = {"pools": [{"name": "old"}, {"name": "new", "price_per_gpu_hour": 3.0}]}
    assert step_cost(mixed, free) == 8.0  # not every pool has a price: GPU-seconds


def test_the_fewest_gpus_are_compared_by_their_number_first() -> None:
    best, other = on_gpus(plan(1, 1, gemm=9.0), 8), on_gpus(plan(2, 2, gemm=6.0), 16)
    assert against(best, other, objective="fewest_gpus").startswith(
        "on 8 GPUs where plan 2 is on 16, and 50.0% slower: "
    )
    same = on_gpus(plan(3, 2, gemm=10.0), 8)
    assert against(best, same, objective="fewest_gpus").startswith("10.0% faster than plan 3: ")


def test_a_faster_plan_that_may_not_fit_is_ranked_last_and_said_to_be_so() -> None:
    risky = plan(2, 2, gemm=8.0)
    risky["evaluation"]["verdict"] = "at-risk"
    assert against(plan(1, 1, gemm=9.0), risky).startswith("12.5% slower than plan 2, which may not fit: ")


def test_plans_that_are_close_say_so_where_they_are_compared() -> None:
    plans = [plan(1, 1, gemm=1.0), plan(2, 1, tp=2, gemm=1.1), plan(3, 2, tp=4, gemm=1.2)]
    found = compared(plans, close=lambda others: others == 1)  # plan 2 alone is close to what it is compared with
    assert found[0]["against_next"].startswith("9.1% faster than plan 2, too close to call: ")
    assert found[1]["against_next"].startswith("8.3% faster than plan 3: ")
    assert compared([]) == []


def test_a_plan_with_the_same_degrees_is_a_variant() -> None:
    found = compared([plan(1, 1, gemm=1.0), plan(2, 1, tp=2, gemm=1.1), plan(3, 2, gemm=1.2)])
    assert [each["variant_of"] for each in found] == [None, None, 1]
    assert found[-1]["against_next"] is None


def test_a_variant_as_fast_as_runs_repeat_is_folded() -> None:
    """1.009 s is within 1 % of 1.0 s, 1.02 s is not, so it leads what comes after it; other degrees are never folded."""
    found = compared([
        plan(1, 1, gemm=1.0), plan(2, 1, tp=2, gemm=1.001), plan(3, 1, gemm=1.009), plan(4, 2, gemm=1.02),
        plan(5, 2, gemm=1.025),
    ])  # fmt: skip
    assert [each["folded_under"] for each in found] == [None, None, 1, None, 4]
    assert [each["variant_of"] for each in found] == [None, None, 1, 1, 1]
    assert found[0]["against_next"].startswith("0.1% faster than plan 2")
    assert found[2]["against_next"].startswith("1.1% faster than plan 4")  # not than plan 1's other variants
    assert differing_knobs(found[0], found[2]) == ["vpp"]


def test_a_variant_at_risk_is_not_folded_under_one_that_fits() -> None:
    risky = plan(2, 1, gemm=1.0)
    risky["evaluation"]["verdict"] = "at-risk"
    assert compared([plan(1, 1, gemm=1.0), risky])[1]["folded_under"] is None


def test_of_a_tie_the_two_that_differ_most_are_measured() -> None:
    members = [
        plan(1, 1, gemm=5.0, tp_comm=1.0),
        plan(2, 1, gemm=5.01, tp_comm=1.0),  # 0.01 s apart
        plan(3, 1, gemm=4.0, tp_comm=2.02),  # 1.0 + 1.02 s apart
        plan(4, 2, gemm=9.0),
    ]
    assert ties(members) == [{"tie_group": 1, "ranks": [1, 2, 3], "measure": [1, 3]}]


def test_the_plan_that_differs_most_is_measured_wherever_it_stands_in_its_tie() -> None:
    """Of plans 2 to 4 the third is 0.8 + 0.9 s from the first, term by term, though its step is nearest in time; the others are
    0.3 s and 1.2 s away.
    """
    members = [
        plan(1, 1, tp=1, gemm=5.0, tp_comm=1.0),
        plan(2, 1, tp=2, gemm=5.3, tp_comm=1.0),
        plan(3, 1, tp=4, gemm=4.2, tp_comm=1.9),
        plan(4, 1, tp=8, gemm=5.0, tp_comm=1.0, pp_bubble=1.2),
    ]
    assert ties(members)[0]["measure"] == [1, 3]
    assert ties([members[0], members[3], members[2], members[1]])[0]["measure"] == [1, 3]
    assert ties(members[:2] + members[3:])[0]["measure"] == [1, 4]


def test_near_copies_are_measured_only_where_there_is_nothing_else() -> None:
    copy = plan(2, 1, gemm=5.0, tp_comm=1.0)
    other = plan(3, 1, tp=2, gemm=5.001, tp_comm=1.0)
    assert ties(compared([plan(1, 1, gemm=5.02, tp_comm=0.96), copy, other]))[0]["measure"] == [1, 3]
    assert ties(compared([plan(1, 1, gemm=5.02, tp_comm=0.96), copy]))[0]["measure"] == [1, 2]


def test_a_plan_ties_across_one_that_does_not() -> None:
    """Plan 2 is certainly slower than 1, plan 3 not; 4 ties with 2 alone, though 3 lies between, and 5 with 3, no leader."""
    tied = np.eye(5, dtype=np.bool_)
    for one, other in ((0, 2), (1, 3), (2, 4)):
        tied[one, other] = tied[other, one] = True
    assert tie_groups(5, lambda place: tied[place]) == [1, 2, 1, 2, 3]
    assert tie_groups(0, lambda place: tied[place]) == []


def test_no_difference_is_told_that_rounds_to_nothing() -> None:
    """10.000 against 10.003 s are 0.03 % apart: "0.0% faster" would say less than that they are alike."""
    best, other = plan(1, 1, gemm=9.0, pp_bubble=1.0), plan(2, 1, gemm=9.0, pp_bubble=1.003)
    assert against(best, other, close=True) == "as fast as plan 2 to within 0.1%, too close to call"
    assert against(best, other, objective="cost").startswith("as cheap as plan 2 to within 0.1%, 80 against 80.02 ")
    fewer = on_gpus(plan(1, 1, gemm=10.0), 4)
    told = against(fewer, other, objective="fewest_gpus")
    assert told.startswith("on 4 GPUs where plan 2 is on 8, and as fast to within 0.1%: ")


def test_four_terms_are_named_and_no_more() -> None:
    """Five terms differ, by 0.5, 0.4, 0.3, 0.2 and 0.1 of 11.5 s: the smallest is left out."""
    more = {"tp_comm": 0.5, "pp_bubble": 0.4, "head": 0.3, "optimizer": 0.2, "launch": 0.1}
    told = against(plan(1, 1, gemm=10.0, **dict.fromkeys(more, 0.0)), plan(2, 2, gemm=10.0, **more))
    assert told.count("% less on ") == 4
    for share in ("4.3%", "3.5%", "2.6%", "1.7%"):
        assert f"{share} less on " in told
    assert "0.9% less" not in told


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([4], "4"),
        ([2, 3], "2 and 3"),
        ([2, 3, 4], "2-4"),
        ([2, 3, 5], "2, 3 and 5"),
        ([1, 3, 4, 5], "1, 3, 4 and 5"),
        ([7, 8, 9, 10], "7-10"),
    ],
)
def test_ranks_that_follow_each_other_are_a_range_from_three_on(ranks, words) -> None:
    assert listed_ranks(ranks) == words
