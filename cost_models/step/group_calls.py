"""The largest collectives of every group of ranks, with their bytes: what an answer tells an algorithm of.           [C-23]

The step prices more calls than these (of each layer, of norms, of the embedding); they run over the same groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.hardware.groups import StrategyPlacements, groups
from cost_models.hardware.placement import Placement
from cost_models.job import Job
from cost_models.layers.communication import exchanged_bytes
from cost_models.operations import Op
from cost_models.specs.training import BYTES_PER
from cost_models.step.ddp_comm import reduces_whole
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.step.overlap_conditions import weights_of
from cost_models.strategies.fields import CpComm, MoeDispatcher
from cost_models.strategies.strategy import Bools, Floats, Strategies


@dataclass(frozen=True, slots=True)
class GroupCall:
    """One kind of call of one group, for the strategies that make it."""

    group: str
    op: Op
    rows: NDArray[np.int64]
    """Positions of these strategies in the batch, shape (U,)."""
    placement: Placement
    """Shape (U,)."""
    size_bytes: Floats
    """As nccl-tests count them, shape (U,)."""


def group_calls(job: Job, strategies: Strategies) -> Iterator[GroupCall]:
    """Calls of the tensor, context, expert, data and pipeline parallel groups that any strategy of the batch makes."""
    # Placements are computed for groups alone that some strategy has: most have two or three of the six.
    asked = _Asked(groups(strategies, job.cluster))
    tokens = strategies.rank_tokens(job.training.seq_length)
    activations = tokens * job.model.hidden_size * job.training.compute_bytes
    yield from _tensor(strategies, asked, activations)
    if (strategies.cp > 1).any():
        yield from _context(job, strategies, asked, tokens)
    if job.model.moe is not None and (strategies.ep > 1).any():
        yield from _experts(job, strategies, asked, activations)
    if (strategies.dp_cp > 1).any():
        yield from _data(job, strategies, asked)
    yield from asked.calls("pp", "pp", {"send_recv": strategies.pp > 1}, activations / strategies.tp)


@dataclass(frozen=True, slots=True)
class _Asked:
    placements: StrategyPlacements

    def calls(self, group: str, placed: str, ops: Mapping[Op, Bools], size: Floats) -> Iterator[GroupCall]:
        """The calls of the operations that any strategy makes, by the name of their placement; it is computed only for these."""
        for op, applies in ops.items():
            rows = np.flatnonzero(applies)
            if len(rows):
                placement: Placement = getattr(self.placements, placed)
                yield GroupCall(group, op, rows, placement.take(rows), size[rows])


def _tensor(s: Strategies, asked: _Asked, size: Floats) -> Iterator[GroupCall]:
    is_split = s.tp > 1
    in_shards = is_split & s.sequence_parallel
    ops: dict[Op, Bools] = {
        "all_reduce": is_split & ~s.sequence_parallel, "all_gather": in_shards, "reduce_scatter": in_shards,
    }  # fmt: skip
    return asked.calls("tp", "tp", ops, size)


def _context(job: Job, s: Strategies, asked: _Asked, tokens: Floats) -> Iterator[GroupCall]:
    keys, swapped = exchanged_bytes(job, s, tokens)
    is_split = s.cp > 1
    # A ring sends its neighbour the keys and values of one rank at a time, however many ranks there are.
    gathers = is_split & (s.cp_comm == CpComm.ALLGATHER)
    yield from asked.calls("cp", "cp", {"send_recv": is_split & (s.cp_comm == CpComm.P2P)}, keys)
    yield from asked.calls("cp", "cp", {"all_to_all": is_split & (s.cp_comm == CpComm.A2A)}, swapped)
    if s.uses("cp_a2a_size"):
        levels = is_split & (s.cp_comm == CpComm.A2A_P2P)
        yield from asked.calls("cp", "cp_a2a", {"all_to_all": levels}, swapped)
        yield from asked.calls("cp", "cp_ring", {"send_recv": levels}, keys)
    yield from asked.calls("cp", "cp", {"all_gather": gathers, "reduce_scatter": gathers}, keys * s.cp)


def _experts(job: Job, s: Strategies, asked: _Asked, activations: Floats) -> Iterator[GroupCall]:
    local, gathers = activations / s.tp, (s.ep > 1) & (s.moe_dispatcher == MoeDispatcher.ALLGATHER)
    # Kernels of the flex dispatcher are no collectives of the library, so that nothing is said of them.
    routed = (s.ep > 1) & (s.moe_dispatcher == MoeDispatcher.ALLTOALL)
    yield from asked.calls("ep", "ep", {"all_to_all": routed}, local * job.routed_copies)
    yield from asked.calls("ep", "ep", {"all_gather": gathers, "reduce_scatter": gathers}, local * s.ep)


def _data(job: Job, s: Strategies, asked: _Asked) -> Iterator[GroupCall]:
    """Gradients and parameters: of the whole rank, or of the largest layer where layers are gathered one by one."""
    layerwise, counts = is_fsdp(job, s), weights_of(job)
    # Buckets of a framework cut the first of the two into smaller calls; the step is priced with the whole (C-14).
    weights = np.where(layerwise, counts.largest_layer / s.tp, counts.trained / (s.tp * s.pp))
    gradients, parameters = weights * BYTES_PER[job.training.grad_reduce_dtype], weights * job.training.gather_bytes
    whole = reduces_whole(job, s) & ~layerwise
    in_shards = (s.zero_shard_size > 1) & ((s.zero >= 1) | layerwise)
    yield from asked.calls("dp", "dp_cp", {"all_reduce": (s.dp_cp > 1) & whole}, gradients)
    yield from asked.calls("dp", "zero_shard", {"reduce_scatter": in_shards & ~whole}, gradients)
    yield from asked.calls("dp", "zero_shard", {"all_gather": in_shards}, parameters)
    # Ranks that hold the same shard add up what their shard groups have reduced.
    copies = (s.dp_cp > s.zero_shard_size) & ~whole
    yield from asked.calls("dp_replicas", "zero_replica", {"all_reduce": copies}, gradients / s.zero_shard_size)
