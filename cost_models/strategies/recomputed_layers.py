"""How many layers a strategy recomputes: per stage slot, and over the whole pipeline. [F-8]

`full` recomputes every layer of a stage (`every`, `uniform`) or the first `recompute_num_layers` of each model chunk (`block`);
`recompute_per_stage` fixes the number for each stage. `selective` repeats parts of every layer and is priced with the layers.
"""

from __future__ import annotations

import numpy as np

from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from cost_models.strategies.tensors import combinations_of


def recomputed_layers_by_slot(strategies: Strategies) -> Floats:
    """Number of fully recomputed layers of each slot's stage, shape (K, N)."""
    layouts, layout = strategies.layouts, strategies.layout
    held_KN, full = np.take(layouts.slot_totals, layout, axis=-1), strategies.recompute == Recompute.FULL
    count_KN = np.where(full, np.minimum(held_KN, _limit(strategies)), 0.0)
    some = np.flatnonzero(_blocks_of_uneven_chunks(strategies))
    if len(some):
        stages = layouts.slot_stage_LK[layout[some]]
        count_KN[:, some] = _blocks(strategies.take(some), stages).T
    if layouts.fixes_recomputation:
        fixed_KN = layouts.recompute_layers_LK[layout].T
        count_KN = np.where(fixed_KN >= 0, np.minimum(fixed_KN, held_KN), count_KN)
    return count_KN


def recomputed_layers(strategies: Strategies) -> Floats:
    """Number of fully recomputed layers over all stages, shape (N,)."""
    cases = combinations_of(strategies, ("layout", "vpp", "recompute", "recompute_method", "recompute_num_layers"))
    rows = cases.rows
    held_US, full = rows.layouts.held_LS[rows.layout], rows.recompute == Recompute.FULL
    # Counted per stage and then summed, since a limit per chunk applies to every stage by itself.
    count_US = np.where(full[:, None], np.minimum(held_US, _limit(rows)[:, None]), 0.0)
    some = np.flatnonzero(_blocks_of_uneven_chunks(rows))
    if len(some):
        every = np.arange(count_US.shape[1])
        count_US[some] = _blocks(rows.take(some), np.broadcast_to(every, (len(some), len(every))))
    fixed_US = rows.layouts.recompute_limit_LS[rows.layout]
    count_US = np.where(np.isfinite(fixed_US), np.minimum(held_US, fixed_US), count_US)
    return np.asarray(cases.spread(count_US.sum(axis=1)), dtype=np.float64)


def _limit(strategies: Strategies) -> Floats:
    """Most layers of a stage that are repeated where its chunks are alike, shape (N,)."""
    # Megatron's block method counts layers in each model chunk, of which a stage has vpp.
    block = strategies.recompute_method == RecomputeMethod.BLOCK
    return np.where(block, strategies.recompute_num_layers * strategies.vpp, np.inf)


def _blocks_of_uneven_chunks(strategies: Strategies) -> Bools:
    """Whether `block` meets chunks that differ, so that a chunk may hold fewer layers than the block, shape (N,)."""
    block = (strategies.recompute == Recompute.FULL) & (strategies.recompute_method == RecomputeMethod.BLOCK)
    return np.asarray(block & strategies.layouts.has_uneven_chunks[strategies.layout])


def _blocks(strategies: Strategies, stages: Ints) -> Floats:
    """Layers within the first `recompute_num_layers` of their chunk on these stages of each strategy, in the shape of `stages`;
    none on stages that there are not.
    """
    found = np.zeros(stages.shape)
    for layout in np.unique(strategies.layout).tolist():
        here = np.flatnonzero(strategies.layout == layout)
        counts, which = np.unique(strategies.recompute_num_layers[here], return_inverse=True)
        held = np.minimum(strategies.layouts.chunks(layout), counts[:, None, None]).sum(axis=1)
        held = np.pad(held, ((0, 0), (0, max(0, int(stages[here].max()) + 1 - held.shape[1]))))
        found[here] = held[which.reshape(-1)[:, None], stages[here]]
    return found


def recomputed_shares_by_chunk(strategies: Strategies, held_VN: Floats) -> Floats:
    """Share of every virtual stage's layers, of which it holds `held_VN`, that are fully recomputed, 0...1, shape (V, N).

    All strategies must have the same stages and chunks.
    """
    full = strategies.recompute == Recompute.FULL
    block = full & (strategies.recompute_method == RecomputeMethod.BLOCK)
    limit = np.where(block, strategies.recompute_num_layers, np.inf)
    share_VN = full * np.minimum(held_VN, limit) / np.maximum(held_VN, 1.0)
    # What is fixed for a stage may lie in any of its chunks; each is given its share.
    stage_V = np.arange(len(held_VN)) % int(strategies.pp[0])
    limit_VN = strategies.layouts.recompute_limit_LS[strategies.layout].T[stage_V]
    stage_VN = strategies.layouts.held_LS[strategies.layout].T[stage_V]
    fixed_VN = np.minimum(limit_VN, stage_VN) / np.maximum(stage_VN, 1.0)
    return np.where(np.isfinite(limit_VN), fixed_VN, share_VN)


def recomputed_shares(strategies: Strategies) -> Floats:
    """Share of the model's decoder layers that are fully recomputed, 0...1, shape (N,)."""
    total = strategies.layouts.held_LS.sum(axis=1)[strategies.layout]
    return np.asarray(recomputed_layers(strategies) / np.maximum(total, 1.0))


def recomputed_mtp_share(strategies: Strategies) -> Floats:
    """Share of a multi-token-prediction module's layer that is fully recomputed, 0 or 1, shape (N,).

    The block method leaves it out. Source: Megatron Core's transformer/multi_token_prediction.py (_checkpointed_forward).
    """
    full = strategies.recompute == Recompute.FULL
    return np.where(full & (strategies.recompute_method != RecomputeMethod.BLOCK), 1.0, 0.0)
