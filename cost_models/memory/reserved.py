"""From allocated to reserved and device bytes: the caching allocator, the CUDA context, the communicators. [M-13] [M-14]"""

from __future__ import annotations

import numpy as np

from cost_models.job import Job
from cost_models.memory.constants import (
    ALLOCATOR_SLACK,
    COMMUNICATOR_BYTES,
    CUDA_CONTEXT_BYTES,
    P2P_NEIGHBOUR_BYTES,
    PROCESS_2022_BYTES,
)
from cost_models.memory.expert_buffers import flex_buffer_bytes
from cost_models.memory.loss import loss_bytes
from cost_models.memory.moments import Moments
from cost_models.strategies.strategy import Bools, Floats

_OLD_NCCL_UNTIL = "2023-01"
"""Of stacks before this date only the sum of context and communicators is known, from readings of 2022."""


def reserved_bytes(found: Moments, *, allocated_KN: Floats, at_loss_KN: Bools) -> Floats:
    """Bytes that the caching allocator holds when a slot's allocated bytes peak, shape (K, N). [M-13]

    Where gathers and reductions run on streams of their own, blocks that one stream frees are never lent to another. Three things
    then add to the peak: the pool of gradient shards, that of the ends' gathered parameters, and the hole that freed logits
    leave. Elsewhere a ratio per framework stands for fragmentation.

    Args:
        found: terms and totals of the batch.
        allocated_KN: bytes at each slot's peak moment.
        at_loss_KN: whether that moment is the loss.
    """
    batch, traits, strategies = found.batch, found.batch.traits, found.batch.strategies
    factor = np.where(strategies.tp > 1, traits.reserved_factor_tp, traits.reserved_factor)
    base_KN = allocated_KN * factor
    if not traits.pooled_gathers:
        return base_KN + np.where(strategies.zero >= 3, traits.reserved_zero3_bytes, 0.0)
    w = batch.job.training.compute_bytes
    base_KN = base_KN + np.where(at_loss_KN, largest_hole_bytes(found), 0.0)
    sharded = strategies.zero >= 2
    if not bool(sharded.any()):
        return base_KN
    embedding_KN, head_KN = batch.end_words
    shards_KN = found.states.bytes_KN.gradients - found.states.early_gradients_KN
    return base_KN + np.where(sharded, shards_KN + w * (embedding_KN + head_KN), 0.0)


def largest_hole_bytes(found: Moments) -> Floats:
    """Bytes of the hole that freed logits leave where the loss is the peak, shape (N,). [M-13]"""
    batch, traits, strategies = found.batch, found.batch.traits, found.batch.strategies
    w = batch.job.training.compute_bytes
    if not traits.pooled_gathers or w >= 4.0:  # fp32 logits are freed whole; narrower ones split what their copies need
        return np.zeros(len(strategies))
    chunks = loss_bytes(batch.job, traits).chunks
    # A pipeline's schedule keeps one copy of the logits as its stage's output, so that a second block of their size
    # was needed.
    kept = (strategies.pp > 1) & traits.buffers_pipeline_inputs & (chunks == 1)
    return np.asarray(np.where(kept, 2.0, 1.0) * w * batch.table.logit / chunks)


def process_bytes(found: Moments) -> Floats:
    """Bytes of the process's context and communication buffers, shape (K, N). [M-14]

    A communicator counts when its group has two members or more and is really used. A group that spans all ranks is the default
    one where the framework builds its groups as a mesh. What a calibration measured replaces the constants.
    """
    batch, strategies, stages = found.batch, found.batch.strategies, found.batch.stages
    world = strategies.world
    several = (world > 1).astype(np.float64)
    facts = _facts(batch.job)
    # A single GPU needs no communicator, so it pays only for the context.
    if facts is None and batch.job.training.software_date < _OLD_NCCL_UNTIL:
        context = CUDA_CONTEXT_BYTES.value
        return np.asarray(context + (PROCESS_2022_BYTES.value - context) * several + np.zeros_like(stages.total_KN))
    groups = [strategies.tp, strategies.dp_cp, strategies.cp]
    if strategies.uses("cp_a2a_size"):  # attention then communicates in two groups, and in the whole one no more
        both = strategies.cp_a2a_size > 1
        ring = np.where(both, strategies.cp / strategies.cp_a2a_size, 1.0)
        groups[2:] = [np.where(both, strategies.cp_a2a_size, strategies.cp), ring]
    if batch.job.model.moe is not None:
        groups += [strategies.ep * strategies.etp, np.where(strategies.ep > 1, strategies.expert_dp, 1.0)]
    count = several
    if batch.traits.norm_group:  # over the ranks that share the optimizer's state, else over one model replica
        groups.append(np.where(strategies.zero >= 1, world, strategies.tp * strategies.pp))
    for size in groups:
        count = count + ((size > 1) & (size < world) if batch.traits.reuses_world_group else size > 1)
    neighbours_KN = (stages.stage_KN > 0) * 1.0 + (stages.stage_KN < strategies.pp - 1)
    ring = (strategies.vpp > 1) & (strategies.pp > 2)  # with virtual stages the last stage sends to the first
    neighbours_KN = np.where(ring, 2.0, neighbours_KN)
    context, communicator, neighbour = (
        nominal.value if fact is None else fact
        for fact, nominal in zip(facts or _NOTHING, _PROCESS_CONSTANTS, strict=True)
    )
    own = flex_buffer_bytes(batch.job, strategies)
    return np.asarray(context + communicator * count + neighbour * neighbours_KN + own)


_PROCESS_CONSTANTS = (CUDA_CONTEXT_BYTES, COMMUNICATOR_BYTES, P2P_NEIGHBOUR_BYTES)
_NOTHING = (None, None, None)


def _facts(job: Job) -> tuple[float | None, float | None, float | None] | None:
    """Bytes of context, of a communicator and of a neighbour, each where the user's own machine measured it; None if none
    was.
    """
    document = job.calibration.compute
    if document is None or document.kind != "measured":
        return None
    own = document.memory.context_bytes, document.memory.communicator_bytes, document.memory.p2p_neighbour_bytes
    return None if own == _NOTHING else own


def slack_bytes(found: Moments) -> Floats:
    """Bytes that the caching allocator may hold beyond the usual because sizes change between steps, shape (K, N). [M-13]

    Experts without a capacity receive another number of rows in every step, so that freed blocks rarely fit what comes next.
    Expandable segments join neighbouring free blocks of any size and hold no more than equal steps would.
    """
    job, sizes = found.batch.job, found.terms["layer_backward"]
    moe = job.model.moe
    if moe is None or moe.capacity_factor is not None or job.training.expandable_segments:
        return np.zeros(found.batch.stages.total_KN.shape)
    document = job.calibration.compute
    measured = None if document is None else document.memory.allocator_slack_fraction
    share = ALLOCATOR_SLACK.value if measured is None else measured
    return np.asarray(share * (sizes["activations"] + sizes["layer_transient"]))
