"""Parameters, gradients and optimizer states per rank, against arithmetic done by hand."""

from __future__ import annotations

from typing import Any

import pytest

from builders import job_of, row_of, tiny_model, with_experts
from cost_models.memory import StageMemory, stage_memory
from cost_models.terms import PEAK_MOMENTS

DENSE = tiny_model(4, num_key_value_heads=2, vocab_size=1024)

LAYER = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256
"""q and output projections; k and v; gated MLP; two norms: 590,336."""
WORD = 1024 * 256
TOTAL = 4 * LAYER + 2 * WORD + 256
EXPERTS = with_experts(DENSE, expert_intermediate_size=128)
EXPERT = 3 * 256 * 128
STATE_TERMS = ("parameters", "main_parameters", "gradients", "optimizer_states")


def memory(strategy: dict[str, Any], *, model: dict[str, Any] = DENSE, **training: Any) -> StageMemory:
    """Memory of one strategy over all its stages, on up to 8 nodes of 8 GPUs."""
    job = job_of(model, **{"num_nodes": 8, "seq_length": 512, **training})
    return stage_memory(job, row_of(job, all_stages=True, **strategy))


def states(found: StageMemory, slot: int = 0) -> dict[str, float]:
    return {name: found.breakdown(slot, 0)[name] for name in STATE_TERMS}


def test_megatron_holds_eighteen_bytes_a_parameter() -> None:
    """bf16 parameter 2, fp32 gradient 4, fp32 main copy 4, Adam 8."""
    found = states(memory({"tp": 1, "pp": 1, "dp": 8, "zero": 0}))
    assert found == {
        "parameters": 2 * TOTAL, "main_parameters": 4 * TOTAL, "gradients": 4 * TOTAL, "optimizer_states": 8 * TOTAL,
    }  # fmt: skip


def test_the_distributed_optimizer_shards_twelve_of_them() -> None:
    """6 + 12/8 = 7.5 bytes; context parallelism adds ranks to the same group: 6 + 12/16 = 6.75."""
    assert sum(states(memory({"tp": 1, "pp": 1, "dp": 8, "zero": 1})).values()) == pytest.approx(7.5 * TOTAL)
    assert sum(states(memory({"tp": 1, "pp": 1, "dp": 8, "cp": 2, "zero": 1})).values()) == pytest.approx(6.75 * TOTAL)


def test_a_smaller_shard_group_holds_more() -> None:
    """Two optimizer instances of four ranks each: 6 + 12/4 = 9 bytes."""
    found = states(memory({"tp": 1, "pp": 1, "dp": 8, "zero": 1, "zero_shard_size": 4}))
    assert sum(found.values()) == pytest.approx(9 * TOTAL)


@pytest.mark.parametrize(
    ("training", "bytes_per_parameter"),
    [
        ({"grad_dtype": "bf16"}, 4 / 8),  # distrib_optimizer.py: shard_main_param.grad = shard_model_grad.float()
        (
            {"grad_dtype": "bf16", "optimizer_state_dtype": "bf16"},
            0,
        ),  # precision-aware: decoupled_grad is the shard itself
        ({"grad_dtype": "fp32"}, 0),  # .float() of fp32 copies nothing
        ({"grad_dtype": "bf16", "framework": "nanotron"}, 0),
    ],
)
def test_megatron_casts_its_shard_of_narrow_gradients_for_the_step(training, bytes_per_parameter) -> None:
    """A sequence of 64 tokens, so that the optimizer's step is the peak where it holds more than the passes do."""
    found = memory({"tp": 1, "pp": 1, "dp": 8, "zero": 1}, **{"seq_length": 64, "framework": "megatron", **training})
    assert found.kept is not None
    step = found.kept.terms["optimizer_step"]["optimizer_transient"]
    assert float(step.max()) == pytest.approx(bytes_per_parameter * TOTAL)


def test_fsdp_shards_everything_and_holds_gradients_only_after_backward() -> None:
    """fp32 parameters 4 and Adam 8 over 8 ranks; at the loss of the only micro-batch no gradient exists."""
    found = states(memory({"dp": 64, "zero": 3, "recompute": "none"}, framework="torchtitan"))
    assert found["parameters"] == pytest.approx(4 * TOTAL / 64)
    assert found["optimizer_states"] == pytest.approx(8 * TOTAL / 64)
    assert found["main_parameters"] == 0
    assert found["gradients"] == 0
    several = states(memory({"dp": 8, "zero": 3, "recompute": "none"}, framework="torchtitan"))
    assert several["gradients"] == pytest.approx(4 * TOTAL / 8)


def test_nanotron_keeps_a_compute_gradient_beside_the_accumulator() -> None:
    """2 + (4 + 2) + 12/d."""
    found = states(memory({"dp": 8, "zero": 1}, framework="nanotron"))
    assert found["gradients"] == pytest.approx(6 * TOTAL)


def test_zero_3_of_deepspeed_shards_sixteen_bytes() -> None:
    """2 parameter + 2 gradient + 12 main and Adam, over 8 ranks."""
    found = memory({"dp": 8, "zero": 3}, framework="deepspeed")
    assert sum(states(found).values()) == pytest.approx(16 * TOTAL / 8)


@pytest.mark.parametrize(
    ("group", "copies"),
    [(2, 2 / 2), (4, 2 / 4), (8, 0.0)],  # a group of all eight ranks would hold what the shards are already
)
def test_hpz_keeps_a_copy_that_the_smaller_group_shares(group: int, copies: float) -> None:
    """ZeRO++ (Wang 2023, section 3.2): beside the shard, 2/8 bytes of bf16 a parameter, a second bf16 copy split over the ranks
    of its group alone.
    """
    found = states(memory({"dp": 8, "zero": 3, "zero_param_shard_size": group}, framework="deepspeed"))
    assert found["parameters"] == pytest.approx((2 / 8 + copies) * TOTAL)
    assert sum(found.values()) == pytest.approx((16 / 8 + copies) * TOTAL)


def test_experts_are_sharded_over_their_own_replicas() -> None:
    """8 experts over ep 4: two a rank, held by edp = 8/4 = 2 ranks; the rest is shared by 8.

    Dense part of a layer: attention 2*256*256 + 2*256*128 = 196,608, router 8*256, norms 512.
    """
    dense = 4 * (196608 + 2048 + 512) + 2 * WORD + 256
    experts = 4 * 2 * EXPERT
    found = states(memory({"dp": 8, "ep": 4, "etp": 1, "zero": 1}, model=EXPERTS))
    assert found["parameters"] == pytest.approx(2 * (dense + experts))
    assert found["optimizer_states"] == pytest.approx(8 * (dense / 8 + experts / 2))


@pytest.mark.parametrize(("shard", "dense_ranks", "expert_ranks"), [(8, 8, 4), (4, 4, 2), (2, 2, 1)])
def test_replicas_of_the_optimizer_leave_fewer_ranks_to_each_expert(
    shard: int, dense_ranks: int, expert_ranks: int
) -> None:
    """8 experts over ep 2 are four a rank, held by edp = 8/2 = 4 ranks. Instances of 4 ranks make two copies of everything,
    so 4/2 = 2 ranks share an expert's state; of 2 ranks, four copies and 4/4 = 1.
    """
    dense = 4 * (196608 + 2048 + 512) + 2 * WORD + 256
    experts = 4 * 4 * EXPERT
    strategy = {"dp": 8, "ep": 2, "etp": 1, "zero": 1, "zero_shard_size": shard}
    found = states(memory(strategy, model=EXPERTS))
    assert found["optimizer_states"] == pytest.approx(8 * (dense / dense_ranks + experts / expert_ranks))
    assert found["main_parameters"] == pytest.approx(4 * (dense / dense_ranks + experts / expert_ranks))
    assert found["parameters"] == pytest.approx(2 * (dense + experts))


def test_tied_embeddings_are_one_table_alone_and_two_in_a_pipeline() -> None:
    tied = {**DENSE, "tie_word_embeddings": True}
    alone = states(memory({"pp": 1, "dp": 8, "zero": 0}, model=tied))
    assert alone["parameters"] == 2 * (4 * LAYER + WORD + 256)
    staged = memory({"pp": 2, "dp": 4, "zero": 0}, model=tied)
    assert states(staged, 0)["parameters"] == 2 * (2 * LAYER + WORD)
    assert states(staged, 1)["parameters"] == 2 * (2 * LAYER + WORD + 256)


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [("adam", 8.0), ("sgd", 4.0), ("adam-8bit", 2 * (1 + 4 / 256))],
)
def test_optimizer_moments(optimizer: str, bytes_per_parameter: float) -> None:
    """Adam: two fp32; Megatron's SGD: one; 8-bit Adam: two bytes and a scale per 256 elements each."""
    found = states(memory({"dp": 8, "zero": 0}, optimizer=optimizer))
    assert found["optimizer_states"] == pytest.approx(bytes_per_parameter * TOTAL)


def test_offloaded_optimizer_moves_to_the_host() -> None:
    """Half of main copy and Adam, 12/8 bytes a parameter, leaves each of a node's 8 ranks. The host holds them and fp32
    gradients (hybrid_optimizer.py: cpu_copy_map_grad), 16/8 bytes of half the parameters, needs half as much again for
    buffers and pinned blocks of powers of two (DeepSpeed's additional_buffer_factor), and 3 GB a process.
    """
    kept = memory({"dp": 8, "zero": 1})
    moved = memory({"dp": 8, "zero": 1, "offload": {"optimizer_fraction": 0.5}})
    assert sum(states(kept).values()) - sum(states(moved).values()) == pytest.approx(0.75 * TOTAL)
    assert kept.host_bytes_per_node[0] == 0
    assert moved.host_bytes_per_node[0] - 8 * 3e9 == pytest.approx(1.5 * 8 * 0.5 * 16 / 8 * TOTAL)


def test_deepspeed_offload_takes_gradients_along() -> None:
    """Host bytes per parameter: Adam and main 12, fp32 gradients 4, bf16 parameters 2, half as much again: the 27 of
    estimate_zero3_model_states_mem_needs (deepspeed/runtime/zero/stage3.py: 18 x 1.5).
    """
    offload = {"optimizer_fraction": 1.0, "parameters": True}
    found = memory({"dp": 8, "zero": 3, "offload": offload}, framework="deepspeed")
    assert sum(states(found).values()) == 0
    assert found.host_bytes_per_node[0] - 8 * 3e9 == pytest.approx(27 * TOTAL)


def test_host_memory_of_the_other_frameworks() -> None:
    """DeepSpeed with the optimizer alone: 16 x 1.5 (estimate_zero2_model_states_mem_needs); FSDP's fp32 parameters, gradients
    and moments are 16 bytes too.
    """
    for zero in (1, 2):
        found = memory({"dp": 8, "zero": zero, "offload": {"optimizer_fraction": 1.0}}, framework="deepspeed")
        assert found.host_bytes_per_node[0] - 8 * 3e9 == pytest.approx(24 * TOTAL)
    offload = {"optimizer_fraction": 1.0, "parameters": True}
    found = memory({"dp": 8, "zero": 3, "offload": offload}, framework="fsdp")
    assert found.host_bytes_per_node[0] - 8 * 3e9 == pytest.approx(24 * TOTAL)


def test_zero_3_gathers_two_layers_and_reduces_one() -> None:
    """torchtitan: running and prefetched layer in bf16; unsharded bf16 gradients and two fp32 reduction inputs.

    Full recomputation of four layers makes the backward of a layer the peak of the first stage of two.
    """
    found = memory({"pp": 2, "dp": 4, "zero": 3, "recompute": "full"}, framework="torchtitan")
    terms = found.breakdown(0, 0)
    assert terms["parameter_gather"] == 2 * 2 * LAYER
    stage = 2 * LAYER + WORD
    assert terms["gradient_reduce"] == 4 * stage + 2 * LAYER  # a pipeline accumulates whole gradients in fp32


def test_megatron_deepspeed_shards_parameters_like_deepspeed() -> None:
    """zero 3 over 8 ranks: 2 + 4 + 4 + 8 bytes, gathered at once (far fewer than 1e9 elements) with both ends, and one
    bucket of 5e8 bf16 gradients, which stage3.py allocates whatever the model's size; BF16_Optimizer's whole bf16 gradients exist in stage 1 alone.
    """
    found = memory({"dp": 8, "zero": 3, "recompute": "full"}, framework="megatron-deepspeed", framework_version="2023")
    assert sum(states(found).values()) == pytest.approx(18 / 8 * TOTAL)
    terms = found.breakdown(0, 0)
    assert terms["parameter_gather"] == pytest.approx(2 * TOTAL + 2 * 2 * WORD)
    assert terms["gradient_reduce"] == 2 * 5e8
    assert memory({"dp": 8, "zero": 1, "recompute": "full"}, framework="megatron-deepspeed").breakdown(0, 0)[
        "gradient_reduce"
    ] == pytest.approx(2 * TOTAL)


def test_gradients_that_wait_for_the_last_micro_batch_lie_unsharded() -> None:
    """accelerate under FSDP2, 8 micro-batches: bf16 gradients of all parameters in the type they are reduced in, beside one
    layer's own and none of its reduction's inputs; reduced in each micro-batch, fp32 shards and two inputs of a layer.
    """
    waiting = memory({"dp": 8, "zero": 3, "recompute": "full"}, framework="fsdp").breakdown(0, 0)
    assert waiting["gradients"] == 0
    assert waiting["gradient_reduce"] == pytest.approx(2 * TOTAL + 2 * LAYER)
    reduced = memory({"dp": 8, "zero": 3, "recompute": "full", "grad_sync": "each"}, framework="fsdp").breakdown(0, 0)
    assert reduced["gradients"] == pytest.approx(4 * TOTAL / 8)
    assert reduced["gradient_reduce"] == pytest.approx(2 * LAYER + 2 * 2 * LAYER)


def test_a_stage_without_the_head_may_peak_in_its_optimizer_step_too() -> None:
    """DeepSpeed casts its bf16 gradients to fp32 for the step: 2 + 2 + 4 + 8 bytes and 4 more, which the 64
    tokens of a small model do not outweigh; and 64 MiB of workspace. The embedding lies on the first of two stages.
    """
    small = {"seq_length": 64, "global_batch_size": 2, "framework": "deepspeed"}
    found = memory({"pp": 2, "dp": 1, "zero": 0, "recompute": "none"}, **small)
    assert [PEAK_MOMENTS[int(moment)] for moment in found.peak_moment_KN[:, 0]] == ["optimizer_step"] * 2
    assert found.allocated_KN[0, 0] - 64 * 2**20 == pytest.approx(20 * (2 * LAYER + WORD), rel=1e-3)
