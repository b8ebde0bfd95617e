"""How much longer Megatron's layer-wise buffers are than what lies in them, against what Megatron Core 0.19.2 makes of the same sizes."""

from __future__ import annotations

import numpy as np
import pytest

from builders import job_of, row_of
from cost_models.evaluate import evaluate
from cost_models.layers.packed_matrices import buckets, fullest_of, fullest_rank
from cost_models.layers.weight_matrices import stage_matrices
from cost_models.step.ddp_comm import ddp_links_s
from cost_models.step.total import step_time


def test_a_bucket_is_closed_when_its_largest_matrix_would_fill_the_ranks():
    # Eight layers of 30 and 10 on two ranks: 0.9 x 2 x 30 = 54, so that the first bucket holds 30 + 10 + 30, the next three
    # 10 + 30 + 10 + 30, and the last the 10 that is left.
    assert buckets((30.0, 10.0), (8, 8), 8, 2, 1.0) == {(2, 1): 1, (2, 2): 3, (0, 1): 1}
    # 30 and 30 + 10, the largest first; and 30 + 10 twice.
    assert fullest_rank((30.0, 10.0), (2, 1), 2) == (1, 1)
    assert fullest_rank((30.0, 10.0), (2, 2), 2) == (1, 1)
    # Buckets of everything are one.
    assert buckets((30.0, 10.0), (8, 8), 8, 2, 1e9) == {(8, 8): 1}


@pytest.mark.parametrize(("preset", "degrees", "is_expert", "over"), [
    # LayerWiseDistributedOptimizer._compute_per_buffer_param_layout of core 0.19.2, total_buffer_numel over total_param_numel
    ("llama-3.1-8b", {"dp": 16}, False, 1.1346), ("llama-3.1-8b", {"dp": 64}, False, 2.1538),
    ("llama-3.1-70b", {"tp": 8, "dp": 64}, False, 1.3176),
    ("qwen3-30b-a3b", {"dp": 64, "ep": 8}, False, 1.4612), ("qwen3-30b-a3b", {"dp": 64, "ep": 8}, True, 1.1528),
    ("qwen3-30b-a3b", {"tp": 2, "dp": 128, "ep": 4}, True, 1.1806),
])  # fmt: skip
def test_buffers_are_as_long_as_megatrons(preset: str, degrees: dict[str, int], is_expert: bool, over: float):
    nodes = degrees["dp"] * degrees.get("tp", 1) // 8
    job = job_of(
        {"preset": preset}, optimizer="muon", framework_version="0.19", num_nodes=nodes, global_batch_size=1024
    )
    row = row_of(job, zero=1, **degrees)
    held = stage_matrices(job, row)
    shards = row.expert_shard_size if is_expert else row.zero_shard_size
    elements = [each.elements for each in held.kinds]
    fullest = fullest_of(job, held, elements, row, shards=shards, is_expert=is_expert)
    whole = held.total([each.elements * (each.is_expert == is_expert) for each in held.kinds])
    assert (fullest * shards / whole)[0, 0] == pytest.approx(over, abs=5e-5)


@pytest.mark.parametrize("optimizer", ["muon", "lion"])
def test_one_bucket_pads_less(optimizer: str):
    """Without an overlap all is one bucket: 64 ranks hold the 160 matrices of Llama 3.1 8B with 8 % of padding."""
    job = job_of(
        {"preset": "llama-3.1-8b"}, optimizer=optimizer, framework_version="0.19", num_nodes=8, global_batch_size=64
    )
    rows = [row_of(job, zero=1, dp=64, overlap={"grad_reduce": overlaps}) for overlaps in (True, False)]
    matrices = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    others = 2 * 128256 * 4096 + 65 * 4096
    gradients = [evaluate(job, row).memory.breakdown(0, 0)["gradients"] for row in rows]
    expected = [4 * (over * matrices + others) for over in (28 / 13, 14 / 13)]
    np.testing.assert_allclose(gradients, expected, rtol=1e-12)


def test_padding_travels_with_the_gradients():
    """Everything exposed: 2.15 times the matrices of Llama 3.1 8B in fp32 one way and in bf16 the other, and embedding, head and norms."""
    job = job_of(
        {"preset": "llama-3.1-8b"}, optimizer="muon", framework_version="0.19", num_nodes=8, global_batch_size=64
    )
    row = row_of(job, zero=1, dp=64, overlap={"grad_reduce": True})
    elements = np.array(
        [28 / 13 * 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096) + 2 * 128256 * 4096 + 65 * 4096]
    )
    links = ddp_links_s(job, row, dense=elements, expert=np.zeros(1))
    time = step_time(job, row)
    assert links.reduce[0] > 1.9 * ddp_links_s(job, row, dense=elements / 2, expert=np.zeros(1)).reduce[0]
    # Behind one micro-batch's passes, which hide a part of it.
    hidden = time.terms_s["dp_comm"][0]
    adam = job_of({"preset": "llama-3.1-8b"}, framework_version="0.19", num_nodes=8, global_batch_size=64)
    assert hidden > 1.5 * step_time(adam, row_of(adam, zero=1, dp=64)).terms_s["dp_comm"][0]
    assert hidden < links.reduce[0] + links.gather[0]
