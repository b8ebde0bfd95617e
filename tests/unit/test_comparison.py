"""Ranked plans compared term by term, variants folded, ties with the two plans to measure."""

from __future__ import annotations

from typing import Any

from planner.comparison import SPLIT_FIELDS, against, compared, ties


def plan(rank: int, group: int, *, tp: int = 1, **terms_s: float) -> dict[str, Any]:
    strategy = dict.fromkeys(SPLIT_FIELDS, 1) | {"tp": tp}
    terms = {"gemm": 0.0, "tp_comm": 0.0, "pp_bubble": 0.0} | terms_s
    return {
        "rank": rank, "tie_group": group, "strategy": strategy,
        "evaluation": {"step_time_s": sum(terms.values()), "time_breakdown_s": terms},
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


def test_of_a_tie_the_two_that_differ_most_are_measured() -> None:
    members = [
        plan(1, 1, gemm=5.0, tp_comm=1.0),
        plan(2, 1, gemm=5.01, tp_comm=1.0),  # 0.01 s apart
        plan(3, 1, gemm=4.0, tp_comm=2.02),  # 1.0 + 1.02 s apart
        plan(4, 2, gemm=9.0),
    ]
    assert ties(members) == [{"tie_group": 1, "ranks": [1, 2, 3], "measure": [1, 3]}]
