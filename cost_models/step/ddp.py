"""Data parallelism on whole buffers, once a step: DDP, ZeRO-1, and ZeRO-2 outside FSDP.                        [C-14] [O-3]

Gradients are reduced behind the last micro-batch (or behind each one) and, from ZeRO-1 on, the updated parameters are
gathered once. What is exposed never exceeds the link time. Sharding layer by layer is in `fsdp`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import BACKWARD_USABLE
from cost_models.hardware.groups import StrategyPlacements, groups
from cost_models.job import Job
from cost_models.specs.training import BYTES_PER
from cost_models.step.unit_collectives import reduce_in_shards
from cost_models.strategies.strategy import Bools, Codes, Floats, Strategies


@dataclass(frozen=True, slots=True)
class DdpSeconds:
    """Exposed seconds of one step, shape (N,)."""

    exposed: Floats
    tier: Codes


def ddp_s(
    job: Job,
    strategies: Strategies,
    *,
    dense: Floats,
    expert: Floats,
    forward_s: Floats,
    backward_s: Floats,
) -> DdpSeconds:
    """Reduction of whole gradient buffers and gather of updated parameters. [C-14] [O-3]

    Only the last micro-batch's backward can hide the reduction, and only the first one's forward the gather; the last
    bucket is never hidden. An even stage's layers count as buckets, so that no split changes their size.

    Args:
        job: model, cluster and dtypes.
        strategies: shape (N,), as all that follows.
        dense: dense parameters of the fullest stage on one rank.
        expert: its routed experts'.
        forward_s: that stage's forward of one micro-batch.
        backward_s: and backward.
    """
    links = ddp_links_s(job, strategies, dense=dense, expert=expert)
    exposed = ddp_exposed_s(
        strategies, links, forward_s=forward_s, backward_s=backward_s, num_layers=job.model.num_layers
    )
    return DdpSeconds(exposed, links.tier)


@dataclass(frozen=True, slots=True)
class DdpLinks:
    """Link seconds of one step, shape (N,)."""

    reduce: Floats
    """Of one reduction of all gradients."""
    gather: Floats
    """Of one gather of all parameters."""
    tier: Codes

    def take(self, index: NDArray[np.int64]) -> DdpLinks:
        """The seconds at these positions."""
        return DdpLinks(self.reduce[index], self.gather[index], self.tier[index])


def ddp_links_s(job: Job, strategies: Strategies, *, dense: Floats, expert: Floats) -> DdpLinks:
    """Link seconds of reducing gradients and gathering parameters, whatever hides them. [C-14]"""
    if not ((strategies.dp_cp > 1) | (strategies.expert_dp > 1)).any():
        none = np.zeros(len(strategies))
        return DdpLinks(none, none, none.astype(np.int8))
    placements = groups(strategies, job.cluster)
    grad, weight = BYTES_PER[job.training.grad_reduce_dtype], job.training.gather_bytes
    reduce, gather, tier = _dense_links(job, strategies, placements, dense * grad, dense * weight)
    if expert.any():
        scatter = reduce_in_shards(job, expert * grad, placements.expert_shard, placements.expert_replica, 1.0)
        regather = job.calibration.collective_s("all_gather", expert * weight, placement=placements.expert_shard)
        whole = job.calibration.collective_s("all_reduce", expert * grad, placement=placements.edp)
        reduce = reduce + np.where(_reduces_whole(job, strategies), whole.seconds, scatter.seconds)
        gather = gather + np.where(strategies.zero >= 1, regather.seconds, 0.0)
        tier = np.maximum(tier, scatter.tier)
    return DdpLinks(reduce, gather, tier)


def ddp_exposed_s(
    strategies: Strategies, links: DdpLinks, *, forward_s: Floats, backward_s: Floats, num_layers: int
) -> Floats:
    """What of these is not hidden by the passes, shape (N,); an even stage's share of `num_layers` counts as buckets. [O-3]"""
    buckets, reduce, gather = num_layers / strategies.pp + 1.0, links.reduce, links.gather
    hidden_reduce = np.maximum(reduce / buckets, reduce - BACKWARD_USABLE.value * backward_s)
    hidden_gather = np.maximum(gather / buckets, gather - BACKWARD_USABLE.value * forward_s)
    times = np.where(strategies.grad_sync_each, strategies.num_micro_batches, 1.0)
    exposed = times * np.where(strategies.overlap_grad_reduce, hidden_reduce, reduce)
    return np.asarray(exposed + np.where(strategies.overlap_param_gather, hidden_gather, gather))


def _dense_links(
    job: Job, strategies: Strategies, placements: StrategyPlacements, grad_bytes: Floats, weight_bytes: Floats
) -> tuple[Floats, Floats, Codes]:
    """Link seconds of reducing dense gradients and gathering dense parameters, and the tier."""
    price = job.calibration.collective_s
    whole = price("all_reduce", grad_bytes, placement=placements.dp_cp)
    shards = reduce_in_shards(job, grad_bytes, placements.zero_shard, placements.zero_replica, 1.0)
    gather = price("all_gather", weight_bytes, placement=placements.zero_shard)
    reduces_whole = _reduces_whole(job, strategies)
    reduce = np.where(reduces_whole, whole.seconds, shards.seconds)
    tier = np.where(reduces_whole, whole.tier, np.maximum(shards.tier, gather.tier)).astype(np.int8)
    return reduce, np.where(strategies.zero >= 1, gather.seconds, 0.0), tier


def _reduces_whole(job: Job, strategies: Strategies) -> Bools:
    """Where every rank receives whole reduced gradients, shape (N,). [C-14]"""
    zero, framework = strategies.zero, job.framework
    sharded = ((zero == 1) & framework.zero1_all_reduces) | ((zero == 2) & framework.zero2_all_reduces)
    return np.asarray((zero == 0) | sharded)


def tied_gradients_s(
    job: Job, strategies: Strategies, *, word: Floats, layers: Floats, placements: StrategyPlacements
) -> tuple[NDArray[np.float64], Codes]:
    """Seconds of the all-reduces between the ends of a pipeline that share an embedding, since it is tied to the head or
    multi-token prediction embeds there too, and of the norm gradients that sequence parallelism leaves partial on each tp
    rank, once a step. [C-15]
    """
    grad, price = BYTES_PER[job.training.grad_reduce_dtype], job.calibration.collective_s
    copied = job.model.tie_word_embeddings or job.mtp_num_layers > 0
    tied = copied & (strategies.pp > 1)
    if not (tied.any() or strategies.sequence_parallel.any()):
        return np.zeros(len(strategies)), np.zeros(len(strategies), np.int8)
    ends = price("all_reduce", word * grad, placement=placements.embedding)
    norms = price(
        "all_reduce", layers * job.model.norms_per_layer * job.model.hidden_size * grad, placement=placements.tp
    )
    seconds = np.where(tied, ends.seconds, 0.0) + np.where(strategies.sequence_parallel, norms.seconds, 0.0)
    tier = np.where(tied, ends.tier, np.where(strategies.sequence_parallel, norms.tier, 0)).astype(np.int8)
    return seconds, tier
