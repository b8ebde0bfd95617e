"""What the stages of a pipeline are made of, however the layers are split over them: seconds per micro-batch, parameters.

A stage's time is linear in the number of layers of each kind that it holds, plus the embedding on the first stage and the
head and loss on the last; `stages` puts them together and finds the slowest. Array suffixes: J layer kinds; arrays of shape
(N,) over strategies have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.hardware.groups import world_key
from cost_models.job import Job
from cost_models.layers.costs import LAYER_PARTS, LayerCosts, layer_costs
from cost_models.layers.ends import EndCosts, end_costs
from cost_models.layers.flops import FORWARD_AND_BACKWARD
from cost_models.layers.tower_parameters import tower_rows
from cost_models.step.fsdp_comm import (
    backward_gathers,
    fsdp_exposed_s,
    fsdp_links_s,
    gathered_for_step,
    is_fsdp,
    root_exposed_s,
)
from cost_models.step.optimizer import accumulation_s, unit_copies_s
from cost_models.step.pipeline import unpaired_fraction
from cost_models.step.stage_parameters import RankParameters, rank_parameters, trained_rank_parameters
from cost_models.step.tower_terms import added_up, tower_terms_s
from cost_models.step.zero_plus import quantising_s, quantizes
from cost_models.strategies.fields import Recompute
from cost_models.strategies.recomputed_layers import recomputed_mtp_share, recomputed_shares
from cost_models.strategies.strategy import Bools, Codes, Floats, Strategies
from cost_models.strategies.tensors import summed

LAUNCH = LAYER_PARTS.index("launch")


@dataclass(frozen=True, eq=False)
class Tables:
    """Costs of layers and of the model's ends. Strategies that share them can share one instance over many batches."""

    layers: LayerCosts
    ends: EndCosts

    def at(self, index: NDArray[Any]) -> Tables:
        """The tables for the strategies at these positions."""
        layers = replace(self.layers, cases=self.layers.cases.at(index))
        return Tables(layers, replace(self.ends, cases=self.ends.cases.at(index)))


def build_tables(job: Job, strategies: Strategies) -> Tables:
    """Costs of layers and ends for a batch."""
    worlds = world_key(strategies, job.cluster)
    return Tables(layer_costs(job, strategies, worlds=worlds), end_costs(job, strategies, worlds=worlds))


@dataclass(frozen=True, eq=False)
class MicroBatchCosts:
    """Seconds per micro-batch of everything that a stage can hold; a stage's time is linear in these."""

    layer_JN: Floats
    """One layer of each kind: everything but full recomputation."""
    waits_JN: Floats
    """The part of `layer_JN` in which the device waits for the host."""
    again_JN: Floats
    """Full recomputation of one layer of each kind."""
    share: Floats
    """Share of all layers that are fully recomputed, 0...1, shape (N,)."""
    first: Floats
    """What only the first stage does: the embedding with its collectives."""
    last: Floats
    """What only the last stage does: head, loss and multi-token prediction."""
    selective_JN: Floats
    """Selective recomputation in one layer of each kind, part of `layer_JN`."""
    fsdp_JN: Floats
    """Exposed FSDP traffic of one layer of each kind, part of `layer_JN`."""
    mtp_J1: Floats
    """Decoder layers of each kind in the multi-token-prediction modules that `last` includes, shape (J, 1)."""
    mtp_again: Floats
    """Recomputation of those layers, part of `last`, shape (N,)."""
    mtp: Floats
    """Those modules without their output projections and losses, part of `last`, shape (N,)."""
    root: Floats
    """FSDP traffic of the embedding, part of `first`."""
    head_link: Floats
    """FSDP traffic of the final norm and output projection, part of `last`."""
    accumulation_JN: Floats
    """Gradient accumulation of one layer of each kind, part of `layer_JN`."""
    ahead: Floats
    """Waiting for the host that the end of the model saves, taken off `last`, shape (N,)."""
    unpaired_JN: Floats
    """Exchange between experts that overlapping would hide, on average over all micro-batches, part of `layer_JN`."""
    towers: Mapping[str, Floats] = field(default_factory=dict)
    """What towers take, by time term, part of `first`; empty where there are none."""


@dataclass(frozen=True, eq=False)
class StageCosts:
    """Everything that the stages of a batch are made of, however the layers are split over them."""

    per: MicroBatchCosts
    layers: LayerCosts
    ends: EndCosts
    held: RankParameters
    fsdp_tier: Codes


def stage_costs(job: Job, strategies: Strategies, *, tables: Tables | None = None) -> StageCosts:
    """What the stages of these strategies are made of; `tables` as in `stages`."""
    tables = tables or build_tables(job, strategies)
    held = trained_rank_parameters(job, strategies)
    per, tier = _per_micro_batch(job, strategies, tables.layers, tables.ends, held)
    if job.tower_jobs:
        per = _with_towers(job, strategies, per)
    return StageCosts(per, tables.layers, tables.ends, held, tier)


def micro_batch_costs(job: Job, strategies: Strategies) -> tuple[MicroBatchCosts, LayerCosts, RankParameters]:
    """Seconds per micro-batch of what stages can hold, the layer costs, and the parameters that ranks hold."""
    costs = stage_costs(job, strategies)
    return costs.per, costs.layers, costs.held


def _per_micro_batch(
    job: Job, strategies: Strategies, layers: LayerCosts, ends: EndCosts, held: RankParameters
) -> tuple[MicroBatchCosts, Codes]:
    where, spread = is_fsdp(job, strategies), layers.cases.spread
    waits_JN, again_JN = spread(layers.parts_JPU[:, LAUNCH]), spread(layers.again_JU)
    whole_JN = spread(layers.whole)
    if job.framework.wraps_layers or job.framework.zero3_host_ratio > 1.0:
        # Waits and repeated waits change together, even where the first change is 0: a layer whose launches the device just
        # covers may still take longer to repeat.
        added_JN = np.where(where, spread(layers.sharded_waits_JU), 0.0)
        waits_JN, whole_JN = waits_JN + added_JN, whole_JN + added_JN
        again_JN = again_JN + np.where(where, spread(layers.sharded_again_JU), 0.0)
    if job.framework.hooked_host_ratio > 1.0:
        around = hooked(job, strategies).astype(np.float64)
        if job.framework.hooks_when_reducing:
            around = np.where(strategies.grad_sync_each, around, around / strategies.num_micro_batches)
        added_JN = around * spread(layers.hooked_waits_JU)
        waits_JN, whole_JN = waits_JN + added_JN, whole_JN + added_JN
        again_JN = again_JN + around * spread(layers.hooked_again_JU)
    # The layer table knows nothing of full recomputation, which is decided per stage, so it prices every layer's
    # repetition.
    again_JN = np.where(strategies.recompute == Recompute.FULL, again_JN, 0.0)
    selective_JN = np.zeros_like(again_JN)
    if (strategies.recompute == Recompute.SELECTIVE).any():
        selective_JN = np.where(strategies.recompute == Recompute.SELECTIVE, _selective_s(strategies, layers), 0.0)
    # Where gradients are reduced once a step, whole ones accumulate until then, although parameters are sharded.
    sharded = where & strategies.grad_sync_each
    accumulation_JN = accumulation_s(job, strategies, dense=held.dense_JN, expert=held.expert_JN, sharded=sharded)
    share = recomputed_shares(strategies)
    # Repeated forwards run inside the backward and hide communication there, and what repeating adds to the waits for the host hides
    # it as those do. All layers are given the average share of repetition: which ones are repeated differs by stage, and a table
    # per stage would have to be rebuilt for every split.
    repeated_JN = share * np.where(strategies.recompute == Recompute.FULL, spread(layers.forward_JU), 0.0)
    every_wait_JN = waits_JN + share * again_JN - repeated_JN
    link = _fsdp(job, strategies, layers, ends, every_wait_JN, repeated_JN + selective_JN, where)
    idle_JN, copies_JN = link.idle_JN, np.zeros_like(whole_JN)
    if job.framework.copies_units:
        copies_JN = np.where(where, _copies_s(job, strategies, held), 0.0)
        idle_JN = np.maximum(idle_JN - copies_JN, 0.0)
        # The device is idle while it waits for the host, so that they cost what exceeds the wait.
        copies_JN = np.maximum(copies_JN - waits_JN, 0.0)
    link_JN = _with_quantising(job, strategies, held, link.layer_JN + copies_JN, where)
    unpaired_JN = np.zeros_like(again_JN)
    if strategies.overlap_moe_all_to_all.any():
        unpaired_JN = unpaired_fraction(strategies) * spread(layers.alone_JU)
    layer_JN = whole_JN + selective_JN + accumulation_JN + link_JN + unpaired_JN
    mtp_J1, mtp, mtp_again = _modules_s(job, strategies, ends, layer_JN, again_JN)
    ended = ends.cases.spread(ends.head + ends.loss)
    ahead = _ahead_s(job, strategies, idle_JN, ended + link.head)
    last = ended + ends.cases.spread(ends.head_comm) + link.head - ahead
    # The modules' decoder layers are layers like others, but only one stage has them.
    if mtp_J1.any():
        last = last + sum_over_kinds(mtp_J1, layer_JN) + mtp_again
    per = MicroBatchCosts(
        layer_JN=layer_JN,
        waits_JN=waits_JN,
        again_JN=again_JN,
        share=share,
        first=ends.cases.spread(ends.embedding + ends.embedding_comm) + link.root,
        last=last,
        selective_JN=selective_JN,
        fsdp_JN=link_JN,
        mtp_J1=mtp_J1,
        mtp_again=mtp_again,
        mtp=mtp,
        root=link.root,
        head_link=link.head,
        accumulation_JN=accumulation_JN,
        ahead=ahead,
        unpaired_JN=unpaired_JN,
    )
    return per, link.tier


def _copies_s(job: Job, strategies: Strategies, held: RankParameters) -> Floats:
    """Seconds per micro-batch of FSDP2's copies around one layer of each kind, shape (J, N)."""
    once = gathered_for_step(job, strategies)
    gathers = np.where(once, 1.0 / strategies.num_micro_batches, 1.0) + backward_gathers(job, strategies)
    every, trained_JN = rank_parameters(job, strategies), held.dense_JN + held.expert_JN
    return unit_copies_s(
        job, strategies, dense=every.dense_JN, expert=every.expert_JN, trained=trained_JN, gathers=gathers
    )


def _modules_s(
    job: Job, strategies: Strategies, ends: EndCosts, layer_JN: Floats, again_JN: Floats
) -> tuple[Floats, Floats, Floats]:
    """Decoder layers of multi-token prediction's modules by kind, shape (J, 1), the modules' seconds per micro-batch without output
    projections and losses, and the part of it that recomputes their layers, shape (N,) each.
    """
    mtp_J1, none = mtp_layers(job), np.zeros(len(strategies))
    if not mtp_J1.any():
        return mtp_J1, none, none
    again = recomputed_mtp_share(strategies) * sum_over_kinds(mtp_J1, again_JN)
    return mtp_J1, sum_over_kinds(mtp_J1, layer_JN) + again + ends.cases.spread(ends.mtp + ends.mtp_comm), again


def tower_seconds(job: Job, strategies: Strategies) -> list[dict[str, Floats]]:
    """Seconds per micro-batch of each tower on the first stage, by time term, shape (N,) each. [F-17]"""
    found = []
    for use, own in zip(job.training.tower_uses, job.tower_jobs, strict=True):
        costs = stage_costs(own, tower_rows(job, use, strategies))
        per = costs.per
        found.append(
            tower_terms_s(
                job, strategies, use, own=own, layers=costs.layers, waits_JN=per.waits_JN, again_JN=per.again_JN,
                fsdp_JN=per.fsdp_JN, accumulation_JN=per.accumulation_JN,
            )
        )  # fmt: skip
    return found


def _with_towers(job: Job, strategies: Strategies, per: MicroBatchCosts) -> MicroBatchCosts:
    """The costs with those of the towers, which the first stage holds."""
    towers = added_up(tower_seconds(job, strategies))
    return replace(per, first=per.first + summed(towers.values()), towers=towers)


def _with_quantising(job: Job, strategies: Strategies, held: RankParameters, link_JN: Floats, where: Bools) -> Floats:
    """Seconds of a layer's traffic and of quantising it, shape (J, N). The embedding and the head, of which there is one, are left out."""
    if not quantizes(strategies):
        return link_JN
    elements_JN = np.where(where, held.dense_JN + held.expert_JN, 0.0)
    reductions = np.where(strategies.grad_sync_each, 1.0, 1.0 / strategies.num_micro_batches)
    gathers = 1.0 + backward_gathers(job, strategies)
    return link_JN + quantising_s(job, strategies, elements_JN, gathers=gathers, reductions=reductions)


def hooked(job: Job, strategies: Strategies) -> Bools:
    """Whether hooks on whole parameters reduce gradients, shape (N,): DistributedDataParallel, ZeRO 1 and 2 of DeepSpeed. [F-4]"""
    replicas = (strategies.dp_cp > 1) & (strategies.zero >= job.framework.hooks_from_zero)
    return np.asarray(~is_fsdp(job, strategies) & replicas & (job.framework.hooked_host_ratio > 1.0))


def runs_ahead(job: Job, strategies: Strategies) -> Bools:
    """Whether the host's lead over head and loss shortens what the layers wait for it, shape (N,). [F-4]

    In pipelines the device waits for its neighbours instead, and for other modules than Hugging Face's it was not measured.
    """
    return np.asarray((strategies.pp == 1) & job.has_hf_modules)


def _ahead_s(job: Job, strategies: Strategies, idle_JN: Floats, ended: Floats) -> Floats:
    """Seconds by which the host gets ahead of the device at the end of the model, shape (N,). [F-4]

    Head, loss and their collectives are few launches and much time, so that what a stage's layers wait for the host alone is shorter
    by as much: a micro-batch takes what the longer of host and device takes.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        idle_JN: seconds of one layer of each kind in which the device waits for nothing but the host.
        ended: seconds that head and loss take, with what their collectives add.
    """
    where = runs_ahead(job, strategies)
    if not where.any():
        return np.zeros(len(strategies))
    counts_J1 = np.array([[float(job.model.layer_kinds.count(kind))] for kind in job.model.distinct_kinds])
    return np.where(where, np.minimum(sum_over_kinds(counts_J1, idle_JN), ended), 0.0)


def least_ends_s(job: Job, strategies: Strategies, tables: Tables) -> tuple[Floats, Floats]:
    """Seconds per micro-batch that what only the first and only the last stage does takes at least, shape (N,) each.

    Neither has traffic between replicas. The last one lacks the host's lead over it as far as plain layers wait: a wait that
    hooks or repeated forwards add comes with its own lead, which is no longer than that wait.
    """
    layers, ends = tables.layers, tables.ends
    ended = ends.cases.spread(ends.head + ends.loss)
    ahead = _ahead_s(job, strategies, layers.cases.spread(layers.parts_JPU[:, LAUNCH]), ended)
    return ends.cases.spread(ends.embedding + ends.embedding_comm), ended + ends.cases.spread(ends.head_comm) - ahead


def _selective_s(strategies: Strategies, layers: LayerCosts) -> Floats:
    """Seconds of what selective recomputation repeats in one layer of each kind: the named modules, or what the framework's rule
    says where there are none; shape (J, N).
    """
    named = strategies.recompute_modules
    by_module_JN = np.zeros((len(layers.selective_JU), len(strategies)))
    for bit in range(layers.modules_JMU.shape[1]):
        on = (named & (1 << bit)) != 0
        if on.any():
            by_module_JN += np.where(on, layers.cases.spread(layers.modules_JMU[:, bit]), 0.0)
    if named.all():
        return by_module_JN
    return np.where(named > 0, by_module_JN, layers.cases.spread(layers.selective_JU))


def mtp_layers(job: Job) -> Floats:
    """Decoder layers of each kind in multi-token-prediction modules, shape (J, 1); all are of the last layer's kind."""
    model = job.model
    return np.array([[float(job.mtp_num_layers * (kind == model.layer_kinds[-1]))] for kind in model.distinct_kinds])


@dataclass(frozen=True, slots=True)
class _Fsdp:
    """Exposed seconds per micro-batch of parameters gathered and gradients scattered unit by unit."""

    layer_JN: Floats
    idle_JN: Floats
    """Seconds that one layer of each kind waits for the host while no collective runs."""
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
    """Exposed seconds of FSDP's collectives for layers, embedding and head, per micro-batch; 0 where `where` is false.
    [C-14]
    """
    if not where.any():
        none = np.zeros(len(strategies))
        return _Fsdp(np.zeros_like(repeated_JN), waits_JN, none, none, none.astype(np.int8))
    if not where.all():
        # Most of a search's rows shard no parameters.
        rows = np.flatnonzero(where)
        tables = Tables(layers, ends).at(rows)
        sharded = _fsdp(
            job, strategies.take(rows), tables.layers, tables.ends, waits_JN[:, rows], repeated_JN[:, rows], where[rows]
        )
        root, head = np.zeros((2, len(strategies)))
        found = _Fsdp(np.zeros_like(repeated_JN), waits_JN.copy(), root, head, np.zeros(len(strategies), np.int8))
        for field in fields(_Fsdp):
            getattr(found, field.name)[..., rows] = getattr(sharded, field.name)
        return found
    link = fsdp_links_s(job, strategies)
    layer = fsdp_exposed_s(
        job,
        strategies,
        link.layer_JU.of(link.cases),
        forward_s=layers.cases.spread(layers.forward_JU),
        # Launch waits are left out of both passes: what hides in them is settled by `waits_s`.
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
    ).seconds
    root = root_exposed_s(job, strategies, link.embedding.of(link.cases))
    return _Fsdp(layer.seconds, layer.idle_s, root, head, link.cases.spread(link.tier).astype(np.int8))


def sum_over_kinds(counts_JN: Floats, each_JN: NDArray[np.float64]) -> Floats:
    """Sum over layer kinds of count times cost, shape (N,), in the unit of the cost."""
    return summed(counts * each for counts, each in zip(counts_JN, each_JN, strict=True))
