"""Bytes and kernels of a layer's memory-bound work, counted by hand for fused and operator-by-operator builds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import UNIT_GPU, dense_model, job_of, row_of, with_experts
from cost_models.constants import ELEMENTWISE_KERNEL_S
from cost_models.layers.elementwise import elementwise_s, layer_traffic, row_passes

H, WIDTH = 1024, 4096
Q, KV = 1024, 256


def grouped(**fields):
    """Eight heads that share two of keys and values."""
    return dense_model(2, **{"num_key_value_heads": 2, **fields})


def job(model=None, **training):
    return job_of(model or grouped(), **{"gpu": UNIT_GPU, "seq_length": 1024, "global_batch_size": 8, **training})


def old_torchtitan(**training):
    """0.2's layers, whose query, key and value are three products."""
    return job(framework="torchtitan", framework_version="0.2", **training)


def fp8(recipe, **training):
    gpu = {**UNIT_GPU, "peak_tflops": {"bf16": 100, "fp8": 200}, "generation": "blackwell"}
    return job(gpu=gpu, precision="fp8", fp8_recipe=recipe, **training)


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


def test_norms_of_queries_and_keys_are_a_kernel_each() -> None:
    """Fused, they move 2e bytes an element forward and twice that backward, where there are two kernels for each."""
    plain, normed = traffic(job()), traffic(job(grouped(qk_norm=True)))
    assert [b.kernels - a.kernels for a, b in zip(plain, normed, strict=True)] == [2, 4]
    moved = (Q + KV) * 4
    assert [b.sharded_bytes - a.sharded_bytes for a, b in zip(plain, normed, strict=True)] == [moved, 2 * moved]


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


def test_megatron_s_forks_fuse_swiglu_first_then_norm_and_rotary() -> None:
    """nanotron and Megatron-DeepSpeed, whose modules follow Megatron's. An element of SwiGLU costs 5e bytes forward and 9e backward
    unfused, 3e and 5e fused (2023-10); of an RMSNorm 30 and 30, then 2e and 8e, and of rotary 20, then 2e (2024-01).
    """
    months = ("2023-09", "2023-10", "2023-12", "2024-01")
    found = [traffic(job(framework="megatron-deepspeed", software_date=month)) for month in months]
    forward, backward = zip(*found, strict=True)
    swiglu, rotary = WIDTH * (10 - 6), (Q + KV) * (20 - 4)
    assert forward[0].sharded_bytes - forward[1].sharded_bytes == swiglu
    assert backward[0].sharded_bytes - backward[1].sharded_bytes == WIDTH * (18 - 10)
    assert (forward[1], backward[1]) == (forward[2], backward[2])
    assert forward[2].sharded_bytes - forward[3].sharded_bytes == rotary
    assert forward[2].hidden_bytes - forward[3].hidden_bytes == 2 * H * (30 - 4)
    assert backward[2].hidden_bytes - backward[3].hidden_bytes == 2 * H * (30 - 16)


def test_compiling_fuses_everything() -> None:
    """All but the sums of its separate projections' input gradients: 3 + 1 and 2 + 1 passes of 2 bytes, two kernels."""
    (forward, backward), fused = traffic(old_torchtitan(compile=True)), traffic(job())
    assert forward == fused[0]
    assert backward.gathered_bytes == H * (4 + 3) * 2
    assert replace(backward, gathered_bytes=0.0, kernels=backward.kernels - 2) == fused[1]


def test_eager_sums_read_two_and_write_one() -> None:
    """Two additions for query, key and value, one for gate and up, 6 bytes each; GPT-2's line has one matrix and no gate."""
    eager = traffic(old_torchtitan(compile=False))[1]
    assert eager.gathered_bytes == H * 3 * 6
    gpt = grouped(position_embedding="learned", max_position_embeddings=1024, gated_mlp=False)
    assert traffic(job(gpt, framework="fsdp"))[1].gathered_bytes == 0


def test_flash_attention_1_copies_what_it_packs() -> None:
    """4 bytes an element of query, key, value and output, each way; FlashAttention 2 takes them as they lie."""
    old, new = (traffic(job(framework="fsdp", attention_kernel=kernel)) for kernel in ("fa1", "fa2"))
    moved = 4 * (Q + 2 * KV + Q)
    assert [a.sharded_bytes - b.sharded_bytes for a, b in zip(old, new, strict=True)] == [moved, moved]
    assert [a.kernels - b.kernels for a, b in zip(old, new, strict=True)] == [4, 4]


def test_one_matrix_joins_the_gradients_of_query_key_and_value() -> None:
    """Read and written once, 4 bytes an element; Transformer Engine writes them in place."""
    model = grouped(position_embedding="none", gated_mlp=False)  # nothing else that either fuses
    local, engine = (traffic(job(model, transformer_impl=impl))[1] for impl in ("local", "transformer-engine"))
    assert local.sharded_bytes - engine.sharded_bytes == 4 * (Q + 2 * KV)


def test_megatron_cores_own_modules_fuse_nothing() -> None:
    """Rotary in eight operators of 20 bytes, half of them an element's; Megatron-LM's modules of before had two kernels."""
    core, before = (
        traffic(job(transformer_impl="local", software_date=date, attention="flash"))[0]
        for date in ("2024-01", "2023-12")
    )
    assert core.kernels > before.kernels
    assert core.sharded_bytes > before.sharded_bytes


def test_unfused_attention_permutes_its_output() -> None:
    unfused, flash = (traffic(job(attention=kind))[0] for kind in ("math", "flash"))
    assert unfused.sharded_bytes - flash.sharded_bytes == 4 * Q


@pytest.mark.parametrize(
    ("recipe", "each"), [("delayed", 4), ("mxfp8", 4), ("blockwise", 4), ("tensorwise", 6), ("rowwise", 8)]
)
def test_fp8_casts_what_its_products_read(recipe, each) -> None:
    """Read 2, write both layouts: 4 bytes, 2 more for a pass that finds the tensor's maximum; by row 3 and by column 5.

    Transformer Engine's norms write fp8, so forward casts what attention and SwiGLU put out; backward casts the gradients of
    the four products' outputs: two hidden-wide, query, key and value, gate and up.
    """
    cast, plain = traffic(fp8(recipe)), traffic(job())
    assert cast[0].sharded_bytes - plain[0].sharded_bytes == (WIDTH + Q) * each
    assert cast[1].sharded_bytes - plain[1].sharded_bytes == (Q + 2 * KV + 2 * WIDTH) * each
    hidden = [(c.hidden_bytes - p.hidden_bytes) + c.gathered_bytes for c, p in zip(cast, plain, strict=True)]
    assert hidden == [0, 2 * H * each]


def test_scales_by_row_need_whole_rows() -> None:
    """What is cast before it is gathered divides by tp with sequence parallelism; rows and columns are cast after."""
    compiled = {"framework": "torchtitan", "compile": True}
    shards, rows = traffic(fp8("tensorwise", **compiled)), traffic(fp8("rowwise", **compiled))
    plain = traffic(job(framework="torchtitan", compile=True))
    assert shards[0].hidden_bytes - plain[0].hidden_bytes == 2 * H * 5  # the producer finds the maximum
    assert shards[0].gathered_bytes == 0
    assert rows[0].gathered_bytes == 2 * H * 8
    assert rows[0].hidden_bytes == plain[0].hidden_bytes
    assert rows[1].gathered_bytes - plain[1].gathered_bytes == 2 * H * 8


def test_an_expert_layer_moves_each_routed_copy() -> None:
    """Per copy: SwiGLU of the expert's width, and the row itself, which is read and written 1.6 times as slowly as a stream."""
    moe = {"num_experts": 4, "top_k": 2, "expert_intermediate_size": 512}
    asked = job(grouped(moe=moe))
    forward, backward = traffic(asked)
    assert forward.routed_bytes == 512 * 6
    assert backward.routed_bytes == 512 * 10
    assert forward.sharded_bytes == (Q + KV) * 4
    split = {"tokens": np.array([2048.0]), "tp": np.array([1.0]), "sequence_parallel": np.array([False])}
    still, moved = (
        elementwise_s(asked, asked.model.layer_kinds[0], **split, passes=(np.array([x]), np.array([2 * x])))
        for x in (0.0, 3.0)
    )
    assert moved[0][0] - still[0][0] == pytest.approx(2048 * 2 * 3 * 2 * 2 * H * 1.6 / 800e9)
    assert moved[1][0] - still[1][0] == pytest.approx(2048 * 2 * 6 * 2 * 2 * H * 1.6 / 800e9)


@pytest.mark.parametrize(
    ("version", "strategy", "passes"),
    [
        # Taken apart and put together: twice each way. Sorted by own experts behind the exchange, and back: twice more.
        ("0.16", {"ep": 1}, (2, 2)),
        ("0.16", {"ep": 4, "moe_dispatcher": "alltoall"}, (4, 4)),
        ("0.16", {"ep": 4, "moe_dispatcher": "allgather"}, (4, 4)),
        # The flex dispatcher's kernels take rows apart and put them together; what is left is the sorting.
        ("0.16", {"ep": 4, "moe_dispatcher": "flex"}, (2, 2)),
        # One expert a rank needs no sorting.
        ("0.16", {"ep": 8, "moe_dispatcher": "alltoall"}, (2, 2)),
        # Before core 0.13 rows were weighed behind the experts: a pass forward; backward one for rows and one for weights.
        ("0.12", {"ep": 4, "moe_dispatcher": "alltoall"}, (5, 6)),
    ],
)  # fmt: skip
def test_how_often_a_routed_row_is_moved(version, strategy, passes) -> None:
    """megatron/core/transformer/moe/token_dispatcher.py and moe_utils.py (permute, sort_chunks_by_idxs, unpermute)."""
    asked = job(grouped(moe={"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512}), framework_version=version)
    forward, backward = row_passes(asked, asked.model.layer_kinds[0], row_of(asked, **strategy))
    assert (forward[0], backward[0]) == passes


@pytest.mark.parametrize("strategy", [{"dp": 8, "zero": 3}, {"dp": 8, "zero": 3, "ep": 8}])
def test_pytorchs_operators_move_a_routed_row_eight_times(strategy: dict[str, int]) -> None:
    """torchtitan/models/moe (0.2), in units of a read and a write of 2 bytes, whether or not the experts are spread.

    Forward x[indices], vstack, x[permuted], zeros and index_put twice (the first without zeros), cast and product: 1 + 1 + 1 + 1 + 1.5
    + (6 + 4) / 4. Backward index, cut (0.5 + 1), index, index's sum (0.5 + 1), index's sum, and (4 + 4 + 4 + 2) / 4.
    """
    asked = job(
        grouped(moe={"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512}),
        framework="torchtitan",
        compile=False,
    )
    forward, backward = row_passes(asked, asked.model.layer_kinds[0], row_of(asked, **strategy))
    assert (forward[0], backward[0]) == (8.0, 9.5)


def test_hugging_face_modules_gather_weigh_and_scatter() -> None:
    """transformers' experts on one rank: 3 passes forward, 4 backward, as they were counted for routed rows from the start."""
    asked = job(grouped(moe={"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512}), framework="fsdp")
    forward, backward = row_passes(asked, asked.model.layer_kinds[0], row_of(asked))
    assert (forward[0], backward[0]) == (3, 4)


def test_routing_takes_time_for_every_score() -> None:
    """2048 tokens on 4 ranks score 4 experts each; two thirds of 0.9 ns a score in forward."""
    few, many = (job(with_experts(grouped(), num_experts=n)) for n in (4, 64))
    split = {"tokens": np.array([2048.0]), "tp": np.array([4.0]), "sequence_parallel": np.array([True])}
    (forward, backward), (more, more_back) = (elementwise_s(j, j.model.layer_kinds[0], **split) for j in (few, many))
    assert more[0] - forward[0] == pytest.approx(512 * 60 * 0.9e-9 * 2 / 3)
    assert more_back[0] - backward[0] == pytest.approx(512 * 60 * 0.9e-9 / 3)


def test_fused_routing_moves_bytes_instead() -> None:
    """91 bytes a score over 800 GB/s, and 7 + 4 kernels instead of 35 + 20."""
    split = {"tokens": np.array([2048.0]), "tp": np.array([1.0]), "sequence_parallel": np.array([False])}
    seconds = []
    for experts in (4, 64):
        model = with_experts(grouped(), num_experts=experts)
        asked = job(model, framework="megatron", recipe="nvidia-perf", software_date="2025-11")
        seconds.append(sum(part[0] for part in elementwise_s(asked, asked.model.layer_kinds[0], **split)))
    assert seconds[1] - seconds[0] == pytest.approx(2048 * 60 * 91 / 800e9)
    chains = job(model, framework="megatron", recipe="nvidia-perf", software_date="2025-10")
    kernels = [sum(part.kernels for part in traffic(each)) for each in (asked, chains)]
    assert kernels[1] - kernels[0] == (35 + 20) - (7 + 4)


def test_latent_attention_joins_its_parts() -> None:
    """4 bytes an element each way: query, key in full width (8 heads of 48), value (8 of 32); rotary 20 over 9 x 16."""
    mla = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    forward, backward = traffic(job(grouped(num_key_value_heads=8, mla=mla)))
    assert forward.sharded_bytes == 4 * (2 * 8 * 48 + 8 * 32) + 9 * 16 * 20 + WIDTH * 6
    assert backward.sharded_bytes == 4 * (2 * 8 * 48 + 8 * 32) + 9 * 16 * 20 + WIDTH * 10


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


def test_biases_are_reduced_in_backward() -> None:
    """The gradient of every biased output is read once: q + 2 kv, the output projection's h, gate, up and down 2 f + h, 2 bytes each,
    with one kernel for each of the four.
    """
    plain = traffic(job())
    biased = traffic(job(grouped(linear_bias=True)))
    assert biased[1].sharded_bytes - plain[1].sharded_bytes == 2 * (Q + 2 * 256 + H + 2 * WIDTH + H)
    assert biased[1].kernels - plain[1].kernels == 4
    assert biased[0] == plain[0]
