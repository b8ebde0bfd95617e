"""Bytes and kernels of a layer's memory-bound work, counted by hand for fused and operator-by-operator builds."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.constants import ELEMENTWISE_KERNEL_S
from cost_models.elementwise import elementwise_s, layer_traffic
from planner.job_of import resolve_job

H, WIDTH = 1024, 4096
MODEL = {
    "num_layers": 2, "hidden_size": H, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": WIDTH,
    "vocab_size": 32000,
}  # fmt: skip
Q, KV = 1024, 256
GPU = {
    "name": "unit",
    "memory_gib": 80,
    "peak_tflops": {"bf16": 100},
    "memory_bandwidth_gb_per_s": 1000,
    "nvlink_gb_per_s": 100,
}


def job(model=MODEL, **training):
    return resolve_job({
        "model": model,
        "cluster": {"gpu": GPU, "num_nodes": 1, "gpus_per_node": 8},
        "training": {"seq_length": 1024, "global_batch_size": 8, "precision": "bf16", "framework": "megatron", **training},
    })  # fmt: skip


def traffic(asked):
    return layer_traffic(asked, asked.model.layer_kinds[0])


def test_a_fused_dense_layer() -> None:
    """bf16, e = 2. Forward, hidden-wide: 2 norms of 2e and 2 residual additions of 3e; sharded: rotary 2e, SwiGLU 3e."""
    forward, backward = traffic(job())
    assert forward.hidden_bytes == H * (2 * 4 + 2 * 6)
    assert forward.sharded_bytes == (Q + KV) * 4 + WIDTH * 6
    assert forward.kernels == 2 * 1 + 2 * 1 + 1 + 2
    assert backward.hidden_bytes == H * (2 * 16 + 2 * 4)
    assert backward.sharded_bytes == (Q + KV) * 4 + WIDTH * 10
    assert forward.routed_bytes == backward.routed_bytes == 0


def test_dropout_adds_its_mask_to_each_addition() -> None:
    plain, dropped = traffic(job())[0], traffic(job(dropout=0.1))[0]
    assert dropped.hidden_bytes - plain.hidden_bytes == 2 * H * 1


def test_an_eager_layer_moves_more() -> None:
    """torchtitan without compile, before PyTorch 2.9: RMSNorm 30, rotary 20, gated MLP 5e bytes an element."""
    asked = job(framework="torchtitan", compile=False, software_date="2025-01")
    forward, backward = traffic(asked)
    assert forward.hidden_bytes == H * (2 * 30 + 2 * 6)
    assert forward.sharded_bytes == (Q + KV) * 20 + WIDTH * 10
    assert backward.hidden_bytes == H * (2 * 30 + 2 * 6)
    assert backward.sharded_bytes == (Q + KV) * 20 + WIDTH * 18
    assert forward.kernels == 2 * 6 + 2 * 1 + 2 + 8


def test_a_later_pytorch_fuses_the_norm_alone() -> None:
    """From 2.9 on an RMSNorm moves 2e forward and 5e backward; the rest stays as it was."""
    old, new = (
        traffic(job(framework="torchtitan", compile=False, software_date=date)) for date in ("2025-09", "2025-10")
    )
    assert old[0].hidden_bytes - new[0].hidden_bytes == 2 * H * (30 - 4)
    assert old[1].hidden_bytes - new[1].hidden_bytes == 2 * H * (30 - 10)
    assert old[0].sharded_bytes == new[0].sharded_bytes


def test_compiling_fuses_everything() -> None:
    assert traffic(job(framework="torchtitan", compile=True)) == traffic(job())


def test_fp8_casts_what_its_products_read() -> None:
    """3 bytes an element: twice the hidden width, the MLP's and the attention output."""
    gpu = {**GPU, "peak_tflops": {"bf16": 100, "fp8": 200}, "generation": "hopper"}
    cast = resolve_job({
        "model": MODEL,
        "cluster": {"gpu": gpu, "num_nodes": 1, "gpus_per_node": 8},
        "training": {"seq_length": 1024, "global_batch_size": 8, "precision": "fp8", "framework": "megatron"},
    })  # fmt: skip
    plain, casting = traffic(job())[0], traffic(cast)[0]
    assert casting.hidden_bytes - plain.hidden_bytes == 2 * H * 3
    assert casting.sharded_bytes - plain.sharded_bytes == (WIDTH + Q) * 3


def test_an_expert_layer_moves_each_routed_copy() -> None:
    """Per copy: SwiGLU of the expert's width, and 3 reads and writes of the hidden width to gather and scatter it."""
    moe = {"num_experts": 4, "top_k": 2, "expert_intermediate_size": 512}
    forward, backward = traffic(job({**MODEL, "moe": moe}))
    assert forward.routed_bytes == 512 * 6 + 6 * 2 * H
    assert backward.routed_bytes == 512 * 10 + 8 * 2 * H
    assert forward.sharded_bytes == (Q + KV) * 4


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_seconds_divide_what_each_kind_of_parallelism_splits(sequence_parallel) -> None:
    """0.8 of 1000 GB/s. tp 4 divides the sharded part always, the hidden-wide one only with sequence parallelism."""
    asked = job()
    forward, _ = elementwise_s(
        asked, asked.model.layer_kinds[0], tokens=np.array([2048.0]), tp=np.array([4.0]),
        sequence_parallel=np.array([sequence_parallel]),
    )  # fmt: skip
    traffic_forward = traffic(asked)[0]
    per_token = traffic_forward.hidden_bytes / (4 if sequence_parallel else 1) + traffic_forward.sharded_bytes / 4
    seconds = 2048 * per_token / 800e9 + traffic_forward.kernels * ELEMENTWISE_KERNEL_S.value
    assert forward[0] == pytest.approx(seconds, rel=1e-12)
