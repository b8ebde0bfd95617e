"""How many layers a strategy recomputes: per stage slot, and over the whole pipeline.

`full` recomputes every layer of a stage (`every`, `uniform`) or the first `recompute_num_layers` of each model chunk
(`block`); `recompute_per_stage` fixes the count of each stage. `selective` repeats parts of every layer and is priced by
the layer costs.
"""

from __future__ import annotations

import numpy as np

from cost_models.strategy import Floats, Recompute, RecomputeMethod, Strategies
from cost_models.tensors import distinct


def recomputed_layers_by_slot(strategies: Strategies) -> Floats:
    """Fully recomputed layers of each slot's stage, shape (K, N)."""
    layouts, layout = strategies.layouts, strategies.layout
    held_KN = layouts.layers_LKJ.sum(axis=2)[layout].T
    block = strategies.recompute_method == RecomputeMethod.BLOCK
    limit = np.where(block, strategies.recompute_num_layers * strategies.vpp, np.inf)
    count_KN = np.where(strategies.recompute == Recompute.FULL, np.minimum(held_KN, limit), 0.0)
    if (layouts.recompute_layers_LK >= 0).any():
        fixed_KN = layouts.recompute_layers_LK[layout].T
        count_KN = np.where(fixed_KN >= 0, np.minimum(fixed_KN, held_KN), count_KN)
    return np.asarray(count_KN, dtype=np.float64)


def recomputed_layers(strategies: Strategies) -> Floats:
    """Fully recomputed layers over all stages, shape (N,)."""
    cases = distinct(strategies, ("layout", "vpp", "recompute", "recompute_method", "recompute_num_layers"))
    rows = cases.rows
    held_US = rows.layouts.held_LS[rows.layout]
    fixed_US = rows.layouts.recompute_limit_LS[rows.layout]
    block = rows.recompute_method == RecomputeMethod.BLOCK
    limit = np.where(block, rows.recompute_num_layers * rows.vpp, np.inf)
    limit = np.where(rows.recompute == Recompute.FULL, limit, 0.0)
    limit_US = np.where(np.isfinite(fixed_US), fixed_US, limit[:, None])
    return np.asarray(cases.spread(np.minimum(held_US, limit_US).sum(axis=1)), dtype=np.float64)


def recomputed_shares(strategies: Strategies) -> Floats:
    """Share of the model's decoder layers that are fully recomputed, 0...1, shape (N,)."""
    total = strategies.layouts.held_LS.sum(axis=1)[strategies.layout]
    return np.asarray(recomputed_layers(strategies) / np.maximum(total, 1.0))
