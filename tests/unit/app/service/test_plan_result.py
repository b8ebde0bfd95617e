"""How an answer is taken apart for the list, the plan and its ranks."""

from __future__ import annotations

import json
from typing import Any

from app.service.db.packing import lines_of, unpacked
from app.service.db.plan_result import split_response


def entry(rank: int, step_s: float) -> dict[str, Any]:
    memory = {"peak_allocated_bytes": 100 * rank, "stages": [{"layers": rank}, {"layers": 9}]}
    evaluation = {
        "step_time_s": step_s,
        "tokens_per_s_per_gpu": 1000.0 / step_s,
        "num_gpus_used": 8 * rank,
        "memory": memory,
    }
    return {"rank": rank, "evaluation": evaluation}


def test_the_headline_is_the_first_plans_and_stages_are_kept_by_rank_alone() -> None:
    entries = [entry(1, 2.0), entry(2, 2.5), entry(3, 4.0)]
    result = split_response({"id": "x", "plans": entries})
    headline = {"num_plans": 3, "step_time_s": 2.0, "tokens_per_s_per_gpu": 500.0, "num_gpus_used": 8}
    assert json.loads(result.headline) == headline
    assert [json.loads(line) for block in result.ranked for line in lines_of(unpacked(block))] == entries
    plans = json.loads(unpacked(result.response))["plans"]
    assert [each["evaluation"]["memory"] for each in plans] == [
        {"peak_allocated_bytes": 100 * n, "stages": None} for n in (1, 2, 3)
    ]


def test_without_plans_the_headline_has_no_figures() -> None:
    """Nor has a plan whose evaluation says nothing of memory any stages to leave out."""
    nothing = dict.fromkeys(("step_time_s", "tokens_per_s_per_gpu", "num_gpus_used"))
    assert json.loads(split_response({"plans": []}).headline) == {"num_plans": 0, **nothing}
    bare = {"plans": [{"rank": 1, "evaluation": {"step_time_s": 3.0, "memory": None}}]}
    assert json.loads(unpacked(split_response(bare).response)) == bare
