"""Recurrent layers by hand: operations as Megatron counts them, the kernels' roofline, saved tensors, exchanges and norms.

Nemotron-H-8B is the example: hidden size 4096, Mamba-2 of 128 heads of 64 (d = 8192), 8 groups of state 128, chunks of 128, 24 of its 52
layers; Qwen3-Next's delta net has 32 value and 16 key heads of 128.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import job_of, row_of, rows_of
from cost_models.constants import ELEMENTWISE_KERNEL_S
from cost_models.frameworks import memory_traits
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.layers.costs import layer_costs
from cost_models.layers.flops import model_flops, repeated_flops_per_token
from cost_models.layers.parameters import dense_layer_parameters_on_rank, layer_parameters
from cost_models.layers.recurrent_core import core_kernels, layer_core_s
from cost_models.layers.shapes import layer_gemms
from cost_models.memory.activations import batch_sizes, layer_parts
from cost_models.specs.model import LayerKind
from cost_models.terms import Tier

NEMOTRON: dict[str, Any] = {"preset": "nemotron-h-8b"}
QWEN: dict[str, Any] = {"preset": "qwen3-next-80b-a3b"}
LFM: dict[str, Any] = {"preset": "lfm2-1.2b"}
MAMBA = LayerKind(is_moe=False, window=None, mixer="recurrent", has_mlp=False)
MLP = LayerKind(is_moe=False, window=None, mixer="none")
H, D, GROUPS, STATE, CHUNK, TOKENS = 4096, 8192, 8, 128, 128, 4096
PROJECTED = 2 * D + 2 * GROUPS * STATE + 128


def nemotron(framework: str = "megatron", **given: Any) -> Job:
    return job_of(NEMOTRON, framework, seq_length=TOKENS, **given)


def test_operations_of_mamba_are_those_that_megatron_counts():
    """2 h (2 d + 2 g N + heads) + 7 d N + 2 d h in 24 layers (num_floating_point_operations, mamba_layer_flops); it counts no convolution."""
    job = nemotron()
    mamba = 2 * H * PROJECTED + 7 * D * STATE + 2 * D * H
    attention = (
        2 * H * (4096 + 2 * 1024) + 2 * 4096 * H + 4 * TOKENS * 4096
    )  # q, k, v, o, and scores over the whole square
    mlp = 4 * H * 21504
    convolution = 2 * 4 * (D + 2 * GROUPS * STATE)
    whole = 24 * (mamba + convolution) + 4 * attention + 24 * mlp + 2 * H * 131072
    assert model_flops(job).forward == pytest.approx(whole)
    assert model_flops(job).recurrent_flops_per_token == 24 * (7 * D * STATE + convolution)


def test_operations_of_a_delta_net_are_those_that_megatron_counts():
    """num_floating_point_operations, gdn_layer_flops: 2 · (kernel · channels + heads · width² · 4) beside the projections."""
    job = job_of(QWEN, "megatron", seq_length=TOKENS)
    assert model_flops(job).recurrent_flops_per_token == 36 * 2 * (4 * (2 * 2048 + 4096) + 32 * 128**2 * 4)


def test_full_recomputation_repeats_the_recurrence_and_selective_does_not():
    job = nemotron()
    rows = rows_of(job, {"recompute": "full"}, {"recompute": "selective"})
    full, selective = repeated_flops_per_token(job, rows)
    flops = model_flops(job)
    assert full == pytest.approx(flops.forward - flops.head_flops_per_token)
    assert selective == pytest.approx(flops.attention_flops_per_token)


def test_the_kernels_of_a_scan_move_what_they_read_and_write():
    """Forward, w = 2: states of d N / Q = d elements a token, scores of g Q fp32 elements."""
    kernels = core_kernels(nemotron().model.recurrent, 2.0, fused_norm=False).forward
    channels, group, states, scores = D + 2 * GROUPS * STATE, GROUPS * STATE, D * STATE / CHUNK, 4.0 * GROUPS * CHUNK
    assert [kernel.moved_bytes for kernel in kernels] == [
        4 * channels, 128 * 10, 2 * (D + group) + 4 * states, 6 * states, 4 * group + scores,
        2 * (2 * D + group) + scores + 2 * states, 8 * D,
    ]  # fmt: skip
    products = [kernel.flops for kernel in kernels if not kernel.vector]
    assert products == [2 * D * STATE, 2 * CHUNK * group, CHUNK * D + 2 * D * STATE]


def test_a_scan_takes_the_longer_of_operations_and_bytes():
    job = nemotron()
    row = row_of(job, tp=2)
    found, kernels = layer_core_s(job, row), core_kernels(job.model.recurrent, 2.0, fused_norm=False)
    bandwidth = job.calibration.memory_bytes_per_s_effective.value
    peaks = {True: 66.9e12, False: 989.4e12}
    assert job.cluster.gpu.peak_flops_per_s["bf16"] == pytest.approx(peaks[False], rel=1e-2)
    expected = sum(
        max(k.flops / job.cluster.gpu.peak_flops_per_s["fp32" if k.vector else "bf16"], k.moved_bytes / bandwidth)
        for k in kernels.forward
    )
    assert found.forward_s[0] == pytest.approx(TOKENS / 2 * expected + 7 * ELEMENTWISE_KERNEL_S.value)
    assert found.tier[0] == Tier.NOMINAL
    assert found.backward_s[0] > 2 * found.forward_s[0]


def test_heads_over_context_and_tensor_ranks_share_the_scan_alike():
    job = nemotron()
    by_tp, by_cp = layer_core_s(job, rows_of(job, {"tp": 4}, {"cp": 4})).forward_s
    assert by_tp == pytest.approx(by_cp)


def test_products_of_a_mamba_layer_are_its_two_projections():
    one = np.ones(1)
    gemms = layer_gemms(nemotron(), MAMBA, tokens=one * 100, tp=one * 2, ep=one, etp=one)
    assert [(g.name, g.m[0], g.n[0], g.k[0]) for g in gemms] == [
        ("in_proj", 100, PROJECTED / 2, H), ("out_proj", 100, H, D / 2),
    ]  # fmt: skip
    assert [g.name for g in layer_gemms(nemotron(), MLP, tokens=one, tp=one, ep=one, etp=one)] == ["fc1", "fc2"]


def test_tensor_ranks_split_everything_of_mamba_2_but_the_layers_norm():
    model = nemotron().model
    assert layer_parameters(model, MAMBA).replicated == H
    halves = dense_layer_parameters_on_rank(model, MAMBA, np.array([1.0, 2.0]))
    assert halves[1] == (halves[0] - H) / 2 + H


def saved(job: Job, kind: LayerKind, **strategy: Any) -> dict[str, float]:
    row, traits = row_of(job, **strategy), memory_traits(job.training)
    parts = layer_parts(job, traits, kind, batch_sizes(job, traits, row))
    names = ("block_input", "residual", "norm_outputs", "qkv", "context", "mlp", "recurrent", "saved")
    return {name: float(getattr(parts, name)[0]) for name in names}


def test_mamba_2_saves_what_its_projection_makes_and_its_output():
    """megatron: zxBCdt, the ungated output, the norm's input and output (ssd_combined.py, save_for_backward; mamba_mixer.py)."""
    found = saved(nemotron(), MAMBA, tp=2, sequence_parallel=False)
    assert found["recurrent"] == pytest.approx(TOKENS / 2 * (2 * (PROJECTED + 3 * D) + 4 * GROUPS))
    assert found["qkv"] == found["context"] == found["mlp"] == 0
    assert found["block_input"] == found["norm_outputs"] == 2 * H * TOKENS
    assert found["residual"] == 4 * TOKENS  # one norm's statistics


def test_transformers_leaves_norm_and_output_projection_to_the_kernel():
    found = saved(nemotron("fsdp"), MAMBA, zero=3)
    assert found["recurrent"] == pytest.approx(TOKENS * 2 * (PROJECTED + D))


def test_a_short_convolution_saves_its_three_parts_and_each_product():
    """B, C and x of h; B x, the convolution's output and C times it (modeling_lfm2.py)."""
    job = job_of(LFM, "fsdp", seq_length=TOKENS)
    kind = next(kind for kind in job.model.distinct_kinds if kind.recurs)
    assert saved(job, kind, zero=3)["recurrent"] == TOKENS * 2 * 6 * 2048


def test_a_delta_net_saves_its_inputs_and_the_triangles_of_its_chunks():
    """fla's save_for_backward: q, k (repeated for 32 heads), v, g, beta, A (64 a head). Around it the convolution's input; the norm's fp32 copies
    of gate and output, its activation, what it normalised before and after the weight, and the result.
    """
    job = job_of(QWEN, "fsdp", seq_length=TOKENS)
    kind = next(kind for kind in job.model.distinct_kinds if kind.recurs)
    elements = 8192 + 2 * 4096 + 4096 + 32 * (2 + 64) + 3 * 4096
    assert saved(job, kind, zero=3)["recurrent"] == pytest.approx(
        TOKENS * (2 * elements + 4 * (3 * 4096 + 3 * 32 + 2 * 16))
    )


def test_context_ranks_trade_heads_around_a_recurrence_and_keys_around_attention_alone():
    job = nemotron(num_nodes=1)
    costs = layer_costs(job, rows_of(job, {"cp": 8}))
    exchanged = {kind: costs.parts_JPU[index, 5, 0] for index, kind in enumerate(job.model.distinct_kinds)}
    assert exchanged[MLP] == 0
    assert exchanged[MAMBA] > 0
    # Gate, input and output of d, and B and C of 8 groups: all-to-alls of 8192, 8192, 8192, 1024, 1024 and 128 elements, twice.
    size = TOKENS / 8 * 2.0
    placed = groups(row_of(job, cp=8), job.cluster).cp
    calls = [(3, D), (2, GROUPS * STATE), (1, 128)]
    one_way = sum(
        n * job.calibration.collective_s("all_to_all", np.array([size * width]), placement=placed).seconds[0]
        for n, width in calls
    )
    assert exchanged[MAMBA] == pytest.approx(2 * one_way)


def test_a_block_alone_has_one_exchange_of_tensor_parallelism():
    job = nemotron(num_nodes=1)
    costs = layer_costs(job, rows_of(job, {"tp": 8, "sequence_parallel": False}))
    mamba, mlp = (costs.parts_JPU[job.model.distinct_kinds.index(kind), 4, 0] for kind in (MAMBA, MLP))
    both = job_of({"preset": "llama-3.1-8b"}, "megatron", seq_length=TOKENS, num_nodes=1)
    whole = layer_costs(both, rows_of(both, {"tp": 8, "sequence_parallel": False})).parts_JPU[0, 4, 0]
    # The backward call hides behind weight gradients, of which these layers have different amounts; forward's is half of two.
    assert 0 < mamba < whole
    assert 0 < mlp < whole
