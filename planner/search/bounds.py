"""Lower bounds on step time: of a base row, over all that it stands for, and of each expansion by itself.

The work and the layer communication of the slowest stage, the forward that is recomputed, and the bubble, under the split
and the listed values that make it the fastest. Nothing that depends on ZeRO, sharding or offload is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.head import end_costs
from cost_models.layer_costs import layer_costs
from cost_models.placement import world_key
from cost_models.step import jitter_fraction
from cost_models.strategy import DTYPES, Floats, Ints, Schedule, Strategies
from cost_models.tensors import distinct
from planner.space import Pairs, Space

BOUND_AXES = ("tp", "pp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel")
"""Base fields that the bound follows from; the number of micro-batches multiplies it."""
LAYER_KNOBS = ("cp_comm", "moe_dispatcher", "overlap_tp_comm", "overlap_moe_all_to_all")
"""Knobs that a layer's own time depends on: the fastest of their listed values counts."""
BUBBLES = frozenset({Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE})
"""Schedules whose bubble is at least the other stages' time over the virtual stages."""
_ROWS_AT_ONCE = 1 << 15


@dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds of base rows, shape (N,)."""

    micro_batches: Floats
    once: Floats
    """Seconds per micro-batch of the slowest stage that every expansion has; all seconds with the jitter of its GPUs."""
    again: Floats
    """Seconds to recompute the cheapest layer once."""
    others: Floats
    """Seconds per micro-batch of all other stages together: the bubble is that over the virtual stages."""
    most_vpp: Floats

    @property
    def step_s(self) -> Floats:
        """Seconds that no expansion can beat."""
        return np.asarray(self.micro_batches * self.once + self.others / self.most_vpp)

    def paired_s(self, space: Space, pairs: Pairs) -> Floats:
        """Seconds that each pair itself cannot beat: its own recomputation and virtual stages count."""
        origin, options = pairs.origin, space.options
        each = (self.micro_batches * self.again)[origin] * options["again_layers"][pairs.option]
        bubble = self.others[origin] / options["vpp"][pairs.option]
        return np.asarray((self.micro_batches * self.once)[origin] + each + bubble)

    def take(self, index: Ints | NDArray[np.bool_]) -> Bounds:
        """The bounds at these positions, or where the mask holds."""
        return Bounds(
            self.micro_batches[index], self.once[index], self.again[index], self.others[index], self.most_vpp[index]
        )


def build_bounds(space: Space, base: Strategies) -> Bounds:
    """Bounds of these base rows; the number of replicas only multiplies the work, unless groups straddle nodes."""
    cases = distinct(base, BOUND_AXES, also=world_key(base, space.job.cluster))
    slower = 1.0 + jitter_fraction(space.job, base)
    once, again, others = cases.spread(_parts(space, cases.rows)) * slower
    return Bounds(base.num_micro_batches, once, again, others, space.most_vpp[base.pp.astype(np.int64)])


def _parts(space: Space, rows: Strategies) -> Floats:
    """`once`, `again` and `others` of each row, shape (3, N)."""
    parts = np.empty((3, len(rows)))
    kinds = space.job.model.distinct_kinds
    counts_J = np.array([float(space.job.model.layer_kinds.count(kind)) for kind in kinds])
    has_bubble = BUBBLES.issuperset(space.knobs.get("schedule", ()))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = np.arange(start, min(start + _ROWS_AT_ONCE, len(rows)))
        some = rows.take(part)
        each_JN, again_JN = _fastest_layers(space, some)
        ends = end_costs(space.job, some)
        first = ends.cases.spread(ends.embedding + ends.embedding_comm)
        last = ends.cases.spread(ends.head + ends.loss + ends.head_comm)
        once = _slowest_stage_s(space, some, each_JN, first=first, last=last)
        parts[0, part] = once
        parts[1, part] = again_JN.min(axis=0)
        parts[2, part] = np.maximum(counts_J @ each_JN + first + last - once, 0.0) if has_bubble else 0.0
    return parts


def _fastest_layers(space: Space, rows: Strategies) -> tuple[Floats, Floats]:
    """Least seconds of one layer of each kind, and of its repeated forward, over the knobs' values; (J, N) each."""
    knobs = {name: values for name, values in space.knobs.items() if name in LAYER_KNOBS}
    each, again = [], []
    for values in product(*knobs.values()):
        chosen = dict(zip(knobs, values, strict=True))
        columns: dict[str, Any] = {name: np.full(len(rows), value, DTYPES[name]) for name, value in chosen.items()}
        layers = layer_costs(space.job, replace(rows, **columns))
        each.append(layers.cases.spread(layers.parts_JPU.sum(axis=1)))
        again.append(layers.cases.spread(layers.compute_forward_JU))
    return np.min(each, axis=0), np.min(again, axis=0)


def _slowest_stage_s(space: Space, rows: Strategies, each_JN: Floats, *, first: Floats, last: Floats) -> Floats:
    """The slowest stage's seconds per micro-batch under the split that makes it the fastest, shape (N,)."""
    layouts, least = space.layouts, np.full(len(rows), np.inf)
    for pp, splits in space.different_splits.items():
        here = np.flatnonzero(rows.pp == pp)
        for _, layout in splits if len(here) else ():
            stage_KN = layouts.layers_LKJ[layout] @ each_JN[:, here]
            stage_KN += np.outer(layouts.has_embedding_LK[layout], first[here])
            stage_KN += np.outer(layouts.has_head_LK[layout], last[here])
            least[here] = np.minimum(least[here], stage_KN.max(axis=0))
    return least
