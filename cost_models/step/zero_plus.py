"""ZeRO++: what quantised gathers (qwZ) and quantised gradient exchanges (qgZ) move, and what quantising takes.          [C-20]

Both belong to stage 3 and round what travels: weights to 8 bits in groups of elements with a scale each, gradients to 4 bits that two
all-to-alls exchange, first inside a node and then between nodes. Which gathers stay inside a node (hpZ) is for `fsdp_comm` to say.
Array suffixes: J layer kinds; arrays of shape (N,) over strategies have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.estimate import Estimate
from cost_models.hardware.groups import groups
from cost_models.hardware.placement import Placement
from cost_models.job import Job
from cost_models.layers.parameters import padded_vocab_size
from cost_models.layers.shapes import layer_gemms
from cost_models.specs.model import LayerKind
from cost_models.specs.training import BYTES_PER
from cost_models.step.unit_collectives import split_calls
from cost_models.strategies.strategy import Bools, Floats, Strategies
from cost_models.strategies.tensors import summed

QUANTIZED_AXES = ("zero_quantized_weights", "zero_quantized_gradients")
WEIGHT_BYTES = 1.0
"""Bytes of a gathered weight: 8 bits."""
WEIGHT_GROUP = 8000.0
"""Elements that share one fp32 scale at most (`CUDAQuantizer.target_group_size`)."""
SCALE_BYTES = 4.0
WEIGHT_MULTIPLE = 8
"""A rank's share of a tensor must be a multiple of this (`CUDAQuantizer.quantize`)."""
GRADIENT_BYTES = 0.5
"""Bytes of an exchanged gradient: 4 bits."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Parameter tensors of one unit that have two dimensions: elements of each, and how many there are of it."""

    elements: tuple[float, ...]
    counts: tuple[float, ...]
    rows: tuple[float, ...]
    """The longer of the two dimensions, which is the number of scales."""

    @property
    def total(self) -> float:
        """Elements of all of them together."""
        return sum(e * n for e, n in zip(self.elements, self.counts, strict=True))


def quantizes(strategies: Strategies) -> bool:
    """Whether any strategy of the batch quantises what it gathers or reduces."""
    return any(strategies.uses(name) for name in QUANTIZED_AXES)


@lru_cache(maxsize=1024)
def layer_matrices(job: Job, kind: LayerKind, *, routed: bool) -> Matrices:
    """The weights of one layer's products without any sharding: those of its routed experts, or all others. [F-1]"""
    one = np.ones(1)
    every = layer_gemms(job, kind, tokens=one, tp=one, ep=one, etp=one)
    gemms = [gemm for gemm in every if (gemm.module == "moe") == routed]
    return Matrices(
        tuple(float(g.n[0] * g.k[0]) for g in gemms),
        tuple(float(g.batch[0] * g.repeats[0]) for g in gemms),
        tuple(float(max(g.n[0], g.k[0])) for g in gemms),
    )


def vocabulary_matrix(job: Job) -> Matrices:
    """The embedding, or the output projection."""
    rows = float(padded_vocab_size(job.model, job.training.framework, np.ones(1))[0])
    return Matrices((rows * job.model.hidden_size,), (1.0,), (max(rows, float(job.model.hidden_size)),))


def exchanged_share(matrices: Matrices, ranks: Floats) -> Floats:
    """Share of a unit's elements, 0...1, whose gradients two all-to-alls exchange; the rest is reduce-scattered. [C-20]

    A tensor goes whole or not at all: `all_to_all_quant_reduce` takes those whose elements 2 x ranks divides.
    """
    if not matrices.total:
        return np.zeros_like(ranks)
    parts = (
        e * n * (np.floor(e / (2.0 * ranks)) * 2.0 * ranks == e)
        for e, n in zip(matrices.elements, matrices.counts, strict=True)
    )
    return summed(parts) / matrices.total


def gathered(job: Job, plain: Estimate, rows: Strategies, elements: Floats, group: Placement, calls: float) -> Estimate:
    """Seconds of one all-gather of these elements, in 8 bits where a strategy says so and as `plain` elsewhere. [C-20]

    The scales travel in a call of their own.
    """
    if not rows.uses("zero_quantized_weights"):
        return plain
    # `all_gather_coalesced` starts both calls one after the other on one stream, so that their times add up.
    words = split_calls(job, "all_gather", elements * WEIGHT_BYTES, group, calls)
    scales = split_calls(job, "all_gather", elements / WEIGHT_GROUP * SCALE_BYTES, group, calls)
    return _chosen(rows.zero_quantized_weights, plain, words.seconds + scales.seconds, words, scales)


def exchanged(
    job: Job, plain: Estimate, rows: Strategies, elements: Floats, matrices: Matrices, state: Placement
) -> Estimate:
    """Seconds of reducing the gradients of a unit, by two all-to-alls of 4 bits where a strategy says so. [C-20]

        all-to-all of n/2 bytes among the ranks of a node, of n/2 / k bytes among one rank of each node, and the plain
        reduce-scatter of what cannot be exchanged

    On one node everything is reduce-scattered.
    """
    if not rows.uses("zero_quantized_gradients"):
        return plain
    share = exchanged_share(matrices, state.ranks)
    # Every tensor is exchanged by itself, however large the bucket is that it came in.
    many, several = sum(matrices.counts) or 1.0, state.islands > 1
    scales = SCALE_BYTES * sum(r * n for r, n in zip(matrices.rows, matrices.counts, strict=True)) / matrices.total
    inside, across = state.inside_islands(), state.one_per_island()
    found = [
        split_calls(job, "all_to_all", elements * share * size / ranks, group, many)
        for group, ranks in ((inside, 1.0), (across, state.per_island))
        for size in (GRADIENT_BYTES, scales)
    ]
    seconds = summed(each.seconds for each in found) + (1.0 - share) * plain.seconds
    return _chosen(rows.zero_quantized_gradients & several & (share > 0), plain, seconds, *found)


def _chosen(where: Bools, plain: Estimate, seconds: Floats, *parts: Estimate) -> Estimate:
    tier = plain.tier
    for part in parts:
        tier = np.maximum(tier, np.where(where, part.tier, 0)).astype(np.int8)
    return Estimate(np.where(where, seconds, plain.seconds), tier)


def quantising_s(
    job: Job, strategies: Strategies, elements_JN: Floats, *, gathers: Floats, reductions: Floats
) -> Floats:
    """Seconds in which a device quantises and dequantises for one layer and micro-batch, in the shape of `elements_JN`. [C-20]

    A gather reads a rank's share in 16 bits and writes 8, and does the opposite for the whole layer. An exchange reads gradients and
    writes 4 bits, sums a node's and rounds them again, and reads what arrives from the other nodes.

    Args:
        job: whose memory bandwidth counts.
        strategies: shape (N,).
        elements_JN: parameters of one layer of each kind on a rank before sharding.
        gathers: how often a layer is gathered for a micro-batch, shape (N,).
        reductions: how often its gradients are reduced, shape (N,).
    """
    s, w, g = strategies, job.training.compute_bytes, BYTES_PER[job.training.grad_reduce_dtype]
    state = groups(s, job.cluster).zero_shard
    # A rank quantises its share and dequantises the whole, for the copies in smaller groups as well.
    weights = (w + WEIGHT_BYTES) * (1.0 + 1.0 / s.zero_param_shard_size) * gathers
    k, nodes = state.per_island, state.islands
    gradients = (g + GRADIENT_BYTES) + (1.0 + 1.0 / k) * GRADIENT_BYTES + (GRADIENT_BYTES + 2.0 * g + g / nodes) / k
    moved = np.where(s.zero_quantized_weights, weights, 0.0)
    moved = moved + np.where(s.zero_quantized_gradients & (nodes > 1), gradients * reductions, 0.0)
    return np.asarray(job.calibration.elementwise_s(moved * elements_JN).seconds)


@dataclass(frozen=True, slots=True)
class NodeTraffic:
    """What a node receives from other nodes for one micro-batch of stage 3, over the bytes of the parameters; shape (N,) each.

    A node keeps 1/N of what it receives of N nodes; this is before that is taken off.
    """

    forward_gather: Floats
    """In the first micro-batch of a step."""
    backward_gather: Floats
    reduction: Floats
    later_forward_gather: Floats
    """In every further micro-batch, where hpZ's copies serve."""

    @property
    def first(self) -> Floats:
        """All of the first micro-batch."""
        return self.forward_gather + self.backward_gather + self.reduction

    @property
    def later(self) -> Floats:
        """All of each further one."""
        return self.later_forward_gather + self.backward_gather + self.reduction


def node_traffic(job: Job, strategies: Strategies, *, regathers: Floats) -> NodeTraffic:
    """Bytes between nodes over the bytes M of the parameters: 3 of plain stage 3, 2 with hpZ inside nodes, 0.75 of ZeRO++. [C-20]

    Args:
        job: model, cluster and training.
        strategies: shape (N,), of stage 3.
        regathers: how often parameters are gathered in backward, shape (N,).
    """
    s, placements, unit = strategies, groups(strategies, job.cluster), job.training.gather_bytes
    state, kept = placements.zero_shard, placements.param_shard
    # Where a gather stays inside a node nothing crosses the network, whatever its words are made of.
    narrow = WEIGHT_BYTES + SCALE_BYTES / WEIGHT_GROUP
    gather = np.where(s.zero_quantized_weights, narrow / unit, 1.0)
    first = gather * (state.islands > 1)
    inside = gather * (kept.islands > 1)
    plain = BYTES_PER[job.training.grad_reduce_dtype] / unit
    share = _exchanged_of_model(job, state.ranks) * s.zero_quantized_gradients
    reduction = (share * GRADIENT_BYTES / unit + (1.0 - share) * plain) * (state.islands > 1)
    # Before DeepSpeed 0.13.2 the copies served the backward alone.
    serves = job.framework.param_shards_serve_forward
    return NodeTraffic(first, regathers * inside, reduction, inside if serves else first)


def _exchanged_of_model(job: Job, ranks: Floats) -> Floats:
    """Share of the model's elements whose gradients are exchanged in 4 bits, shape (N,)."""
    kinds = job.model.distinct_kinds
    units = [
        (layer_matrices(job, kind, routed=routed), float(job.model.layer_kinds.count(kind)))
        for kind in kinds
        for routed in (False, True)
    ]
    units.append((vocabulary_matrix(job), 1.0 if job.model.tie_word_embeddings else 2.0))
    total = sum(each.total * count for each, count in units)
    return summed(exchanged_share(each, ranks) * each.total * count for each, count in units) / total
