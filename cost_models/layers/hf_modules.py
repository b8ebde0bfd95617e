"""Hugging Face's modules: which kernels their layers and loss are made of, where `training.model_impl` says that they run. [F-3] [F-4] [F-7]

Counted in transformers 5.24 (models/llama, models/qwen3, loss/loss_utils.py) and checked against kernels of profiled steps
(`data/measured_h200/profiled_steps.jsonl`). Liger replaces norms, rotary embedding, activation and loss by kernels of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.constants import Constant
from cost_models.job import Job
from cost_models.strategies.strategy import Floats

RMSNORM_BYTES: Final = (36.0, 84.0)
"""Bytes per element of LlamaRMSNorm, forward (to fp32 6, pow 8, mean 4, times its inverse root 8, to bf16 6, times weight 4) and
backward (weight 4, its gradient 8, to fp32 6, product 24, pow 24, sum of both 12, to bf16 6)."""
RMSNORM_KERNELS: Final = (8.0, 16.0)
ROTARY_BYTES: Final = (20.0, 30.0)
"""Bytes per rotated element of apply_rotary_pos_emb, forward (two products 8, rotate_half's negation 2 and concatenation 4, sum 6)
and backward (two products 8, negation 2, two slices filled and copied 8, two sums 12)."""
ROTARY_FP32_BYTES: Final = (52.0, 72.0)
"""The same of apply_rotary_pos_emb_vision, which computes in fp32: twice as much, and the casts there and back, 12 each."""
QUICK_GELU_BYTES: Final = (14.0, 28.0)
"""Bytes per element of QuickGELUActivation, forward (scaled 4, sigmoid 4, product 6) and backward (product 12, sigmoid 6, scaled 4,
sum 6)."""
CHAIN_SHARE: Final = Constant(
    0.58, "1", 0.5, 0.7,
    "rate of these chains of operators over that of streaming kernels: 292 GB of a Qwen3-1.7B step on an H200 in 120 ms, 4.2 TB/s "
    "streaming. Products that broadcast compute an index for each element (2.0 TB/s), casts to fp32 are not vectorised (1.7)",
)  # fmt: skip
QK_NORM_HOST: Final = Constant(
    1.12, "1", 0.9, 1.5,
    "host time of a Qwen3 layer over a Llama layer's, median of twelve runtimes (0.8 to 2.2; it issues 525 ATen operators against "
    "431; data/measured_h200, host_layers and host_layers_2)",
)  # fmt: skip
LIGER_HOST: Final = Constant(
    1.76, "1", 1.5, 2.6,
    "ATen operators of a Llama layer with Liger's kernels over those without, 947 and 537 under FSDP2; its host time there was 2.5 "
    "times as long, in one lease (data/measured_h200, host_layers)",
)  # fmt: skip
LLAMA_LAYER_TENSORS: Final = Constant(
    9.0,
    "1",
    9.0,
    9.0,
    "parameter tensors of the Llama layer whose host time under stage 3 was measured (modeling_llama.py)",
)


def runs_chains(job: Job) -> bool:
    """Whether layers are transformers' own modules, operator by operator."""
    return job.has_hf_modules and job.training.model_impl == "transformers" and not job.training.compile


def runs_liger(job: Job) -> bool:
    """Whether Liger's kernels replace parts of transformers' layers."""
    return job.has_hf_modules and job.training.model_impl == "liger" and not job.training.compile


def host_ratio(job: Job) -> float:
    """Host time of a layer of these modules over that of a plain Llama layer of PyTorch's operators. [F-4]"""
    ratio = QK_NORM_HOST.value if job.has_hf_modules and job.model.qk_norm != "none" else 1.0
    return ratio * (LIGER_HOST.value if runs_liger(job) else 1.0)


def liger_chunks(*, tokens: Floats, vocab: Floats, hidden: float, chunk_memory: float = 1.0) -> Floats:
    """Pieces of tokens that Liger's fused linear cross entropy runs head and loss on, shape of `tokens`. [F-6] [M-7]

    A piece's logits take about as much memory as the hidden states, rounded up to a power of two tokens (Liger 0.8.5,
    ops/fused_linear_cross_entropy.py).
    """
    pieces = np.ceil(vocab / (chunk_memory * hidden))
    size = np.minimum(2.0 ** np.ceil(np.log2(np.maximum(np.ceil(tokens / pieces), 1.0))), tokens)
    return np.asarray(np.ceil(tokens / size))
