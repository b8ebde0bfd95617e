"""Whether torch.autocast casts fp32 parameters, and the seconds that this adds to a layer. [F-14]

Every product casts its weight and its input to 16 bits and its gradients back. Embeddings and norms are not cast, so that norms, the
residual stream and what is added to it are fp32.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.constants import ELEMENTWISE_KERNEL_S, Constant
from cost_models.frameworks import MemoryTraits, memory_traits
from cost_models.job import Job
from cost_models.layers.copies import products_of_one_input
from cost_models.layers.hf_modules import runs_chains
from cost_models.layers.parameters import dense_layer_parameters_on_rank, expert_layer_parameters_on_rank
from cost_models.layers.shapes import parameter_tensors
from cost_models.specs.model import LayerKind
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Bools, Floats, Strategies

_FP32 = BYTES_PER["fp32"]
WIDENING_SHARE: Final = Constant(
    0.45, "1", 0.38, 0.55,
    "rate of eager casts from 16 bits to fp32 over that of streaming kernels, which they are not vectorised like: 78 GB in 41 ms and 231 GB "
    "in 121 ms (1.9 TB/s; traced steps of Llama 1.3B and 8B on an H200, PyTorch 2.11; data/measured_h200, autocast_kernels)",
)  # fmt: skip
HF_ROTARY_BYTES: Final = (16.0, 30.0)
"""Bytes more per rotated element of apply_rotary_pos_emb, whose cosines have the type of the residual stream: products and sum are fp32,
and attention casts the result back (modeling_llama.py; counted, not measured)."""


def autocast(job: Job, traits: MemoryTraits, rows: Strategies) -> Bools:
    """Whether unsharded fp32 parameters compute in a narrower type, shape (N,).

    FSDP casts parameters as it gathers them, so only replicated ones are left to torch.autocast, which keeps the residual stream
    in fp32.
    """
    # Beside adapters the base is stored in the compute type, so that autocast has only the adapters to cast.
    return np.asarray((rows.zero == 0) & (_stores_wider(job, traits) and job.training.adapter is None))


def casts_by_stage(job: Job) -> bool:
    """Whether the ZeRO stage decides what a layer casts: weights and inputs, or the inputs of adapters; most at stage 0."""
    return job.training.adapter is not None or _stores_wider(job, memory_traits(job.training))


def _stores_wider(job: Job, traits: MemoryTraits) -> bool:
    return traits.casts_replicated_parameters and BYTES_PER[job.training.param_dtype] > job.training.compute_bytes


def autocast_s(job: Job, kind: LayerKind, rows: Strategies, *, tokens: Floats) -> tuple[Floats, Floats] | None:
    """Seconds that autocast adds to a layer's forward and backward, shape (U,); None where no combination runs under it. [F-14]

    Args:
        job: model, software and prices.
        kind: kind of layer.
        rows: combinations of axes, shape (U,).
        tokens: tokens of one micro-batch on a rank.
    """
    under = autocast(job, memory_traits(job.training), rows)
    if not under.any():
        return None
    e, h = job.training.compute_bytes, float(job.model.hidden_size)
    more, both = _FP32 - e, _FP32 + e
    norms, adds = float(job.model.norms_of(kind)), 1.0 if job.model.parallel_block else float(kind.num_blocks)
    weights = dense_layer_parameters_on_rank(job.model, kind, rows.tp)
    weights = weights + expert_layer_parameters_on_rank(job.model, kind, rows.ep, rows.etp)
    split = np.where(rows.sequence_parallel, rows.tp, 1.0)
    # A fused norm reads and writes in forward, and in backward moves five elements; transformers' chain is fp32 in any case.
    chains = runs_chains(job)
    norm, norm_back = (0.0, 0.0) if chains else (2 * more, 5 * more)
    # x + branch: the stream is read and written, the branch has 16 bits. In backward the branch's gradient is cast.
    add, add_back = 2 * more, 3 * more + both
    inputs = [float(n) for n in products_of_one_input(job, kind)]
    casts, sums = sum(inputs), sum(n - 1 for n in inputs)
    rotary = rotary_back = 0.0
    if chains and job.model.position_embedding == "rope" and job.model.mla is None and kind.attends:
        rotary, rotary_back = (each * (job.model.q_size + job.model.kv_size) for each in HF_ROTARY_BYTES)
    if job.training.compile:  # casts and sums are parts of the kernels around them
        casts, sums, add_back = 0.0, 0.0, 3 * more
    streaming = job.calibration.memory_bytes_per_s_effective.value
    widening = streaming if job.training.compile else streaming * WIDENING_SHARE.value
    kernels = ELEMENTWISE_KERNEL_S.value * (parameter_tensors(job, kind) + casts)
    forward = tokens * (h * (norms * norm + adds * add) / split + h * casts * both + rotary / rows.tp) + both * weights
    streamed = tokens * (
        h * (norms * norm_back + adds * add_back) / split + h * sums * 3 * more + rotary_back / rows.tp
    )
    widened = both * (weights + tokens * h * casts)
    return (
        np.where(under, forward / streaming + kernels, 0.0),
        np.where(under, streamed / streaming + widened / widening + kernels + adds * ELEMENTWISE_KERNEL_S.value, 0.0),
    )
