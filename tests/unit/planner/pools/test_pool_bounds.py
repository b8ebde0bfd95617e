"""Lower bounds on stages of two pools, with the arithmetic written out.

A bound that is too low costs the search time and no plan shows it, so the bounds themselves are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import cluster_of, dense_model, rows_of, training_of, with_experts
from cost_models.job import PooledJob
from cost_models.strategies.strategy import Strategies
from planner.pools.bounds import RowBound, Work, pace_s, row_numbers, row_work
from planner.pools.placements import Sites
from planner.request.job import resolve_pooled_job


def pooled(model: dict[str, Any]) -> PooledJob:
    pools = [{"name": "a", **cluster_of()}, {"name": "b", **cluster_of("A100-SXM-80GB")}]
    return resolve_pooled_job({"model": model, "cluster": {"pools": pools}, "training": training_of()})


DENSE = pooled(dense_model(6))
SITES = Sites(np.arange(3), np.array([[2, 1, 1], [1, 2, 0]]), np.array([[0, 1, 0], [1, 0, 1]]))
"""Stages on a, a, b; on b, b, a; and on a alone."""
WORK = Work(
    np.array([[[2.0, 2.0, 2.0]], [[1.0, 4.0, 2.5]]]),
    np.array([[0.5, 70.0, 0.5], [80.0, 0.25, 80.0]]),
    np.array([[90.0, 1.0, 1.0], [3.0, 60.0, 90.0]]),
)
"""Six layers in a's seconds: 12 s. Ends of pools that have none are large, so that reading them shows."""
VPP = np.array([1.0, 2.0, 1.0])


def four_micro_batches(job: PooledJob) -> Strategies:
    """Three rows of 64 sequences, 16 to each micro-batch of all replicas."""
    rows = rows_of(job.jobs[0], *[{"dp": 8, "pp": 1, "micro_batch_size": 2}] * 3)
    assert rows.num_micro_batches.tolist() == [4.0] * 3
    return rows


def test_fractions_of_layers_even_all_stages_out() -> None:
    """Four micro-batches: three of the slowest stage and all stages once, which share half of that with two chunks each.

    Site 0: b is twice as fast and has an end of 3 s, a one of 0.5 s. All end together at t with 2 (t - 3) + 2 t - 0.5 = 12:
    4.625 s; three stages of it are 13.875 s. The least together is b doing all it could in 9 s: 9 s and a's end.
    Site 1: b is half as fast: t - 1 + (2 t - 0.25) / 2 = 12, so t = 6.5625 s; a alone would take 12 s and both ends.
    Site 2: 12 s and both ends of one stage.
    """
    pace, all_s = pace_s(DENSE, WORK, four_micro_batches(DENSE), SITES, vpp=VPP, layers="fractions")
    assert pace.tolist() == pytest.approx(
        [3 * 4.625 + 13.875, 3.5 * 6.5625 + 0.5 * 3 * 6.5625, 3 * 13.5 + 13.5], rel=1e-12
    )
    assert all_s.tolist() == pytest.approx([9.5, 13.25, 13.5], rel=1e-12)


def test_whole_layers_must_all_find_a_place() -> None:
    """Site 0: in 5 s a's stages hold 2 and 2 layers and b's, with 2 s left, 2; in less b holds one. Together 13.5 s: b works 5 s.

    Site 1: in 8 s b's stages hold 1 and 2 layers and a's, with 7 s left, 3; just below one of b's would hold 1. The least
    together under 8 s: a 8 s, b its end and 5 s of a's work. Site 2 as before.
    """
    pace, all_s = pace_s(DENSE, WORK, four_micro_batches(DENSE), SITES, vpp=VPP)
    exact = np.array([3 * 5 + 13.5, 3.5 * 8 + 0.5 * (8 + 0.25 + 10), 54.0])
    assert (pace <= exact).all()
    assert pace.tolist() == pytest.approx(exact.tolist(), abs=0.01)
    assert all_s.tolist() == pytest.approx([9.5, 13.25, 13.5])


def test_of_several_kinds_each_pool_is_credited_with_its_best() -> None:
    """b does dense layers twice as fast and experts 1.5 times: 2 counts. 2 x 1 s + 4 x 3 s over 1 + 2: 14/3 s a stage."""
    job = pooled(with_experts(dense_model(6), first_dense_layers=2))
    work = Work(np.array([[[1.0], [3.0]], [[0.5], [2.0]]]), np.zeros((2, 1)), np.zeros((2, 1)))
    site = Sites(np.zeros(1, np.int64), np.array([[1], [1]]), np.array([[0], [1]]))
    rows = four_micro_batches(job).take(np.array([0]))
    pace, all_s = pace_s(job, work, rows, site, vpp=np.ones(1))
    assert pace.tolist() == pytest.approx([3 * 14 / 3 + 28 / 3])
    assert all_s.tolist() == pytest.approx([7.0])


def test_recomputed_layers_count_by_their_share() -> None:
    """Two of six layers of every stage, all where as many are asked for as there are, and none of a strategy without."""
    full = {"dp": 4, "pp": 2, "recompute": "full"}
    rows = rows_of(
        DENSE.jobs[0],
        full,
        {**full, "recompute_method": "block", "recompute_num_layers": 2},
        {**full, "recompute_method": "block", "recompute_num_layers": 3},
        {**full, "recompute": "none"},
    )
    numbers = row_numbers(DENSE, rows)
    work = row_work(numbers, rows, num_layers=6)
    share = np.array([1.0, 2 / 6, 3 / 6, 0.0])
    assert (numbers[1].again_JN[:, :3] > 0).all()
    np.testing.assert_allclose(work.layer_PJN[1], numbers[1].layer_JN + share * numbers[1].again_JN, rtol=1e-12)
    np.testing.assert_allclose(
        row_work(numbers, rows, num_layers=2).layer_PJN[0, :, 2], numbers[0].layer_JN[:, 2] + numbers[0].again_JN[:, 2]
    )


def test_the_longest_stage_of_a_step_that_is_beaten() -> None:
    """(105 s / 1.05 - 4 s - 20 s of all stages) over three micro-batches; of one micro-batch, the step itself."""
    rows = rows_of(DENSE.jobs[0], {"dp": 8, "micro_batch_size": 2}, {"dp": 8, "micro_batch_size": 8})
    assert rows.num_micro_batches.tolist() == [4.0, 1.0]
    one = np.ones(2)
    bound = RowBound(50 * one, 4 * one, 2 * one, 1.05 * one, 20 * one)
    assert bound.slowest_allowed_s(rows, np.array([105.0, 105.0])).tolist() == pytest.approx([76 / 3, 105.0])
