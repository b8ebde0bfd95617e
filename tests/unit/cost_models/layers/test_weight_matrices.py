"""The matrices that a rank holds, against the parameter counts, and the fullest rank's share against packing them one by one."""

from __future__ import annotations

import heapq
from functools import partial

import numpy as np
import pytest

from builders import dense_model, job_of, row_of, with_experts
from cost_models.layers.parameters import layer_parameters
from cost_models.layers.weight_matrices import layer_matrices, stage_matrices

one = np.ones(1)


def test_matrices_and_vectors_make_a_layer():
    # 1024 wide, 8 heads of 128, 2 groups of key and value; MLP 4096 gated: q 1024^2, k and v 256 x 1024, o 1024^2, 3 x 4096 x 1024;
    # two norms of 1024 are the only vectors.
    job = job_of(dense_model(num_key_value_heads=2))
    kind = job.model.layer_kinds[0]
    matrices = layer_matrices(job, kind, tp=one, ep=one, etp=one)
    shapes = sorted((float(m.rows[0]), float(m.columns[0]), float(m.count[0])) for m in matrices)
    # Megatron keeps gate and up projection in one tensor.
    assert shapes == [
        (256, 1024, 1),
        (256, 1024, 1),
        (1024, 1024, 1),
        (1024, 1024, 1),
        (1024, 4096, 1),
        (8192, 1024, 1),
    ]
    elements = sum(float(m.elements[0] * m.count[0]) for m in matrices)
    assert layer_parameters(job.model, kind).total - elements == 2 * 1024


@pytest.mark.parametrize("preset", ["qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b"])
def test_only_norms_and_biases_are_left_of_a_mixture(preset: str):
    job = job_of({"preset": preset})
    for kind in job.model.distinct_kinds:
        matrices = layer_matrices(job, kind, tp=one, ep=one, etp=one)
        elements = sum(float(m.elements[0] * m.count[0]) for m in matrices)
        left = layer_parameters(job.model, kind).total - elements
        assert 0 < left < 2e-3 * elements


def packed(sizes: list[float], shards: int) -> float:
    """Elements on the fullest rank where each matrix goes to the emptiest one, the largest first (layer_wise_optimizer.py)."""
    loads = [0.0] * shards
    for size in sorted(sizes, reverse=True):
        heapq.heapreplace(loads, loads[0] + size)
    return max(loads)


@pytest.mark.parametrize(("preset", "num_nodes", "strategy"), [
    ("llama-3.1-8b", 1, {}), ("llama-3.1-8b", 4, {"tp": 2}), ("llama-3.1-8b", 16, {}), ("llama-2-13b", 2, {"pp": 2}),
    ("qwen3-30b-a3b", 4, {"ep": 8}), ("mixtral-8x7b", 2, {"ep": 4, "tp": 2}),
])  # fmt: skip
def test_the_fullest_rank_is_that_of_packing_the_largest_first(preset: str, num_nodes: int, strategy: dict[str, int]):
    job = job_of({"preset": preset}, num_nodes=num_nodes, global_batch_size=512)
    row = row_of(job, zero=1, **strategy)
    held = stage_matrices(job, row)
    dense, expert = row.zero_shard_size * 1.0, row.expert_shard_size * 1.0
    elements = [each.elements for each in held.kinds]
    found = sum(
        held.fullest(elements, shards=shards, is_expert=is_expert)[0, 0]
        for is_expert, shards in ((False, dense), (True, expert))
    )
    by_hand = 0.0
    for is_expert, shards in ((False, int(dense[0])), (True, int(expert[0]))):
        sizes: list[float] = []
        for each, count in zip(held.kinds, held.counts, strict=True):
            sizes += [float(each.elements[0])] * int(count[0, 0]) if each.is_expert == is_expert else []
        by_hand += packed(sizes, shards) if sizes else 0.0
    assert found <= by_hand * (1 + 1e-12)  # no packing gets below
    assert found == pytest.approx(by_hand, rel=0.12)


def test_experts_are_shared_by_their_own_ranks():
    # 8 experts over ep 4 are 2 a rank and layer; 2 x 512 x 1024 gate and up together, 1024 x 512 down. edp = 32 / 4 = 8 ranks share 8 of
    # each: one of each on every rank.
    job = partial(job_of, num_nodes=4)(with_experts(dense_model(num_layers=4)))
    row = row_of(job, zero=1, ep=4)
    held = stage_matrices(job, row)
    elements = [each.elements for each in held.kinds]
    assert held.fullest(elements, shards=np.array([8.0]), is_expert=True)[0, 0] == 3 * 512 * 1024
