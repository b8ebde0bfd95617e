"""Bytes and seconds of the optimizer step and of accumulation, by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from builders import UNIT_GPU, dense_model, job_of, row_of, tiny_model, with_experts
from cost_models.step.looped_optimizers import TORCHAO_TENSOR_S
from cost_models.step.optimizer import (
    accumulation_s,
    optimizer_s,
    owned_parameters,
    unit_copies_s,
    update_bytes_per_parameter,
)

job = partial(job_of, with_experts(dense_model()), gpu=UNIT_GPU, num_nodes=4)

RATE = 800e9
"""0.8 of 1000 GB/s."""
BARE_S = 0.31 * 1.4 * 26e-6
"""An operation outside of modules, in a step."""


def size(value: float):
    return np.array([value])


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        # gradients 4 times, parameter and moments read and written, cast copy written
        ({}, 4 * 4 + 2 * 4 + 2 * 2 * 4 + 2),  # fp32 gradients, main parameters and moments, bf16 copy
        ({"optimizer": "sgd"}, 4 * 4 + 2 * 4 + 2 * 1 * 4 + 2),
        ({"optimizer": "adam-8bit"}, 4 * 4 + 2 * 4 + 2 * 2 * 1 + 2),
        ({"grad_dtype": "bf16", "optimizer_state_dtype": "bf16"}, 4 * 2 + 2 * 4 + 2 * 2 * 2 + 2),
        ({"main_param_dtype": "none", "optimizer_state_dtype": "fp32"}, 4 * 4 + 2 * 2 + 2 * 2 * 4 + 0),  # bf16 itself
    ],
)
def test_bytes_per_parameter(training, expected) -> None:
    assert sum(update_bytes_per_parameter(job(**training))) == expected


def test_what_a_rank_owns() -> None:
    """dp 32, ep 8: dense shared by 32, experts by 4; a shard group of 8 owns an eighth of the dense, and its 4 copies leave one
    rank for each expert (megatron/core/parallel_state.py: intra_partial_expert_data_parallel_size = 4 // 4).
    """
    asked = job()

    def owned(**strategy) -> float:
        return float(owned_parameters(row_of(asked, ep=8, **strategy), dense=size(3200.0), expert=size(400.0))[0])

    assert owned(zero=0) == 3200 + 400
    assert owned(zero=1) == 3200 / 32 + 400 / 4
    assert owned(zero=1, zero_shard_size=8) == 3200 / 8 + 400
    assert owned(zero=1, zero_shard_size=16) == 3200 / 16 + 400 / 2


def test_a_step_streams_its_bytes() -> None:
    """1e9 parameters of 42 bytes over 800 GB/s."""
    asked = job()
    found = optimizer_s(asked, row_of(asked, zero=0), dense=size(1e9), expert=size(0.0))
    assert found[0] == pytest.approx(42e9 / RATE)


def test_a_tiny_step_is_bound_by_its_launches() -> None:
    asked = job()
    found = optimizer_s(asked, row_of(asked, zero=1), dense=size(1e3), expert=size(0.0))
    assert found[0] == pytest.approx(asked.framework.optimizer_launches * BARE_S)


def test_deepspeeds_step_issues_operators_for_every_tensor_of_a_stage() -> None:
    """Four layers of nine tensors on two stages (two norms, query, key, value, output, gate, up, down): 18 x 12 beside the 150."""
    asked = job_of(dense_model(4), "deepspeed", gpu=UNIT_GPU)
    found = optimizer_s(asked, row_of(asked, pp=2, zero=1), dense=size(1e3), expert=size(0.0))
    assert found[0] == pytest.approx((150 + 18 * 12) * BARE_S)


def test_deepspeeds_step_without_zero_asks_about_every_gradient_and_copies_all() -> None:
    """Four layers of nine tensors: 36 times six operators and a wait of 20 us. A billion bf16 parameters move 2 x 3 + 2 + 8 + 16 + 2 bytes
    in place, and 30 more: largest and smallest 4, cast 6, copied 8, fp32 for norm, clip and update 8, cast back 4.
    """
    asked = job_of(dense_model(4), "deepspeed", gpu=UNIT_GPU)
    found = optimizer_s(asked, row_of(asked, zero=0), dense=size(1e9), expert=size(0.0))
    assert found[0] == pytest.approx((34 + 30) * 1e9 / RATE + 36 * (6 * BARE_S + 20e-6))


def test_fsdp2_copies_what_it_gathers_and_what_it_reduces() -> None:
    """1e9 parameters over 32 ranks, fp32 shards gathered in bf16, reduced in fp32: per gather (4 + 2) / 32 for the cast of the
    shard and 2 + 2 for the copy out, per reduction 2 + 4. Two gathers and one reduction; without a reduction in each of the two
    micro-batches half of one. Experts over ep 4 are sharded by 8.
    """
    asked = job("fsdp", param_dtype="fp32", grad_reduce_dtype="fp32", model_impl="native")
    rate = asked.calibration.copy_bytes_per_s.value

    def copied(trained=1e9, **given) -> float:
        rows = row_of(asked, zero=3, **given)
        dense, expert = size(0.0 if "ep" in given else 1e9), size(1e9 if "ep" in given else 0.0)
        found = unit_copies_s(asked, rows, dense=dense, expert=expert, trained=size(trained), gathers=size(2.0))
        return float(found[0])

    assert copied(grad_sync="each") == pytest.approx((2 * (6 / 32 + 4) + 6) * 1e9 / rate)
    assert copied(grad_sync="last") == pytest.approx((2 * (6 / 32 + 4) + 6 / 2) * 1e9 / rate)
    assert copied(grad_sync="each", trained=0.0) == pytest.approx(2 * (6 / 32 + 4) * 1e9 / rate)
    assert copied(grad_sync="each", ep=4) == pytest.approx((2 * (6 / 8 + 4) + 6) * 1e9 / rate)


def test_fsdp2_copies_a_base_in_its_own_type_and_fsdp1_in_place() -> None:
    """A frozen base of 1e9 in bf16 over 32 ranks, adapters in fp32: (2 + 2) / 32 and 4 per gather; in four bits FSDP1 gathers."""
    copied = []
    for base in ("none", "nf4"):
        asked = job("fsdp", param_dtype="fp32", adapter={"rank": 8, "quantized_base": base})
        given = {"dense": size(1e9), "expert": size(0.0), "trained": size(0.0), "gathers": size(2.0)}
        copied.append(float(unit_copies_s(asked, row_of(asked, zero=3), **given)[0]))
    assert copied == pytest.approx([2 * (4 / 32 + 4) * 1e9 / asked.calibration.copy_bytes_per_s.value, 0.0])


@pytest.mark.parametrize(("framework", "bytes_each"), [("megatron", 3.0), ("deepspeed", 6.0), ("torchtitan", 10.0)])
def test_accumulation_by_framework(framework, bytes_each) -> None:
    asked = job(framework)
    whole = accumulation_s(asked, row_of(asked), dense=size(1e9), expert=size(0.0), sharded=np.array([False]))
    assert whole[0] == pytest.approx(bytes_each * 1e9 / RATE)


def test_layer_wise_accumulation_touches_the_shard_alone() -> None:
    asked = job("torchtitan")
    shard = accumulation_s(asked, row_of(asked, zero=3), dense=size(1e9), expert=size(0.0), sharded=np.array([True]))
    assert shard[0] == pytest.approx(10 * 1e9 / 32 / RATE)


def test_experts_are_sharded_over_their_own_replicas_alone() -> None:
    asked = job("torchtitan")
    batch = row_of(asked, zero=3, ep=4)
    assert batch.zero_shard_size[0] == 32
    shard = accumulation_s(asked, batch, dense=size(0.0), expert=size(1e9), sharded=np.array([True]))
    assert shard[0] == pytest.approx(10 * 1e9 / 8 / RATE)


def test_what_the_host_updates_is_not_updated_on_the_gpu() -> None:
    """Half of 1e12/32 parameters of 42 bytes."""
    asked = job()
    batch = row_of(asked, zero=1, offload={"optimizer_fraction": 0.5})
    on_gpu = optimizer_s(asked, batch, dense=size(1e12), expert=size(0.0))
    assert on_gpu[0] == pytest.approx(1e12 / 32 / 2 * 42 / RATE)


@pytest.mark.parametrize(("optimizer", "each_s"), [("adafactor", 24.0), ("adam-4bit", None)])
def test_small_tensors_wait_for_the_loop_over_them(optimizer: str, each_s: float | None):
    # Two layers of four projections, three of the MLP and two norms, in a model so small that the host decides.
    made = job_of(tiny_model(num_layers=2), "fsdp", optimizer=optimizer, param_dtype="fp32")
    bare_s = made.calibration.bare_op_s.value
    one_s = 500e-6 if each_s is None else each_s * bare_s
    found = optimizer_s(made, row_of(made, zero=0), dense=np.ones(1), expert=np.zeros(1))[0]
    assert found == pytest.approx(2 * 9 * one_s + made.framework.optimizer_launches * bare_s)


def test_a_loop_over_tensors_leaves_out_those_that_are_frozen():
    """Of a layer's nine tensors, two norms and seven matrices, three are the MLP's and four the attention's."""

    def looped_s(*frozen: str) -> float:
        made = job_of(tiny_model(4), "fsdp", optimizer="adam-4bit", **({"frozen": list(frozen)} if frozen else {}))
        return float(optimizer_s(made, row_of(made, zero=0), dense=np.ones(1), expert=np.zeros(1))[0])

    tensor_s = TORCHAO_TENSOR_S.value
    assert looped_s() - looped_s("mlp") == pytest.approx(4 * 3 * tensor_s)
    assert looped_s("mlp") - looped_s("mlp", "attention") == pytest.approx(4 * 4 * tensor_s)
    assert looped_s("mlp", "attention") - looped_s("mlp", "attention", "norms") == pytest.approx(4 * 2 * tensor_s)
