"""The step time of a batch of strategies as named terms that sum to it.

    step = m * t_slowest + bubble + exposed sends + once-a-step communication + optimizer + jitter          [T-1]

t_slowest is the time per micro-batch of the slowest stage: its layers of each kind, the embedding on the first stage, the
head and loss on the last, recomputation, gradient accumulation, layer-wise parameter traffic. The terms break down that
stage. Array suffixes: K stage slots, J layer kinds, P layer parts; (N,) over strategies has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.data_parallel import (
    is_layerwise,
    layerwise_exposed_s,
    layerwise_s,
    stepwise_s,
    tied_gradients_s,
)
from cost_models.head import EndCosts, end_costs
from cost_models.job import Job
from cost_models.layer_costs import LAYER_PARTS, LayerCosts, layer_costs
from cost_models.optimizer import accumulation_s, offload_s, optimizer_s
from cost_models.pipeline import bubble_s, exposed_sends_s, hop_s
from cost_models.placement import groups
from cost_models.recompute import recomputed_layers, recomputed_layers_KN
from cost_models.stage_parameters import RankParameters, dense_KN, expert_KN, rank_parameters
from cost_models.strategy import Codes, Floats, Recompute, Strategies
from cost_models.terms import TIME_NAMES, Tier

JITTER_PER_DOUBLING = 0.007
"""Share of a step lost to the slowest rank per doubling of the nodes; plausible 0.004-0.02 (weak-scaling pairs of torchtitan,
InternEvo and llm-foundry). [T-2]"""
WGRAD_SHARE = 1.0 / 3.0
"""Share of a layer's forward and backward matmul time that its weight gradient takes. [P-1]"""


@dataclass(frozen=True, eq=False)
class StepTime:
    """Seconds per step, shape (N,) each."""

    terms_s: dict[str, Floats]
    """By name of TIME_NAMES."""
    tiers: dict[str, Codes]
    total_s: Floats


@dataclass(frozen=True, eq=False)
class _PerMicroBatch:
    """Seconds per micro-batch of what a stage can hold, over strategies."""

    layer_JN: Floats
    """One layer of each kind, everything but full recomputation."""
    again_JN: Floats
    """Full recomputation of one layer of each kind."""
    first: Floats
    """What only the first stage has."""
    last: Floats
    parts_JPN: Floats
    selective_JN: Floats
    layerwise_JN: Floats
    accumulation_JN: Floats


def step_time(job: Job, strategies: Strategies) -> StepTime:
    """Step time and its terms. [T-1]"""
    layers, ends = layer_costs(job, strategies), end_costs(job, strategies)
    held = rank_parameters(job, strategies)
    parallel, parallel_tier = _layerwise(job, strategies, layers)
    per = _per_micro_batch(job, strategies, layers, ends, held, parallel)
    slot = _Slot.slowest(strategies, per)
    terms = _stage_terms(strategies, per, ends, slot)
    terms |= _pipeline_terms(job, strategies, per, slot)
    once, once_tiers = _once_a_step(job, strategies, held, slot, layers)
    terms["dp_comm"] = terms["dp_comm"] + once.pop("dp_comm")
    terms |= once
    subtotal = np.sum([terms[name] for name in TIME_NAMES if name in terms], axis=0)
    nodes = np.maximum(strategies.world / job.cluster.gpus_per_node, 1.0)
    terms["jitter"] = subtotal * JITTER_PER_DOUBLING * np.log2(nodes)
    ordered = {name: terms[name] for name in TIME_NAMES}
    tiers = _tiers(job, strategies, layers, ends, {"dp_comm": parallel_tier}, once_tiers, terms)
    return StepTime(ordered, tiers, subtotal + ordered["jitter"])


@dataclass(frozen=True, eq=False)
class _Layerwise:
    exposed_JN: Floats
    root: Floats
    """Of the embedding unit, on the first stage."""


def _layerwise(job: Job, strategies: Strategies, layers: LayerCosts) -> tuple[_Layerwise | None, Codes]:
    """Layer-wise parameter and gradient traffic per micro-batch, None where no strategy has any."""
    where = is_layerwise(job, strategies)
    if not where.any():
        return None, np.zeros(len(strategies), np.int8)
    link = layerwise_s(job, strategies)
    forward_JN = layers.cases.spread(layers.forward_JU)
    backward_JN = layers.cases.spread(layers.parts_JPU.sum(axis=1) - layers.forward_JU)
    backward_JN = backward_JN + np.where(strategies.recompute == Recompute.FULL, forward_JN, 0.0)
    exposed_JN = layerwise_exposed_s(
        strategies,
        gather=link.cases.spread(link.gather_JU),
        reduce=link.cases.spread(link.reduce_JU),
        forward_s=forward_JN,
        backward_s=backward_JN,
        regathers=strategies.zero == 3,
    )
    root = link.cases.spread(link.embedding_gather + link.embedding_reduce)
    tier = np.where(where, link.cases.spread(link.tier), 0).astype(np.int8)
    return _Layerwise(np.where(where, exposed_JN, 0.0), np.where(where, root, 0.0)), tier


def _per_micro_batch(
    job: Job,
    strategies: Strategies,
    layers: LayerCosts,
    ends: EndCosts,
    held: RankParameters,
    parallel: _Layerwise | None,
) -> _PerMicroBatch:
    parts_JPN = layers.cases.spread(layers.parts_JPU)
    selective = strategies.recompute == Recompute.SELECTIVE
    selective_JN = np.where(selective, layers.cases.spread(layers.selective_JU), 0.0)
    accumulation_JN = accumulation_s(
        job, held.dense_JN + held.expert_JN, strategies, layerwise=is_layerwise(job, strategies)
    )
    layerwise_JN = parallel.exposed_JN if parallel is not None else np.zeros_like(accumulation_JN)
    base_JN = layers.cases.spread(layers.parts_JPU.sum(axis=1))
    again_JN = np.where(strategies.recompute == Recompute.FULL, layers.cases.spread(layers.forward_JU), 0.0)
    root = parallel.root if parallel is not None else 0.0
    return _PerMicroBatch(
        layer_JN=base_JN + selective_JN + accumulation_JN + layerwise_JN,
        again_JN=again_JN,
        first=ends.cases.spread(ends.embedding + ends.embedding_comm) + root,
        last=ends.cases.spread(ends.head + ends.loss + ends.head_comm),
        parts_JPN=parts_JPN,
        selective_JN=selective_JN,
        layerwise_JN=layerwise_JN,
        accumulation_JN=accumulation_JN,
    )


@dataclass(frozen=True, eq=False)
class _Slot:
    """What the slowest stage of each strategy holds."""

    layers_JN: Floats
    first: NDArray[np.float64]
    """1 where it is the first stage, likewise last."""
    last: NDArray[np.float64]
    recomputed_share: Floats
    """Share of its layers that are fully recomputed."""
    seconds: Floats
    """Its time per micro-batch."""

    @staticmethod
    def slowest(strategies: Strategies, per: _PerMicroBatch) -> _Slot:
        layouts, layout = strategies.layouts, strategies.layout
        layers_KJN = layouts.layers_LKJ[layout].transpose(1, 2, 0)
        first_KN = layouts.has_embedding_LK[layout].T
        last_KN = layouts.has_head_LK[layout].T
        held_KN = np.maximum(layers_KJN.sum(axis=1), 1.0)
        share_KN = recomputed_layers_KN(strategies) / held_KN
        own_KN = np.einsum("kjn,jn->kn", layers_KJN, per.layer_JN)
        again_KN = share_KN * np.einsum("kjn,jn->kn", layers_KJN, per.again_JN)
        stage_KN = own_KN + again_KN + first_KN * per.first + last_KN * per.last
        slot = stage_KN.argmax(axis=0)
        rows = np.arange(len(strategies))
        return _Slot(
            layers_JN=layers_KJN[slot, :, rows].T,
            first=first_KN[slot, rows].astype(np.float64),
            last=last_KN[slot, rows].astype(np.float64),
            recomputed_share=share_KN[slot, rows],
            seconds=stage_KN[slot, rows],
        )


def _stage_terms(strategies: Strategies, per: _PerMicroBatch, ends: EndCosts, slot: _Slot) -> dict[str, Floats]:
    """The slowest stage's work over all micro-batches, by term."""
    m = strategies.num_micro_batches
    layers_JN = slot.layers_JN * m
    parts_PN = np.einsum("jn,jpn->pn", layers_JN, per.parts_JPN)
    terms = dict(zip(LAYER_PARTS, parts_PN, strict=True))
    again = slot.recomputed_share * np.einsum("jn,jn->n", layers_JN, per.again_JN)
    terms["recompute"] = again + np.einsum("jn,jn->n", layers_JN, per.selective_JN)
    terms["grad_accumulation"] = np.einsum("jn,jn->n", layers_JN, per.accumulation_JN)
    first, last, spread = m * slot.first, m * slot.last, ends.cases.spread
    terms["embedding"] = first * spread(ends.embedding)
    terms["head"] = last * spread(ends.head)
    terms["loss"] = last * spread(ends.loss)
    terms["tp_comm"] = terms["tp_comm"] + first * spread(ends.embedding_comm) + last * spread(ends.head_comm)
    root = per.first - spread(ends.embedding + ends.embedding_comm)
    terms["dp_comm"] = np.einsum("jn,jn->n", layers_JN, per.layerwise_JN) + first * root
    return terms


def _pipeline_terms(job: Job, strategies: Strategies, per: _PerMicroBatch, slot: _Slot) -> dict[str, Floats]:
    """Bubble and exposed sends of one step."""
    if np.all(strategies.pp == 1):
        none = np.zeros(len(strategies))
        return {"pp_bubble": none, "pp_comm": none}
    counts_J = np.array([float(job.model.layer_kinds.count(kind)) for kind in job.model.distinct_kinds])
    share = recomputed_layers(strategies) / counts_J.sum()
    everything = counts_J @ (per.layer_JN + share * per.again_JN) + per.first + per.last
    matmul = per.parts_JPN[:, LAYER_PARTS.index("gemm")]
    wgrad = WGRAD_SHARE * np.einsum("jn,jn->n", slot.layers_JN, matmul)
    bubble = bubble_s(strategies, stages_sum_s=everything, slowest_s=slot.seconds, wgrad_s=wgrad)
    hop, _ = hop_s(job, strategies)
    used = strategies.pp > 1
    return {"pp_bubble": np.where(used, bubble, 0.0), "pp_comm": exposed_sends_s(strategies, hop=hop)}


def _once_a_step(
    job: Job, strategies: Strategies, held: RankParameters, slot: _Slot, layers: LayerCosts
) -> tuple[dict[str, Floats], dict[str, Codes]]:
    """Gradient reduction, parameter gather, tied gradients, optimizer, offload: once a step, on the fullest stage."""
    dense, expert = dense_KN(held, strategies).max(axis=0), expert_KN(held, strategies).max(axis=0)
    count = slot.layers_JN.sum(axis=0)
    forward_JN = layers.cases.spread(layers.forward_JU)
    forward = np.einsum("jn,jn->n", slot.layers_JN, forward_JN)
    backward = np.maximum(slot.seconds - forward, 0.0)
    stepwise = stepwise_s(
        job, strategies, dense=dense, expert=expert, forward_s=forward, backward_s=backward, layers=count
    )
    whole = ~is_layerwise(job, strategies)
    tied, tied_tier = tied_gradients_s(
        job, strategies, embedding=held.embedding, layers=count, placements=groups(strategies, job.cluster)
    )
    terms = {
        "dp_comm": np.where(whole, stepwise.exposed, 0.0),
        "tied_embedding_comm": tied,
        "optimizer": optimizer_s(job, strategies, dense=dense, expert=expert),
        "offload": offload_s(job, strategies, dense=dense, expert=expert),
    }
    tiers = {"dp_comm": np.where(whole, stepwise.tier, 0).astype(np.int8), "tied_embedding_comm": tied_tier}
    return terms, tiers


def _tiers(
    job: Job,
    strategies: Strategies,
    layers: LayerCosts,
    ends: EndCosts,
    layerwise: dict[str, Codes],
    once: dict[str, Codes],
    terms: dict[str, Floats],
) -> dict[str, Codes]:
    """The tier of every term; a term that takes no time is as good as measured."""
    n = len(strategies)
    bandwidth = np.full(n, job.calibration.memory_bytes_per_s_effective.tier, np.int8)
    nominal = np.full(n, Tier.NOMINAL, np.int8)
    tiers: dict[str, Codes] = dict(zip(LAYER_PARTS, layers.cases.spread(layers.tiers_PU), strict=True))
    tiers["recompute"] = np.max([tiers[name] for name in ("gemm", "attention", "elementwise", "tp_comm")], axis=0)
    tiers |= dict.fromkeys(("embedding", "loss", "grad_accumulation", "optimizer"), bandwidth)
    tiers["head"] = np.maximum(ends.cases.spread(ends.head_tier), 0)
    tiers["pp_comm"] = hop_s(job, strategies)[1] if (strategies.pp > 1).any() else np.zeros(n, np.int8)
    tiers["pp_bubble"] = np.max([tiers[name] for name in LAYER_PARTS], axis=0)
    tiers["dp_comm"] = np.maximum(layerwise["dp_comm"], once["dp_comm"])
    tiers["tied_embedding_comm"] = once["tied_embedding_comm"]
    tiers["offload"] = tiers["jitter"] = nominal
    measured = np.int8(Tier.MEASURED)
    return {name: np.where(terms[name] > 0, tiers[name], measured).astype(np.int8) for name in TIME_NAMES}
