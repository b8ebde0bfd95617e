"""Operations of one training step: what the model needs, and what the hardware executes with recomputation.

A multiply-add is 2 operations. Model operations count active matmul weights with the output projection and full S x S
attention; embedding look-up, norms and other elementwise work are not counted (contract, "Model FLOPs").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.job import Job
from cost_models.layers.parameters import active_matmul_parameters, layer_matmul_parameters
from cost_models.layers.recurrent_sizes import recurrence_flops_per_token
from cost_models.layers.selective import repeated_matmul_flops_per_token
from cost_models.layers.tower_parameters import passes_of_ends, recomputes
from cost_models.layers.trained import adapter_elements, frozen_matmul_elements, head_is_trained, layers_run_backward
from cost_models.specs.documents import Lengths
from cost_models.specs.model import LayerKind, Model
from cost_models.strategies.fields import Recompute
from cost_models.strategies.recomputed_layers import recomputed_mtp_share, recomputed_shares
from cost_models.strategies.strategy import Floats, Strategies

FORWARD_AND_BACKWARD = 3.0
"""Backward does the data gradient and the weight gradient: twice the forward."""


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """Forward operations per token, kept apart by what recomputation can repeat."""

    layer_matmul_flops_per_token: float
    attention_flops_per_token: float
    head_flops_per_token: float
    mtp_matmul_flops_per_token: float
    """Products of the decoder layers and projections in multi-token-prediction modules;
    `mtp_attention_flops_per_token` is their attention."""
    mtp_attention_flops_per_token: float
    recurrent_flops_per_token: float = 0.0
    """Convolutions and recurrences of layers that do not attend."""

    @property
    def forward(self) -> float:
        """Forward operations per token of the whole model."""
        layers = self.layer_matmul_flops_per_token + self.mtp_matmul_flops_per_token
        return layers + self.all_attention + self.head_flops_per_token + self.recurrent_flops_per_token

    @property
    def all_attention(self) -> float:
        """Forward operations per token of scores and values in every layer."""
        return self.attention_flops_per_token + self.mtp_attention_flops_per_token


def attention_flops_per_token(model: Model, kind: LayerKind, *, seq_length: float) -> float:
    """Forward operations of one layer's scores and values for one token. [F-2]

        2 * heads * span * (d_qk + d_v),  span = 2w - w^2 / S,  w = min(window, S)

    Token i sees min(i, w) others: S w - w^2/2 pairs in all. The contract counts the whole square, which has twice as many.

    Args:
        model: sizes.
        kind: the layer's attention window.
        seq_length: span in which tokens see each other: the sequence, or one document where documents are packed.
    """
    if not kind.attends:
        return 0.0
    d_qk, d_v = attention_head_dims(model)
    window, scored = kind.window, 0.0
    if model.indexer is not None:
        # A query sees the keys that were chosen for it, as many as a window would show; all of those before it are scored. [F-38]
        window = model.indexer.top_k
        scored = 2.0 * model.indexer.num_heads * model.indexer.head_dim * seq_length
    reach = seq_length if window is None else min(seq_length, window)
    span = 2.0 * reach - reach * reach / seq_length if model.causal else float(reach)
    return 2.0 * model.num_attention_heads * span * (d_qk + d_v) + scored


def attention_head_dims(model: Model) -> tuple[int, int]:
    """Width of a query/key head and of a value head, in elements."""
    if model.mla is not None:
        return model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim, model.mla.v_head_dim
    return model.head_dim, model.head_dim


@lru_cache(maxsize=2048)
def model_flops(job: Job) -> ModelFlops:
    """Forward operations per token of the whole model, as they are executed."""
    return _flops_over(job, job.training.attended_spans)


def _flops_over(job: Job, spans: Lengths) -> ModelFlops:
    """The same with attention over these lengths, each of which has a share of the tokens."""
    model, modules = job.model, float(job.mtp_num_layers)
    head = 2.0 * model.hidden_size * model.head_outputs * (1 + modules)
    by_kind = {
        kind: sum(share * attention_flops_per_token(model, kind, seq_length=length) for length, share in spans)
        for kind in model.distinct_kinds
    }
    attention, last = sum(by_kind[kind] for kind in model.layer_kinds), model.layer_kinds[-1]
    return ModelFlops(
        layer_matmul_flops_per_token=2.0 * active_matmul_parameters(model) - 2.0 * model.hidden_size * model.vocab_size,
        attention_flops_per_token=attention,
        head_flops_per_token=head,
        mtp_matmul_flops_per_token=2.0 * modules * (layer_matmul_parameters(model, last) + 2.0 * model.hidden_size**2),
        mtp_attention_flops_per_token=modules * by_kind[last],
        recurrent_flops_per_token=_recurrent_flops_per_token(model),
    )


def _recurrent_flops_per_token(model: Model) -> float:
    """Forward operations of one token in all recurrences and their convolutions. [F-20]"""
    if model.recurrent is None:
        return 0.0
    return sum(kind.recurs for kind in model.layer_kinds) * recurrence_flops_per_token(model.recurrent)


def model_flops_per_step(job: Job, *, causal: bool = False, padding: bool = False) -> float:
    """Operations of one optimizer step; `causal` counts only half of the attention square.

    Where a part of the model is frozen, weight gradients that nobody computes are left out, and adapters' products are added.
    Padding counts only where `padding` asks for what is executed. [F-36]
    """
    training = job.training
    without = training.is_padded and not padding
    flops = _flops_over(job, training.document_spans) if without else model_flops(job)
    forward = flops.forward - (0.5 * flops.all_attention if causal else 0.0)
    per_token = FORWARD_AND_BACKWARD * forward
    if not layers_run_backward(job.model, job.training):  # the head alone is trained
        per_token = forward + flops.head_flops_per_token
    elif job.training.adapter is not None or job.training.frozen:
        per_token += _partly_trained(job)
    flops_of_towers = sum(tower_flops(job, position).step for position in range(len(job.tower_jobs)))
    tokens = training.seq_length * training.filled_share if without else training.seq_length
    return (per_token * tokens + flops_of_towers) * training.global_batch_size


@lru_cache(maxsize=256)
def _partly_trained(job: Job) -> float:
    """Operations per token that adapters add, less the weight gradients of frozen weights. [F-13]"""
    model, training, flops = job.model, job.training, model_flops(job)
    head = 0.0 if head_is_trained(model, training) else flops.head_flops_per_token
    if training.adapter is not None:
        added = sum(adapter_elements(model, training.adapter, kind) for kind in model.layer_kinds)
        base = flops.layer_matmul_flops_per_token + flops.mtp_matmul_flops_per_token
        return FORWARD_AND_BACKWARD * 2.0 * added - base - head
    frozen = sum(frozen_matmul_elements(model, kind, training.frozen) for kind in model.layer_kinds)
    return -2.0 * frozen - head


@dataclass(frozen=True, slots=True)
class TowerFlops:
    """Operations of one tower for one sequence."""

    forward: float
    step: float
    """Forward and backward: of a frozen tower the forward alone, and what its trained projector needs."""
    layers: float
    """The part of `forward` in the tower's layers, which recomputation repeats."""


def tower_flops(job: Job, position: int) -> TowerFlops:
    """Operations of a tower for one sequence, from its number in the job. [F-17]

    Attention counts every pair of rows that see each other, whether or not the text model's counts half of its square.
    """
    towers, own, use = job.training.towers, job.tower_jobs[position], job.training.tower_uses[position]
    assert towers is not None
    each = model_flops(own)
    layers = (each.layer_matmul_flops_per_token + each.attention_flops_per_token) * use.rows
    forward, step = layers, layers * (FORWARD_AND_BACKWARD if use.trained else 1.0)
    for matrices, passes in zip((use.tower.stem, use.tower.projector), passes_of_ends(towers, use), strict=True):
        for matrix, (data, weight) in zip(matrices, passes, strict=True):
            product = 2.0 * matrix.inputs * matrix.outputs * matrix.per_row * use.rows
            forward, step = forward + product, step + product * (1.0 + data + weight)
    return TowerFlops(forward, step, layers)


def repeated_flops_per_token(job: Job, strategies: Strategies) -> Floats:
    """Forward operations of one token that recomputation repeats, shape (N,); the global batch plays no part.

    Full recomputation repeats products and attention of the recomputed layers. Selective recomputation repeats what the
    framework's rule says: the attention core in Megatron, every other product and every grouped one in TorchTitan.
    """
    flops = model_flops(job)
    layers = flops.layer_matmul_flops_per_token + flops.attention_flops_per_token + flops.recurrent_flops_per_token
    modules = flops.mtp_matmul_flops_per_token + flops.mtp_attention_flops_per_token
    # Elementwise work is repeated too, but counts as no operations.
    selective = job.framework.selective_repeats_attention * flops.all_attention
    if job.framework.selective_alternates:
        selective += _repeated_matmuls(job)
    full = recomputed_shares(strategies) * layers + recomputed_mtp_share(strategies) * modules
    repeated = np.where(strategies.recompute == Recompute.SELECTIVE, selective, full)
    for position, use in enumerate(job.training.tower_uses):
        if use.trained:
            again = recomputes(job, strategies) * tower_flops(job, position).layers / job.training.seq_length
            repeated = repeated + again
    return repeated


@lru_cache(maxsize=2048)
def _repeated_matmuls(job: Job) -> float:
    """Operations of one token in all layers' products that a per-operator policy repeats; cached by the job's identity."""
    kinds = job.model.layer_kinds
    return sum(kinds.count(kind) * repeated_matmul_flops_per_token(job, kind) for kind in job.model.distinct_kinds)
