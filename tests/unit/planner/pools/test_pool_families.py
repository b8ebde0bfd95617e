"""Splits of one strategy on a placement that only its speed decides, and what its stages are asked about their memory.

The search is exact wherever it begins, so no plan shows an error here: these splits and questions are compared as they are.
"""

from __future__ import annotations

import numpy as np
import pytest

from builders import cluster_of, dense_model, row_of, training_of, with_experts
from cost_models.job import PooledJob
from planner.pools.bounds import Work
from planner.pools.families import layers_by_speed, stage_questions
from planner.pools.placements import Sites
from planner.request.job import resolve_pooled_job

TWO = {"pools": [{"name": "a", **cluster_of()}, {"name": "b", **cluster_of("A100-SXM-80GB")}]}


def pooled(num_layers: int, **more: object) -> PooledJob:
    """A job on two pools."""
    model = dense_model(num_layers)
    if more:
        model = with_experts(model, **more)
    return resolve_pooled_job({"model": model, "cluster": TWO, "training": training_of()})


def sites(*pools_of_rows: tuple[int, ...]) -> Sites:
    """One site for each of these lists of the pool of every stage."""
    stages = [[pools.count(pool) for pools in pools_of_rows] for pool in (0, 1)]
    orders = [list(dict.fromkeys([*pools, 0, 1])) for pools in pools_of_rows]
    return Sites(np.zeros(len(pools_of_rows), np.int64), np.array(stages), np.array(orders).T)


def work(layer_s: tuple[float, float], first: tuple[float, float], last: tuple[float, float]) -> Work:
    """Seconds on both pools of the second of two rows; the first row is another, which nothing may read."""
    wrong = 1000.0
    layer_PJN = np.array([[[wrong, layer_s[0]]], [[wrong, layer_s[1]]]])
    ends = [np.array([[wrong, end_s] for end_s in each]) for each in (first, last)]
    return Work(layer_PJN, *ends)


@pytest.mark.parametrize(
    ("num_layers", "pools", "layer_s", "first", "last", "expected"),
    [
        # Even at (12 + 1/2 + 2.5) / (1/2 + 1/2 + 1) = 7.5 s: 3.25, 3.75 and 5 layers. The one that is left ends soonest at
        # 8 s on the second stage; it would end at 9 s on the first and at 8.5 s on the last.
        (12, (0, 0, 1), (2.0, 1.0), (1.0, 50.0), (60.0, 2.5), (3, 4, 5)),
        # The same pools the other way round. Even at (12 + 2 + 1.5) / 2 = 7.75 s: 5.75, 3.875 and 2.375 layers; two are left,
        # which end at 8 s on the first stage, at 8 s on the second and at 9 s on the last.
        (12, (1, 0, 0), (2.0, 1.0), (70.0, 2.0), (3.0, 80.0), (6, 4, 2)),
        # The first stage's own work outlasts all: even at 14/3 s the others would get 4 and 3 of 3 layers. Those that end
        # last give them back, at 4 and 4, 3 and 4, 3 and 3, 2 and 3 seconds.
        (3, (0, 0, 0), (1.0, 1.0), (10.0, 9.0), (1.0, 9.0), (0, 2, 1)),
        # One stage holds everything.
        (5, (1,), (1.0, 2.0), (0.5, 0.25), (0.5, 0.25), (5,)),
    ],
)  # fmt: skip
def test_stages_end_as_nearly_together_as_whole_layers_allow(
    num_layers: int, pools: tuple[int, ...], layer_s: tuple[float, float], first: tuple[float, float],
    last: tuple[float, float], expected: tuple[int, ...],
) -> None:  # fmt: skip
    found = layers_by_speed(pooled(num_layers), work(layer_s, first, last), sites((0, 1), pools), 1, vpp=1)
    assert (found.pp, found.vpp, found.layers) == (len(pools), 1, expected)


def test_stages_whose_ends_outlast_the_others_hold_nothing_on_any_chunk() -> None:
    """Four layers on two chunks of three stages, of which the outer two are busy with their ends: the one between takes all."""
    seconds = work((1.0, 1.0), (10.0, 9.0), (10.0, 9.0))
    found = layers_by_speed(pooled(4), seconds, sites((0, 1), (0, 0, 0)), 1, vpp=2)
    assert found.layers == (0, 2, 0, 0, 2, 0)


def test_layers_of_two_kinds_count_by_their_average() -> None:
    """Two dense layers of 1 s and four of 4 s with experts average 3 s on the one pool, 1.5 s on the other: twice as many there."""
    layer_PJN = np.array([[[1.0], [4.0]], [[0.5], [2.0]]])
    none = np.zeros((2, 1))
    job = pooled(6, first_dense_layers=2)
    assert layers_by_speed(job, Work(layer_PJN, none, none), sites((0, 1)), 0, vpp=1).layers == (2, 4)


def test_stages_are_asked_with_the_time_that_their_ends_leave() -> None:
    """The first stage of a strategy is asked first, then the first one on every other pool, then the others."""
    job = pooled(8, first_dense_layers=3).jobs[0]
    three = row_of(job, pp=4, tp=1)
    both = three.take(np.array([0, 0]))
    layer_PJN = np.array([[[9.0, 9.0], [1.0, 2.0]], [[9.0, 9.0], [3.0, 4.0]]])
    seconds = Work(layer_PJN, np.array([[0.5, 0.6], [0.7, 0.8]]), np.array([[1.5, 1.6], [1.7, 1.8]]))
    asked = stage_questions(both, sites((0, 0, 1, 1), (1, 0, 0, 0)), seconds, kind=1, slowest_s=np.array([20.0, 30.0]))
    assert asked.row.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert asked.stage.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert asked.pool.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
    assert asked.time_s.tolist() == pytest.approx([19.5, 20.0, 20.0, 18.3, 29.2, 30.0, 30.0, 28.4])
    assert asked.layer_s.tolist() == [1.0, 1.0, 3.0, 3.0, 4.0, 2.0, 2.0, 2.0]
    assert asked.order.tolist() == [0, 2, 1, 2, 0, 1, 2, 2]
    assert asked.stands_for.tolist() == [1] * 8
