"""Bytes of the gradient reduction's buffers under DeepSpeed, moment by moment, against arithmetic done by hand.

What the engine allocates was read in its source packages 0.6.0 to 0.19.8: zero/stage3.py (one bucket of reduce_bucket_size,
from the start), zero/stage_1_and_2.py (setup_buckets: one for a backward, a second with overlap_comm; released in the
epilogue), engine.py (allreduce_bucket flattens 5e8 elements at most).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import job_of, row_of, tiny_model
from cost_models.memory.moments import moments

SMALL = tiny_model(4, num_key_value_heads=2, vocab_size=1024)

SMALL_TOTAL = 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256) + 2 * 1024 * 256 + 256
"""Query and output, key and value, gated MLP, two norms; embedding and head; the final norm: 2,886,400."""
BUCKET = 2 * 500_000_000
"""reduce_bucket_size elements of bf16."""
OVERLAP = {"overlap": {"grad_reduce": True}}


def gradient_reduce(moment: str, strategy: dict[str, Any], *, model: Any = SMALL, **training: Any) -> float:
    """Bytes of the reduction's buffers at a moment, on the only stage of an 8-GPU node."""
    job = job_of(model, **{"framework": "deepspeed", "seq_length": 512, **training})
    found = moments(job, row_of(job, **strategy)).terms[moment]["gradient_reduce"]
    return float(np.broadcast_to(found, (1, 1))[0, 0])


@pytest.mark.parametrize("moment", ["loss", "layer_backward", "optimizer_step"])
def test_stage_3_keeps_one_bucket_for_ever(moment: str) -> None:
    """Of its full size, however small the model is, and none more where reduction overlaps, which is the default."""
    assert gradient_reduce(moment, {"zero": 3}) == BUCKET


@pytest.mark.parametrize("zero", [1, 2])
def test_stages_1_and_2_have_one_bucket_in_backward_and_a_second_with_overlap(zero: int) -> None:
    for moment, version in (("loss", "0.18"), ("layer_backward", "0.18"), ("layer_backward", "0.19")):
        assert gradient_reduce(moment, {"zero": zero}, framework_version=version) == BUCKET
        assert gradient_reduce(moment, {"zero": zero, **OVERLAP}, framework_version=version) == 2 * BUCKET
    assert gradient_reduce("optimizer_step", {"zero": zero, **OVERLAP}) == 0


def test_from_0_19_a_loss_finds_buckets_only_behind_micro_batches_that_reduce_nothing() -> None:
    """process_gradients makes them at a backward's first gradient; stage 2 frees them behind each micro-batch, stage 1 behind the
    last. Batches of 8 on 8 ranks are one micro-batch, of 16 two.
    """
    for zero, later in ((1, BUCKET), (2, 0)):
        assert gradient_reduce("loss", {"zero": zero}, global_batch_size=8) == 0
        assert gradient_reduce("loss", {"zero": zero}, global_batch_size=16) == later


def test_stage_1_before_0_13_had_no_bucket_but_flattened_gradients_behind_the_backward() -> None:
    """Llama-3.1-8B over 8 ranks: 5e8 bf16 gradients flattened, while the step casts 8.03e9 / 8 of them to fp32, which is
    more, so that the step's peak does not grow. The small model flattens all of its gradients and casts an eighth.
    """
    old = {"framework_version": "0.12.6"}
    assert gradient_reduce("layer_backward", {"zero": 1}, **old) == 0
    flat, cast = 2 * SMALL_TOTAL, 4 * SMALL_TOTAL / 8
    assert gradient_reduce("optimizer_step", {"zero": 1}, **old) == pytest.approx(flat - cast)
    assert gradient_reduce("optimizer_step", {"zero": 1}, model={"preset": "llama-3.1-8b"}, **old) == 0


def test_without_zero_gradients_are_flattened_behind_the_backward() -> None:
    """Two bytes a gradient flattened; the step casts four, on one rank or eight, so nothing is added to it."""
    assert gradient_reduce("layer_backward", {"zero": 0}) == 0
    assert gradient_reduce("optimizer_step", {"zero": 0}) == 0
    wide = {"grad_dtype": "fp32", "precision": "bf16"}
    assert gradient_reduce("optimizer_step", {"zero": 0}, **wide) == 4 * SMALL_TOTAL
    assert gradient_reduce("optimizer_step", {"zero": 0, "dp": 1, "tp": 8}, **wide) == 0


@pytest.mark.parametrize(("zero", "staged"), [(1, 2 * 1024 * 256), (2, 2 * 1024 * 256), (3, 0)])
def test_gradients_on_their_way_to_the_host_pass_a_buffer_of_the_largest_parameter(zero: int, staged: int) -> None:
    """zero/stage_1_and_2.py, temp_grad_buffer_for_gpu_offload: the embedding's bf16 elements, at any time."""
    offload = {"offload": {"optimizer_fraction": 1.0}}
    for moment in ("loss", "optimizer_step"):
        without, with_offload = (gradient_reduce(moment, {"zero": zero, **each}) for each in ({}, offload))
        assert with_offload - without == staged


def test_stage_3_holds_either_recent_layers_or_both_ends_at_the_loss() -> None:
    """Fewer elements than stage3_max_live_parameters: all of them stay gathered, both ends among them; in the backward the ends are
    counted beside them. Ends of more than 1.05e9 elements stay whole whatever the limit is.
    """
    for model, at_loss in ((SMALL, SMALL_TOTAL), ({**SMALL, "vocab_size": 4_194_304}, 2 * 4_194_304 * 256)):
        job = job_of(model, "deepspeed", seq_length=512)
        found = moments(job, row_of(job, zero=3)).terms["loss"]["parameter_gather"]
        assert float(np.broadcast_to(found, (1, 1))[0, 0]) == 2 * at_loss
