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
    for moment in ("loss", "layer_backward"):
        assert gradient_reduce(moment, {"zero": zero}) == BUCKET
        assert gradient_reduce(moment, {"zero": zero, **OVERLAP}) == 2 * BUCKET
    assert gradient_reduce("optimizer_step", {"zero": zero, **OVERLAP}) == 0


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
