"""Lower bounds on step time: of a base row, over all that it stands for, and of each expansion by itself.

The work and the layer communication of the slowest stage, the forward that is recomputed, and the bubble. Nothing that depends
on ZeRO, sharding or offload is counted, nor what a listed knob can change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.stages import stages
from cost_models.strategy import Floats, Ints, Strategies
from cost_models.tensors import distinct
from planner.space import Pairs, Space

BOUND_AXES = ("tp", "pp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel")
"""Base fields that the bound follows from; the number of micro-batches multiplies it."""
BOUND_TERMS = (
    "gemm", "attention", "elementwise", "launch", "embedding", "head", "loss", "tp_comm", "cp_comm", "ep_comm",
)  # fmt: skip
"""Terms that no expansion of a base row can lower."""
CHANGED_BY_KNOB = {
    "overlap_tp_comm": "tp_comm", "cp_comm": "cp_comm", "moe_dispatcher": "ep_comm", "overlap_moe_all_to_all": "ep_comm",
    "schedule": "pp_bubble",
}  # fmt: skip
"""Terms that a knob with several values could lower, which are then left out."""
_ROWS_AT_ONCE = 1 << 15


@dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds of base rows, shape (N,)."""

    micro_batches: Floats
    once: Floats
    """Seconds per micro-batch of the slowest stage that every expansion has."""
    again: Floats
    """Seconds to recompute the cheapest layer once."""
    bubble: Floats
    """Seconds of a step, with the most virtual stages."""
    most_vpp: Floats

    @property
    def step_s(self) -> Floats:
        """Seconds that no expansion can beat."""
        return np.asarray(self.micro_batches * self.once + self.bubble)

    def paired_s(self, space: Space, pairs: Pairs) -> Floats:
        """Seconds that each pair itself cannot beat: its own recomputation and virtual stages count."""
        origin, options = pairs.origin, space.options
        each = (self.micro_batches * self.again)[origin] * options["again_layers"][pairs.option]
        bubble = (self.bubble * self.most_vpp)[origin] / options["vpp"][pairs.option]
        return np.asarray((self.micro_batches * self.once)[origin] + each + bubble)

    def take(self, index: Ints | NDArray[np.bool_]) -> Bounds:
        """The bounds at these positions, or where the mask holds."""
        return Bounds(
            self.micro_batches[index], self.once[index], self.again[index], self.bubble[index], self.most_vpp[index]
        )


def build_bounds(space: Space, base: Strategies) -> Bounds:
    """Bounds of these base rows.

    The number of replicas only multiplies the work, unless a group straddles nodes irregularly: those rows are computed one
    by one, the others once per distinct combination.
    """
    node = float(space.job.cluster.gpus_per_node)
    regular = np.ones(len(base), np.bool_)
    for extent in (base.tp, base.tp * base.cp, base.etp * base.ep):
        regular &= (np.fmod(node, extent) == 0) | (np.fmod(extent, node) == 0)
    parts = np.zeros((3, len(base)))
    if regular.any():
        cases = distinct(base.take(regular), BOUND_AXES)
        parts[:, regular] = cases.spread(_parts(space, cases.rows))
    if not regular.all():
        parts[:, ~regular] = _parts(space, base.take(~regular))
    once, again, bubble = parts
    return Bounds(base.num_micro_batches, once, again, bubble, base.vpp)


def _parts(space: Space, rows: Strategies) -> Floats:
    """`once`, `again` and `bubble` of each row, shape (3, N)."""
    parts = np.empty((3, len(rows)))
    changed = {
        CHANGED_BY_KNOB[name] for name, values in space.knobs.items() if name in CHANGED_BY_KNOB and len(values) > 1
    }
    counted = [name for name in BOUND_TERMS if name not in changed]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = np.arange(start, min(start + _ROWS_AT_ONCE, len(rows)))
        some = rows.take(part)
        work = stages(space.job, some)
        terms, layers = work.terms_s, work.layers
        parts[0, part] = np.sum([terms[name] for name in counted], axis=0) / some.num_micro_batches
        parts[1, part] = layers.cases.spread(layers.compute_forward_JU.min(axis=0))
        parts[2, part] = 0.0 if "pp_bubble" in changed else terms["pp_bubble"]
    return parts
