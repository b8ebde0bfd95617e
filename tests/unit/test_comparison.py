"""Ranked plans compared term by term, variants folded, ties with the two plans to measure."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.comparison import SPLIT_FIELDS, against, compared, differing_knobs, tie_groups, ties


def plan(rank: int, group: int, *, tp: int = 1, **terms_s: float) -> dict[str, Any]:
    strategy = dict.fromkeys(SPLIT_FIELDS, 1) | {"tp": tp, "vpp": rank}
    terms = {"gemm": 0.0, "tp_comm": 0.0, "pp_bubble": 0.0} | terms_s
    return {
        "rank": rank, "tie_group": group, "strategy": strategy,
        "evaluation": {"verdict": "fits", "step_time_s": sum(terms.values()), "time_breakdown_s": terms},
    }  # fmt: skip


def test_terms_are_shares_of_the_other_step() -> None:
    best = plan(1, 1, gemm=8.0, tp_comm=0.9, pp_bubble=0.9)  # 9.8 s
    other = plan(2, 2, gemm=8.0, tp_comm=0.6, pp_bubble=1.4)  # 10.0 s: 0.3 s less in tp_comm, 0.5 s more bubble
    assert (
        against(best, other) == "2.0% faster than plan 2: gains 5.0% in bubble, loses 3.0% in exposed TP communication"
    )


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
