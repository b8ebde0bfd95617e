"""How Megatron's layer-wise optimizer packs whole matrices into the buckets that it reduces beside the backward. [M-52]

Every bucket is as many equal parts as ranks, each as long as its fullest one. Few large matrices in a bucket therefore pad it, and the
rank that is fullest in one bucket is so in the others, too.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heapreplace

import numpy as np

from cost_models.frameworks.optimizers import muon_facts
from cost_models.job import Job
from cost_models.layers.weight_matrices import StageMatrices, stage_matrices
from cost_models.strategies.strategy import Floats, Strategies

LEAST_BUCKET, BUCKET_OF_RANK = 40e6, 1e6
"""Elements from which a bucket is closed: the larger of both, the second for each rank (distributed_data_parallel.py)."""
_FILLED = 0.9
"""A bucket is left open until its largest matrix on every rank would be filled so far (layer_wise_optimizer.py, PADDING_FLOOR)."""
BUCKET_AXES = ("tp", "ep", "etp", "layout", "dp", "cp", "zero", "zero_shard_size", "overlap_grad_reduce")
"""What the contents of buckets depend on."""


@lru_cache(maxsize=1 << 14)
def buckets(
    sizes: tuple[float, ...], counts: tuple[int, ...], layers: int, ranks: int, least: float
) -> dict[tuple[int, ...], int]:
    """How many matrices of each size a bucket holds, and how many buckets hold just these.

    Args:
        sizes: elements of the matrices.
        counts: how many a stage has of each.
        layers: over which they are spread evenly; within one they stand in the order given.
        ranks: that share them.
        least: elements from which a bucket may be closed.
    """
    layer = np.concatenate([np.arange(count) * layers // max(count, 1) for count in counts])
    which = np.repeat(np.arange(len(counts)), counts)[np.argsort(layer, kind="stable")]
    each = np.array(sizes)[which]
    ends = np.concatenate([[0.0], np.cumsum(each)])
    most = max(least, _FILLED * ranks * float(each.max()))
    period, start = len(each) // layers if not any(count % layers for count in counts) else len(each), 0
    found: dict[tuple[int, ...], int] = {}
    known: dict[int, tuple[int, tuple[int, ...]]] = {}
    while start < len(each):
        held = known.get(start % period)
        if held is None or start + held[0] > len(each):
            last = min(int(np.searchsorted(ends, ends[start] + most)), len(each))
            within = slice(start, last)
            limits = np.maximum(least, _FILLED * ranks * np.maximum.accumulate(each[within]))
            full = np.flatnonzero(ends[start + 1 : last + 1] - ends[start] >= limits)
            length = int(full[0]) + 1 if len(full) else last - start
            held = length, tuple(np.bincount(which[start : start + length], minlength=len(counts)).tolist())
            if len(full):
                known[start % period] = held
        found[held[1]] = found.get(held[1], 0) + 1
        start += held[0]
    return found


def fullest_of(
    job: Job, held: StageMatrices, weights: list[Floats], rows: Strategies, *, shards: Floats, is_expert: bool
) -> Floats:
    """Weight of the matrices on the fullest of the ranks that share them, by how the job's framework packs them, shape (K, N)."""
    facts = muon_facts(job.training)
    if facts.holds(facts.padded_since, job.training.framework_version):
        return fullest_in_buckets(held, weights, rows, shards=shards, is_expert=is_expert)
    return held.fullest(weights, shards=shards, is_expert=is_expert)


def pads_buffers(job: Job) -> bool:
    """Whether gradients and parameters lie in buffers that are padded so that each rank owns whole matrices of them."""
    facts = muon_facts(job.training)
    owns = job.training.optimizer in ("muon", "lion")
    return owns and facts.holds(facts.padded_since, job.training.framework_version)


def padding(job: Job, rows: Strategies) -> tuple[Floats, Floats]:
    """Elements by which the buffers of dense matrices, and of experts', are longer than these, shape (K, N) each. [M-52]

    Args:
        job: one that `pads_buffers`.
        rows: mostly one for each combination of `BUCKET_AXES`.
    """
    held = stage_matrices(job, rows)
    elements = [each.elements for each in held.kinds]
    found = []
    for is_expert, ranks in ((False, rows.zero_shard_size), (True, rows.expert_shard_size)):
        shards = np.where(rows.zero == 1, ranks, 1.0)
        owned_KN = fullest_of(job, held, elements, rows, shards=shards, is_expert=is_expert)
        whole_KN = held.total([each.elements * (each.is_expert == is_expert) for each in held.kinds])
        found.append(np.where(shards > 1, np.maximum(owned_KN * shards - whole_KN, 0.0), 0.0))
    return found[0], found[1]


def fullest_in_buckets(
    held: StageMatrices, weights: list[Floats], rows: Strategies, *, shards: Floats, is_expert: bool
) -> Floats:
    """What `StageMatrices.fullest` says where gradients are reduced in buckets, the whole elsewhere, shape (K, N). [M-52]

    Args:
        held: matrices of every slot's stage.
        weights: what one matrix of each kind counts.
        rows: strategies; mostly one for each combination of `BUCKET_AXES`, since each is packed by itself.
        shards: ranks that share the matrices, shape (N,).
        is_expert: whether experts' matrices are meant, or all others.
    """
    whole_KN = held.fullest(weights, shards=shards, is_expert=is_expert)
    # From the last one on, as the backward makes their gradients; those of one tensor together.
    kinds: list[list[int]] = []
    for index, each in enumerate(held.kinds):
        if each.is_expert != is_expert:
            continue
        if each.joined and kinds:
            kinds[-1].append(index)
        else:
            kinds.append([index])
    kinds.reverse()
    packed = np.flatnonzero(rows.overlap_grad_reduce & (shards > 1))
    if not kinds or not len(packed):
        return whole_KN
    found_KN = np.array(np.broadcast_to(whole_KN, held.counts[kinds[0][0]].shape))
    dense_ranks = rows.dp_cp
    layers_KN = np.sum([np.take(table, rows.layout, axis=-1) for table in rows.layouts.slot_layers], axis=0)
    for n in packed.tolist():
        least = max(LEAST_BUCKET, BUCKET_OF_RANK * float(dense_ranks[n]))
        sizes = tuple(sum(float(held.kinds[i].elements[n]) for i in each) for each in kinds)
        weighed = np.array(
            [sum(float(np.broadcast_to(weights[i], dense_ranks.shape)[n]) for i in each) for each in kinds]
        )
        for k in range(len(found_KN)):
            counts = tuple(round(float(held.counts[each[0]][k, n])) for each in kinds)
            if any(counts):
                of_ranks = int(shards[n])
                found_KN[k, n] = 0.0
                for contents, times in buckets(sizes, counts, int(layers_KN[k, n]), of_ranks, least).items():
                    found_KN[k, n] += times * float(weighed @ np.array(fullest_rank(sizes, contents, of_ranks)))
    return found_KN


@lru_cache(maxsize=1 << 14)
def fullest_rank(sizes: tuple[float, ...], contents: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """How many matrices of each size the fullest rank gets of a bucket: the largest first, each to the rank with the least so far."""
    loads = [(0.0, rank) for rank in range(ranks)]
    held = np.zeros((ranks, len(sizes)), np.int64)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        for _ in range(contents[index]):
            load, rank = loads[0]
            held[rank, index] += 1
            heapreplace(loads, (load + sizes[index], rank))
    return tuple(held[max(loads)[1]].tolist())
