"""Data parallelism on whole buffers, once a step: DDP, ZeRO-1, and ZeRO-2 outside FSDP.                        [C-14] [O-3]

Gradients are reduced behind the last micro-batch (or behind each one) and, from ZeRO-1 on, the updated parameters are
gathered once. What is exposed never exceeds the link time. Sharding layer by layer is in `fsdp_comm`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import BACKWARD_USABLE
from cost_models.frameworks.optimizers import reduces_for_whole_matrices
from cost_models.hardware.groups import StrategyPlacements, groups
from cost_models.job import Job
from cost_models.specs.training import BYTES_PER
from cost_models.step.unit_collectives import reduce_in_shards
from cost_models.strategies.kept_columns import Columns, kept_columns
from cost_models.strategies.strategy import Bools, Codes, Floats, Strategies
from cost_models.strategies.tensors import combinations_of

DDP_AXES = ("tp", "pp", "cp", "dp", "ep", "etp", "zero", "zero_shard_size")
"""What the link seconds depend on beside the parameters that a rank holds."""
_NORM_AXES = ("tp", "pp", "cp", "dp", "ep", "etp")
"""What the placement of tensor-parallel groups depends on: their size, and the job's segments."""


@dataclass(frozen=True, slots=True)
class DdpSeconds:
    """Exposed seconds of one step's reduction and gather, shape (N,)."""

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
    links: DdpLinks | None = None,
) -> DdpSeconds:
    """Exposed seconds of reducing whole gradient buffers and gathering the updated parameters, once a step. [C-14] [O-3]

    Only the backward of the micro-batch that reduces can hide the reduction, and only the first micro-batch's forward can
    hide the gather.

    Args:
        job: model, cluster, types and prices.
        strategies: shape (N,), as all that follows.
        dense: dense parameters that one rank of the fullest stage holds.
        expert: its routed-expert parameters.
        forward_s: seconds of the slowest stage's forward of one micro-batch.
        backward_s: seconds of its backward.
        links: link seconds of these very parameters, where the caller has them; else they are computed.
    """
    links = links or ddp_links_s(job, strategies, dense=dense, expert=expert)
    exposed = ddp_exposed_s(
        strategies, links, forward_s=forward_s, backward_s=backward_s, num_layers=job.model.num_layers
    )
    return DdpSeconds(exposed, links.tier)


@dataclass(frozen=True, slots=True)
class DdpLinks:
    """Link seconds of one step's collectives, whatever hides them, shape (N,)."""

    reduce: Floats
    """Seconds of one reduction of all gradients."""
    gather: Floats
    """Seconds of one all-gather of all parameters; 0 in ZeRO-0."""
    tier: Codes

    @property
    def columns(self) -> Columns:
        """The fields in their order."""
        return self.reduce, self.gather, self.tier

    def take(self, index: NDArray[np.int64]) -> DdpLinks:
        """The link seconds of the strategies at these positions."""
        return DdpLinks(self.reduce[index], self.gather[index], self.tier[index])


def ddp_links_s(job: Job, strategies: Strategies, *, dense: Floats, expert: Floats) -> DdpLinks:
    """Link seconds of reducing a stage's gradients and gathering its parameters, shape (N,). [C-14]

    Args:
        job: model, cluster, types and prices.
        strategies: shape (N,), as all that follows.
        dense: dense parameters that one rank of the stage holds.
        expert: its routed-expert parameters.
    """
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
        # Experts are reduced over other ranks than the rest, in calls of their own that follow the dense ones.
        reduce = reduce + np.where(reduces_whole(job, strategies), whole.seconds, scatter.seconds)
        gather = gather + np.where(strategies.zero >= 1, regather.seconds, 0.0)
        tier = np.maximum(tier, scatter.tier)
    return DdpLinks(reduce, gather, tier)


def ddp_exposed_s(
    strategies: Strategies, links: DdpLinks, *, forward_s: Floats, backward_s: Floats, num_layers: int
) -> Floats:
    """Exposed seconds of these collectives beside the passes of one micro-batch, shape (N,). [O-3]

        reduction: max(reduce / (layers / p + 1), reduce - 0.9 backward), once a step or in every micro-batch
        gather:    max(gather / (layers / p + 1), gather - 0.9 forward), once a step

    Without overlap both are exposed in full.

    Args:
        strategies: say which of the two overlaps, and how often gradients are reduced.
        links: link seconds of one reduction and one gather.
        forward_s: seconds of one micro-batch's forward.
        backward_s: seconds of its backward.
        num_layers: decoder layers of the model.
    """
    # Collectives go bucket by bucket. The last bucket of gradients is complete only when the backward is over, and
    # the first parameters are needed before the forward starts, so one bucket of either is never hidden. Buckets are
    # counted as the layers of an even stage and one for the ends: with a stage's own layers, moving a layer would
    # change what is hidden, and the search over splits could not treat this term as fixed.
    buckets, reduce, gather = num_layers / strategies.pp + 1.0, links.reduce, links.gather
    hidden_reduce = np.maximum(reduce / buckets, reduce - BACKWARD_USABLE.value * backward_s)
    # BACKWARD_USABLE was estimated for reductions behind a backward. It stands in for the gather behind a forward
    # too, which was not measured separately.
    hidden_gather = np.maximum(gather / buckets, gather - BACKWARD_USABLE.value * forward_s)
    times = np.where(strategies.grad_sync_each, strategies.num_micro_batches, 1.0)
    exposed = times * np.where(strategies.overlap_grad_reduce, hidden_reduce, reduce)
    return np.asarray(exposed + np.where(strategies.overlap_param_gather, hidden_gather, gather))


def _dense_links(
    job: Job, strategies: Strategies, placements: StrategyPlacements, grad_bytes: Floats, weight_bytes: Floats
) -> tuple[Floats, Floats, Codes]:
    """Link seconds of reducing dense gradients and of gathering dense parameters, and their tier, shape (N,) each."""
    price = job.calibration.collective_s
    whole = price("all_reduce", grad_bytes, placement=placements.dp_cp)
    shards = reduce_in_shards(job, grad_bytes, placements.zero_shard, placements.zero_replica, 1.0)
    gather = price("all_gather", weight_bytes, placement=placements.zero_shard)
    in_whole = reduces_whole(job, strategies)
    reduce = np.where(in_whole, whole.seconds, shards.seconds)
    tier = np.where(in_whole, whole.tier, np.maximum(shards.tier, gather.tier)).astype(np.int8)
    return reduce, np.where(strategies.zero >= 1, gather.seconds, 0.0), tier


def reduces_whole(job: Job, strategies: Strategies) -> Bools:
    """Whether every rank receives all reduced gradients (an all-reduce) rather than its shard, shape (N,). [C-14]

    DeepSpeed all-reduces in stage 1, and from 0.12.4 on in stage 2 as well, although each rank keeps only its own shard; so does
    Megatron where a rank owns whole matrices without a layout of its buffers that says so.
    """
    zero, framework = strategies.zero, job.framework
    stage1 = framework.zero1_all_reduces or reduces_for_whole_matrices(job.training)
    sharded = ((zero == 1) & stage1) | ((zero == 2) & framework.zero2_all_reduces)
    return np.asarray((zero == 0) | sharded)


def tied_gradients_s(
    job: Job, strategies: Strategies, *, word: Floats, layers: Floats, placements: StrategyPlacements
) -> tuple[NDArray[np.float64], Codes]:
    """Seconds of two small all-reduces once a step, and their tier, shape (N,) each. [C-15]

    The first and last stage of a pipeline reduce the gradients of an embedding that both hold, because it is tied to the head
    or because multi-token prediction embeds tokens on the last stage. Under sequence parallelism every tensor-parallel rank
    holds the norms' gradients for its own part of the sequence only, and these are summed.

    Args:
        job: model, cluster, types and prices.
        strategies: shape (N,), as all that follows.
        word: elements of the embedding on one rank.
        layers: decoder layers of the slowest stage.
        placements: groups of these strategies.
    """
    grad, price = BYTES_PER[job.training.grad_reduce_dtype], job.calibration.collective_s
    copied = job.model.tie_word_embeddings or job.mtp_num_layers > 0
    tied = copied & (strategies.pp > 1)
    if not (tied.any() or strategies.sequence_parallel.any()):
        return np.zeros(len(strategies)), np.zeros(len(strategies), np.int8)
    seconds, tier = np.zeros(len(strategies)), np.zeros(len(strategies), np.int8)
    if strategies.sequence_parallel.any():
        cases = combinations_of(strategies, _NORM_AXES, also=layers)
        assert cases.also is not None
        norms_s, norms_tier = kept_columns(
            job, "norms", cases.rows, _NORM_AXES, lambda *held: _norm_gradients_s(job, *held), also=[cases.also]
        )
        seconds = np.where(strategies.sequence_parallel, cases.spread(norms_s), 0.0)
        tier = np.where(strategies.sequence_parallel, cases.spread(norms_tier), tier)
    if tied.any():
        ends = price("all_reduce", word * grad, placement=placements.embedding)
        seconds = np.where(tied, ends.seconds, 0.0) + seconds
        tier = np.where(tied, ends.tier, tier).astype(np.int8)
    return seconds, tier


def _norm_gradients_s(job: Job, rows: Strategies, layers: Floats) -> Columns:
    """Seconds of all-reducing the gradients of these layers' norms among tensor-parallel ranks, and their tier, shape (U,)
    each. [C-15]
    """
    size = layers * job.model.mean_norms * job.model.hidden_size * BYTES_PER[job.training.grad_reduce_dtype]
    found = job.calibration.collective_s("all_reduce", size, placement=groups(rows, job.cluster).tp)
    return found.seconds, found.tier
