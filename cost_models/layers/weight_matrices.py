"""The weight matrices of a layer that one rank holds, by their shape: what optimizers that treat matrices as such work on. [F-30]

Embedding, head, norms, biases and other vectors are left out: Muon leaves them to Adam, and Adafactor factors no vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.job import Job
from cost_models.specs.model import LayerKind
from cost_models.strategies.strategy import Floats, Strategies


@dataclass(frozen=True, eq=False)
class Matrices:
    """Equal matrices of one layer on a rank; arrays of shape (N,)."""

    rows: Floats
    columns: Floats
    count: Floats
    is_expert: bool = False

    @property
    def elements(self) -> Floats:
        """Elements of one of them."""
        return self.rows * self.columns

    @property
    def short(self) -> Floats:
        """The shorter side."""
        return np.minimum(self.rows, self.columns)

    @property
    def long(self) -> Floats:
        """The longer side."""
        return np.maximum(self.rows, self.columns)


def layer_matrices(job: Job, kind: LayerKind, *, tp: Floats, ep: Floats, etp: Floats) -> list[Matrices]:
    """Matrices of one layer of this kind as a rank holds them, split by tp and etp as their products are. [F-30]

    Query, key and value are three matrices whether or not the framework keeps them in one tensor: Megatron's Muon takes such a
    tensor apart first (`--muon-no-split-qkv` is off). Gate and up projection are one where the framework fuses them.
    """
    one = np.ones_like(tp)

    def matrix(rows: Floats | float, columns: Floats | float, count: Floats | float = 1.0) -> Matrices:
        shape = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (rows, columns, count, one)))
        return Matrices(shape[0], shape[1], shape[2])

    def mlp(width: float, split: Floats, count: Floats | float = 1.0) -> list[Matrices]:
        inputs = 2.0 if model.gated_mlp else 1.0
        fused = not job.framework.separate_gate_projection
        wide, times = (inputs, 1.0) if fused else (1.0, inputs)
        first = matrix(wide * width / split, h, np.asarray(times * count))
        return [first, matrix(h, width / split, count)]

    model, h = job.model, float(job.model.hidden_size)
    found = [matrix(*shape) for shape in _attention(job, tp)]
    if not kind.is_moe:
        return [*found, *mlp(float(model.intermediate_size), tp)]
    moe = model.moe
    assert moe is not None
    found.append(matrix(float(moe.num_experts), h))
    if moe.num_shared_experts:
        found += mlp(float(moe.num_shared_experts * moe.shared_expert_intermediate_size), tp)
    experts = mlp(float(moe.expert_intermediate_size), etp, moe.num_experts / ep)
    return [*found, *(replace(each, is_expert=True) for each in experts)]


def _attention(job: Job, tp: Floats) -> list[tuple[Floats | float, Floats | float]]:
    """Rows and columns of the attention's matrices on a tensor-parallel rank."""
    model, mla, h = job.model, job.model.mla, float(job.model.hidden_size)
    if mla is None:
        q, kv = model.q_size / tp, model.kv_size / np.minimum(tp, float(model.num_key_value_heads))
        gate: list[tuple[Floats | float, Floats | float]] = [(q, h)] if model.attention_gate else []
        return [(q, h), *gate, (kv, h), (kv, h), (h, q)]
    heads, qk = model.num_attention_heads / tp, mla.qk_nope_head_dim + mla.qk_rope_head_dim
    query: list[tuple[Floats | float, Floats | float]] = [(heads * qk, h)]
    if mla.q_lora_rank is not None:
        query = [(float(mla.q_lora_rank), h), (heads * qk, float(mla.q_lora_rank))]
    if mla.indexer is not None:
        chosen = float(mla.indexer.num_heads * mla.indexer.head_dim)
        query += [
            (chosen, float(mla.q_lora_rank or h)),
            (float(mla.indexer.head_dim), h),
            (float(mla.indexer.num_heads), h),
        ]
    return [
        *query,
        (float(mla.kv_lora_rank + mla.qk_rope_head_dim), h),
        (heads * (mla.qk_nope_head_dim + mla.v_head_dim), float(mla.kv_lora_rank)),
        (h, heads * mla.v_head_dim),
    ]


@dataclass(frozen=True, eq=False)
class StageMatrices:
    """The matrices of every slot's stage on a rank, one entry for each shape; counts have shape (K, N)."""

    kinds: list[Matrices]
    counts: list[Floats]

    def total(self, weights: list[Floats]) -> Floats:
        """Sum of what all matrices of a stage weigh, shape (K, N)."""
        return np.asarray(sum(each * count for each, count in zip(weights, self.counts, strict=True)))

    def fullest(self, weights: list[Floats], *, shards: Floats, is_expert: bool) -> Floats:
        """Weight of the whole matrices on the fullest of the ranks that share them, shape (K, N). [M-52]

        The largest of a few bounds below which no packing gets, and which packing the largest first reaches where matrices come
        in few sizes: the mean, and for every size as many of it as the rank with most matrices at least that large holds.

        Args:
            weights: what one matrix of each kind counts: elements, or seconds.
            shards: ranks that share them, shape (N,).
            is_expert: whether experts' matrices are meant, or all others.
        """
        held = [index for index, each in enumerate(self.kinds) if each.is_expert == is_expert]
        most = np.zeros_like(self.counts[0])
        for i in held:
            most = most + weights[i] * self.counts[i] / shards
        for i in held:
            elements = self.kinds[i].elements
            as_large = sum(self.counts[j] * (self.kinds[j].elements >= elements) for j in held)
            most = np.maximum(most, weights[i] * np.ceil(as_large / shards) * (self.counts[i] > 0))
        return np.asarray(most)


def stage_matrices(job: Job, rows: Strategies) -> StageMatrices:
    """Matrices of every slot's stage, those of multi-token prediction with the head. [F-30]"""
    layouts, model = rows.layouts, job.model
    head_KN = np.take(layouts.slot_head, rows.layout, axis=-1)
    modules, last = float(job.mtp_num_layers), model.distinct_kinds.index(model.layer_kinds[-1])
    tp, ep, etp = (np.asarray(axis, np.float64) for axis in (rows.tp, rows.ep, rows.etp))
    kinds: list[Matrices] = []
    counts: list[Floats] = []
    for j, kind in enumerate(model.distinct_kinds):
        layers_KN = np.take(layouts.slot_layers[j], rows.layout, axis=-1)
        if modules and j == last:
            layers_KN = layers_KN + modules * head_KN
        matrices = layer_matrices(job, kind, tp=tp, ep=ep, etp=etp)
        kinds += matrices
        counts += [layers_KN * each.count for each in matrices]
    if modules:
        h = float(model.hidden_size)
        kinds.append(Matrices(h / tp, np.full_like(tp, 2.0 * h), np.ones_like(tp)))
        counts.append(modules * head_KN * np.ones_like(tp))
    return StageMatrices(kinds, counts)
