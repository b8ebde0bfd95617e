"""A ranked plan's strategy, fed back to `evaluate` with the request that the response states, gives the plan's own evaluation.

Every number to the last digit, the verdict, its reasons and the stages' memory: `benchmarks.plan_against_evaluate` holds the
jobs, pools and every framework among them.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.plan_against_evaluate import JOBS, compared, differing_fields

QUICK = ("8b_fsdp", "6.7b_megatron_deepspeed", "1b_torchtitan_l40s", "8b_nanotron", "8b_pools_nanotron")
IN_EVERY_RUN = ("1b_fsdp_rtx4090", "8b_deepspeed", "mixtral_megatron")
"""The frameworks that QUICK leaves out, with a mixture; the other jobs, ten times as long together, run with the proofs."""


@pytest.mark.parametrize("name", QUICK)
def test_ranked_plans_are_what_evaluate_says(name: str) -> None:
    found = compared(JOBS[name] | {"top_k": 250})
    assert found.plans == 250
    assert found.differing == 0, found.fields


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.proof) for name in JOBS if name not in QUICK],
)
def test_a_thousand_ranked_plans_are_what_evaluate_says(name: str) -> None:
    found = compared(JOBS[name])
    assert found.plans > 250
    assert found.differing == 0, found.fields


def test_differences_are_seen() -> None:
    """The comparison itself: numbers, nested tables, lists and fields that only one of two answers has."""
    one: dict[str, Any] = {"id": 1, "seconds": 1.0, "terms": {"a": 1.0, "b": 2.0}, "memory": {"stages": [1, 2]}}
    other: dict[str, Any] = {
        "id": 2,
        "seconds": 1.0,
        "terms": {"a": 1.0, "b": 2.5},
        "memory": {"stages": [1]},
        "more": 0,
    }
    assert list(differing_fields(one, one)) == []
    assert sorted(differing_fields(one, other)) == ["memory.stages", "more", "terms.b"]
