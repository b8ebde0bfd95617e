"""What limits on work leave open, and what the answer then says of its plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import dense_model, request_of
from cost_models.strategies.strategy import Strategies
from planner.plan import plan
from planner.pools.search import PoolSearch
from planner.pools.space_on_pools import space_on_pools
from planner.request.checked_request import check_request
from planner.request.job import resolve_job
from planner.schemas.plan_request import PlanRequest
from planner.search.exhaustive import Exhaustive
from planner.search.objective import build_goal
from planner.splits.gaps import LeftOpen, left_open
from planner.splits.one_pool import build_one_pool_split
from planner.splits.paths import Paths, close_by_paths
from planner.splits.search import OpenSplits
from planner.strategies.axes import build_space, opened

OPEN: dict[str, Any] = {
    **request_of(dense_model(7, vocab_size=250_000)),
    "include": ["open_splits"],
    "constraints": {"fixed": {"tp": 2, "pp": 2, "cp": 1, "micro_batch_size": 1, "recompute": "none"}},
}
ON_POOLS: dict[str, Any] = {
    **request_of(dense_model(7)),
    "cluster": {
        "pools": [
            {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
            {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        ]
    },
    "constraints": {"fixed": {"tp": 4, "cp": 1, "micro_batch_size": 1, "recompute": "none"}, "allowed": {"vpp": [1, 2]}},
}  # fmt: skip


def test_plans_up_to_the_least_open_bound_are_sure() -> None:
    left = LeftOpen()
    assert left.sure([3.0, 4.0, 5.0]) == 3
    left.add(np.array([9.0, 4.5]), np.array([90.0, 45.0]))
    left.add(np.array([6.0]), np.array([40.0]))
    left.add(np.zeros(0), np.zeros(0))
    assert (left.step_s, left.value) == (4.5, 40.0)
    assert [left.sure(values) for values in ([39.0, 40.0, 41.0], [40.1], [])] == [2, 0, 0]


@pytest.mark.parametrize(
    ("sure", "says"),
    [
        (0, 'at most by the gap that is stated with the search (the line of the table that begins with "Searched"'),
        (1, "Plan 1 is proved to be the best; behind that"),
        (4, "Plans 1 to 4 are proved to be the best, in this order; behind that"),
    ],
)
def test_the_answer_says_which_plans_are_proved(sure: int, says: str) -> None:
    assert says in left_open(sure)


def open_search(**changed: Any) -> tuple[OpenSplits, list[Any]]:
    asked, job = PlanRequest.model_validate(OPEN), resolve_job(OPEN)
    space = build_space(job, asked.constraints)
    opens, goal = opened(space, asked.constraints), build_goal(job, asked.objective, asked.targets)
    exhaustive = Exhaustive(space, goal=goal, top_k=3, headroom_fraction=0.03, allow_at_risk=False, opened=opens)
    exhaustive.run()
    known = exhaustive.kept.safe_values
    return OpenSplits(
        opens, goal=goal, top_k=3, headroom_fraction=0.03, known=known, should_stop=lambda: False, **changed
    ), exhaustive.legal


def searched(**changed: Any) -> OpenSplits:
    searcher, legal = open_search(**changed)
    for virtual in (False, True):
        for base, bounds in legal:
            searcher.run(base, bounds, virtual=virtual)
    searcher.close()
    return searcher


def test_strategies_with_virtual_stages_beyond_the_limit_are_left_with_their_bound() -> None:
    everything, none = searched(), searched(most_virtual=0)
    best = min(everything.found.ranked, key=lambda each: each.value)
    assert best.layout.vpp > 1
    assert np.isinf(everything.found.left.value)
    assert all(each.layout.vpp == 1 for each in none.found.ranked)
    assert none.found.left.step_s <= best.step_s
    assert none.found.left.value <= best.value < none.values[0]
    assert none.found.left.sure(none.values) == 0


def open_row() -> tuple[Any, Strategies]:
    best = min(searched().found.ranked, key=lambda each: each.value)
    return resolve_job(OPEN), best.row


def test_without_work_left_the_bound_stands() -> None:
    job, row = open_row()
    model = build_one_pool_split(job, row, headroom_fraction=0.03, limit_s=np.inf)
    assert model is not None
    closed = close_by_paths(model, bound_s=0.25, target_s=9.0, paths=Paths(first_left=0.0), should_stop=lambda: False)
    assert (closed.unproven_s, closed.layout, closed.solved) == (0.25, None, False)
    paths = Paths()
    behind = close_by_paths(
        model, bound_s=0.25, target_s=9.0, may_be_first=False, paths=paths, should_stop=lambda: False
    )
    assert np.isinf(behind.unproven_s)
    assert behind.layout is not None
    assert paths.others_left < Paths().others_left
    assert paths.first_left == Paths().first_left


def test_on_pools_what_the_limit_leaves_is_counted_and_said() -> None:
    checked = check_request(ON_POOLS)
    space = space_on_pools(checked)
    options: dict[str, Any] = {"limits": space.limits, "top_k": 3, "headroom_fraction": 0.03}
    goal = build_goal(checked.job.jobs[0], "step_time", checked.asked.targets)
    every, few = (
        PoolSearch(space.pooled, space.space, goal=goal, **options, **limit).run()
        for limit in ({}, {"most_virtual": 0})
    )
    assert every.unsearched == 0
    assert few.unsearched > 0
    assert few.bounded >= 0
    assert every.total == few.total
    assert np.isinf(every.left.value)
    assert few.left.step_s <= min(plan.step_s for plan in every.best)
    assert few.optimal == (few.left.value >= few.best[0].value)


def test_splits_that_may_not_fit_rank_behind_those_that_do_where_they_are_allowed() -> None:
    """The GPU has less memory than the high end of the best split's range, and more than the low end."""
    free = plan(OPEN)["plans"][0]["evaluation"]["memory"]
    low, high = free["peak_device_range_bytes"]
    capacity_gib = (low + high) / 2 / 2**30
    reserved = free["capacity_bytes"] / 2**30 - capacity_gib
    tight = {**OPEN, "cluster": {**OPEN["cluster"], "reserved_memory_gib": reserved}, "top_k": 30}
    constraints = {**OPEN["constraints"], "allow_at_risk": True}
    strict, loose = plan(tight), plan({**tight, "constraints": constraints})
    assert all(each["evaluation"]["verdict"] == "fits" for each in strict["plans"])
    verdicts = [each["evaluation"]["verdict"] for each in loose["plans"]]
    assert verdicts[: len(strict["plans"])] == ["fits"] * len(strict["plans"])
    risky = [each for each in loose["plans"] if each["evaluation"]["verdict"] == "at-risk"]
    assert any(len(set(each["strategy"]["layers_per_stage"])) > 1 for each in risky)
    times = [each["evaluation"]["step_time_s"] for each in risky]
    assert times == sorted(times)


def test_on_pools_the_limit_is_the_last_work_that_is_done() -> None:
    """Two stages of seven layers are 14: with a limit of 13 no family with virtual stages is solved, with 14 and 27 one, with 28 two."""
    fixed = {**ON_POOLS["constraints"]["fixed"], "pp": 2}
    checked = check_request({**ON_POOLS, "constraints": {**ON_POOLS["constraints"], "fixed": fixed}})
    space = space_on_pools(checked)
    goal = build_goal(checked.job.jobs[0], "step_time", checked.asked.targets)
    left = [
        PoolSearch(
            space.pooled,
            space.space,
            goal=goal,
            limits=space.limits,
            top_k=3,
            headroom_fraction=0.03,
            most_virtual=most,
        )
        .run()
        .unsearched
        for most in (0, 13, 14, 27, 28)
    ]
    assert [left[0] - each for each in left] == [0, 0, 1, 1, 2]
