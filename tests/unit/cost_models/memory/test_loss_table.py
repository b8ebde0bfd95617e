"""Bytes per logit of every cross entropy, as EQUATIONS.md (M-7) counts them."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from builders import job_of, tiny_model
from cost_models.frameworks import LossFamily, memory_traits
from cost_models.memory.loss import LOSS_BYTES, loss_bytes
from cost_models.specs.training import CrossEntropy

EXPECTED: dict[tuple[str, str], tuple[float, float, float]] = {
    # Peak, peak with the vocabulary split, and what stays until the backward. A logit has 2 bytes in 16 bits and 4 in fp32.
    # PyTorch's eager loss was counted at three fp32 tensors, one more where DTensor splits it; the log-softmax stays.
    ("torch", "unfused"): (12, 16, 4),
    # A fused kernel beside PyTorch's own modules, such as flash-attn's: 16-bit logits and their gradient.
    ("torch", "fused"): (4, 4, 2),
    # Compiled, the logits and their gradient; split, the logits, the labels' one-hot and the softmax's gradient, both in fp32.
    ("torch", "compiled"): (4, 10, 4),
    # Transformer Engine's kernel writes the gradient over the logits, whoever calls it.
    ("torch", "te"): (2, 2, 2),
    ("huggingface", "te"): (2, 2, 2),
    ("vocab-parallel", "te"): (2, 2, 2),
    # Hugging Face's loss is PyTorch's; fused, logits and their gradient have 2 bytes each.
    ("huggingface", "unfused"): (12, 16, 4),
    ("huggingface", "fused"): (4, 4, 2),
    ("huggingface", "compiled"): (6, 10, 4),
    # Megatron's loss over a split vocabulary: 6 by its source, 10 fused, which its own readings confirm exactly.
    ("vocab-parallel", "unfused"): (6, 6, 4),
    ("vocab-parallel", "fused"): (10, 10, 4),
    ("vocab-parallel", "compiled"): (10, 10, 4),
}


def test_every_implementation_holds_what_was_counted() -> None:
    assert {key: (each.peak, each.peak_tp, each.held) for key, each in LOSS_BYTES.items()} == EXPECTED
    assert not any(each.linear for each in LOSS_BYTES.values())
    assert {each.chunks for each in LOSS_BYTES.values()} == {1.0}


def test_every_family_has_every_loss_that_is_no_wrapper() -> None:
    own = set(get_args(CrossEntropy)) - {"linear", "chunked"}
    assert set(LOSS_BYTES) == {(family, each) for family in get_args(LossFamily) for each in own}


@pytest.mark.parametrize(
    ("framework", "given", "expected"),
    [
        # From August 2026 on the gradient of Transformer Engine's kernel is in fp32, beside the logits of two bytes.
        ("megatron", {"cross_entropy": "te", "software_date": "2026-07"}, (2, 2, 2)),
        ("megatron", {"cross_entropy": "te", "software_date": "2026-08"}, (6, 6, 2)),
        # nanotron: logits in two bytes, their fp32 copy and the exponentials.
        ("nanotron", {"cross_entropy": "unfused"}, (10, 10, 4)),
        # torchtitan's pieces run the eager loss and keep a piece's logits of two bytes; compiled ones keep nothing more.
        ("torchtitan", {"cross_entropy": "chunked", "framework_version": "0.3"}, (14, 18, 4)),
        ("torchtitan", {"cross_entropy": "chunked", "framework_version": "0.3", "compile": True}, (4, 10, 4)),
        ("deepspeed", {"cross_entropy": "linear"}, (0, 0, 0)),
        # transformers to 4.48 copied shifted fp32 logits.
        ("deepspeed", {"cross_entropy": "unfused", "software_date": "2025-02"}, (18, 18, 6)),
        ("deepspeed", {"cross_entropy": "unfused", "software_date": "2025-03"}, (12, 16, 4)),
    ],
)
def test_a_job_holds_what_its_stack_does(framework: str, given: dict[str, Any], expected: tuple[float, ...]) -> None:
    job = job_of(tiny_model(), framework, **given)
    found = loss_bytes(job, memory_traits(job.training))
    assert (found.peak, found.peak_tp, found.held) == expected
    assert found.linear is (given["cross_entropy"] == "linear")
    assert found.chunks == (8 if given["cross_entropy"] == "chunked" else 1)
