"""What the pipeline's stages do per micro-batch, which one is the slowest, and how long it waits for the others.

A stage's time is linear in the layers of each kind it holds, plus the embedding on the first stage and the head and loss on
the last. The terms are those of the slowest stage over all micro-batches, and the bubble. Array suffixes: K stage slots,
J layer kinds, P layer parts; (N,) over strategies has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import WGRAD_SHARE
from cost_models.job import Job
from cost_models.layers.costs import LAYER_PARTS, LayerCosts, layer_costs
from cost_models.layers.ends import EndCosts, end_costs
from cost_models.layers.flops import FORWARD_AND_BACKWARD
from cost_models.step.fsdp import backward_gathers, fsdp_exposed_s, fsdp_links_s, is_fsdp, root_exposed_s
from cost_models.step.optimizer import accumulation_s
from cost_models.step.pipeline import bubble_s, splits_backward
from cost_models.step.stage_parameters import RankParameters, over_kinds, rank_parameters
from cost_models.strategies.recomputed_layers import recomputed_layers_by_slot, recomputed_mtp_share, recomputed_shares
from cost_models.strategies.strategy import Bools, Codes, Floats, Recompute, Strategies
from cost_models.strategies.tensors import summed

LAUNCH = LAYER_PARTS.index("launch")


@dataclass(frozen=True, eq=False)
class Stages:
    """The slowest stage's work over a step and what it waits for, shape (N,) unless a suffix says otherwise."""

    terms_s: dict[str, Floats]
    """Seconds of a step by term, `pp_bubble` included; once-a-step terms excluded."""
    tiers: dict[str, Codes]
    slowest_layers_JN: Floats
    forward_s: Floats
    """The slowest stage's forward of one micro-batch, likewise backward_s; communication can hide in either while the
    device waits for the host, so that waiting is part of both."""
    backward_s: Floats
    held: RankParameters
    layers: LayerCosts


@dataclass(frozen=True, eq=False)
class Tables:
    """What layers and the model's ends cost, for strategies that share them: computed once, used for many batches."""

    layers: LayerCosts
    ends: EndCosts

    def at(self, index: NDArray[Any]) -> Tables:
        """The tables for the strategies at these positions."""
        layers = replace(self.layers, cases=self.layers.cases.at(index))
        return Tables(layers, replace(self.ends, cases=self.ends.cases.at(index)))


def build_tables(job: Job, strategies: Strategies) -> Tables:
    """The tables of a batch."""
    return Tables(layer_costs(job, strategies), end_costs(job, strategies))


@dataclass(frozen=True, eq=False)
class MicroBatchCosts:
    """Seconds per micro-batch of what a stage can hold; a stage's time is linear in it."""

    layer_JN: Floats
    """One layer of each kind, everything but full recomputation."""
    waits_JN: Floats
    """Of these waiting for the host."""
    again_JN: Floats
    """Full recomputation of one layer of each kind."""
    share: Floats
    """Of all layers those fully recomputed, shape (N,)."""
    first: Floats
    """What only the first stage has."""
    last: Floats
    selective_JN: Floats
    fsdp_JN: Floats
    mtp_J1: Floats
    """Multi-token-prediction modules of each kind of layer, which `last` holds, shape (J, 1)."""
    mtp_again: Floats
    """Seconds to recompute their layers, part of `last`, shape (N,)."""
    root: Floats
    """Parameter and gradient traffic of the embedding, part of `first`."""
    head_link: Floats
    """That of the output projection, part of `last`."""
    """Layer-wise traffic of the embedding unit."""
    accumulation_JN: Floats


@dataclass(frozen=True, eq=False)
class StageCosts:
    """What the stages of a batch are made of, however their layers are split."""

    per: MicroBatchCosts
    layers: LayerCosts
    ends: EndCosts
    held: RankParameters
    fsdp_tier: Codes


@dataclass(frozen=True, eq=False)
class Slowest:
    """What the slowest stage of each strategy holds."""

    layers_JN: Floats
    is_first: Bools
    is_last: Bools
    recomputed_share: Floats
    """Share of its layers that are fully recomputed."""
    seconds: Floats
    """Its time per micro-batch."""

    def every_layer(self, per: MicroBatchCosts) -> Floats:
        """Its decoder layers, those of multi-token-prediction modules included."""
        return self.layers_JN + self.is_last * per.mtp_J1 if per.mtp_J1.any() else self.layers_JN


def stages(job: Job, strategies: Strategies, *, tables: Tables | None = None) -> Stages:
    """The slowest stage's terms over a step, and the pipeline bubble; `tables` of these strategies where they are known."""
    costs = stage_costs(job, strategies, tables=tables)
    slowest = _slowest(strategies, costs.per)
    terms = slowest_terms(strategies, costs, slowest)
    terms["pp_bubble"] = _bubble(job, strategies, costs, slowest)
    forward_s, backward_s = slowest_passes_s(costs, slowest)
    return Stages(
        terms_s=terms,
        tiers=stage_tiers(job, strategies, costs),
        slowest_layers_JN=slowest.every_layer(costs.per),
        forward_s=forward_s,
        backward_s=backward_s,
        held=costs.held,
        layers=costs.layers,
    )


def stage_costs(job: Job, strategies: Strategies, *, tables: Tables | None = None) -> StageCosts:
    """What the stages of these strategies are made of; `tables` of these strategies where they are known."""
    tables = tables or build_tables(job, strategies)
    held = rank_parameters(job, strategies)
    per, tier = _per_micro_batch(job, strategies, tables.layers, tables.ends, held)
    return StageCosts(per, tables.layers, tables.ends, held, tier)


def slowest_passes_s(costs: StageCosts, slowest: Slowest) -> tuple[Floats, Floats]:
    """The slowest stage's forward and backward of one micro-batch, each with its waiting for the host, shape (N,)."""
    layers_JN = slowest.every_layer(costs.per)
    forward = _sum_over_kinds(layers_JN, costs.layers.cases.spread(costs.layers.forward_JU))
    waits = _sum_over_kinds(layers_JN, costs.per.waits_JN)
    return forward + waits, np.maximum(slowest.seconds - forward, 0.0)


def stage_tiers(job: Job, strategies: Strategies, costs: StageCosts) -> dict[str, Codes]:
    """Tiers of what stages do per micro-batch."""
    layers, ends = costs.layers, costs.ends
    tiers_PN: Codes = layers.cases.spread(layers.tiers_PU)
    tiers: dict[str, Codes] = dict(zip(LAYER_PARTS, tiers_PN, strict=True))
    if job.framework.wraps_layers:
        wrapped = job.calibration.wrapped_layer_ratio("sharded", compiled=job.training.compile)
        sharded = np.where(is_fsdp(job, strategies), wrapped.tier, 0)
        tiers["launch"] = np.maximum(tiers["launch"], sharded).astype(np.int8)
    return tiers | {"head": ends.cases.spread(ends.head_tier), "dp_comm": costs.fsdp_tier}


def micro_batch_costs(job: Job, strategies: Strategies) -> tuple[MicroBatchCosts, LayerCosts, RankParameters]:
    """What the stages of these strategies are made of, however their layers are split: seconds, and parameters held."""
    costs = stage_costs(job, strategies)
    return costs.per, costs.layers, costs.held


def _per_micro_batch(
    job: Job, strategies: Strategies, layers: LayerCosts, ends: EndCosts, held: RankParameters
) -> tuple[MicroBatchCosts, Codes]:
    where, spread = is_fsdp(job, strategies), layers.cases.spread
    waits_JN, again_JN = spread(layers.parts_JPU[:, LAUNCH]), spread(layers.again_JU)
    whole_JN = spread(layers.whole)
    if (
        job.framework.wraps_layers
    ):  # a layer that waits no longer may still take longer to repeat: both always go together
        added_JN = np.where(where, spread(layers.sharded_waits_JU), 0.0)
        waits_JN, whole_JN = waits_JN + added_JN, whole_JN + added_JN
        again_JN = again_JN + np.where(where, spread(layers.sharded_again_JU), 0.0)
    again_JN = np.where(strategies.recompute == Recompute.FULL, again_JN, 0.0)
    selective_JN = np.zeros_like(again_JN)
    if (strategies.recompute == Recompute.SELECTIVE).any():
        selective_JN = np.where(
            strategies.recompute == Recompute.SELECTIVE, layers.cases.spread(layers.selective_JU), 0.0
        )
    sharded = where & strategies.grad_sync_each
    accumulation_JN = accumulation_s(job, strategies, dense=held.dense_JN, expert=held.expert_JN, sharded=sharded)
    share = recomputed_shares(strategies)
    link = _fsdp(job, strategies, layers, ends, waits_JN, share * again_JN + selective_JN, where)
    layer_JN = whole_JN + selective_JN + accumulation_JN + link.layer_JN
    mtp_J1 = mtp_layers(job)
    last, mtp_again = ends.cases.spread(ends.head + ends.loss + ends.head_comm) + link.head, np.zeros(len(strategies))
    if mtp_J1.any():
        mtp_again = recomputed_mtp_share(strategies) * _sum_over_kinds(mtp_J1, again_JN)
        last = last + _sum_over_kinds(mtp_J1, layer_JN) + mtp_again
    per = MicroBatchCosts(
        layer_JN=layer_JN,
        waits_JN=waits_JN,
        again_JN=again_JN,
        share=share,
        first=ends.cases.spread(ends.embedding + ends.embedding_comm) + link.root,
        last=last,
        selective_JN=selective_JN,
        fsdp_JN=link.layer_JN,
        mtp_J1=mtp_J1,
        mtp_again=mtp_again,
        root=link.root,
        head_link=link.head,
        accumulation_JN=accumulation_JN,
    )
    return per, link.tier


def mtp_layers(job: Job) -> Floats:
    """Decoder layers of each kind in multi-token-prediction modules, shape (J, 1)."""
    model = job.model
    return np.array([[float(job.mtp_num_layers * (kind == model.layer_kinds[-1]))] for kind in model.distinct_kinds])


@dataclass(frozen=True, slots=True)
class _Fsdp:
    """Exposed seconds per micro-batch of parameters gathered and gradients scattered unit by unit."""

    layer_JN: Floats
    root: Floats
    head: Floats
    tier: Codes


def _fsdp(
    job: Job,
    strategies: Strategies,
    layers: LayerCosts,
    ends: EndCosts,
    waits_JN: Floats,
    repeated_JN: Floats,
    where: Bools,
) -> _Fsdp:
    if not where.any():
        none = np.zeros(len(strategies))
        return _Fsdp(np.zeros_like(repeated_JN), none, none, none.astype(np.int8))
    link = fsdp_links_s(job, strategies)
    layer_JN = fsdp_exposed_s(
        job,
        strategies,
        link.layer_JU.of(link.cases),
        forward_s=layers.cases.spread(layers.forward_JU),
        backward_s=layers.cases.spread(layers.whole - layers.parts_JPU[:, LAUNCH] - layers.forward_JU) + repeated_JN,
        regathers=backward_gathers(job, strategies),
        waits_s=waits_JN,
    )
    matmul = ends.cases.spread(ends.head)
    head = fsdp_exposed_s(
        job,
        strategies,
        link.head.of(link.cases),
        forward_s=matmul / FORWARD_AND_BACKWARD,
        backward_s=matmul * (1.0 - 1.0 / FORWARD_AND_BACKWARD) + ends.cases.spread(ends.loss),
        regathers=np.zeros(len(strategies)),
    )
    root = root_exposed_s(job, strategies, link.embedding.of(link.cases))
    tier = np.where(where, link.cases.spread(link.tier), 0).astype(np.int8)
    return _Fsdp(np.where(where, layer_JN, 0.0), np.where(where, root, 0.0), np.where(where, head, 0.0), tier)


def _slowest(strategies: Strategies, per: MicroBatchCosts) -> Slowest:
    layouts, layout = strategies.layouts, strategies.layout
    if layouts.num_slots == 1:
        layers_JN = layouts.layers_LKJ[layout, 0].T
        share = recomputed_layers_by_slot(strategies)[0] / np.maximum(layers_JN.sum(axis=0), 1.0)
        seconds = _sum_over_kinds(layers_JN, per.layer_JN) + share * _sum_over_kinds(layers_JN, per.again_JN)
        both = np.ones(len(strategies), np.bool_)
        return Slowest(layers_JN, both, both, share, seconds + per.first + per.last)
    share_KN = recomputed_shares_by_slot(strategies)
    return slowest_of(strategies, stage_seconds(strategies, per, share_KN=share_KN), share_KN=share_KN)


def stage_seconds(strategies: Strategies, per: MicroBatchCosts, *, share_KN: Floats) -> Floats:
    """Seconds per micro-batch of every slot's stage, of whose layers a share is recomputed, shape (K, N)."""
    layouts, layout = strategies.layouts, strategies.layout
    layers_KJN = layouts.layers_LKJ[layout].transpose(1, 2, 0)
    stage_KN = over_kinds(layers_KJN, per.layer_JN)
    stage_KN += share_KN * over_kinds(layers_KJN, per.again_JN)
    stage_KN += layouts.has_embedding_LK[layout].T * per.first
    return np.asarray(stage_KN + layouts.has_head_LK[layout].T * per.last)


def recomputed_shares_by_slot(strategies: Strategies) -> Floats:
    """Share of every slot's layers that are fully recomputed, shape (K, N)."""
    held_KN = strategies.layouts.layers_LKJ[strategies.layout].sum(axis=2).T
    return np.asarray(recomputed_layers_by_slot(strategies) / np.maximum(held_KN, 1.0))


def slowest_of(strategies: Strategies, stage_KN: Floats, *, share_KN: Floats) -> Slowest:
    """What the slowest of these stages holds, the first one of equals."""
    layouts, layout = strategies.layouts, strategies.layout
    slot, rows = stage_KN.argmax(axis=0), np.arange(len(strategies))
    return Slowest(
        layers_JN=layouts.layers_LKJ[layout, slot].T,
        is_first=layouts.has_embedding_LK[layout, slot],
        is_last=layouts.has_head_LK[layout, slot],
        recomputed_share=share_KN[slot, rows],
        seconds=stage_KN[slot, rows],
    )


def slowest_terms(strategies: Strategies, costs: StageCosts, slowest: Slowest) -> dict[str, Floats]:
    """The slowest stage's work over all micro-batches, by term."""
    layers, ends, per = costs.layers, costs.ends, costs.per
    m, spread = strategies.num_micro_batches, ends.cases.spread
    layers_JN = slowest.every_layer(per) * m
    terms: dict[str, Floats] = {}
    for position, name in enumerate(LAYER_PARTS):
        each_JN = per.waits_JN if position == LAUNCH else layers.cases.spread(layers.parts_JPU[:, position])
        terms[name] = _sum_over_kinds(layers_JN, each_JN)
    terms["recompute"] = slowest.recomputed_share * _sum_over_kinds(slowest.layers_JN * m, per.again_JN)
    if per.mtp_J1.any():
        terms["recompute"] += m * slowest.is_last * per.mtp_again
    terms["recompute"] += _sum_over_kinds(layers_JN, per.selective_JN)
    terms["grad_accumulation"] = _sum_over_kinds(layers_JN, per.accumulation_JN)
    first, last = m * slowest.is_first, m * slowest.is_last
    terms["embedding"] = first * spread(ends.embedding)
    terms["head"] = last * spread(ends.head)
    terms["loss"] = last * spread(ends.loss)
    terms["tp_comm"] += first * spread(ends.embedding_comm) + last * spread(ends.head_comm)
    terms["dp_comm"] = _sum_over_kinds(layers_JN, per.fsdp_JN) + first * per.root + last * per.head_link
    return terms


def _bubble(job: Job, strategies: Strategies, costs: StageCosts, slowest: Slowest) -> Floats:
    """Idle time of the slowest stage in one step. [P-1]"""
    if np.all(strategies.pp == 1):
        return np.zeros(len(strategies))
    per = costs.per
    counts_J1 = np.array([[float(job.model.layer_kinds.count(kind))] for kind in job.model.distinct_kinds])
    everything = _sum_over_kinds(counts_J1, per.layer_JN + per.share * per.again_JN)
    everything += per.first + per.last
    return waiting_s(strategies, costs, slowest, stages_sum_s=everything)


def waiting_s(strategies: Strategies, costs: StageCosts, slowest: Slowest, *, stages_sum_s: Floats) -> Floats:
    """Idle seconds of the slowest stage in one step, from all stages' seconds per micro-batch, shape (N,). [P-1]"""
    forward = wgrad = np.zeros(len(strategies))
    if splits_backward(strategies).any():
        forward, wgrad = _forward_s(costs, slowest), weight_gradient_s(costs, slowest)
    bubble = bubble_s(
        strategies, stages_sum_s=stages_sum_s, slowest_s=slowest.seconds, forward_s=forward, wgrad_s=wgrad
    )
    return np.where(strategies.pp > 1, bubble, 0.0)


def _forward_s(costs: StageCosts, slowest: Slowest) -> Floats:
    """Seconds of the slowest stage's forward of one micro-batch, a third of the model's ends included, shape (N,)."""
    layers = _sum_over_kinds(slowest.every_layer(costs.per), costs.per.layer_JN)
    layers = layers + slowest.is_last * costs.per.mtp_again
    layers = layers + slowest.recomputed_share * _sum_over_kinds(slowest.layers_JN, costs.per.again_JN)
    ends = np.maximum(slowest.seconds - layers, 0.0)
    return np.asarray(slowest_passes_s(costs, slowest)[0] + ends / FORWARD_AND_BACKWARD)


def weight_gradient_s(costs: StageCosts, slowest: Slowest) -> Floats:
    """Seconds of the slowest stage's weight gradients of one micro-batch, shape (N,)."""
    matmul_JN = costs.layers.cases.spread(costs.layers.parts_JPU[:, LAYER_PARTS.index("gemm")])
    return np.asarray(WGRAD_SHARE.value * _sum_over_kinds(slowest.every_layer(costs.per), matmul_JN))


def _sum_over_kinds(counts_JN: Floats, each_JN: NDArray[np.float64]) -> Floats:
    """Sum over layer kinds of count times cost, shape (N,)."""
    return summed(counts * each for counts, each in zip(counts_JN, each_JN, strict=True))
