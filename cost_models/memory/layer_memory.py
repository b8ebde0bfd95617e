"""What a layer keeps, and what its backward makes again, under each recomputation mode and framework. [M-5] [M-6]

"Selective" means different things: Megatron drops the outputs of named modules, PyTorch's policy by operator keeps every other
matrix product's output. Full recomputation keeps the layer's input alone; how many layers it covers is decided per stage
(`stage_activations`). Bytes of each part of a layer come from `activations`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.frameworks import MemoryTraits
from cost_models.memory.activations import LayerParts
from cost_models.strategies.fields import RECOMPUTE_MODULES, Recompute
from cost_models.strategies.strategy import Floats, Strategies

_BIT = {name: 1 << index for index, name in enumerate(RECOMPUTE_MODULES)}


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """One layer of a kind under the strategies' recomputation, bytes per micro-batch, shape (U,) each."""

    kept: Floats
    """Bytes saved by a layer that is not fully recomputed. [M-5]"""
    transient: Floats
    """Bytes by which its backward exceeds what is saved when it starts. [M-6]"""
    whole: Floats
    """Bytes saved without any recomputation: what a fully recomputed layer makes again."""


def layer_memory(parts: LayerParts, rows: Strategies, *, traits: MemoryTraits) -> LayerMemory:
    """Kept and transient bytes of a layer made of these parts. [M-5] [M-6]"""
    whole = parts.saved
    # The MLP's and the attention's backward follow each other, so only the larger set of gradients is alive.
    gradients = np.maximum(np.maximum(parts.mlp_gradient, parts.score_gradient), parts.recurrent_gradient)
    selective = rows.recompute == Recompute.SELECTIVE
    if not selective.any():
        return LayerMemory(whole, gradients, whole)
    if traits.torch_operators:
        # The policy saves the fused kernel's statistics, but never the score matrices of unfused attention, which
        # have gradients.
        flash = np.where(parts.score_gradient > 0, 0.0, parts.scores)
        kept = parts.block_input + flash + parts.context + parts.matmul_outputs
        # The whole layer is run again from a copy of its input, so the backward holds it in full beside what was
        # kept.
        extra = whole - kept + parts.block_input
    else:
        dropped = _dropped_modules(parts, rows)
        kept, extra = whole - dropped, dropped
    return LayerMemory(np.where(selective, kept, whole), gradients + np.where(selective, extra, 0.0), whole)


def _dropped_modules(parts: LayerParts, rows: Strategies) -> Floats:
    """Bytes that the named modules need not save, shape (U,); those of the attention core where no module is named."""
    chosen = np.where(rows.recompute_modules == 0, _BIT["core_attn"], rows.recompute_modules)
    moe_whole = parts.experts + parts.shared
    by_module = {
        "core_attn": parts.scores,
        "mlp": parts.mlp,
        "layernorm": parts.separate_norm_outputs,
        "moe": moe_whole,
        "moe_act": parts.expert_activation,
        "shared_experts": parts.shared,
        "mla_up_proj": parts.up_projections,
    }
    moe = (chosen & _BIT["moe"]) != 0
    dropped = np.zeros_like(parts.scores)
    for name, bytes_ in by_module.items():
        on = (chosen & _BIT[name]) != 0
        if name in ("moe_act", "shared_experts"):
            # `moe` repeats the whole mixture layer, shared experts and activation included; they are not dropped
            # twice.
            on = on & ~moe
        dropped = dropped + np.where(on, bytes_, 0.0)
    return np.asarray(dropped)
