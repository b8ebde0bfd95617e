"""Selective recomputation: which of a layer's matrix products run again, which outputs stay, which norms can be repeated.

PyTorch's policy by operator saves the output of every other matrix product in the order in which they run, and of no grouped one; the
router's product is repeated and not counted. `costs` prices what is repeated, `memory.activations` what is kept.

Source: TorchTitan's distributed/activation_checkpoint.py, `SelectiveAC` (0.3) and `_apply_op_sac`;
torch/_functorch/partitioners.py, whose list of compute-intensive operators has no grouped_mm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.job import Job
from cost_models.layers.shapes import Gemm, layer_gemms
from cost_models.specs.model import LayerKind
from cost_models.strategies.strategy import Floats

_NEVER_SAVED = ("moe", "router")


def separate_norms(job: Job, kind: LayerKind) -> float:
    """Number of a layer's norms that are modules of their own, 0...2; Megatron's `layernorm` module recomputes these. [F-8] [M-5]

    Transformer Engine's linear layers take in the norm before them: that of attention except for latent attention, and that of a
    dense MLP but not the one before a router.

    Source: Megatron Core's models/gpt/gpt_layer_specs.py (0.12 to 0.19, without mla_down_proj_fusion); transformer_layer.py
    recomputes no IdentityOp.
    """
    before = float(min(job.model.norms_of(kind), 2))
    if job.training.transformer_impl != "transformer-engine" or not job.framework.memory.transformer_engine:
        return before
    return min(before, float(job.model.mla is not None and kind.attends) + float(kind.is_moe))


def repeated_copies(gemms: Sequence[Gemm]) -> list[float]:
    """Number of each product's launches that the policy repeats, in the order of the list. [F-8]"""
    repeated, count = [], 0
    for gemm in gemms:
        launches = int(gemm.repeats.max(initial=0.0))
        if gemm.module in _NEVER_SAVED:
            repeated.append(float(launches))
            continue
        first = count + 1
        count += launches
        # The policy counts products across the whole layer: the first is saved, the second repeated, and so on. A
        # product launched several times (keys and values) takes several places in that count.
        repeated.append(float(sum(1 for position in range(first, count + 1) if position % 2 == 0)))
    return repeated


def repeated_matmul_flops_per_token(job: Job, kind: LayerKind) -> float:
    """Forward operations of one token in one layer of this kind that the policy repeats; routed experts count top_k times.
    [F-8]
    """
    one, total = np.ones(1), 0.0
    gemms = layer_gemms(job, kind, tokens=one, tp=one, ep=one, etp=one)
    for gemm, times in zip(gemms, repeated_copies(gemms), strict=True):
        rows = float(job.model.moe.top_k) if gemm.module == "moe" and job.model.moe is not None else 1.0
        total += times * 2.0 * rows * float(gemm.n[0] * gemm.k[0])
    return total


def kept_output_bytes(
    job: Job, kind: LayerKind, *, tokens: Floats, tp: Floats, ep: Floats, etp: Floats, element_bytes: float
) -> Floats:
    """Bytes of the products' outputs that one layer keeps, shape of `tokens`. [M-5]

    Outputs of row-parallel products are whole partial sums; the collectives that reduce them are not part of this.
    """
    gemms = layer_gemms(job, kind, tokens=tokens, tp=tp, ep=ep, etp=etp)
    kept = np.zeros_like(tokens)
    for gemm, times in zip(gemms, repeated_copies(gemms), strict=True):
        if gemm.module not in _NEVER_SAVED:
            kept = kept + element_bytes * (gemm.repeats - times) * gemm.m * gemm.n
    return np.asarray(kept)
