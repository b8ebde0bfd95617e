"""What context-parallel ranks exchange in one layer: keys and values where it attends, and shares of heads where it recurs. [C-11]

A recurrence needs the whole sequence in order. Megatron therefore trades a rank's share of the sequence for a share of the heads before the
convolution, and back behind the recurrence, whatever transport its attention uses (megatron/core/ssm/mamba_context_parallel.py; of delta
nets from core 0.18 on, gated_delta_net.py).
"""

from __future__ import annotations

import numpy as np

from cost_models.hardware.groups import StrategyPlacements
from cost_models.job import Job
from cost_models.layers.communication import PassSeconds, cp_comm
from cost_models.specs.model import LayerKind
from cost_models.strategies.strategy import Floats, Strategies


def layer_cp_comm(
    job: Job,
    kind: LayerKind,
    rows: Strategies,
    *,
    tokens: Floats,
    placements: StrategyPlacements,
    attention_s: tuple[Floats, Floats],
) -> PassSeconds:
    """Exposed seconds of what one layer of this kind exchanges over context-parallel ranks. [C-11]

    Args:
        job: model, cluster, training and prices.
        kind: kind of layer.
        rows: shape (U,), as all that follows.
        tokens: tokens of a micro-batch on a context-parallel rank.
        placements: groups of these rows.
        attention_s: seconds of the attention core, forward and backward.
    """
    if kind.mixer == "attention":
        return cp_comm(job, rows, tokens=tokens, placements=placements, attention_s=attention_s)
    zero = np.zeros_like(tokens)
    total = PassSeconds(zero, zero, np.zeros(len(tokens), np.int8))
    if not (rows.cp > 1).any():
        return total
    if kind.attends:
        total = cp_comm(job, rows, tokens=tokens, placements=placements, attention_s=attention_s)
    if not kind.recurs:
        return total
    swapped = _swap_s(job, rows, tokens=tokens, placements=placements)
    tier = np.maximum(total.tier, swapped.tier).astype(np.int8)
    return PassSeconds(total.forward + swapped.forward, total.backward + swapped.backward, tier)


def _swap_s(job: Job, rows: Strategies, *, tokens: Floats, placements: StrategyPlacements) -> PassSeconds:
    """Seconds of the all-to-alls around a recurrence: gate and input of all heads, B and C, step sizes, and the output back.

    Groups that are fewer than the ranks travel to each rank that has a head of theirs. Nothing runs beside these calls.
    """
    r, e = job.model.recurrent, job.training.compute_bytes
    assert r is not None
    # With fewer groups than ranks each rank needs a copy of its heads' group, and as many copies travel.
    groups = np.maximum(r.num_groups / rows.tp, rows.cp)
    each = [
        (3.0, r.inner_size / rows.tp),  # gate and input one way, the output the other
        (2.0, groups * r.state_size),
        (1.0, (r.projected_size - 2.0 * r.inner_size - 2.0 * r.group_size) / rows.tp),
    ]
    seconds, tier = np.zeros_like(tokens), np.zeros(len(tokens), np.int8)
    for calls, width in each:
        price = job.calibration.collective_s("all_to_all", tokens * width * e, placement=placements.cp)
        seconds = seconds + calls * price.seconds
        tier = np.maximum(tier, price.tier).astype(np.int8)
    # The backward sends the gradients of each tensor the other way, with the same calls.
    used = rows.cp > 1
    return PassSeconds(
        np.where(used, seconds, 0.0), np.where(used, seconds, 0.0), np.where(used, tier, 0).astype(np.int8)
    )
