"""What a layer saves for its backward where parts of it are frozen and no adapter is trained. [M-20]

A linear layer saves its input for its weight's gradient alone, so that a frozen one saves nothing of its own; data gradients still
flow through it to what lies in front. Where nothing in the layers nor in front of them is trained, nobody runs their backward.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from cost_models.frameworks import MemoryTraits
from cost_models.job import Job
from cost_models.layers.trained import layers_run_backward
from cost_models.memory.activations import LayerParts, Sizes, upcasts_norms
from cost_models.specs.model import LayerKind
from cost_models.strategies.strategy import Floats


def frozen_parts(job: Job, traits: MemoryTraits, kind: LayerKind, sizes: Sizes, plain: LayerParts) -> LayerParts:
    """Bytes that a layer saves, by part, shape (U,) each; `plain` is what it saves where everything is trained. [M-20]"""
    model, frozen = job.model, frozenset(job.training.frozen)
    if not layers_run_backward(model, job.training):
        nothing = np.zeros_like(sizes.tokens)
        return LayerParts(**{field.name: nothing for field in fields(LayerParts)})
    read = _read_norm_outputs(job, kind)
    found = replace(
        plain,
        norm_outputs=plain.norm_outputs * read,
        separate_norm_outputs=plain.separate_norm_outputs * read,
        residual=_residual(job, traits, kind, sizes, plain),
    )
    if "mlp" in frozen and kind.has_mlp and not kind.is_moe:
        # The down-projection's input; without weight gradients those of the hidden tensors alone are alive in backward.
        found = replace(found, mlp=plain.mlp - _activated(sizes, model.intermediate_size))
        hidden = (2.0 if model.gated_mlp else 1.0) * sizes.w * model.intermediate_size * sizes.tokens / sizes.tp
        found = replace(found, mlp_gradient=np.asarray(hidden))
    if kind.is_moe:
        assert model.moe is not None
        if "mlp" in frozen:
            width = model.moe.num_shared_experts * model.moe.shared_expert_intermediate_size
            found = replace(found, shared=plain.shared - _activated(sizes, width))
        if "experts" in frozen:
            permuted = sizes.linear_w * model.hidden_size * job.routed_copies * sizes.tokens / sizes.tp * sizes.etp
            found = replace(
                found,
                experts=plain.experts - permuted - plain.expert_activation,
                expert_activation=np.zeros_like(plain.expert_activation),
            )
    return found


def _activated(s: Sizes, width: int) -> Floats:
    """Bytes of the tensor behind the activation function, which only the down-projection's weight gradient reads."""
    return np.asarray(s.linear_w * width * s.tokens / s.tp)


def _read_norm_outputs(job: Job, kind: LayerKind) -> float:
    """Share of the norms' outputs that a trained layer's weight gradient reads."""
    model, frozen = job.model, job.training.frozen
    # The router reads what the experts read, and is trained whatever is frozen.
    by_block = [float("attention" not in frozen)] * (kind.mixer != "none")
    by_block += [float(kind.is_moe or "mlp" not in frozen)] * kind.has_mlp
    if model.parallel_block and model.norms_per_layer == 1:
        return max(by_block)
    return sum(by_block) / len(by_block)


def _residual(job: Job, traits: MemoryTraits, kind: LayerKind, s: Sizes, plain: LayerParts) -> Floats:
    """Bytes of the residual stream's tensors: RMSNorm as operators saves its normalised tensor for its weight's gradient alone."""
    if "norms" not in job.training.frozen or not upcasts_norms(job, traits):
        return plain.residual
    before = min(job.model.norms_of(kind), 2)
    normalised = before * s.w * job.model.hidden_size * s.tokens / s.sp
    return np.asarray(np.maximum(plain.residual - normalised, 0.0))
