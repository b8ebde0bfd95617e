"""Bytes of the modules whose saved inputs Megatron sends to the host (`--offload-modules`). [M-23]

A name stands for what one module of every layer saves: a norm its input, a linear layer its input, the attention core its query, key,
value and statistics. What selective recomputation drops is not there to be sent. Tensors of less than a Mi elements stay on the GPU in
Megatron (min_offloaded_tensor_size); that is left out, since tensors of a layer that matters are larger.
"""

from __future__ import annotations

import numpy as np

from cost_models.memory.activations import LayerParts, batch_sizes, layer_parts
from cost_models.memory.batch import Batch
from cost_models.memory.layer_table import AXES
from cost_models.strategies.fields import OFFLOAD_MODULES, RECOMPUTE_MODULES, Recompute
from cost_models.strategies.kept_columns import Columns, kept_columns
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.strategies.tensors import combinations_of

_COLUMN = "offload_activation_modules"


def offloaded_bytes(batch: Batch) -> list[Floats]:
    """Bytes that one layer of each kind sends to the host for a micro-batch, shape (N,) each. [M-23]"""
    job, traits, strategies = batch.job, batch.traits, batch.strategies
    axes = (*AXES, _COLUMN)
    cases = combinations_of(strategies, axes)

    def build(rows: Strategies) -> Columns:
        sizes = batch_sizes(job, traits, rows)
        return tuple(_named(layer_parts(job, traits, kind, sizes), rows) for kind in job.model.distinct_kinds)

    columns = kept_columns(job, "offloaded modules", cases.rows, axes, build)
    return [strategies.offload_activation_fraction * cases.spread(column) for column in columns]


def _named(parts: LayerParts, rows: Strategies) -> Floats:
    """Bytes of the named modules of one layer, shape (U,)."""
    selective = rows.recompute == Recompute.SELECTIVE

    def kept(module: str, bytes_: Floats) -> Floats:
        dropped = (rows.recompute_modules >> RECOMPUTE_MODULES.index(module) & 1) != 0
        # Selective recomputation without a list of modules repeats the attention core.
        if module == "core_attn":
            dropped = dropped | (rows.recompute_modules == 0)
        return np.where(selective & dropped, 0.0, bytes_)

    # Norms and attention's linear layer share `norm_outputs`: one before attention, one before the MLP.
    by_module = {
        "attn_norm": parts.block_input,
        "qkv_linear": kept("layernorm", parts.norm_outputs / 2.0),
        "core_attn": kept("core_attn", parts.scores) + parts.qkv - parts.up_projections
        + kept("mla_up_proj", parts.up_projections),
        "attn_proj": parts.context,
        "mlp_norm": np.minimum(parts.residual, parts.block_input),
        "expert_fc1": kept("moe", parts.expert_inputs),
        "moe_act": kept("moe", parts.expert_hidden),
    }  # fmt: skip
    # Modules that a layer does not have save nothing, so that a dense layer of a mixture counts its own alone.
    chosen = getattr(rows, _COLUMN)
    found = np.zeros(len(rows))
    for bit, name in enumerate(OFFLOAD_MODULES):
        found = found + np.where(chosen >> bit & 1, by_module[name], 0.0)
    return found
