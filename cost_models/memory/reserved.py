"""From allocated to reserved and device bytes: the allocator's cache, the context, the communicators, and the spread."""

from __future__ import annotations

import numpy as np

from cost_models.job import Job
from cost_models.memory.constants import constant
from cost_models.memory.in_flight import StageContents
from cost_models.memory.moments import Moments
from cost_models.memory.traits import MemoryTraits
from cost_models.strategy import Bools, Floats, Strategies

_OLD_NCCL_GENERATIONS = ("volta", "ampere")


def reserved_KN(job: Job, strategies: Strategies, found: Moments, *, allocated_KN: Floats, at_loss_KN: Bools) -> Floats:
    """Bytes the caching allocator holds when a slot's allocated bytes peak, shape (K, N). [M-13]

    Where gathers and reductions run on streams of their own, freed blocks of one stream's pool are never lent to another:
    the pools of gradient shards and of the ends' gathered parameters, and the hole that freed logits leave, add to the
    peak. Elsewhere a ratio per framework stands for fragmentation.
    """
    traits, table, stages = found.traits, found.table, found.stages
    factor = np.where(strategies.tp > 1, traits.reserved_factor_tp, traits.reserved_factor)
    if not traits.pooled_gathers:
        return allocated_KN * factor + np.where(strategies.zero >= 3, traits.reserved_zero3_bytes, 0.0)
    w = job.training.compute_bytes
    base_KN = allocated_KN * factor
    if w < 4.0:
        holes = np.where((strategies.pp > 1) & traits.buffers_pipeline_inputs, 2.0, 1.0) * w * table.logit
        base_KN = base_KN + np.where(at_loss_KN, holes, 0.0)
    sharded = strategies.zero >= 2
    if not bool(sharded.any()):
        return base_KN
    shards_KN = found.states.gradients_KN - found.states.early_gradients_KN
    ends_KN = np.where(stages.first_KN, table.word, 0.0) + np.where(stages.head_KN, table.word, 0.0)
    return base_KN + np.where(sharded, shards_KN + w * ends_KN, 0.0)


def process_bytes_KN(job: Job, strategies: Strategies, traits: MemoryTraits, stages: StageContents) -> Floats:
    """Context and communication buffers of the process, shape (K, N). [M-14]

    A communicator counts when its group has two members or more and is really used; a group that spans all ranks is the
    default one where the framework builds its groups as a mesh.
    """
    if job.cluster.gpu.generation in _OLD_NCCL_GENERATIONS:
        return np.where(strategies.world > 1, constant("ampere_context"), constant("cuda_context")) + 0.0 * stages.total_KN
    world = strategies.world
    groups = [strategies.tp, strategies.dp_cp, np.where(strategies.cp > 1, strategies.cp, 1.0)]
    if job.model.moe is not None:
        groups.append(strategies.ep * strategies.etp)
        groups.append(np.where(strategies.ep > 1, strategies.expert_dp, 1.0))
    count = (world > 1).astype(np.float64)
    for size in groups:
        own = (size > 1) & (size < world) if traits.reuses_world_group else size > 1
        count += own
    if traits.norm_group:
        count += world > 1
    neighbours_KN = (stages.stage_KN > 0) * 1.0 + (stages.stage_KN < strategies.pp - 1)
    wrap = (strategies.vpp > 1) & (strategies.pp > 2)
    neighbours_KN = np.where(wrap, 2.0, neighbours_KN)
    communicators = constant("cuda_context") + constant("communicator") * count
    return np.asarray(communicators + constant("p2p_neighbour") * neighbours_KN)
