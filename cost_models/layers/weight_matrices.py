"""The weight matrices of a layer that one rank holds and trains, by their shape: what optimizers that treat matrices as such work on. [F-30]

Embedding, head, norms, biases, filters of convolutions and other vectors are left out: Muon leaves them to Adam, and Adafactor factors no
vector. What is frozen has no update; of adapters the two thin matrices have one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.job import Job
from cost_models.layers.linears import layer_linears, names_for
from cost_models.layers.tower_parameters import split_by_tensor
from cost_models.layers.trained import adapted_linears
from cost_models.specs.model import LayerKind
from cost_models.strategies.strategy import Floats, Strategies


@dataclass(frozen=True, eq=False)
class Matrices:
    """Equal matrices of one layer on a rank; arrays of shape (N,)."""

    rows: Floats
    columns: Floats
    count: Floats
    is_expert: bool = False
    joined: bool = False
    """Whether Megatron holds it in one tensor with the matrix in front of it, as key and value with the query."""

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

    model, h, adapter = job.model, float(job.model.hidden_size), job.training.adapter
    if adapter is not None:
        return [
            matrix(*shape)
            for linear in adapted_linears(model, adapter, kind)
            for shape in (
                (float(adapter.rank_of(linear.name)), linear.inputs / tp),
                (linear.outputs / tp, float(adapter.rank_of(linear.name))),
            )
        ]
    trained = {part for part in ("attention", "mlp", "experts") if part not in job.training.frozen}
    attention = [matrix(*shape) for shape in _attention(job, tp)] if kind.attends else []
    if model.mla is None:
        attention[1:-1] = [replace(each, joined=True) for each in attention[1:-1]]
    recurrent = [matrix(*shape) for shape in _recurrent(job, kind, tp)] if kind.recurs else []
    found = [*attention, *recurrent] if "attention" in trained else []
    if not kind.has_mlp:
        return found
    if not kind.is_moe:
        return [*found, *(mlp(float(model.intermediate_size), tp) if "mlp" in trained else ())]
    moe = model.moe
    assert moe is not None
    # The router is a part of neither, so that it is never frozen.
    found.append(matrix(float(moe.num_experts), h))
    if moe.num_shared_experts and "mlp" in trained:
        found += mlp(float(moe.num_shared_experts * moe.shared_expert_intermediate_size), tp)
    if "experts" not in trained:
        return found
    experts = mlp(float(moe.expert_intermediate_size), etp, moe.num_experts / ep)
    return [*found, *(replace(each, is_expert=True) for each in experts)]


_Shape = tuple[Floats | float, Floats | float]
"""Rows and columns of one matrix on a rank."""


def _attention(job: Job, tp: Floats) -> list[_Shape]:
    """Rows and columns of the attention's matrices on a tensor-parallel rank."""
    model, mla, h = job.model, job.model.mla, float(job.model.hidden_size)
    if mla is None:
        q, kv = model.q_size / tp, model.kv_size / np.minimum(tp, float(model.num_key_value_heads))
        query: list[_Shape] = [(q, h)] * (1 + model.attention_gate)
        # Modules of hybrids with a gate (Qwen3-Next and 3.5) make both in one product, which Megatron's Muon takes apart.
        if model.attention_gate and model.recurrent is not None and job.has_hf_modules:
            query = [(2.0 * q, h)]
        return [*query, (kv, h), (kv, h), (h, q)]
    heads, qk = model.num_attention_heads / tp, mla.qk_nope_head_dim + mla.qk_rope_head_dim
    latent: list[_Shape] = [(heads * qk, h)]
    if mla.q_lora_rank is not None:
        latent = [(float(mla.q_lora_rank), h), (heads * qk, float(mla.q_lora_rank))]
    if mla.indexer is not None:
        chosen = float(mla.indexer.num_heads * mla.indexer.head_dim)
        latent += [
            (chosen, float(mla.q_lora_rank or h)),
            (float(mla.indexer.head_dim), h),
            (float(mla.indexer.num_heads), h),
        ]
    return [
        *latent,
        (float(mla.kv_lora_rank + mla.qk_rope_head_dim), h),
        (heads * (mla.qk_nope_head_dim + mla.v_head_dim), float(mla.kv_lora_rank)),
        (h, heads * mla.v_head_dim),
    ]


def _recurrent(job: Job, kind: LayerKind, tp: Floats) -> list[_Shape]:
    """Rows and columns of a recurrent mixer's matrices on a tensor-parallel rank.

    Megatron's mixers have one projection in front and one behind (megatron/core/ssm/mamba_mixer.py, gated_delta_net.py); transformers'
    are told by `layer_linears`. Filters of convolutions have three dimensions, and Mamba's matrix A two (`A_log`).
    """
    model, r, h = job.model, job.model.recurrent, float(job.model.hidden_size)
    assert r is not None
    if job.framework.choices.splits_recurrent:
        return [(r.projected_size / tp, h), (h, r.inner_size / tp)]
    alone = replace(kind, mixer="recurrent", has_mlp=False)
    linears = layer_linears(model, alone, names_for(model, ()))
    states: list[_Shape] = [(r.inner_size / tp, float(r.state_size))] if r.kind == "mamba" else []
    return [*((linear.outputs / tp, float(linear.inputs)) for linear in linears), *states]


@dataclass(frozen=True, eq=False)
class StageMatrices:
    """The matrices of every slot's stage on a rank, one entry for each shape; counts have shape (K, N)."""

    kinds: list[Matrices]
    counts: list[Floats]
    nothing_KN: Floats
    """Zeros, for stages of which no matrix is trained."""

    def total(self, weights: list[Floats]) -> Floats:
        """Sum of what all matrices of a stage weigh, shape (K, N)."""
        return np.asarray(
            sum((each * count for each, count in zip(weights, self.counts, strict=True)), start=self.nothing_KN)
        )

    def largest(self, weights: list[Floats]) -> Floats:
        """What the matrix that weighs most does, shape (K, N); 0 where a stage has none."""
        most = self.nothing_KN
        for each, count in zip(weights, self.counts, strict=True):
            most = np.maximum(most, np.where(count > 0, each, 0.0))
        return most

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
        most = self.nothing_KN
        for i in held:
            most = most + weights[i] * self.counts[i] / shards
        for i in held:
            elements = self.kinds[i].elements
            as_large = sum(self.counts[j] * (self.kinds[j].elements >= elements) for j in held)
            most = np.maximum(most, weights[i] * np.ceil(as_large / shards) * (self.counts[i] > 0))
        return np.asarray(most)


def stage_matrices(job: Job, rows: Strategies) -> StageMatrices:
    """Trained matrices of every slot's stage: those of multi-token prediction where its modules lie, of towers with the embedding. [F-30]"""
    layouts, model = rows.layouts, job.model
    mtp_KN = np.take(layouts.slot_mtp, rows.layout, axis=-1)
    modules = 0.0 if job.training.adapter is not None else float(job.mtp_num_layers)
    last = model.distinct_kinds.index(model.layer_kinds[-1])
    tp, ep, etp = (np.asarray(axis, np.float64) for axis in (rows.tp, rows.ep, rows.etp))
    kinds: list[Matrices] = []
    counts: list[Floats] = []
    for j, kind in enumerate(model.distinct_kinds):
        layers_KN = np.take(layouts.slot_layers[j], rows.layout, axis=-1)
        if modules and j == last:
            layers_KN = layers_KN + modules * mtp_KN
        matrices = layer_matrices(job, kind, tp=tp, ep=ep, etp=etp)
        kinds += matrices
        counts += [layers_KN * each.count for each in matrices]
    if modules:
        h = float(model.hidden_size)
        kinds.append(Matrices(h / tp, np.full_like(tp, 2.0 * h), np.ones_like(tp)))
        counts.append(modules * mtp_KN * np.ones_like(tp))
    if job.tower_jobs:
        first_KN = np.take(layouts.slot_embedding, rows.layout, axis=-1)
        matrices = _tower_matrices(job, tp)
        kinds += matrices
        counts += [first_KN * each.count for each in matrices]
    return StageMatrices(kinds, counts, 0.0 * mtp_KN * tp)


def _tower_matrices(job: Job, tp: Floats) -> list[Matrices]:
    """Trained matrices of all towers and their projectors; a patch's embedding is a convolution."""
    one, towers = np.ones_like(tp), job.training.towers
    assert towers is not None
    found = []
    for use, own in zip(towers.uses, job.tower_jobs, strict=True):
        share = tp if split_by_tensor(job, use) else one
        layers = own.model.layer_kinds
        for kind in own.model.distinct_kinds if use.trained else ():
            matrices = layer_matrices(own, kind, tp=share, ep=one, etp=one)
            found += [replace(each, count=each.count * float(layers.count(kind))) for each in matrices]
        if towers.projector_trained:
            found += [Matrices(each.outputs / share, each.inputs * one, one) for each in use.tower.projector]
    return found
