"""The enumerated front against definition, and NSGA-II against the enumerated front."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from planner.plan import plan
from planner.request.job import resolve_job
from planner.schemas.plan_request import PlanRequest
from planner.search.dominance import undominated
from planner.search.objective import build_goal
from planner.search.pareto import Front, pareto_front
from planner.strategies.axes import build_space

REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 2},
    "training": {"seq_length": 4096, "global_batch_size": 32, "precision": "bf16", "framework": "megatron"},
    "constraints": {
        "fixed": {"cp": 1, "vpp": 1, "sequence_parallel": True},
        "allowed": {"zero": [1, 3], "recompute": ["none", "full"], "tp": [2, 4, 8], "pp": [1, 2, 4]},
    },
}


@cache
def front(method: str, seed: int = 0) -> Front:
    asked = PlanRequest.model_validate(REQUEST)
    job = resolve_job(REQUEST)
    goal = build_goal(job, asked.objective, asked.targets)
    space = build_space(job, asked.constraints)
    return pareto_front(space, goal=goal, headroom_fraction=0.03, seed=seed, method=method)


def test_undominated_keeps_what_nothing_beats() -> None:
    points = np.array([[1.0, 5.0], [2.0, 4.0], [2.0, 6.0], [1.0, 5.0], [3.0, 4.0], [0.5, 9.0]]).T
    # (2, 6) and (3, 4) are beaten by (2, 4), the second (1, 5) repeats the first
    assert undominated(*points, np.full(6, 8.0)).tolist() == [True, True, False, False, False, True]


def test_a_point_on_fewer_gpus_is_beaten_by_none_on_more() -> None:
    step_s, device_bytes = np.array([1.0, 3.0, 3.0, 2.0]), np.array([5.0, 5.0, 5.0, 6.0])
    world = np.array([16.0, 8.0, 16.0, 24.0])
    # The second is as good as the third on half the GPUs; the last is slower and larger than the first, on more GPUs.
    assert undominated(step_s, device_bytes, world).tolist() == [True, True, False, False]


def test_no_point_of_the_front_beats_another() -> None:
    points = front("exhaustive").objectives_ND
    assert len(points) > 3
    better = (points[None] <= points[:, None]).all(axis=2)
    assert (better.sum(axis=1) == 1).all()  # itself alone


def test_a_front_is_sampled_beyond_the_stated_number_of_strategies() -> None:
    """With as many strategies as the limit says it is still exact; with one more it is not."""
    asked = REQUEST | {"constraints": {"fixed": {"tp": 8, "pp": 1, "cp": 1, "zero": 1, "vpp": 1, "recompute": "none"}}}
    job = resolve_job(asked)
    checked = PlanRequest.model_validate(asked)
    space = build_space(job, checked.constraints)
    goal = build_goal(job, checked.objective, checked.targets)
    size = int(space.mesh_sizes.sum())
    given = {"goal": goal, "headroom_fraction": 0.03, "seed": 0, "should_stop": lambda: True}
    for limit, method in ((size, "exhaustive"), (size - 1, "nsga-ii")):
        assert pareto_front(space, **given, most_searched=limit).method == method


def test_a_sampled_front_lies_on_or_behind_the_enumerated_one() -> None:
    exact = front("exhaustive").objectives_ND
    for point in front("nsga-ii", 0).objectives_ND:
        assert (exact <= point * (1 + 1e-12)).all(axis=1).any()


@pytest.mark.proof
def test_sampled_fronts_hit_half_of_the_enumerated_one() -> None:
    """Over three seeds, since what one of them hits is luck: about half of the front's points, and nearly its fastest."""
    exact = front("exhaustive").objectives_ND
    hit, fastest = [], []
    for seed in range(3):
        sampled = front("nsga-ii", seed).objectives_ND
        for point in sampled:
            assert (exact <= point * (1 + 1e-12)).all(axis=1).any()
        hit += [bool((np.abs(sampled / point - 1) < 1e-9).all(axis=1).any()) for point in exact]
        fastest.append(sampled[:, 0].min() / exact[:, 0].min())
    assert np.mean(hit) >= 0.45
    assert min(fastest) <= 1.03


def test_cost_per_token_is_in_the_price_s_currency_or_in_gpu_seconds() -> None:
    """2.5 an hour and GPU: a step of t seconds on n GPUs costs t * n * 2.5 / 3600, and holds 32 sequences of 8192 tokens."""
    tokens = 32 * REQUEST["training"]["seq_length"]
    narrow = {
        "fixed": {"cp": 1, "vpp": 1, "tp": 8, "zero": 1},
        "allowed": {"recompute": ["none", "full"], "pp": [1, 2]},
    }
    for price, per_gpu_second in ((2.5, 2.5 / 3600), (None, 1.0)):
        cluster = {**REQUEST["cluster"], "price_per_gpu_hour": price}
        points = plan({**REQUEST, "cluster": cluster, "constraints": narrow, "include": ["pareto"]})["pareto"]
        assert len({point["num_gpus"] for point in points}) == 2
        for point in points:
            expected = point["step_time_s"] * point["num_gpus"] * per_gpu_second / tokens
            assert point["cost_per_token"] == pytest.approx(expected, rel=1e-12)
