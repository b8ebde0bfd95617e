"""Bytes of logits and cross entropy at the loss's peak, for each implementation. [M-7]

One word ("fused") names implementations that hold between 2 and 10 bytes per logit, so the table is keyed by who wrote them
as well. The numbers were counted on meta tensors or read in source; EQUATIONS.md M-7 says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cost_models.constants import LOSS_CHUNKS
from cost_models.frameworks import LossFamily, MemoryTraits
from cost_models.job import Job
from cost_models.specs.training import CrossEntropy
from cost_models.strategies.strategy import Floats


@dataclass(frozen=True, slots=True)
class LossBytes:
    """Bytes per logit of this rank (tokens * padded vocabulary / tp)."""

    peak: float
    peak_tp: float
    """The same where the vocabulary is split over tensor-parallel ranks."""
    held: float
    """Bytes per logit that stay from the loss's forward to its backward, which is what an MTP head adds."""
    linear: bool = False
    """Whether the head's product and the loss are one kernel, which never holds the logits."""
    chunks: float = 1.0
    """Pieces of the sequence that run head, loss and backward one after another, so that only one piece's logits
    are alive."""


LOSS_BYTES: Final[Mapping[tuple[LossFamily, CrossEntropy], LossBytes]] = {
    ("torch", "unfused"): LossBytes(12.0, 16.0, 4.0),
    ("torch", "fused"): LossBytes(4.0, 4.0, 2.0),
    ("torch", "compiled"): LossBytes(4.0, 10.0, 4.0),
    ("torch", "te"): LossBytes(2.0, 2.0, 2.0),
    ("huggingface", "unfused"): LossBytes(12.0, 16.0, 4.0),
    ("huggingface", "fused"): LossBytes(4.0, 4.0, 2.0),
    ("huggingface", "compiled"): LossBytes(6.0, 10.0, 4.0),
    ("huggingface", "te"): LossBytes(2.0, 2.0, 2.0),
    ("vocab-parallel", "unfused"): LossBytes(6.0, 6.0, 4.0),
    ("vocab-parallel", "fused"): LossBytes(10.0, 10.0, 4.0),
    ("vocab-parallel", "compiled"): LossBytes(10.0, 10.0, 4.0),
    ("vocab-parallel", "te"): LossBytes(2.0, 2.0, 2.0),
}
_LINEAR: Final = LossBytes(0.0, 0.0, 0.0, linear=True)
_FP32_LOGITS: Final = LossBytes(10.0, 10.0, 4.0)
"""fp16 logits, their fp32 copy and the exponentials."""
_SHIFTED_LABELS_SINCE = "2025-03"
"""transformers 4.49 (2025-02; loss/loss_utils.py, ForCausalLMLoss) shifts labels; up to 4.48 it copied the shifted fp32
logits."""
_SHIFTED_LOGITS: Final = LossBytes(18.0, 18.0, 6.0)
_CHUNK_GRADIENT_BYTES: Final = 4.0
"""Bytes per element of the hidden states' gradients, kept in fp32 (TorchTitan's components/loss.py, GradAccumulator)."""
_CHUNK_LOGIT_BYTES: Final = 2.0
"""Bytes per logit that the loop's own variable keeps while a piece runs backward; whole logits are freed before
that."""
_FROZEN_HEAD: Final = LossBytes(12.0, 12.0, 4.0)
"""transformers' loss in front of a frozen output projection: fp32 logits, their log-softmax and its gradient; the narrow logits are
nobody's by then (25 of 26 own peft runs within 2 % of their peak)."""
_TE_FP32_GRADIENT_FROM = "2026-08"
_TE_FP32_GRADIENT: Final = LossBytes(6.0, 6.0, 2.0)
"""From that month on, Transformer Engine's main branch stores the gradient in fp32."""


def loss_bytes(job: Job, traits: MemoryTraits) -> LossBytes:
    """Bytes per logit of this job's cross entropy. [M-7]"""
    training = job.training
    if training.cross_entropy == "linear" or (training.adapter is not None and training.model_impl == "liger"):
        return _LINEAR
    if _freezes_head(job) and traits.huggingface_modules and training.cross_entropy == "unfused":
        return _FROZEN_HEAD
    # Its pieces run PyTorch's loss, compiled or not, so the entry is that of the inner loss for a piece of the
    # sequence.
    if training.cross_entropy == "chunked":
        inner: CrossEntropy = "compiled" if training.compile else "unfused"
        entry = LOSS_BYTES[traits.loss_family, inner]
        kept = 0.0 if training.compile else _CHUNK_LOGIT_BYTES
        return replace(entry, peak=entry.peak + kept, peak_tp=entry.peak_tp + kept, chunks=LOSS_CHUNKS.value)
    if training.cross_entropy == "te" and training.software_date >= _TE_FP32_GRADIENT_FROM:
        return _TE_FP32_GRADIENT
    copies = traits.loss_family == "huggingface" and training.software_date < _SHIFTED_LABELS_SINCE
    if copies and training.cross_entropy == "unfused":
        return _SHIFTED_LOGITS
    if traits.keeps_fp32_logits and training.cross_entropy in ("unfused", "fused"):
        return _FP32_LOGITS
    return LOSS_BYTES[traits.loss_family, training.cross_entropy]


def _freezes_head(job: Job) -> bool:
    adapter = job.training.adapter
    return adapter is not None and "lm_head" not in adapter.modules_to_save


def _chunk_logits(tokens: Floats, vocab_share: Floats, hidden_size: int) -> Floats:
    """Bytes of the logits that Liger's linear cross entropy holds at a time, with their fp32 copy, shape of `tokens`.

    Source: liger_kernel/ops/fused_linear_cross_entropy.py (inc_factor, chunk_size): the next power of two of T / ceil(V / h) tokens.
    """
    rows = np.ceil(tokens / np.ceil(vocab_share / hidden_size))
    chunk = np.minimum(2.0 ** np.ceil(np.log2(np.maximum(rows, 1.0))), tokens)
    return np.asarray((_CHUNK_LOGIT_BYTES + 4.0) * chunk * vocab_share)


def logits_and_loss(
    job: Job, traits: MemoryTraits, *, tokens: Floats, vocab_share: Floats, tp: Floats, sequences: Floats
) -> Floats:
    """Bytes of logits and cross entropy at the loss's peak, shape of `tokens`. [M-7]

    Args:
        job: whose cross entropy it is.
        traits: of its framework.
        tokens: of a micro-batch on this rank.
        vocab_share: logits of a token on this rank.
        tp: tensor-parallel ranks.
        sequences: of the micro-batch; pieces of several sequences are copies, those of one are views.
    """
    entry = loss_bytes(job, traits)
    logits = tokens * vocab_share
    if job.model.classes is not None:  # the loss reads one token of each sequence
        return np.asarray(job.training.compute_bytes * logits)
    if entry.linear:  # the head's weight gradient in compute type and an accumulator, and three hidden-wide tensors
        hidden = job.training.compute_bytes * job.model.hidden_size
        if _freezes_head(job):
            return np.asarray(_chunk_logits(tokens, vocab_share, job.model.hidden_size) + 3.0 * hidden * tokens)
        return np.asarray(2.0 * hidden * vocab_share + 3.0 * hidden * tokens)
    # The loss of an MTP module runs before the main one and holds its share until the backward.
    per_logit = np.where(tp > 1, entry.peak_tp, entry.peak) + job.mtp_num_layers * entry.held
    if entry.chunks > 1:
        copied = np.where(sequences > 1, job.training.compute_bytes, 0.0)
        hidden_wide = (copied + _CHUNK_GRADIENT_BYTES) * job.model.hidden_size
        return np.asarray(per_logit * logits / entry.chunks + hidden_wide * tokens)
    return np.asarray(per_logit * logits)
