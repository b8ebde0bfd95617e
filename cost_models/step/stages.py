"""What the pipeline's stages do per micro-batch, which one is the slowest, and how long it waits for the others.

A stage's time is linear in the number of layers of each kind that it holds, plus the embedding on the first stage and the
head and loss on the last. The terms of a step are those of the slowest stage over all micro-batches, and the bubble.
Array suffixes: K stage slots, J layer kinds, P layer parts; arrays of shape (N,) over strategies have none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.constants import WGRAD_SHARE
from cost_models.job import Job
from cost_models.layers.costs import LAYER_PARTS, LayerCosts
from cost_models.layers.flops import FORWARD_AND_BACKWARD
from cost_models.layers.host_classes import measured_layer
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.step.interleaving import fills_rounds, interleaved_s
from cost_models.step.pipeline import bubble_s, splits_backward
from cost_models.step.stage_costs import (
    LAUNCH,
    MicroBatchCosts,
    StageCosts,
    Tables,
    hooked,
    stage_costs,
    sum_over_kinds,
)
from cost_models.step.stage_parameters import RankParameters, over_kinds
from cost_models.strategies.fields import Schedule
from cost_models.strategies.recomputed_layers import recomputed_layers_by_slot, recomputed_shares_by_chunk
from cost_models.strategies.strategy import Bools, Codes, Floats, Ints, Strategies
from cost_models.strategies.tensors import summed
from cost_models.terms import Tier

_ROUNDING = 1e-12
"""Share of a wait that counts as none of it."""


@dataclass(frozen=True, eq=False)
class Stages:
    """The slowest stage's work over one step and its wait for the other stages, shape (N,) unless a suffix says otherwise."""

    terms_s: dict[str, Floats]
    """Seconds of a step by term, `pp_bubble` included. Terms that occur once a step are not among them."""
    tiers: dict[str, Codes]
    slowest_layers_JN: Floats
    """Decoder layers of each kind on the slowest stage."""
    forward_s: Floats
    """Seconds of the slowest stage's forward of one micro-batch. Both passes include the device's waiting for the
    host, since communication can hide there as well."""
    backward_s: Floats
    """Seconds of its backward of one micro-batch."""
    held: RankParameters
    layers: LayerCosts


@dataclass(frozen=True, eq=False)
class Slowest:
    """What the slowest stage of each strategy holds, shape (N,) unless a suffix says otherwise."""

    layers_JN: Floats
    is_first: Bools
    is_last: Bools
    recomputed_share: Floats
    """Share of its layers that are fully recomputed, 0...1."""
    seconds: Floats
    """Its seconds per micro-batch."""
    holds_mtp: Bools
    """Whether it would hold multi-token-prediction modules: the last stage does, unless a layout says otherwise."""

    def every_layer(self, per: MicroBatchCosts) -> Floats:
        """Its decoder layers of each kind, shape (J, N), those of multi-token-prediction modules included."""
        return self.layers_JN + self.holds_mtp * per.mtp_J1 if per.mtp_J1.any() else self.layers_JN


def stages(job: Job, strategies: Strategies, *, tables: Tables | None = None) -> Stages:
    """Terms of the slowest stage over one step, and the pipeline bubble. [T-1] [P-1]

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        tables: costs of layers and ends of these strategies, where the caller has them; else they are computed.
    """
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


def slowest_passes_s(costs: StageCosts, slowest: Slowest) -> tuple[Floats, Floats]:
    """Seconds of the slowest stage's forward and backward of one micro-batch, waiting for the host included, shape (N,)
    each.
    """
    layers_JN = slowest.every_layer(costs.per)
    forward = sum_over_kinds(layers_JN, costs.layers.cases.spread(costs.layers.forward_JU))
    waits = np.maximum(sum_over_kinds(layers_JN, costs.per.waits_JN) - slowest.is_last * costs.per.ahead, 0.0)
    # The wait counts in both: it happens once, but in which of the passes is not known, and communication hides in it
    # wherever it happens.
    return forward + waits, np.maximum(slowest.seconds - forward, 0.0)


def stage_tiers(job: Job, strategies: Strategies, costs: StageCosts) -> dict[str, Codes]:
    """Tier of every term of the stages' work per micro-batch, by name, shape (N,) each."""
    layers, ends = costs.layers, costs.ends
    tiers_PN: Codes = layers.cases.spread(layers.tiers_PU)
    tiers: dict[str, Codes] = dict(zip(LAYER_PARTS, tiers_PN, strict=True))
    if job.framework.wraps_layers:
        wrapped = job.calibration.wrapped_layer_ratio("sharded", compiled=job.training.compile)
        sharded = np.where(is_fsdp(job, strategies), wrapped.tier, 0)
        tiers["launch"] = np.maximum(tiers["launch"], sharded).astype(np.int8)
    if job.framework.zero3_host_ratio > 1.0 or job.framework.hooked_host_ratio > 1.0:
        # Constants of another host, where no profile measured this one's.
        constant = hooked(job, strategies) & (measured_layer(job, around="hooked") is None)
        constant = constant | (is_fsdp(job, strategies) & (job.framework.zero3_host_ratio > 1.0))
        tiers["launch"] = np.maximum(tiers["launch"], np.where(constant, np.int8(Tier.NOMINAL), np.int8(0)))
    return tiers | {"head": ends.cases.spread(ends.head_tier), "dp_comm": costs.fsdp_tier}


def _slowest(strategies: Strategies, per: MicroBatchCosts) -> Slowest:
    """The slowest stage of each strategy: the one slot where there is only one, else the maximum over slots."""
    layouts, layout = strategies.layouts, strategies.layout
    # One slot means that there is no pipeline: the only stage is the slowest, and the maximum over slots can be
    # skipped.
    if layouts.num_slots == 1:
        layers_JN = layouts.layers_LKJ[layout, 0].T
        share = recomputed_layers_by_slot(strategies)[0] / np.maximum(layers_JN.sum(axis=0), 1.0)
        seconds = sum_over_kinds(layers_JN, per.layer_JN) + share * sum_over_kinds(layers_JN, per.again_JN)
        both = np.ones(len(strategies), np.bool_)
        return Slowest(layers_JN, both, both, share, seconds + per.first + per.last, both)
    share_KN = recomputed_shares_by_slot(strategies)
    return slowest_of(strategies, stage_seconds(strategies, per, share_KN=share_KN), share_KN=share_KN)


def stage_seconds(strategies: Strategies, per: MicroBatchCosts, *, share_KN: Floats) -> Floats:
    """Seconds per micro-batch of every slot's stage, shape (K, N), when the share `share_KN` of its layers is recomputed."""
    layouts, layout = strategies.layouts, strategies.layout
    layers_JKN = np.take(layouts.slot_layers, layout, axis=-1)
    stage_KN = over_kinds(layers_JKN, per.layer_JN)
    stage_KN += share_KN * over_kinds(layers_JKN, per.again_JN)
    stage_KN += np.take(layouts.slot_embedding, layout, axis=-1) * per.first
    head_KN = np.take(layouts.slot_head, layout, axis=-1)
    stage_KN += head_KN * per.last
    if layouts.moves_mtp:
        stage_KN += (np.take(layouts.slot_mtp, layout, axis=-1) * 1.0 - head_KN) * per.mtp
    return stage_KN


def recomputed_shares_by_slot(strategies: Strategies) -> Floats:
    """Share of every slot's layers that are fully recomputed, 0...1, shape (K, N)."""
    held_KN = np.take(strategies.layouts.slot_totals, strategies.layout, axis=-1)
    return np.asarray(recomputed_layers_by_slot(strategies) / np.maximum(held_KN, 1.0))


def slowest_of(strategies: Strategies, stage_KN: Floats, *, share_KN: Floats) -> Slowest:
    """The slowest of these stages for every strategy; the first of several that are equally slow."""
    layouts, layout = strategies.layouts, strategies.layout
    slot, rows = stage_KN.argmax(axis=0), np.arange(len(strategies))
    is_last = layouts.has_head_LK[layout, slot]
    return Slowest(
        layers_JN=layouts.layers_LKJ[layout, slot].T,
        is_first=layouts.has_embedding_LK[layout, slot],
        is_last=is_last,
        recomputed_share=share_KN[slot, rows],
        seconds=stage_KN[slot, rows],
        holds_mtp=is_last if layouts.has_mtp_LK is None else layouts.has_mtp_LK[layout, slot],
    )


def _left_of(wait_s: Floats, saved_s: Floats) -> Floats:
    """Seconds of a wait beyond those saved. Where all of it is saved, rounding would leave a trace on either side of zero."""
    left_s = wait_s - saved_s
    return np.where(left_s > _ROUNDING * wait_s, left_s, 0.0)


def slowest_terms(strategies: Strategies, costs: StageCosts, slowest: Slowest) -> dict[str, Floats]:
    """Seconds of the slowest stage's work over all micro-batches of a step, by term, shape (N,) each."""
    layers, ends, per = costs.layers, costs.ends, costs.per
    m, spread = strategies.num_micro_batches, ends.cases.spread
    layers_JN = slowest.every_layer(per) * m
    terms: dict[str, Floats] = {}
    for position, name in enumerate(LAYER_PARTS):
        each_JN = per.waits_JN if position == LAUNCH else layers.cases.spread(layers.parts_JPU[:, position])
        terms[name] = sum_over_kinds(layers_JN, each_JN)
    # What the host's lead saves is taken off the plain layers' waits, and beyond these off what repeated layers wait.
    ahead = m * per.ahead * slowest.is_last
    repeated = slowest.recomputed_share * sum_over_kinds(slowest.layers_JN * m, per.again_JN)
    terms["recompute"] = _left_of(repeated, np.maximum(ahead - terms["launch"], 0.0))
    terms["launch"] = _left_of(terms["launch"], ahead)
    if per.mtp_J1.any():
        terms["recompute"] += m * slowest.holds_mtp * per.mtp_again
    terms["recompute"] += sum_over_kinds(layers_JN, per.selective_JN)
    terms["grad_accumulation"] = sum_over_kinds(layers_JN, per.accumulation_JN)
    terms["ep_comm"] += sum_over_kinds(layers_JN, per.unpaired_JN)
    first, last = m * slowest.is_first, m * slowest.is_last
    terms["embedding"] = first * spread(ends.embedding)
    terms["head"] = last * spread(ends.head)
    terms["loss"] = last * spread(ends.loss)
    terms["tp_comm"] += first * spread(ends.embedding_comm) + last * spread(ends.head_comm)
    if strategies.layouts.moves_mtp:
        # `ends.head` counts the modules' own work with the output layer. It is 1 where the slowest stage holds them alone, -1 where it
        # holds the output layer without them, and 0 elsewhere.
        moved = m * (slowest.holds_mtp * 1.0 - slowest.is_last)
        terms["head"] += moved * spread(ends.mtp)
        terms["tp_comm"] += moved * spread(ends.mtp_comm)
    terms["dp_comm"] = sum_over_kinds(layers_JN, per.fsdp_JN) + first * per.root + last * per.head_link
    for name, tower in per.towers.items():
        terms[name] = terms[name] + first * tower
    return terms


def _bubble(job: Job, strategies: Strategies, costs: StageCosts, slowest: Slowest) -> Floats:
    """Idle seconds of the slowest stage in one step, shape (N,). [P-1]"""
    if np.all(strategies.pp == 1):
        return np.zeros(len(strategies))
    per = costs.per
    counts_J1 = np.array([[float(job.model.layer_kinds.count(kind))] for kind in job.model.distinct_kinds])
    # The sum over stages is the whole model's time, whatever the split: only the slowest stage depends on how layers
    # are placed.
    everything = sum_over_kinds(counts_J1, per.layer_JN + per.share * per.again_JN)
    everything += per.first + per.last
    waits = waiting_s(strategies, costs, slowest, stages_sum_s=everything)
    for rows in groups_of_unlike_chunks(strategies):
        forward_VN, backward_VN = chunk_passes_s(strategies, costs, rows)
        played_s = unlike_chunks_waiting_s(strategies, rows, forward_VN, backward_VN, slowest_s=slowest.seconds[rows])
        waits[rows] = np.maximum(waits[rows], played_s)
    return waits


def waiting_s(strategies: Strategies, costs: StageCosts, slowest: Slowest, *, stages_sum_s: Floats) -> Floats:
    """Idle seconds of the slowest stage in one step, shape (N,), given the seconds per micro-batch of all stages together.
    [P-1]
    """
    forward = wgrad = np.zeros(len(strategies))
    if splits_backward(strategies).any():
        forward, wgrad = _forward_s(costs, slowest), weight_gradient_s(costs, slowest)
    bubble = bubble_s(
        strategies, stages_sum_s=stages_sum_s, slowest_s=slowest.seconds, forward_s=forward, wgrad_s=wgrad
    )
    return np.where(strategies.pp > 1, bubble, 0.0)


def groups_of_unlike_chunks(strategies: Strategies) -> list[Ints]:
    """Positions of the strategies that interleave chunks of different times, those with the same stages and chunks together."""
    unlike = strategies.layouts.has_unlike_chunks
    if not unlike.any():
        return []
    m, vpp = strategies.num_micro_batches, strategies.vpp
    found = unlike[strategies.layout] & (strategies.schedule == Schedule.INTERLEAVED) & (strategies.pp > 1)
    found &= fills_rounds(m, pp=strategies.pp)
    rows = np.flatnonzero(found)
    code = strategies.pp[rows] * (vpp.max() + 1.0) + vpp[rows]
    return [rows[code == each] for each in np.unique(code)]


def chunk_passes_s(strategies: Strategies, costs: StageCosts, rows: Ints) -> tuple[Floats, Floats]:
    """Seconds of every virtual stage's forward and backward of one micro-batch, shape (V, N) each; V = chunk * pp + stage.

    Args:
        strategies: shape (M,).
        costs: of all these strategies.
        rows: positions of N of them, which have the same stages and chunks.
    """
    layouts, per = strategies.layouts, costs.per
    used, inverse = np.unique(strategies.layout[rows], return_inverse=True)
    held_JVN = np.stack([layouts.chunk_contents(index) for index in used.tolist()])[inverse].transpose(2, 1, 0)
    chosen = strategies.take(rows)
    # Which pass waits for the host or for parameters is not known. A third of both is taken to be the forward's, which does a
    # third of the work.
    shared_JN = (per.waits_JN[:, rows] + per.fsdp_JN[:, rows]) / FORWARD_AND_BACKWARD
    forward_JN = costs.layers.cases.at(rows).spread(costs.layers.forward_JU) + shared_JN
    whole_VN = _over_kinds(held_JVN, per.layer_JN[:, rows])
    whole_VN += recomputed_shares_by_chunk(chosen, held_JVN.sum(axis=0)) * _over_kinds(held_JVN, per.again_JN[:, rows])
    forward_VN = _over_kinds(held_JVN, forward_JN)
    whole_VN[0] += per.first[rows]
    whole_VN[-1] += per.last[rows]
    forward_VN[0] += per.first[rows] / FORWARD_AND_BACKWARD
    forward_VN[-1] += (per.last[rows] - per.mtp_again[rows]) / FORWARD_AND_BACKWARD
    if layouts.moves_mtp:
        move_to_mtp(strategies, rows, whole_VN, per.mtp[rows])
        move_to_mtp(strategies, rows, forward_VN, (per.mtp[rows] - per.mtp_again[rows]) / FORWARD_AND_BACKWARD)
    return forward_VN, np.maximum(whole_VN - forward_VN, 0.0)


def move_to_mtp(strategies: Strategies, rows: Ints, values_VN: Floats, modules_N: Floats) -> None:
    """Takes what multi-token prediction's modules add off the last virtual stage and adds it to theirs.

    Args:
        strategies: shape (M,).
        rows: positions of N of them.
        values_VN: what virtual stages have, shape (V, N), which is changed.
        modules_N: the modules' part, shape (N,).
    """
    at = strategies.layouts.mtp_chunk[strategies.layout[rows]]
    values_VN[-1] -= modules_N
    values_VN[at, np.arange(len(rows))] += modules_N


def _over_kinds(held_JVN: Floats, each_JN: Floats) -> Floats:
    return summed(held_VN * each for held_VN, each in zip(held_JVN, each_JN, strict=True))


def unlike_chunks_waiting_s(
    strategies: Strategies, rows: Ints, forward_VN: Floats, backward_VN: Floats, *, slowest_s: Floats
) -> Floats:
    """Idle seconds of the slowest stage in one step, shape (N,), from the passes of every virtual stage. [P-2]"""
    pp, vpp, m = int(strategies.pp[rows[0]]), int(strategies.vpp[rows[0]]), strategies.num_micro_batches[rows]
    step_s = interleaved_s(forward_VN, backward_VN, pp=pp, vpp=vpp, num_micro_batches=m)
    return np.maximum(step_s - m * slowest_s, 0.0)


def _forward_s(costs: StageCosts, slowest: Slowest) -> Floats:
    """Seconds of the slowest stage's forward of one micro-batch, shape (N,), a third of the model's ends included."""
    layers = sum_over_kinds(slowest.every_layer(costs.per), costs.per.layer_JN)
    layers = layers + slowest.holds_mtp * costs.per.mtp_again
    layers = layers + slowest.recomputed_share * sum_over_kinds(slowest.layers_JN, costs.per.again_JN)
    # What a stage takes beyond its layers is the embedding or the head, whose forward is one of three passes of equal
    # work.
    ends = np.maximum(slowest.seconds - layers, 0.0)
    return np.asarray(slowest_passes_s(costs, slowest)[0] + ends / FORWARD_AND_BACKWARD)


def weight_gradient_s(costs: StageCosts, slowest: Slowest) -> Floats:
    """Seconds of the slowest stage's weight gradients of one micro-batch, shape (N,). [P-1]"""
    # Zero-bubble schedules can postpone only these products: nothing later in the backward depends on them.
    matmul_JN = costs.layers.cases.spread(costs.layers.parts_JPU[:, LAYER_PARTS.index("gemm")])
    return np.asarray(WGRAD_SHARE.value * sum_over_kinds(slowest.every_layer(costs.per), matmul_JN))
