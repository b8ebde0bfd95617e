"""From the best strategies to ranked plans: evaluated with every stage, numbered, and grouped where they cannot be told
apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cost_models.evaluate import evaluate
from cost_models.job import Job
from cost_models.layouts import build_layouts
from cost_models.ranges import is_tied
from cost_models.strategy import Strategies
from planner.comparison import tie_groups
from planner.evaluation_dict import evaluation_dict
from planner.strategy_input import strategy_dict


def ranked_plans(
    job: Job, best: Strategies, *, headroom_fraction: float, assumed: dict[str, Any]
) -> list[dict[str, Any]]:
    """The contract's `plans`, best first, with per-stage memory."""
    detailed = with_all_stages(job, best)
    evaluated = evaluate(job, detailed, headroom_fraction=headroom_fraction)
    groups = tie_groups(
        len(detailed), lambda leader: is_tied(job.calibration, evaluated.terms_s, evaluated.tiers, leader=leader)
    )
    return [
        {
            "rank": index + 1,
            "strategy": strategy_dict(detailed, index),
            "evaluation": evaluation_dict(evaluated, index, job=job, stages=True, assumed=assumed),
            "tie_group": groups[index],
        }
        for index in range(len(detailed))
    ]


def with_all_stages(job: Job, strategies: Strategies) -> Strategies:
    """The same strategies over layouts in which every stage is a slot."""
    used, inverse = np.unique(strategies.layout, return_inverse=True)
    table = [strategies.layouts.table[int(number)] for number in used]
    layouts = build_layouts(table, model=job.model, all_stages=True)
    return replace(strategies, layout=inverse.reshape(-1).astype(np.int64), layouts=layouts)
